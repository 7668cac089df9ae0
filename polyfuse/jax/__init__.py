"""Operators for JAX: `pf.jax.op`.

::

    softmax = pf.jax.op(pf.stdlib.softmax)
    y = jax.jit(lambda x: softmax(2 * x))(x)
"""

from __future__ import annotations

from polyfuse.jax.operators import JaxOperator, op

__all__ = ["JaxOperator", "op"]

"""Operators in models of PyTorch: `pf.torch.op`.

layer_norm = pf.torch.op(pf.stdlib.layer_norm)
y = layer_norm(x, model.gamma, model.beta)
"""

from __future__ import annotations

from polyfuse.torch.operators import TorchOperator, op

__all__ = ["TorchOperator", "op"]

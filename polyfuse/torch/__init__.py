"""Operators in models of PyTorch, `pf.torch.op`, and what became of a model with `backend="polyfuse"`.

::

    layer_norm = pf.torch.op(pf.stdlib.layer_norm)
    y = layer_norm(x, model.gamma, model.beta)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from polyfuse.torch.operators import TorchOperator, op

if TYPE_CHECKING:
    from polyfuse.torch.dynamo.report import Report

__all__ = ["TorchOperator", "op", "report"]


def report(model: Any = None) -> Report:
    """What became of a model that `torch.compile(model, backend="polyfuse")` gave.

    Parameters
    ----------
    model
        It, or None for all of this process. A function, or a model without parameters, cannot be told from
        others: the report is of all of this process, and says so.

    Returns
    -------
    Report
        Regions, kernels, bytes that are not moved, why a region ends where it does, and what fell back to
        ATen; `print` shows it.

    Examples
    --------
    >>> import torch
    >>> model = torch.compile(torch.nn.Linear(3, 3), backend="polyfuse")
    >>> y = model(torch.ones(2, 3))
    >>> pf.torch.report(model).fallbacks
    []
    """
    from polyfuse.torch.dynamo.report import report as of_model

    return of_model(model)

"""What each ATen operator is: `table.TABLE`, which these modules fill."""

from polyfuse.torch.dynamo.lowerings import gathers, pointwise, reductions, structure, views, windows

__all__ = ["gathers", "pointwise", "reductions", "structure", "views", "windows"]

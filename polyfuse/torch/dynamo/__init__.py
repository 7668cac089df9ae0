"""`torch.compile(model, backend="polyfuse")`: whole models.

`polyfuse_backend` is found by torch through the entry point "polyfuse"; `report` says what became of a model.
"""

from polyfuse.torch.dynamo.backend import polyfuse_backend
from polyfuse.torch.dynamo.report import Report, report

__all__ = ["Report", "polyfuse_backend", "report"]

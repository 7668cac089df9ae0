"""What a compiled function was built from, as the stages that lead there by hand have it."""

from __future__ import annotations

from dataclasses import fields

from polyfuse.kernel_stages import Kernels
from polyfuse.pipeline import Built, fixed_graph
from polyfuse.stages import Scheduled, Specialized


class BuiltStages(Built):
    """A finished compilation whose `kernels` are `pf.Kernels`, with their figures and pictures."""

    @classmethod
    def of(cls, built: Built) -> BuiltStages:
        """The same compilation."""
        return cls(**{f.name: getattr(built, f.name) for f in fields(built)})

    @property
    def kernels(self) -> Kernels:  # type: ignore[override]
        """The kernels that run, in launch order."""
        c, low = self.compilation, self.lowered
        specialized = Specialized(c.graph, fixed_graph(c.graph, c.sizes))
        return Kernels(
            Scheduled(specialized, low.scheduled),
            low.kernels,
            self.decisions,
            c.options,
            c.target,
            c.stitching,
            c.packing,
            low.copied,
        )

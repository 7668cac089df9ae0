"""Timed kernels: what the learned cost model is trained and judged on.

    Samples = programs, families, labels     names, which others refer to by number
            + one value a sample             program, family, task, group, label, default, seconds, ...
            + graphs                         of the steps of plans, equal ones once
            + about                          machine, compiler, date, counts

A sample is a plan: the graphs of its steps in order.  Samples of one `group` compute the same, so that their
times can be compared: all variants of the code of one operator (task VARIANTS), or all cuts of one graph
(task PLANS).  What the compiler picks untuned is in both groups of a program.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyfuse.diagnostics import ArgumentError
from polyfuse.learn.features import FEATURES_VERSION, KERNEL_FEATURES, NODE_FEATURES, OPCODES, KernelGraph
from polyfuse.learn.gpu_features import GPU_FEATURES_VERSION, GPU_KERNEL_FEATURES

SCHEMA = 1
VARIANTS, PLANS = 0, 1
# What kinds of device have: the version of their features, and those of a kernel.
KINDS = {"cpu": (FEATURES_VERSION, KERNEL_FEATURES), "gpu": (GPU_FEATURES_VERSION, GPU_KERNEL_FEATURES)}
FAMILIES = ("workload", "stdlib", "operator", "model", "random")

# What each sample has, in order of the columns, with its type.
COLUMNS: Mapping[str, type[np.generic]] = {
    "program": np.int32,
    "family": np.int8,
    "task": np.int8,
    "group": np.int32,
    "label": np.int32,
    "default": np.bool_,
    "seconds": np.float64,
    "spread": np.float32,
    "projected": np.float64,
}
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """One sample by itself, as it is collected.

    spread: of its repeats, relative to their median.  projected: seconds by the projected model.
    """

    program: str
    family: str
    task: int
    label: str
    default: bool
    seconds: float
    spread: float
    projected: float
    graphs: tuple[KernelGraph, ...]


@dataclass
class Samples:
    """See the module. Sample s has the graphs `graphs[k]` for k in
    `sample_graph[sample_start[s]:sample_start[s + 1]]`."""

    programs: list[str]
    families: list[str]
    labels: list[str]
    program: Array
    family: Array
    task: Array
    group: Array
    label: Array
    default: Array
    seconds: Array
    spread: Array
    projected: Array
    sample_start: Array
    sample_graph: Array
    graphs: list[KernelGraph]
    about: dict[str, Any] = field(default_factory=dict)
    kind: str = "cpu"

    def __len__(self) -> int:
        return len(self.seconds)

    def graphs_of(self, sample: int) -> list[KernelGraph]:
        """The steps of a sample, in order."""
        start, end = self.sample_start[sample : sample + 2]
        return [self.graphs[k] for k in self.sample_graph[start:end]]

    def sample(self, number: int) -> Sample:
        """One of them by itself."""
        return Sample(
            self.programs[self.program[number]],
            self.families[self.family[number]],
            int(self.task[number]),
            self.labels[self.label[number]],
            bool(self.default[number]),
            float(self.seconds[number]),
            float(self.spread[number]),
            float(self.projected[number]),
            tuple(self.graphs_of(number)),
        )

    def save(self, file: Path) -> None:
        """Write all into one compressed file."""
        data = {name: getattr(self, name).astype(kind) for name, kind in COLUMNS.items()}
        data |= {"sample_start": self.sample_start.astype(np.int32)}
        data |= {"sample_graph": self.sample_graph.astype(np.int32)}
        head = {
            "schema": SCHEMA,
            "kind": self.kind,
            "features": KINDS[self.kind][0],
            "opcodes": OPCODES,
            "node_features": NODE_FEATURES,
            "kernel_features": KINDS[self.kind][1],
            "programs": self.programs,
            "families": self.families,
            "labels": self.labels,
            "about": self.about,
        }
        data["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        made = io.BytesIO()
        np.savez(made, allow_pickle=False, **data, **_packed(self.graphs, len(KINDS[self.kind][1])))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(lzma.compress(made.getvalue(), preset=6))


def load(file: Path) -> Samples:
    """What was saved. Raises ArgumentError PF770 for a file that is none of this version."""
    try:
        with np.load(io.BytesIO(lzma.decompress(file.read_bytes())), allow_pickle=False) as data:
            found = {name: data[name] for name in data.files}
        head = json.loads(found.pop("head").tobytes())
        kind = head.get("kind", "cpu")
        schema, version = head["schema"], head["features"]
    except OSError as e:
        raise _unusable(file, f"cannot be read: {e.strerror or e}") from None
    except (lzma.LZMAError, EOFError, ValueError, KeyError):
        raise _unusable(file, "has no samples") from None
    if (schema, version) != (SCHEMA, KINDS[kind][0]) or not _are_known(head):
        raise _unusable(file, f"has version {schema}.{version}, this is {SCHEMA}.{KINDS[kind][0]}")
    names = {name: head[name] for name in ("programs", "families", "labels")}
    own = {name: found[name] for name in (*COLUMNS, "sample_start", "sample_graph")}
    return Samples(**names, **own, graphs=_unpacked(found), about=head["about"], kind=kind)


def _are_known(head: Mapping[str, Any]) -> bool:
    """Are the features of a file those of this version? Newer opcodes come last."""
    of_kernels = KINDS[head.get("kind", "cpu")][1]
    named = zip(("node_features", "kernel_features"), (NODE_FEATURES, of_kernels), strict=True)
    own = head["opcodes"]
    return list(OPCODES[: len(own)]) == own and all(head[n] == list(names) for n, names in named)


def _unusable(file: Path, why: str) -> ArgumentError:
    hint = "`python -m benchmarks.learn collect` makes such a file"
    return ArgumentError(f"{file} {why}", code="PF770", hint=hint)


def collected(
    samples: Iterable[Sample], about: Mapping[str, Any] | None = None, kind: str = "cpu"
) -> Samples:
    """Samples together; of those of one program, task and label the first one counts."""
    tables = _Numbers(), _Numbers(list(FAMILIES)), _Numbers(), _Numbers(), _Numbers()
    programs, families, labels, groups, keys = tables
    graphs: list[KernelGraph] = []
    rows: dict[tuple[int, int, int], tuple[Any, ...]] = {}
    steps: list[list[int]] = []
    for s in samples:
        group = groups.of((s.program, s.task))
        row = (programs.of(s.program), families.of(s.family), s.task, group, labels.of(s.label))
        if (at := (row[0], s.task, row[4])) in rows:
            continue
        rows[at] = (*row, s.default, s.seconds, s.spread, s.projected)
        steps.append([])
        for g in s.graphs:
            number = keys.of(g.key)
            if number == len(graphs):
                graphs.append(g)
            steps[-1].append(number)
    columns = zip(*rows.values(), strict=True) if rows else ([] for _ in COLUMNS)
    own = {n: np.array(list(c), t) for (n, t), c in zip(COLUMNS.items(), columns, strict=True)}
    return Samples(
        programs.names,
        families.names,
        labels.names,
        **own,
        sample_start=np.cumsum([0, *map(len, steps)]).astype(np.int32),
        sample_graph=np.array([k for each in steps for k in each], np.int32),
        graphs=graphs,
        about=dict(about or {}),
        kind=kind,
    )


def merge(several: Sequence[Samples]) -> Samples:
    """All of several files; numbers in `about` are added, of all else the last one counts."""
    about: dict[str, Any] = {}
    for x in several:
        for name, value in x.about.items():
            adds = isinstance(value, int) and not isinstance(value, bool) and name in ADDED
            about[name] = about.get(name, 0) + value if adds else value
    kinds = {x.kind for x in several} or {"cpu"}
    if len(kinds) > 1:
        raise ValueError(f"samples of {' and '.join(sorted(kinds))} do not belong together")
    return collected((x.sample(k) for x in several for k in range(len(x))), about, kinds.pop())


ADDED = ("made", "timed", "noisy", "failed")
"""Counts of `Samples.about` that are added where files are merged."""


class _Numbers:
    """Numbers for names in order of their first occurrence."""

    def __init__(self, known: list[Any] | None = None) -> None:
        self.names: list[Any] = list(known or ())
        self._of = {name: k for k, name in enumerate(self.names)}

    def of(self, name: Any) -> int:
        if name not in self._of:
            self._of[name] = len(self.names)
            self.names.append(name)
        return self._of[name]


# --- graphs in a file -------------------------------------------------------------------------------------

# Nodes of all graphs one after the other, a feature at a time: values alike lie together, which compresses.


def _packed(graphs: Sequence[KernelGraph], kernel: int) -> dict[str, Array]:
    width = len(NODE_FEATURES)
    nodes = np.concatenate([np.zeros((0, width), np.float32), *(g.nodes for g in graphs)])
    edges = np.concatenate([np.zeros((2, 0), np.int32), *(g.edges for g in graphs)], axis=1)
    return {
        "graph_opcodes": np.concatenate([np.zeros(0, np.int16), *(g.opcodes for g in graphs)]),
        "graph_nodes": np.ascontiguousarray(nodes.astype(np.float16).T),
        "graph_edges": edges.astype(np.int16),
        "graph_kernel": np.array([g.kernel for g in graphs], np.float32).reshape(-1, kernel).T.copy(),
        "graph_counts": np.array([(len(g.opcodes), g.edges.shape[1]) for g in graphs], np.int32).reshape(
            -1, 2
        ),
    }


def _unpacked(found: Mapping[str, Array]) -> list[KernelGraph]:
    counts = found["graph_counts"]
    ends = np.cumsum(counts, axis=0)
    nodes = np.ascontiguousarray(found["graph_nodes"].T).astype(np.float32)
    edges, kernel = found["graph_edges"].astype(np.int32), np.ascontiguousarray(found["graph_kernel"].T)
    return [
        KernelGraph(found["graph_opcodes"][n - c : n], nodes[n - c : n], edges[:, m - d : m], kernel[k])
        for k, ((c, d), (n, m)) in enumerate(zip(counts, ends, strict=True))
    ]

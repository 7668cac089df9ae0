"""Kernels of the models: `python -m benchmarks.kernel_counts [--only NAME ...] [--out DIR]`.

Counts what polyfuse makes of examples/models for a CPU and two GPUs, what Inductor generates in C++, and what
XLA has in its optimised HLO for a CPU, without library calls.  Nothing is timed.  Of all models together it
writes `benchmarks/results/kernel_counts.json` and the page of the reference, in place of the last ones.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.count_ours import count_ours
from benchmarks.count_peers import PEERS, count_peer, tolerance
from benchmarks.model_cases import ModelCase, case, cases
from benchmarks.surroundings import RESULTS, surroundings, write_json

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "kernel_counts.md"
COUNTS = RESULTS / "kernel_counts.json"
"""What was counted last of all models; the same on every machine."""
TARGETS = {"cpu": ("cpu", ""), "H200": ("cuda", "H200"), "V100": ("cuda", "V100")}
Row = dict[str, dict[str, Any]]


def own_counts(model: ModelCase) -> Row:
    """By target: kernels, nests, products."""
    found = {}
    for name, (target, device) in TARGETS.items():
        found[name] = asdict(count_ours(model.graph, model.sizes, target, device))
    return found


def peer_process(peer: str, names: Sequence[str]) -> subprocess.Popen[str] | None:
    """A process that prints one line of JSON for each model; None where the library is missing."""
    if importlib.util.find_spec(peer) is None:
        return None
    command = [sys.executable, "-m", "benchmarks.kernel_counts", "--peer", peer, "--only", *names]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def peer_counts(process: subprocess.Popen[str] | None) -> dict[str, dict[str, Any]]:
    """By model, what the process says. Raises RuntimeError where it fails."""
    if process is None:
        return {}
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return dict(json.loads(line) for line in output.splitlines() if line.startswith("["))


def smaller(row: Row) -> int | None:
    """The smaller count of the two peers: Inductor's loop nests, XLA's fusions and loops."""
    counts = [row["torch"]["nests"]] if "torch" in row else []
    counts += [row["jax"]["fusions"] + row["jax"]["loops"]] if "jax" in row else []
    return min(counts, default=None)


def complaints(rows: Mapping[str, Row]) -> list[str]:
    """Where a count is above that of the better peer, or a peer was given something else to compute."""
    found = []
    for name, row in rows.items():
        most = smaller(row)
        for target in TARGETS:
            if most is not None and row[target]["kernels"] > most:
                found.append(f"{name}, {target}: {row[target]['kernels']} kernels, a peer has {most}")
        functions = row["torch"]["functions"] if "torch" in row else None
        if functions is not None and row["cpu"]["kernels"] > functions:
            found.append(f"{name}, cpu: {row['cpu']['kernels']} kernels, Inductor has {functions} functions")
        for peer in PEERS:
            if peer in row and not row[peer]["error"] <= tolerance(case(name)):
                found.append(f"{name}: {peer} computes something else, error {row[peer]['error']:.2g}")
    return found


# --- the page ------------------------------------------------------------------------------------------

TEMPLATE = Path(__file__).with_name("kernel_counts_page.md")


def page(rows: Mapping[str, Row], versions: str) -> str:
    """docs/lab/kernel_counts.md."""
    lines = [_line(name, row) for name, row in rows.items()]
    sizes = [f"- `{name}`: {_sizes(case(name))}" for name in rows]
    template = TEMPLATE.read_text(encoding="utf-8")
    return template.format(rows="\n".join(lines), versions=versions, sizes="\n".join(sizes))


def _line(name: str, row: Row) -> str:
    cells = [f"`{name}`", *(f"{row[t]['kernels']} ({row[t]['nests']})" for t in TARGETS)]
    torch, jax = row.get("torch"), row.get("jax")
    cells.append(f"{torch['functions']} ({torch['nests']})" if torch else "-")
    cells.append(f"{jax['fusions']} + {jax['loops']}" if jax else "-")
    cells.append(str(smaller(row) or "-"))
    return "| " + " | ".join(cells) + " |"


def _sizes(model: ModelCase) -> str:
    if model.sizes:
        return ", ".join(f"{n} = {v}" for n, v in model.sizes.items())
    tensors = len(model.parameters(model.graph))
    return f"{tensors} tensors of fixed shapes, as in `examples/models`"


# --- the command ---------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, print, save. 1 if a peer has fewer kernels anywhere, or computes something else."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernel_counts", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="models")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of kernel_counts.json")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    models = [case(name) for name in chosen.only] if chosen.only else list(cases())
    if chosen.peer:
        for model in models:
            print(json.dumps([model.name, count_peer(chosen.peer, model)]), flush=True)
        return 0
    rows = counted(models)
    about = surroundings()
    versions = ", ".join(
        f"{peer} {found['version']}" for peer in PEERS if (found := next(iter(rows.values())).get(peer))
    )
    print(text := page(rows, versions or "without peers"))
    data = {"date": about["date"], "python": about["python"], "models": rows}
    if chosen.out:
        write_json(chosen.out / COUNTS.name, data)
    elif not chosen.only:
        write_json(COUNTS, data)
        PAGE.write_text(text, encoding="utf-8")
    for line in (found := complaints(rows)):
        print(line, file=sys.stderr)
    return 1 if found else 0


def counted(models: Sequence[ModelCase]) -> dict[str, Row]:
    """All counts, by model and side; peers that are not installed are left out."""
    names = [m.name for m in models]
    processes = {peer: peer_process(peer, names) for peer in PEERS}
    rows: dict[str, Row] = {m.name: own_counts(m) for m in models}
    for peer, process in processes.items():
        for name, counts in peer_counts(process).items():
            rows[name][peer] = counts
    return rows


if __name__ == "__main__":
    sys.exit(main())

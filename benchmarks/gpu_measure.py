"""One case on a GPU: correct first, then timed; the result is a dict that goes into the JSON."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.floor import compulsory
from benchmarks.gpu_cases import GpuCase
from benchmarks.gpu_check import judge, judge_small, truth
from benchmarks.gpu_contenders import OURS, PEERS, Inputs, Prepared, contenders, wait
from benchmarks.gpu_timing import copy_bandwidth, host_seconds, measure, sets_for, share


def run_case(
    case: GpuCase,
    target: str,
    rounds: int,
    peers: Sequence[str] = PEERS,
    compiled_s: float = 0.0,
    device: str = "cuda",
) -> dict[str, Any]:
    """Time a case. A peer that fails is left out and named; polyfuse must not fail.

    `compiled_s`: seconds that compiling took before, in another process; the first call has what is left.
    """
    need = compulsory(case.graph, case.sizes)
    nbytes = need.read + need.written
    spent = Spent()
    inputs = Inputs.make(case, target, _sets(need.working_set, target), device)
    spent("inputs")
    ready, entries, failures = _prepare(case, inputs, target, peers)
    entries[OURS] |= {"compile_s": compiled_s}
    entries[OURS]["first_call_s"] += compiled_s
    spent("prepare")
    measured = measure(ready, rounds, target, lambda: wait(target), profile=bool(peers))
    for p in ready:
        m = measured[p.label]
        entries[p.label] |= {"ms": asdict(m.device), "by": m.by, "host_ms": m.host_ms, "kernels": m.kernels}
        if p.plain is not None:
            entries[p.label]["call_host_ms"] = 1e3 * host_seconds(p.plain, lambda: wait(target), 5)
    result: dict[str, Any] = {
        "workload": case.name,
        "sizes": dict(case.sizes),
        "dtype": case.dtype,
        "bytes": nbytes,
        "sets": len(inputs.sets),
        "entries": entries,
        "failures": failures,
    }
    del ready, inputs
    _forget(target)
    spent("measure")
    if target == "cuda":
        copy = copy_bandwidth(nbytes, rounds)
        result["copy"] = dict(copy)
        result["share_of_copy"] = share(nbytes, entries[OURS]["ms"]["median"], copy)
    spent("copy")
    return result | {"spent_s": spent.seconds} | _compared(entries)


class Spent:
    """Where the time of a case goes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def __call__(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what], self._since = round(now - self._since, 3), now


def _sets(nbytes: int, target: str) -> int:
    if target != "cuda":
        return 1
    import torch

    return sets_for(nbytes, torch.cuda.get_device_properties(0).L2_cache_size)


def _prepare(
    case: GpuCase, inputs: Inputs, target: str, peers: Sequence[str]
) -> tuple[list[Prepared], dict[str, dict[str, Any]], list[str]]:
    ready: list[Prepared] = []
    entries: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    known = truth(case, inputs) if target == "cuda" else {}
    for label, prepare in contenders(case, target, peers).items():
        try:
            made = prepare(case, inputs)
        except Exception as error:  # compilers fail in many ways; only ours must not
            if label == OURS:
                raise
            failures.append(f"{label}: {type(error).__name__}: {' '.join(str(error).split())[:250]}")
            continue
        verdict = judge(case, known, made.results) if target == "cuda" else judge_small(case, made.results)
        entries[label] = {"first_call_s": made.first_call_s, "verdict": verdict, **made.facts}
        ready.append(_without_results(made))
    del known
    _forget(target)
    return ready, entries, failures


def _without_results(p: Prepared) -> Prepared:
    """Their memory is better spent on inputs."""
    return Prepared(p.label, p.first_call_s, {}, p.calls, p.plain, p.own_stream, p.facts)


def _forget(target: str) -> None:
    gc.collect()
    if target == "cuda":
        import torch

        torch.cuda.empty_cache()


def _compared(entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Us against the fastest peer that computes the right thing."""
    time_of: Callable[[str], float] = lambda n: float(entries[n]["ms"]["median"])  # noqa: E731
    peers = [n for n, e in entries.items() if n != OURS and e["verdict"]["ok"]]
    best = min(peers, key=time_of, default=None)
    return {"best_peer": best, "ratio": time_of(best) / time_of(OURS) if best else None}

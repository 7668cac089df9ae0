"""Timing on a GPU: turns in rotating order, each of many calls between two events.

A turn queues its calls behind a kernel that only waits, so that the device goes from call to call without
waiting for Python; what the host needs for a call is measured apart.  Calls take turns over several sets of
inputs that together do not fit the L2 cache.  JAX has a stream of its own, which events of torch do not see:
its kernels are timed by the profiler (CUPTI), which also counts everybody's launches.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from benchmarks.gpu_contenders import Prepared
from benchmarks.measure import Timing

TURN_S = 0.004
MOST_CALLS = 60
QUEUE = 800
"""Kernels that may wait in a stream without the host being stopped."""
LONGEST_SPIN_S = 0.05
L2_MULTIPLE = 3
MOST_SETS = 16
COPY_BYTES = 1 << 30


class Clock(Protocol):
    """How long calls take on a device."""

    def turn(self, calls: Sequence[Callable[[], object]], count: int) -> float:
        """Seconds of one of `count` calls, over the sets in order."""
        ...


class HostClock:
    """Wall time, for rehearsals."""

    def turn(self, calls: Sequence[Callable[[], object]], count: int) -> float:
        start = time.perf_counter()
        for k in range(count):
            calls[k % len(calls)]()
        return (time.perf_counter() - start) / count


class DeviceClock:
    """Events on torch's current stream, behind a kernel that spins."""

    def __init__(self, host_s: float) -> None:
        import torch

        self._torch = torch
        self._host_s = host_s
        self._cycles_per_s = 2e9

    def turn(self, calls: Sequence[Callable[[], object]], count: int) -> float:
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        cuda._sleep(int(self._cycles_per_s * min(LONGEST_SPIN_S, 1.5 * self._host_s * count + 1e-4)))
        start.record()
        for k in range(count):
            calls[k % len(calls)]()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / count


class BlockingClock:
    """Wall time from before the first call to the end of the last, for streams that are not torch's."""

    def __init__(self) -> None:
        import torch

        self._wait = torch.cuda.synchronize

    def turn(self, calls: Sequence[Callable[[], object]], count: int) -> float:
        self._wait()
        start = time.perf_counter()
        for k in range(count):
            calls[k % len(calls)]()
        self._wait()
        return (time.perf_counter() - start) / count


@dataclass(frozen=True)
class Measured:
    """device: milliseconds of a call on the device, `by` events, cupti or wall.  host: milliseconds that a
    caller waits until the call is queued.  kernels: per call, as the profiler saw them."""

    device: Timing
    by: str
    host_ms: float
    kernels: float | None


def host_seconds(call: Callable[[], object], wait: Callable[[], None], count: int = 20) -> float:
    """The median time until a call returns, with an idle device."""
    found = []
    for _ in range(count):
        wait()
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    wait()
    return statistics.median(found)


def measure(
    prepared: Sequence[Prepared],
    rounds: int,
    target: str,
    wait: Callable[[], None],
    *,
    profile: bool = True,
) -> dict[str, Measured]:
    """Time all of them in turns. `profile` has the profiler count kernels; it takes longer than the turns."""
    host, clocks, counts = {}, {}, {}
    for p in prepared:
        for call in p.calls:
            call()
        host[p.label] = host_seconds(p.calls[0], wait, 20 if target == "cuda" else 3)
        clocks[p.label] = _clock(p, target, host[p.label])
        usual = clocks[p.label].turn(p.calls, max(3, len(p.calls)))
        launches = int(p.facts.get("launches") or 8)
        counts[p.label] = max(1, min(MOST_CALLS, QUEUE // launches, round(TURN_S / max(usual, 1e-7))))
    seconds: dict[str, list[float]] = {p.label: [] for p in prepared}
    for k in range(rounds):
        shift = k % len(prepared)
        for p in (*prepared[shift:], *prepared[:shift]):
            seconds[p.label].append(clocks[p.label].turn(p.calls, counts[p.label]))
    rounds = rounds if profile and target == "cuda" else 0
    return {p.label: _measured(p, seconds[p.label], host[p.label], target, rounds) for p in prepared}


def _clock(p: Prepared, target: str, host_s: float) -> Clock:
    if target != "cuda":
        return HostClock()
    return BlockingClock() if p.own_stream else DeviceClock(host_s)


def _measured(p: Prepared, seconds: Sequence[float], host_s: float, target: str, seen: int) -> Measured:
    """`seen`: how many calls the profiler looks at."""
    by = "wall" if target != "cuda" or p.own_stream else "events"
    profile = profiled(p.calls, seen) if seen else None
    if profile is not None and p.own_stream and profile.seconds:
        return Measured(Timing.of(profile.seconds), "cupti", 1e3 * host_s, profile.kernels)
    return Measured(Timing.of(seconds), by, 1e3 * host_s, profile.kernels if profile else None)


@dataclass(frozen=True)
class Profile:
    """seconds: of each call on the device.  kernels: per call."""

    seconds: tuple[float, ...]
    kernels: float


def profiled(calls: Sequence[Callable[[], object]], count: int) -> Profile | None:
    """What CUPTI saw of `count` calls; None where it does not work."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as session:
            for k in range(count):
                calls[k % len(calls)]()
            torch.cuda.synchronize()
        on_device = [e for e in session.events() if "CUDA" in str(e.device_type)]
        on_device = [e for e in on_device if not getattr(e, "is_user_annotation", False)]
    except (RuntimeError, AttributeError, AssertionError) as error:
        print(f"no profile: {error}")
        return None
    spans = sorted((float(e.time_range.start), float(e.time_range.end)) for e in on_device)
    return per_call(spans, count)


def per_call(spans: Sequence[tuple[float, float]], count: int) -> Profile | None:
    """Microseconds (start, end) of everything on the device, in order, shared out among equal calls."""
    if not spans:
        return None
    each, rest = divmod(len(spans), count)
    if rest or not each:
        mean = sum(end - start for start, end in spans) / count
        return Profile((1e-6 * mean,), len(spans) / count)
    groups = [spans[k * each : (k + 1) * each] for k in range(count)]
    return Profile(tuple(1e-6 * sum(end - start for start, end in g) for g in groups), float(each))


def sets_for(nbytes: int, l2_bytes: int) -> int:
    """How many sets of inputs keep a case of `nbytes` from living in the L2."""
    if nbytes >= L2_MULTIPLE * l2_bytes:
        return 1
    return min(MOST_SETS, 1 + -(-L2_MULTIPLE * l2_bytes // max(1, nbytes)))


@cache
def copy_bandwidth(nbytes: int, rounds: int) -> Mapping[str, Any]:
    """Bytes per second of device copies that move `nbytes` (half read, half written), by events."""
    import torch

    half = max(1 << 16, min(nbytes // 2, COPY_BYTES))
    count = sets_for(2 * half, torch.cuda.get_device_properties(0).L2_cache_size)
    pairs = [
        [torch.empty(half, dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in range(max(1, count))
    ]
    calls = [lambda p=p: p[1].copy_(p[0]) for p in pairs]
    clock = DeviceClock(1e-5)
    clock.turn(calls, 2 * len(calls))
    timing = Timing.of([clock.turn(calls, max(8, len(calls))) for _ in range(rounds)])
    return {
        "bytes": 2 * half,
        "bytes_per_s": 2 * half / (1e-3 * timing.median),
        "best_bytes_per_s": 2 * half / (1e-3 * timing.least),
    }


def share(nbytes: int, milliseconds: float, copy: Mapping[str, Any]) -> float:
    """Of the copy bandwidth, that a call reaches which must move `nbytes`."""
    return float(nbytes / (1e-3 * milliseconds) / copy["bytes_per_s"])

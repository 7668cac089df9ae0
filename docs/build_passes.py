"""Writes docs/reference/passes.md from the lists of passes.

python docs/build_passes.py            writes it
python docs/build_passes.py --check    fails if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

from page import publish

from polyfuse.driver.targets import passes

TARGET = Path(__file__).parent / "reference" / "passes.md"

_HEAD = """\
<!-- Made by docs/build_passes.py from the lists of passes. -->
# Passes

A *pass* is a named step of the compiler. It takes a form of the program and gives the form again, changed
where the pass has something to do. Passes run in the order of the lists below; `polyfuse passes` prints the
same lists.

- **Over the graph**: before it is cut into clusters (`polyfuse/layers/graph/pipeline.py`).
- **Over loops**: kernels become loops, and loops functions. Each target has lists of its own
  (`polyfuse/codegen/cpu/pipeline.py`, `polyfuse/codegen/cuda/pipeline.py`).

A name such as `unroll-and-jam:stencils` is a rule (`stencils`) of a larger idea (`unroll-and-jam`).

## What a pass did

`explain()` has a line for each pass over loops that changed something, and one for each reason for which a
pass left loops that have the form it looks for. Of a layer norm after a sum
(`benchmarks/workloads/res_ln.pf`, rows of 1024) on a core with AVX-512:

```
{explained}
```

A line with `+` names the tensors whose loops were changed; a line with `-` those whose loops were not.
Passes over the graph tell in words of their own what they did to which statement.

## How to look at a pass

`POLYFUSE_DUMP=FOLDER`, or `dump=` of `pf.Options`, writes the loops after each pass that ran:

```
FOLDER/10_cpp_passes/k0/017_loops_unswitch.txt
```

`10_cpp` is the step of the compiler, `k0` the kernel, `017` the place in the order, `loops` the list. Two
files next to each other differ by what one pass did.

`compiled.cost(...)` has the slowest passes, in seconds. Those of helper processes are not in it.

## How to switch a pass off

```
POLYFUSE_DISABLE=unswitch,unroll-and-jam python program.py
```

```python
pf.compile(program, disable=["unroll-and-jam:stencils"])
```

The name of an idea stands for all its rules. Results are as right without an optional pass: the tests compare
random programs, with random sets of passes off, with the reference. So it can be found which pass is behind
a difference in speed or in rounding. A pass that others need is not optional, and the name of one that does
not exist is an error ([PF490](../errors.md#pf490)).
"""

TITLES = {
    "graph": "Over the graph",
    "cpu loops": "CPU: over the loops of a kernel",
    "cpu owners": "CPU: where each worker owns a share of a scatter's result",
    "cpu functions": "CPU: over the functions that loops become",
    "gpu loops": "GPU: over the loops of a kernel",
    "gpu threads": "GPU: over what the threads of a function do together",
    "gpu accesses": "GPU: over what one thread does",
}
_EXPLAINED = """
+ invariant-motion:scalars mu__sum__head, mu__sum__off, mu__sum__pivot, s, var__sum__about, y: functions of \
what a loop does not change are computed before it
- unroll-and-jam:batched-rows y: rows are so long that their totals take little of the time
- unroll-and-jam:interleaved-rows y: rows are too long for several to pay
- software-pipelining y: the first phase is too short to fill a wait
"""


def build() -> str:
    """The whole page."""
    parts = [_HEAD.format(explained=_EXPLAINED.strip())]
    for name, found in passes().items():
        parts.append(f"\n## {TITLES[name]}\n\n| pass | what it does | optional |\n|---|---|---|\n")
        for p in found:
            does = p.does if getattr(p, "on_gpu", True) else f"{p.does} (CPU only)"
            parts.append(f"| `{p.name}` | {does} | {'yes' if p.optional else 'no'} |\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(publish(TARGET, build(), sys.argv[1:]))

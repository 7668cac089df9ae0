"""A pack of kernels as one function of a GPU: each range of blocks runs a kernel of its own.

    void pack(...):   if (block < 12) part_0(block, ...); else part_1(block - 12, ...);

Kernels that differ in names only share a function, which gets the memory of each as arguments.  Barriers and
shared memory are those of each kernel alone: a block runs just one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.ir.launch_plan import Argument


@dataclass(frozen=True, slots=True)
class PackPart:
    """A call of a part's function: its name, blocks, and arguments by the names of parameters."""

    function: str
    blocks: int
    arguments: tuple[str, ...]


def pack_function(
    name: str, threads: int, parameters: Sequence[tuple[str, Argument]], parts: Sequence[PackPart], kind: str
) -> str:
    """The function that is launched. `kind` is the type of block numbers."""
    declared = ",\n    ".join(text for text, _ in parameters)
    first = [sum(p.blocks for p in parts[:k]) for k in range(len(parts) + 1)]
    lines = [
        f"// {len(parts)} kernels side by side",
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}(',
        f"    {declared}) {{",
        f"  const {kind} block = blockIdx.x;",
        *_chosen(parts, first, 0, len(parts), "  "),
        "}",
        "",
    ]
    return "\n".join(lines)


def _chosen(parts: Sequence[PackPart], first: list[int], low: int, high: int, indent: str) -> list[str]:
    """Find the part of a block by halves: the condition is the same for all its threads."""
    if high - low == 1:
        block = f"block - {first[low]}" if first[low] else "block"
        return [f"{indent}{parts[low].function}({', '.join((block, *parts[low].arguments))});"]
    middle = (low + high) // 2
    return [
        f"{indent}if (block < {first[middle]}) {{",
        *_chosen(parts, first, low, middle, indent + "  "),
        f"{indent}}} else {{",
        *_chosen(parts, first, middle, high, indent + "  "),
        f"{indent}}}",
    ]

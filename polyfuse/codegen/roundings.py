"""Values of 16 bits that a loop computes and reads again stay f32, rounded.

    for l: h = f16(f(x[l]))                    for l: q = f(x[l]);  h = f32(f16(q))
           y[l] = h                     ->            y[l] = f16(q)
           s[l] += f32(h)                             s[l] += h

The numbers are the same.  Then what is stored is converted by vector instructions (`codegen.halves`), and the
rounding is a function of all lanes (`codegen.row_calls`).
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.dtypes import BF16, F16, F32
from polyfuse.ir.loop_ir import Block, Declare, For, Node, map_nodes, map_values
from polyfuse.ir.schedule_tree import Coordinate
from polyfuse.ir.tensor_graph import Cast, Expr, Read


def rounded_once(block: Block) -> Block:
    """The block, with such values of its vector loops as f32."""

    def loop(node: Node) -> Node:
        if not isinstance(node, For) or node.coordinate is not Coordinate.VECTOR:
            return node
        names = {n.name for n in node.body if isinstance(n, Declare) and _rounded(n.value)}
        return replace(node, body=_widened(node.body, names)) if names else node

    return map_nodes(block, loop)


def _rounded(value: Expr | None) -> bool:
    return isinstance(value, Cast) and value.dtype in (F16, BF16) and value.arg.dtype == F32


def _exact(name: str) -> str:
    """What a value is called before it is rounded."""
    return f"{name}_q"


def _widened(body: Block, names: set[str]) -> Block:
    held = {_exact(n): n for n in names}

    def expr(e: Expr) -> Expr:
        match e:
            case Read(tensor, dtype=dtype) if tensor in names:
                return Cast(Read(_exact(tensor), (), F32), dtype)
            case Cast(Cast(Read(tensor)), dtype) if dtype == F32 and (name := held.get(tensor)):
                return Read(name, (), F32)
            case _:
                return e

    def declared(node: Node) -> Node | Block:
        match node:
            case Declare(name, dtype, Cast(value)) if name in names:
                exact = Read(_exact(name), (), F32)
                return Declare(exact.tensor, F32, value), replace(
                    node, dtype=F32, value=Cast(Cast(exact, dtype), F32)
                )
            case _:
                return node

    return map_nodes(map_values(body, expr, lambda i: i), declared)

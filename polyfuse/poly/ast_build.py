"""Schedule tree -> loops, by isl's AST generator.

isl names the loop at depth k ``c<k>``; depths count the band members on the path, so the name leads back
to the member and its coordinate.  The result holds `Exec` nodes: instances with their dims as index
expressions over the loops.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import islpy as isl

from polyfuse.diagnostics import InternalError
from polyfuse.ir.dtypes import BOOL, I64
from polyfuse.ir.index_expr import IConst, IndexExpr, IVar, substitute, variables
from polyfuse.ir.loop_ir import Block, Exec, For, If, Node, nodes_of
from polyfuse.ir.schedule_tree import Band, Coordinate, Leaf, Member, Tree, band, path, sequence, statements
from polyfuse.ir.tensor_graph import Apply, Const, Expr, IndexValue, IterDim, Statement, TensorGraph
from polyfuse.poly.model.domains import PolyModel, build_model
from polyfuse.poly.model.isl_bridge import from_ast_expr, isl_lock, params_prefix, statement_id
from polyfuse.poly.scheduling.tree_convert import member_text, to_isl

_COMPARE: dict[object, str] = {
    isl.ast_expr_op_type.le: "le",
    isl.ast_expr_op_type.lt: "lt",
    isl.ast_expr_op_type.ge: "ge",
    isl.ast_expr_op_type.gt: "gt",
    isl.ast_expr_op_type.eq: "eq",
}
_LOGIC: dict[object, str] = {
    isl.ast_expr_op_type.and_: "and",  # type: ignore[attr-defined]
    isl.ast_expr_op_type.and_then: "and",
    isl.ast_expr_op_type.or_: "or",  # type: ignore[attr-defined]
    isl.ast_expr_op_type.or_else: "or",
}


# Separating the ranges of n statements can give 2 n - 1 loops; with many, conditions are the lesser evil.
MOST_SEPARATED = 12


def build_loops(model: PolyModel, tree: Tree, separate: bool = True) -> Block:
    """The loops that run the tree's instances in its order, each exactly once; `separate`: without
    conditions, where that does not take too many loops."""
    names = statements(tree)
    model, tree, anchors = _anchored(model, tree)
    depth = max(len(_members(tree, n)) for n in names)
    iterators = isl.IdList.alloc(model.context, depth)
    for k in range(depth):
        iterators = iterators.add(isl.Id.read_from_str(model.context, f"c{k}"))
    build = isl.AstBuild.from_context(model.assumptions).set_iterators(iterators)
    node = build.node_from_schedule(to_isl(model, tree, separate=separate and len(names) <= MOST_SEPARATED))
    block = _Shared(model, tree).block(_Converter(tree, anchors).block(node, 0), frozenset())
    return _one_loop(block) if anchors else block


def _anchored(model: PolyModel, tree: Tree) -> tuple[PolyModel, Tree, tuple[str, ...]]:
    """The tree with a statement that does nothing at the start and at the end of each block.

    isl puts instances that come before (or after) all others outside the loop; what lives in one block
    must stay inside it.  With the two no instance of a block comes before all others.

        B(blk)[a; y]     becomes     B(blk)[first; a; y; last]
    """
    if not isinstance(tree, Band):
        return model, tree, ()
    count = next(
        (k for k, m in enumerate(tree.members) if m.coordinate is not Coordinate.BLK), len(tree.members)
    )
    if count == 0:
        return model, tree, ()
    blocks = _blocks(model, tree.members[:count])
    if blocks is None:
        return model, tree, ()
    taken = {s.name for s in model.graph.statements}
    anchors = tuple(_free_name(name, taken) for name in ("first", "last"))
    zero = Const(0, I64)
    dims = tuple(IterDim(f"d{k}", IConst(0), IConst(0)) for k in range(count))
    graph = replace(
        model.graph,
        statements=(*model.graph.statements, *(Statement(n, n, dims, (), zero) for n in anchors)),
    )
    domains = {**model.domains, **{n: blocks.set_tuple_name(statement_id(n)) for n in anchors}}
    members = tuple(
        replace(m, exprs=tuple(sorted([*m.exprs, *((n, IVar(d.name)) for n in anchors)])))
        for m, d in zip(tree.members[:count], dims, strict=True)
    )
    child = band(list(tree.members[count:]), tree.child, tree.permutable)
    anchored = Band(members, sequence([Leaf(anchors[0]), child, Leaf(anchors[1])]), tree.permutable)
    return replace(model, graph=graph, domains=domains, _memo={}), anchored, anchors


def _blocks(model: PolyModel, members: tuple[Member, ...]) -> isl.Set | None:
    """The values that block loops take; None if there are none."""
    text = "[" + ", ".join(member_text(model, m.exprs) for m in members) + "]"
    values = isl.MultiUnionPwAff.read_from_str(model.context, params_prefix(model.params) + text)
    reached = (
        isl.UnionMap.from_multi_union_pw_aff(values)
        .intersect_domain(model.domain(s for s, _ in members[0].exprs))
        .range()
    )
    return None if reached.is_empty() else isl.Set.from_union_set(reached).coalesce()


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _one_loop(block: Block) -> Block:
    """Loops over the same blocks, one after the other, as one loop.

    Only loops over blocks: where there is a single block isl may print no loop for it, and what follows
    one another then are loops inside the block, which have an order.
    """
    loops = [n for n in block if isinstance(n, For) and n.coordinate is Coordinate.BLK]
    heads = {(x.var, x.lower, x.upper) for x in loops}
    if len(loops) < 2 or len(loops) < len(block) or len(heads) > 1:
        return block
    return (replace(loops[0], body=tuple(n for x in loops for n in x.body)),)


def _members(tree: Tree, statement: str) -> list[Member]:
    return [m for m in path(tree, statement) if isinstance(m, Member)]


# Loops of which each iteration belongs to one thread of a block.
_SHARED = (Coordinate.ROW, Coordinate.STEP, Coordinate.ROUND, Coordinate.THREAD)


class _Shared:
    """Puts loops that threads share back around instances for which isl left them out.

    isl prints no loop where a variable has one value. But each iteration of a shared loop belongs to one
    thread, which may keep what it computes in a register: outside of the loop, all threads would do it.

        for (c1 = 0; c1 < 16; c1++) S(c1); S(16)     becomes     ...; for (c1 = 16; c1 < 17; c1++) S(c1)

    An instance says by the loop's variable which iteration it is, where isl took an equal one from around:

        for (c1 = 0; c1 < 16; c1++) for (c2 = c1; c2 < c1 + 1; c2++) S(c1)     becomes     ... S(c2)

    or a sum that has S(c2) for each thread would pass for one that all threads share.
    """

    def __init__(self, model: PolyModel, tree: Tree) -> None:
        self.dims = {s.name: [d.name for d in s.dims] for s in model.graph.statements}
        self.paths = {
            n: [(f"c{k}", m) for k, m in enumerate(_members(tree, n)) if m.coordinate in _SHARED]
            for n in statements(tree)
        }

    def block(self, nodes: Block, around: frozenset[str]) -> Block:
        """`around`: the variables of the loops around."""
        found: list[Node] = []
        for node in nodes:
            match node:
                case For():
                    new: Node = self._nested(node, around)
                case If():
                    new = replace(
                        node, then=self.block(node.then, around), other=self.block(node.other, around)
                    )
                case Exec():
                    new = self._looped(node, around)
                case _:
                    new = node
            found[-1:] = _joined(found[-1], new) if found else [new]
        return tuple(found)

    def _nested(self, loop: For, around: frozenset[str]) -> Node:
        """A loop, in the shared ones that belong around it: all of its instances have one value there."""
        inside = {loop.var} | {n.var for n in nodes_of(loop.body) if isinstance(n, For)}
        missing: dict[str, tuple[IndexExpr, Coordinate]] = {}
        for node in nodes_of(loop.body):
            if not isinstance(node, Exec):
                continue
            env = dict(zip(self.dims[node.statement], node.args, strict=True))
            for var, member in self.paths[node.statement]:
                value = substitute(member.of(node.statement), env)
                if _level(var) < _level(loop.var) and var not in around and not inside & {*variables(value)}:
                    missing.setdefault(var, (value, member.coordinate))
        new: Node = replace(loop, body=self.block(loop.body, around | {loop.var, *missing}))
        for var in sorted(missing, key=_level, reverse=True):
            value, coordinate = missing[var]
            new = For(var, value, value + 1, 1, (new,), coordinate)
        return new

    def _looped(self, node: Exec, around: frozenset[str]) -> Node:
        env = dict(zip(self.dims[node.statement], node.args, strict=True))
        result: Node = replace(node, args=tuple((env | self._own(node.statement)).values()))
        for var, member in reversed(self.paths[node.statement]):
            if var not in around:
                value = substitute(member.of(node.statement), env)
                result = For(var, value, value + 1, 1, (result,), member.coordinate)
        return result

    def _own(self, statement: str) -> dict[str, IndexExpr]:
        """The variables of shared loops, by the dims that run in them."""
        found = [(m.of(statement), IVar(var)) for var, m in self.paths[statement]]
        return {e.name: var for e, var in found if isinstance(e, IVar)}


def _level(var: str) -> int:
    """Of a loop's variable, `c3`."""
    return int(var[1:])


def _joined(a: Node, b: Node) -> list[Node]:
    """Two nodes; loops that were put back around the same iteration as one."""
    match a, b:
        case For(), For() if (
            a.coordinate in _SHARED
            and a.upper == a.lower + 1
            and (a.var, a.lower, a.upper, a.coordinate) == (b.var, b.lower, b.upper, b.coordinate)
        ):
            return [replace(a, body=(*a.body, *b.body))]
        case _:
            return [a, b]


class _Converter:
    """isl AST nodes to loop IR."""

    def __init__(self, tree: Tree, anchors: tuple[str, ...] = ()) -> None:
        self.anchors = anchors
        self.paths = {n: _members(tree, n) for n in statements(tree)}

    def block(self, node: isl.AstNode, depth: int) -> Block:
        kind: object = node.get_type()
        if kind == isl.ast_node_type.block:
            children = node.block_get_children()
            nodes: list[Node] = []
            for k in range(children.n_ast_node()):
                nodes.extend(self.block(children.get_at(k), depth))
            return tuple(nodes)
        if kind == isl.ast_node_type.for_:  # type: ignore[attr-defined]
            return self._for(node, depth)
        if kind == isl.ast_node_type.if_:  # type: ignore[attr-defined]
            then = self.block(node.if_get_then_node(), depth)
            other = self.block(node.if_get_else_node(), depth) if node.if_has_else_node() else ()
            if not then and not other:
                return ()
            return (If(condition(node.if_get_cond()), then, other),)
        if kind == isl.ast_node_type.mark:
            return self.block(node.mark_get_node(), depth)
        if kind == isl.ast_node_type.user:
            call = node.user_get_expr()
            name = call.get_op_arg(0).get_id().get_name().removeprefix("S_")
            if name in self.anchors:
                return ()
            args = [from_ast_expr(call.get_op_arg(k)) for k in range(1, call.get_op_n_arg())]
            return (Exec(name, tuple(args)),)
        raise InternalError(f"unexpected isl AST node {kind}", code="PF902")

    def _for(self, node: isl.AstNode, depth: int) -> Block:
        var = node.for_get_iterator().get_id().get_name()
        level = _level(var)
        lower = from_ast_expr(node.for_get_init())
        body = self.block(node.for_get_body(), level + 1)
        if not body:
            return ()
        coordinate = self._coordinate(body, level)
        if node.for_is_degenerate():
            return (For(var, lower, lower + 1, 1, body, coordinate),)
        step = int(node.for_get_inc().get_val().to_python())
        return (For(var, lower, self._upper(node.for_get_cond()), step, body, coordinate),)

    def _upper(self, cond: isl.AstExpr) -> IndexExpr:
        """The exclusive upper bound of `c < e` or `c <= e`."""
        op: object = cond.get_op_type()
        bound = from_ast_expr(cond.get_op_arg(1))
        if op == isl.ast_expr_op_type.lt:
            return bound
        if op == isl.ast_expr_op_type.le:
            return bound + 1
        raise InternalError(f"unexpected loop condition {cond.to_C_str()}", code="PF902")

    def _coordinate(self, body: Block, level: int) -> Coordinate:
        """Of the member this loop comes from: that of any statement below."""
        return self.paths[_first_statement(body)][level].coordinate


def _first_statement(block: Block) -> str:
    for node in block:
        match node:
            case Exec(name):
                return name
            case For():
                return _first_statement(node.body)
            case If():
                return _first_statement(node.then or node.other)
            case _:
                continue
    raise InternalError("a loop without statements", code="PF902")


def condition(e: isl.AstExpr) -> Expr:
    """An isl AST condition as a boolean Expr."""
    kind: object = e.get_type()
    if kind == isl.ast_expr_type.int:
        return Const(bool(int(e.get_val().to_python())), BOOL)
    op: object = e.get_op_type()
    if op in _LOGIC:
        parts = [condition(e.get_op_arg(k)) for k in range(e.get_op_n_arg())]
        result = parts[0]
        for p in parts[1:]:
            result = Apply(_LOGIC[op], (result, p), BOOL)
        return result
    if op in _COMPARE:
        left, right = (IndexValue(from_ast_expr(e.get_op_arg(k)), I64) for k in (0, 1))
        return Apply(_COMPARE[op], (left, right), BOOL)
    raise InternalError(f"unexpected condition {e.to_C_str()}", code="PF902")


@lru_cache(maxsize=512)
def loops_of(graph: TensorGraph, tree: Tree) -> Block:
    """`build_loops` for a graph: the entry for code generators and the interpreter.

    Variants of a program that are tried one after the other have many loops in common.
    """
    with isl_lock:
        return build_loops(build_model(graph), tree)


def loops_as_scheduled(graph: TensorGraph, tree: Tree) -> Block:
    """One loop for each of the tree, with conditions where its statements have different ranges."""
    with isl_lock:
        return build_loops(build_model(graph), tree, separate=False)

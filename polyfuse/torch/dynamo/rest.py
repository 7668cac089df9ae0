"""What is in no region, by Inductor: `options={"rest": "inductor"}`.

    region 0, mm, cross, mm, region 1       region 0, a call of Inductor's, region 1

Nodes between two regions, in the order in which the graph runs, go to Inductor together: such a run can wait
for nothing that waits for it.  Runs in which Inductor would make no kernel, products alone, stay with ATen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from polyfuse.torch.dynamo.kernels import Call

Node: TypeAlias = Any

_CALLS = """
mm bmm addmm addmm_ baddbmm baddbmm_ addbmm addmv addr mv dot vdot convolution convolution_backward sort topk
kthvalue median mode embedding_dense_backward _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention
_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
_scaled_dot_product_cudnn_attention_backward
"""
"""Operators that Inductor calls as ATen does."""
_KNOWN_CALLS = frozenset(_CALLS.split())


class ByInductor:
    """A run that Inductor compiled, in its place in a graph."""

    def __init__(self, artifact: Any, name: str, operators: tuple[str, ...]) -> None:
        self.artifact, self.__name__, self.operators = artifact, name, operators

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        results: Sequence[Any] = self.artifact(*arguments)
        return results

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"artifact": self.artifact.serialize()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from torch._inductor.standalone_compile import AOTCompiledArtifact

        self.__dict__ |= state | {"artifact": AOTCompiledArtifact.deserialize(state["artifact"])}


def by_inductor(graph: Any, precision: str, refused: Callable[[str, Exception], None]) -> list[ByInductor]:
    """Have Inductor compute the runs of a graph; `refused` is told of those that it does not compile."""
    made: list[ByInductor] = []
    for nodes in [*_runs(graph)]:
        inside = set(nodes)
        inputs = list(dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside))
        outputs = [n for n in nodes if any(u not in inside for u in n.users)]
        known = all(map(_is_value, inputs)) and all(map(_is_tensor, outputs))
        if not known or not any(map(_is_kernel, nodes)):
            continue
        operators = tuple(_name(n) for n in nodes if n.target is not operator.getitem)
        name = f"inductor_{len(made)}"
        try:
            artifact = _compiled(graph, nodes, inputs, outputs, precision)
        except Exception as problem:
            refused(", ".join(operators), problem)
            continue
        made.append(ByInductor(artifact, name, operators))
        _replace(graph, nodes, inputs, outputs, made[-1])
    return made


def _runs(graph: Any) -> Iterator[list[Node]]:
    """Nodes between two calls of regions."""
    run: list[Node] = []
    for n in graph.nodes:
        of_region = n.target is operator.getitem and isinstance(n.args[0].target, Call)
        if n.op == "call_function" and "val" in n.meta and not of_region and not isinstance(n.target, Call):
            run.append(n)
        elif run and not of_region:
            yield run
            run = []


def _is_kernel(node: Node) -> bool:
    """Would Inductor make a kernel for it, or a part of one?"""
    if not hasattr(node.target, "_schema") or node.target.is_view:
        return False
    return _is_tensor(node) and _name(node) not in _KNOWN_CALLS


def _is_tensor(node: Node) -> bool:
    return hasattr(node.meta.get("val"), "stride")


def _is_value(node: Node) -> bool:
    """Is it known what comes: a tensor, or a number?"""
    return "val" in node.meta and not isinstance(node.meta["val"], list | tuple)


def _name(node: Node) -> str:
    return str(node.target).removeprefix("aten.").partition(".")[0]


def _compiled(
    graph: Any, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node], precision: str
) -> Any:
    import torch
    from torch._inductor import config, standalone_compile

    own = torch.fx.Graph()
    new: dict[Node, Node] = {}
    for k, n in enumerate(inputs):
        new[n] = own.placeholder(f"p{k}")
        new[n].meta = dict(n.meta)
    for n in nodes:
        new[n] = own.node_copy(n, lambda a: new[a])
    own.output([new[n] for n in outputs])
    module = torch.fx.GraphModule(torch.nn.Module(), own)
    kept = torch._functorch.config.enable_autograd_cache
    same = {"fallback_random": True, "emulate_precision_casts": precision == "eager"}
    with torch.no_grad(), config.patch({n: v for n, v in same.items() if hasattr(config, n)}):
        values = [n.meta["val"] for n in inputs]
        return standalone_compile(module, values, dynamic_shapes="from_tracing_context", aot=kept)


def _replace(
    graph: Any, nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node], call: ByInductor
) -> None:
    """One call in place of the nodes."""
    with graph.inserting_after(nodes[-1]):
        found = graph.call_function(call, tuple(inputs))
    last = found
    for k, n in enumerate(outputs):
        with graph.inserting_after(last):
            last = graph.call_function(operator.getitem, (found, k))
        last.meta = dict(n.meta)
        n.replace_all_uses_with(last, delete_user_cb=lambda u: u not in nodes)
    for n in reversed(nodes):
        graph.erase_node(n)

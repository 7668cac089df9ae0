"""Kernels of polyfuse for a model, without a C++ or CUDA compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.driver.pipeline import Compilation, Watch
from polyfuse.driver.targets import ON_GPU
from polyfuse.ir.kernel import Kernel, tree
from polyfuse.ir.schedule_tree import Band, Sequence, Tree
from polyfuse.ir.tensor_graph import Const, TensorGraph
from polyfuse.layers.clustering.clusters import Clustering, is_contraction
from polyfuse.layers.fusion.loop_fusion import LoopFusion
from polyfuse.layers.packing.packing import Packing
from polyfuse.layers.stitching.stitching import Stitching
from polyfuse.options import Options


@dataclass(frozen=True, slots=True)
class OwnCount:
    """`kernels`: launches of a GPU, parallel regions of a CPU.  `nests`: loop nests in them, with a barrier
    between or side by side in a pack, 1 where there is none.  `products`: matrix products, left out."""

    kernels: int
    nests: int
    products: int


def count_ours(graph: TensorGraph, sizes: Mapping[str, int], target: str, device: str = "") -> OwnCount:
    """Kernels for a CPU with two workers, or for a GPU of the table of devices."""
    options = Options(device=device) if target in ON_GPU else Options(threads=2)
    layers = {"fusion": LoopFusion(), "stitching": Stitching(), "packing": Packing()}
    cut = Clustering(library="always")  # products are no kernels of anybody's
    compilation = Compilation(graph, sizes, options=options, target=target, clustering=cut, **layers)
    kernels = compilation.lowered(Watch(options)).kernels.kernels
    own = [k for k in kernels if not is_product(k)]
    return OwnCount(len(own), sum(max(1, loop_nests(tree(k))) for k in own), len(kernels) - len(own))


def loop_nests(t: Tree) -> int:
    """Loops that no other contains."""
    match t:
        case Band():
            return 1
        case Sequence(children):
            return sum(map(loop_nests, children))
    return 0


def is_product(kernel: Kernel) -> bool:
    """Is it a matrix product and nothing else, a library's or one that is generated?"""
    if kernel.library is not None:
        return True
    products = {s.target for s in kernel.graph.statements if is_contraction(s)}
    return bool(products) and all(
        is_contraction(s) or (s.target in products and isinstance(s.expr, Const))
        for s in kernel.graph.statements
    )

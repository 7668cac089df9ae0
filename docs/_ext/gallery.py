"""The standard library as a gallery: each operator with its formula, its text, what layers make of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

HEAD = """\
# The standard library

Operators that are written in the language itself. Every program may call them as whole statements,
`y = softmax(x)`, and `pf.stdlib.softmax` compiles one as it is. A call is opened: its statements are fused
with those around it. An operator of your own file goes before one of the library that has the same name.

`F` and other float types stand for f64, f32, f16 or bf16, `I` for an integer type, and `B...` for any number
of axes, also none.

The figures are those of kernels for one GPU, an H200: launches, and bytes that move to and from its memory.
"""


def library() -> tuple[dict[str, str], dict[str, str]]:
    """Pages of the library, one a file, and pictures (SVG), by their names on the site."""
    import build_stdlib_reference as source
    from latex import formulas
    from latex2mathml.converter import convert  # only the environment of the site has it

    from polyfuse.frontend_dsl.syntax.parse import parse_text
    from polyfuse.library import read, source_files

    pages: dict[str, str] = {}
    pictures: dict[str, str] = {}
    items = []
    for file in source_files():
        program = parse_text(read(file), file)
        name = file.removesuffix(".pf")
        parts = [f"# {name}", source._heading(program)]
        for op in program.ops:
            what, origin = source.comment_of(program, op)
            parts += [f"## {op.name}", f"{what}."]
            if equations := formulas(op):
                made = "\n".join(convert(e, display="block") for e in equations)
                parts.append(f'<div class="formulas">\n{made}\n</div>')
            parts += [f"*Source: {origin}.*", _text(op.span.text)]
            parts += what_becomes_of(op.name, pictures)
        for f in program.functions:
            what, origin = source.comment_of(program, f)
            parts += [f"## {f.name}", f"{what}.", f"*Source: {origin}.*", _text(f.span.text)]
        pages[f"stdlib/{name}.md"] = "\n\n".join(parts) + "\n"
        named = ", ".join(f"`{d.name}`" for d in chain(program.ops, program.functions))
        items.append(f"- [{name}]({name}.md): {named}")
    pages["stdlib/index.md"] = HEAD + "\n" + "\n".join(items) + "\n"
    return pages, pictures


def _text(program: str) -> str:
    return f"```polyfuse\n{program}\n```"


def what_becomes_of(name: str, pictures: dict[str, str]) -> Iterator[str]:
    """What the layers make of an operator at a usual size: figures, and a picture of its loops."""
    import polyfuse as pf
    from polyfuse.decisions import format_bytes
    from polyfuse.visualize.schedule import before_after_svg, count_nests

    sizes, stage = _at_usual_sizes(name)
    before = stage.schedule(clean=False)
    after = stage.schedule().apply(pf.LoopFusion())
    without, with_all = before.lower(target="cuda"), after.lower(target="cuda").apply(pf.Stitching())
    yield (
        f"| {sizes} | as written | fused |\n|---|---:|---:|\n"
        f"| loop nests | {count_nests(before.tree)} | {count_nests(after.tree)} |\n"
        f"| launches | {without.launches} | {with_all.launches} |\n"
        f"| bytes | {format_bytes(without.global_bytes)} | {format_bytes(with_all.global_bytes)} |"
    )
    if count_nests(before.tree) > 1:
        pictures[f"stdlib/pictures/{name}.svg"] = str(before_after_svg(before.ir, after.ir))
        yield f"![The loops of {name}, before and after fusion](pictures/{name}.svg)"


def _at_usual_sizes(name: str) -> tuple[str, Any]:
    """The sizes in words, and the operator with them."""
    import polyfuse as pf
    from benchmarks import stdlib_sizes

    operator = pf.stdlib.op(name)
    sizes = stdlib_sizes.table()[name]
    ranks = {n: len(sizes[n]) for n in operator.signature.rank_variables}
    words = ", ".join(f"{n} = {' x '.join(map(str, v))}" for n, v in sizes.items())
    graph = operator.graph(None, ranks)
    axes = {}
    for size, values in sizes.items():
        if size in graph.sizes:
            axes[size] = values[0]
        else:
            axes |= dict(zip(_axes_of(size, graph.sizes), values, strict=True))
    return words, operator.specialize(ranks=ranks, **{n: v for n, v in axes.items() if n in graph.sizes})


def _axes_of(splat: str, sizes: tuple[str, ...]) -> list[str]:
    return [s for s in sizes if s.startswith(splat) and s[len(splat) :].lstrip("_").isdigit()]

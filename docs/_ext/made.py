"""Pages of the site that are made from the package: errors, passes, commands, the API, linked files.

Each function gives pages: their names on the site, and their texts.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from links import DOCS, ROOT, on_site, place

Pages = dict[str, str]
# Modules that do the work of passes, and those that list them.
_WORKS = re.compile(r"\.(?:transforms|graph|vectorize|analysis|cuda)\.(?!pipeline|unroll_and_jam\.rule$)")
_LISTS = re.compile(r"\.(?:pipeline|passes|common_passes)$")
_FENCES = {".py": "python", ".pf": "polyfuse", ".md": "markdown", ".cpp": "cpp", ".h": "cpp"}


def errors() -> Pages:
    """A page for each code, and the index that `docs/errors.md` is."""
    files = sorted((DOCS / "errors.d").glob("PF*.md"))
    return {place(f): on_site(f.read_text(encoding="utf-8"), f) for f in files}


def shown_files(paths: Iterable[Path]) -> Pages:
    """A page for each file or folder of the repository that a page links; a folder lists its files."""
    found: Pages = {}
    left = sorted(paths)
    while left:
        path = left.pop()
        name = path.relative_to(ROOT).as_posix()
        if place(path) in found:
            continue
        if path.is_dir():
            files = sorted(p for p in path.iterdir() if p.suffix in (".pf", ".py", ".lark"))
            left += files
            lines = [f"- [{f.name}]({f.name}.md)" for f in files]
            found[place(path)] = f"---\norphan: true\n---\n# {name}\n\n" + "\n".join(lines) + "\n"
        else:
            text = path.read_text(encoding="utf-8").rstrip()
            fence = _FENCES.get(path.suffix, "text")
            found[place(path)] = f"---\norphan: true\n---\n# {name}\n\n````{fence}\n{text}\n````\n"
    return found


# --- passes -------------------------------------------------------------------------------------------------


def passes(index: str) -> Pages:
    """A page for each pass: what it does, where it runs, how it is switched off, what its module says;
    and the index, a page with tables of them, whose names lead there."""
    from polyfuse.driver import targets

    lists: dict[str, list[tuple[str, Any]]] = {}
    for where, found in targets.passes().items():
        for p in found:
            lists.setdefault(p.name, []).append((where, p))
    pages = {f"passes/{slug(name)}.md": _pass_page(name, places) for name, places in lists.items()}
    linked = re.sub(
        r"^\| `([^`]+)` \|", lambda m: f"| [`{m[1]}`]({slug(m[1])}.md) |", index, flags=re.MULTILINE
    )
    return {**pages, "passes/index.md": linked}


def slug(name: str) -> str:
    """The name of a pass in a file's name: `unroll-and-jam:stencils` is `unroll-and-jam.stencils`."""
    return name.replace(":", ".")


def _pass_page(name: str, places: list[tuple[str, Any]]) -> str:
    first = places[0][1]
    off = (
        f'It is optional: `POLYFUSE_DISABLE={name}`, or `disable=["{name}"]` of `pf.compile`, leaves it out.'
        if first.optional
        else "Others need it, so it cannot be switched off."
    )
    does = first.does[0].upper() + first.does[1:]
    lines = [f"# {name}", f"{does}.", "It runs in: " + ", ".join(where for where, _ in places) + ".", off]
    module = _module_of(first.run)
    if module is not None:
        where = Path(str(module.__file__)).relative_to(ROOT).as_posix()
        lines += [f"## How\n\n`{where}` says:", f"```text\n{inspect.getdoc(module)}\n```"]
    return "\n\n".join(lines) + "\n"


def _module_of(run: Any) -> Any:
    """The module that does the work of a pass: that of the first function that its lines in the list call."""
    left, seen = [run], set()
    while left:
        thing = left.pop(0)
        thing = getattr(thing, "matches", getattr(thing, "func", thing))  # of a rule, of a partial
        name = getattr(thing, "__module__", "")
        if _WORKS.search(name):
            return sys.modules[name]
        if inspect.isfunction(thing) and thing not in seen and _LISTS.search(name):
            seen.add(thing)
            held = inspect.getclosurevars(thing)
            left += [*held.nonlocals.values(), *held.globals.values()]
    return None


# --- the command --------------------------------------------------------------------------------------------


def commands() -> Pages:
    """One page with every command, its arguments and options."""
    import typer.main

    from polyfuse.cli.app import app

    command = typer.main.get_command(app)
    lines = ["# Commands", "Every command of polyfuse with its options. [How they are used](cli.md)."]
    for name, sub in sorted(_leaves(command, "polyfuse")):
        lines.append(f"## {name}")
        lines.append(_command_help(sub.help or ""))
        rows = [row for p in sub.params if (row := _parameter(p))]
        if rows:
            lines.append("| option | meaning | default |\n|---|---|---|\n" + "\n".join(rows))
    return {"reference/commands.md": "\n\n".join(lines) + "\n"}


def _leaves(command: Any, name: str) -> Iterable[tuple[str, Any]]:
    for word, sub in getattr(command, "commands", {}).items():
        if getattr(sub, "commands", None):
            yield from _leaves(sub, f"{name} {word}")
        else:
            yield f"{name} {word}", sub


def _command_help(text: str) -> str:
    """Paragraphs; what is indented is shown as it stands."""
    text = text.replace("\\[", "[")
    found = ["```text\n" + p.strip() + "\n```" if p.startswith(" ") else p for p in text.split("\n\n")]
    return "\n\n".join(found).replace("\n```\n\n```text\n", "\n")


def _parameter(p: Any) -> str:
    if getattr(p, "hidden", False) or p.name == "help":
        return ""
    given = (*p.opts, *p.secondary_opts) if p.param_type_name == "option" else (p.metavar or p.name.upper(),)
    names = ", ".join(f"`{o}`" for o in given)
    default = "" if p.default in (None, False, (), [], "") else f"`{p.default}`"
    text = " ".join((getattr(p, "help", None) or "").replace("\\[", "[").split()).replace("|", "\\|")
    return f"| {names} | {text} | {default} |"


# --- the API ------------------------------------------------------------------------------------------------

MODULES = {"torch": ("TorchOperator", "op", "report"), "jax": ("JaxOperator", "op")}
_NAME = re.compile(r"`pf\.(\w+)`")


def api(index: str) -> Pages:
    """A page in reStructuredText for each public name, whose docstring autodoc shows; and the index."""
    import polyfuse as pf
    from polyfuse import visualize

    names = [n for n in pf.__all__ if n not in ("__version__", "stdlib", "visualize", *MODULES)]
    found = {f"api/{n}.rst": _name_page(n, getattr(pf, n)) for n in names}
    modules = {**MODULES, "visualize": tuple(getattr(visualize, "__all__", ()))}
    found |= {f"api/{m}.rst": _module_page(m, inside) for m, inside in modules.items()}
    names += modules

    def linked(m: re.Match[str]) -> str:
        return f"[{m[0]}]({m[1]}.rst)" if m[1] in names else m[0]

    items = re.sub(r"^- .*?:", lambda line: _NAME.sub(linked, line[0]), index, flags=re.MULTILINE)
    return {**found, "api/index.md": items}


def _name_page(name: str, thing: Any) -> str:
    if inspect.isclass(thing):
        kind = "autoexception" if issubclass(thing, BaseException) else "autoclass"
    else:
        kind = "autofunction" if inspect.isfunction(thing) else "autodata"
    return f"{_title(f'pf.{name}')}.. currentmodule:: polyfuse\n\n.. {kind}:: {name}\n"


def _module_page(module: str, names: Iterable[str]) -> str:
    text = f"{_title(f'pf.{module}')}.. automodule:: polyfuse.{module}\n   :no-members:\n"
    for n in names:
        text += f"\n.. {'autoclass' if n[0].isupper() else 'autofunction'}:: polyfuse.{module}.{n}\n"
    return text


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n.. highlight:: default\n\n"

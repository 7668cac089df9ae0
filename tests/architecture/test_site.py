"""What the site is made of: links, tables of contents, chapters. Sphinx is not needed here."""

from __future__ import annotations

import re
import sys

import pytest
from package_sources import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from chapters import as_markdown
from contents import toctrees, with_cards, with_contents
from gallery import what_becomes_of
from latex import formulas
from links import on_site, outside_code, place
from made import commands, errors, passes, shown_files, slug
from site_pages import repository_pages

import polyfuse as pf

DOCS = ROOT / "docs"
MADE = """\
.. DO NOT EDIT.

.. _sphx_glr_course_01_sets.py:

# Loops are sets

See [tuning](../reference/tuning.md).

.. GENERATED FROM PYTHON SOURCE LINES 5-7

.. code-block:: Python

    print("```")

.. rst-class:: sphx-glr-script-out

 .. code-block:: none

    ```

.. GENERATED FROM PYTHON SOURCE LINES 8-9

## A heading

.. _sphx_glr_download_course_01_sets.py:

.. only:: html
"""


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("docs/reference/cli.md", "reference/cli.md"),
        ("docs/errors.d/PF402.md", "errors/PF402.md"),
        ("docs/errors.md", "errors/index.md"),
        ("docs/course/01_a_first_operator.py", "course/01_a_first_operator.md"),
        ("README.md", "index.md"),
        ("examples/demo.py", "sources/examples/demo.py.md"),
        ("examples/models", "sources/examples/models/index.md"),
    ],
)
def test_each_file_has_a_page(path: str, page: str) -> None:
    assert place(ROOT / path) == page


def test_links_lead_to_pages() -> None:
    shown = []
    page = DOCS / "reference" / "cli.md"
    before = (
        "[a](../errors.md#pf402) [b](../../examples/models) [c](../index.md#x) [d](nowhere.md) `[e](../e.md)`"
    )
    after = before.replace("errors.md#pf402", "errors/PF402.md")
    after = after.replace("../../examples/models", "../sources/examples/models/index.md")
    assert on_site(before, page, shown.append) == after
    assert shown == [ROOT / "examples" / "models"]


def test_anchors_are_targets() -> None:
    text = on_site('<a id="x"></a>\n\n## X\n\n- <a id="y"></a>**y**: z\n', DOCS / "index.md")
    assert text == "(x)=\n\n## X\n\n- []{#y}**y**: z\n"


def test_code_is_left_as_it_is() -> None:
    text = "a\n```\na\n```\n`a` a\n````md\n```\na\n````\n"
    assert outside_code(text, lambda part: part.replace("a", "b")) == (
        "b\n```\na\n```\n`a` b\n````md\n```\na\n````\n"
    )


def test_a_page_is_listed_once_and_in_the_order_of_its_index() -> None:
    pages = {
        "index.md": "- [two](b/index.md)\n- [one](a.md), [x](c.md)\n",
        "b/index.md": "| [c](../c.md) | [a](../a.md) |\n- [away](../d.md)\n",
        "a.md": "- [c](c.md)",
        "c.md": "",
    }
    below = toctrees(pages)
    assert below == {"index.md": ["b/index.md", "a.md"], "b/index.md": ["c.md"]}
    assert with_contents("text\n", below["index.md"]).endswith(
        "```{toctree}\n:hidden:\n\n/b/index\n/a\n```\n"
    )
    first = with_contents("- [One](a.md)\n", ["a.md"], first=True)
    assert first.endswith("\n\nOne </a>\n```\n") and "One <" not in with_contents("- [One](a.md)\n", ["a.md"])


def test_the_first_table_becomes_cards() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    made = with_cards(page)
    assert "| begin with |" in page and "| begin with |" not in made
    assert made.count("{grid-item-card} You ") == len(re.findall(r"^\| (?!You)\w", page, re.MULTILINE)) > 5
    assert "```{grid-item-card} You use JAX\n[Call an operator from JAX](howto/jax.md)\n```" in made
    assert with_cards("| a | b |\n|---|---|\n| c | d |\n") == "| a | b |\n|---|---|\n| c | d |\n"


def test_a_chapter_becomes_markdown() -> None:
    text = as_markdown(MADE)
    assert text.startswith("```{eval-rst}\n.. _sphx_glr_course_01_sets.py:\n```\n\n# Loops are sets\n")
    assert "GENERATED" not in text and "DO NOT EDIT" not in text
    assert "````{eval-rst}\n.. code-block:: Python" in text  # longer than what is inside
    assert text.index("## A heading") < text.index("```{eval-rst}\n.. _sphx_glr_download")
    picture = f"    <svg>{'<rect/>' * 3000}</svg>\n"
    made = as_markdown(MADE.replace('    print("```")\n', picture, 1))
    assert "    <rect/>\n    <rect/>\n" in made and max(map(len, made.splitlines())) < 10_000
    with pytest.raises(ValueError, match="no page"):
        as_markdown("# Another page\n")


def test_each_error_and_each_pass_has_a_page() -> None:
    assert "errors/PF402.md" in errors() and len(errors()) > 150
    index = (DOCS / "reference" / "passes.md").read_text(encoding="utf-8")
    made = passes(index)
    assert "[`unroll-and-jam:stencils`](unroll-and-jam.stencils.md)" in made["passes/index.md"]
    assert made["passes/index.md"].count("](") >= len(made) > 80
    page = made[f"passes/{slug('unroll-and-jam:stencils')}.md"]
    assert "POLYFUSE_DISABLE=unroll-and-jam:stencils" in page and "stencils.py` says:" in page


def test_each_command_is_on_one_page() -> None:
    (text,) = commands().values()
    assert "## polyfuse run" in text and "## polyfuse cache clear" in text and "`--target`" in text
    assert "-o out\npolyfuse build norms.pf" in text  # examples are one block


def test_files_that_pages_link_have_pages() -> None:
    made = shown_files([ROOT / "examples" / "models"])
    assert "[transformer_encoder.pf](transformer_encoder.pf.md)" in made["sources/examples/models/index.md"]
    assert "op encoder_layer" in made["sources/examples/models/transformer_encoder.pf.md"]


def test_an_operator_of_the_library_has_figures_and_a_picture() -> None:
    pictures: dict[str, str] = {}
    table, picture = what_becomes_of("softmax", pictures)
    assert "| B = 8 x 12 x 128, H = 128 | as written | fused |" in table
    assert "| loop nests | 4 | 3 |\n| launches | 4 | 1 |\n| bytes | 37.9 MB | 12.6 MB |" in table
    assert picture.endswith("](pictures/softmax.svg)")
    assert pictures["stdlib/pictures/softmax.svg"].startswith("<svg")


def test_definitions_are_formulas_where_textbooks_have_them() -> None:
    assert formulas(pf.stdlib.op("softmax").op) == [
        r"m_{b} = \max_{h} x_{b,h}",
        r"e_{b,h} = \exp\left(x_{b,h} - m_{b}\right)",
        r"s_{b} = \sum_{h} e_{b,h}",
        r"y_{b,h} = \frac{e_{b,h}}{s_{b}}",
    ]
    assert not formulas(pf.parse("op f(x: f32[N]) -> (y: f32[N]) { y[i] = f32(i // 2) + x[i] }").op().op)
    assert value("-(a + 1.0) * a") == r"\left(-\left(a + 1.0\right)\right) \, a"
    assert value("sum[i]((x[i] - 2.0) ** 2) + eps") == (
        r"\left(\sum_{i} \left(x_{i} - 2.0\right)^{2}\right) + \varepsilon"
    )
    assert value("a if a > 0.0 else 1.0") == r"\begin{cases} a & a > 0.0 \\ 1.0 & \text{else} \end{cases}"


def value(text: str) -> str:
    """The right side of one definition as a formula."""
    program = pf.parse(f"op f(x: f32[N], a: f32, eps: f32) -> (y: f32) {{ y = {text} }}")
    return formulas(program.op().op)[0].removeprefix("y = ")


def test_pages_of_the_repository_are_gathered() -> None:
    found = {p.relative_to(ROOT).as_posix() for p in repository_pages()}
    assert {"docs/index.md", "CONTRIBUTING.md", "docs/lab/index.md"} <= found
    assert not found & {"README.md", "docs/errors.d/PF402.md"}

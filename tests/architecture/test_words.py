"""The documentation is short, and so are its sentences: `python docs/count_words.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from package_sources import ROOT


def _counter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_words", ROOT / "docs" / "count_words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["count_words"] = module  # dataclasses look for the module of their class
    spec.loader.exec_module(module)
    return module


COUNTER = _counter()
TEXT = """\
# A heading is no sentence

This page has two sentences. The second one names [a link](there.md) and `code with words`!

- An item is a sentence
- short

| cells | count as words |
|---|---|

```
code does not
```

<!-- measured -->
nor does this
<!-- end -->

<!-- figures of today -->
nor this
<!-- end -->
"""


def test_words_and_sentences(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    found = COUNTER.counted(page)
    assert found.sentences == (
        "This page has two sentences.",
        "The second one names a link and code!",
        "An item is a sentence",
    )
    assert found.words == 6 + 5 + 9 + 5 + 1 + 4


def test_of_a_chapter_the_text_counts(tmp_path: Path) -> None:
    chapter = tmp_path / "01.py"
    chapter.write_text(
        '"""# A title\n\nSome text here.\n"""\n\n# %%\nx = 1  # code\n\n# %% [markdown]\n# More of it.\n'
    )
    assert COUNTER.counted(chapter).words == 2 + 3 + 3


def test_pages_that_a_program_made_are_left_out() -> None:
    counted = {p.path.relative_to(ROOT).as_posix() for p in COUNTER.pages()}
    assert {"README.md", "docs/language.md"} <= counted
    assert not counted & {"docs/errors.md", "docs/reference/stdlib.md", "docs/lab/ablation.md"}


def test_sentences_are_short() -> None:
    assert COUNTER.mean(COUNTER.pages()) <= COUNTER.MEAN


def test_there_are_few_words() -> None:
    """Who adds a page takes as many words away elsewhere."""
    assert sum(p.words for p in COUNTER.pages()) <= COUNTER.WORDS

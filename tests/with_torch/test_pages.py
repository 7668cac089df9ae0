"""The README and the pages about PyTorch and JAX: their code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/reference/pytorch.md", "docs/reference/jax.md", "README.md"])
def test_the_code_of_a_page_runs(page: str) -> None:
    parts = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert parts
    names: dict[str, Any] = {}
    for part in parts:
        exec(compile(part, f"<{page}>", "exec"), names)

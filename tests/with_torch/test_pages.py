"""The README, the how-to pages and those about PyTorch and JAX: their code runs as it stands there."""

from __future__ import annotations

from pathlib import Path

import pages
import pytest
import torch
from torch.torch_version import TorchVersion

ROOT = Path(__file__).parents[2]
NAMED = (*sorted(ROOT.glob("docs/howto/*.md")), *sorted(ROOT.glob("docs/reference/*.md")), ROOT / "README.md")
PAGES = [p for p in NAMED if any(map(pages.needs_peers, pages.blocks(p)))]


@pytest.fixture(autouse=True)
def as_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the verification that tests switch on for themselves."""
    monkeypatch.delenv("POLYFUSE_VERIFY", raising=False)


def test_there_are_pages() -> None:
    assert len(PAGES) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    if (
        page.parent.name == "reference"
        and page.name == "pytorch.md"
        and torch.__version__ < TorchVersion("2.7")
    ):
        pytest.skip("its Dynamo takes the page for Python where it looks for a line")
    # What a how-to page shows is what its code prints; others show parts, or another machine's figures.
    pages.run(page, pages.blocks(page), tmp_path, outputs=page.parent.name == "howto")

"""The Python blocks of the README run, one after the other, as a reader would paste them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_python_blocks_run(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    check = (
        "s = x.astype(np.float64) + r\n"
        "expected = (s - s.mean(1, keepdims=True)) / np.sqrt(s.var(1, keepdims=True) + 1e-5)\n"
        "np.testing.assert_allclose(y, expected, atol=1e-4)\n"
    )
    code = "\n".join([*blocks, check])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    tree = re.findall(r"^```\n(band.*?)^```", text, re.DOTALL | re.MULTILINE)[0]
    assert tree in done.stdout, "the README shows another tree than the program prints"

"""Names of locals do not count in compared sources; all else does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the benchmarks are not part of the package

from benchmarks import golden
from benchmarks.normal_text import normal

BASE = """void pf_f(const float* b_x, float* __restrict const b_y, int n) {
  for (int c0 = 0; c0 < n; ++c0) b_y[c0] = pf_exp_f32(b_x[c0]);
  float s = 0;
  for (int c0 = 0; c0 < n; ++c0) {
    const float t = b_x[c0], u = t * 2;
    s += t - u;
  }
  b_y[0] = s;
}"""


def changed(*pairs: tuple[str, str]) -> str:
    text = BASE
    for old, new in pairs:
        assert re.search(old, text), old
        text = re.sub(old, new, text)
    return text


@pytest.mark.parametrize(
    "pairs",
    [
        [(r"\bb_x\b", "b_in"), (r"\bs\b", "acc0")],
        [(r"\bt\b", "b"), (r"\bu\b", "t_2")],
        [(r"\bc0\b", "c7")],
        [(r"c0 = 0; c0 < n; \+\+c0\) b_y\[c0\] = (.*)c0\]", r"k = 0; k < n; ++k) b_y[k] = \1k]")],
        [(r"\bt\b", "s"), (r"  s \+=", "  q +="), (r"float s = 0", "float q = 0"), (r"= s;", "= q;")],
        [(r"s \+= t", "// the sum of b_x\n\n      s += t"), (r"  float s", "\tfloat s")],
    ],
    ids=["buffers", "locals", "loops", "one loop of two", "shadowing", "comments and spaces"],
)
def test_names_do_not_count(pairs: list[tuple[str, str]]) -> None:
    assert normal(changed(*pairs)) == normal(BASE)


@pytest.mark.parametrize(
    "pair",
    [
        (r"s \+= t - u", "s += u - t"),
        (r"b_y\[0\] = s", "b_x[0] = s"),
        (r"pf_exp_f32", "pf_exp_f64"),
        (r"t \* 2", "t * 3"),
        (r"t \* 2", "t + 2"),
        (r"float s = 0", "double s = 0"),
        (r"\+\+c0\) \{", "c0 += 2) {"),
        (r"b_x\[c0\]\)", "b_x[n])"),
        (r"void pf_f", "void pf_g"),
        (r"s \+= t - u;", "s += t - u; s += 0;"),
        (r"^", "// needs -fwrapv\n"),
    ],
)
def test_all_else_counts(pair: tuple[str, str]) -> None:
    assert normal(changed(pair)) != normal(BASE)


def test_what_is_declared() -> None:
    text = """void pf_f(PF_IN(float) b_x) {
      PF_SHARED(float, b_s, 6);
      enum { tile_bytes = 64, tile_last = tile_bytes / 4 };
      typedef float tile_vector __attribute__((vector_size(tile_bytes)));
      tile_vector acc[2][tile_last] = {};
      float __attribute__((aligned(64))) s[8], t[9];
      __typeof__(s[0]) s_o[8];
      pf_vec<float, 4> w = pf_load<4>(b_x, 0);
      s[0] = ({ const float q0 = t[0]; q0 < s_o[1] ? q0 : acc[0][0]; }) + b_s[1] + w[0];
    }"""
    kept = set(re.findall(r"[A-Za-z_]\w*", normal(text)))
    names = {"b_x", "b_s", "tile_bytes", "tile_last", "tile_vector", "acc", "s", "t", "s_o", "w", "q0"}
    assert not names & kept
    assert {"PF_SHARED", "pf_load", "__typeof__", "vector_size"} <= kept


def test_what_is_not_understood_stays() -> None:
    assert normal("void pf_f(int n) { n = 1; } }") == "void pf_f(int n) { n = 1; } }"


@pytest.mark.parametrize("target", golden.TARGETS)
def test_a_source_with_other_names_is_the_same(target: str) -> None:
    """Each local of a real source gets another name; then one use of a name is another's."""
    sources: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "normal", lambda text: sources.append(text) or text)
        golden.text_of("stdlib/layer_norm", target)
    (source,) = sources
    local = re.compile(r"\b(?:b_\w+|[cw]\d+)\b")
    names = sorted(set(local.findall(source)))
    assert len(names) > 5
    renamed = local.sub(lambda m: f"l{names.index(m[0])}_", source)
    assert normal(renamed) == normal(source)
    *_, last = re.finditer(r"\bb_\w+", source)
    other = next(n for n in names if n.startswith("b_") and n != last[0])
    assert normal(source[: last.start()] + other + source[last.end() :]) != normal(source)

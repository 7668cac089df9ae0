"""The emulated processor with AVX-512: its macros, its instructions against NumPy, code that uses them."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from avx512 import FOLDER, avx512_flags, avx512_machine, can_emulate
from float_modes import FLUSH

import polyfuse
from polyfuse.codegen.cpu.emit import SANITIZED
from polyfuse.codegen.cpu.memory_ops import STREAM
from polyfuse.codegen.cpu.vectorize.predicated_epilogues import MASKS
from polyfuse.codegen.math.prelude import CPU_FUNCTIONS, FUNCTIONS, ROW_FUNCTIONS, SHORT_FUNCTIONS, prelude
from polyfuse.codegen.transforms.transpose_loads import TURNS
from polyfuse.runtime.toolchain import compiler
from polyfuse.runtime.toolchain.compiler import load_shared

pytestmark = pytest.mark.skipif(not can_emulate(), reason="needs gcc for a processor with AVX2")

# Functions of arrays: the name, the type of elements, and what becomes of vectors a and b.
INSTRUCTIONS = (
    ("range_f32", "float", "__builtin_ia32_rangeps512_mask(a, b, 2, a, -1, 4)"),
    ("range_f64", "double", "__builtin_ia32_rangepd512_mask(a, b, 2, a, -1, 4)"),
    ("scalef_f32", "float", "__builtin_ia32_scalefps512_mask(a, b, a, -1, 4)"),
    ("scalef_f64", "double", "__builtin_ia32_scalefpd512_mask(a, b, a, -1, 4)"),
    ("min_f32", "float", "__builtin_ia32_minps512_mask(a, b, a, -1, 4)"),
    ("reduce_f32", "float", "__builtin_ia32_reduceps512_mask(a, 0, a, -1)"),
    ("getexp_f32", "float", "__builtin_ia32_getexpps512_mask(a, a, -1, 4)"),
    ("getmant_f32", "float", "__builtin_ia32_getmantps512_mask(a, 8, a, -1, 4)"),
    ("permvar_i16", "short", "__builtin_ia32_permvarhi512_mask(a, b, V{}, 0xaaaaaaaau)"),
    ("maddwd_i16", "short", "(V)__builtin_ia32_pmaddwd512_mask(a, b, I{}, (unsigned short)-1)"),
)
HEAD = """
typedef int I __attribute__((vector_size(64)));
typedef float F __attribute__((vector_size(64)));
typedef short H __attribute__((vector_size(64)));
extern "C" void bf16(short* y, const float* a, const float* b) {
  *(H*)y = (H)__builtin_ia32_cvtne2ps2bf16_v32hi(*(const F*)b, *(const F*)a);
}
extern "C" void bf16_half(short* y, const float* a) {
  typedef short Q __attribute__((vector_size(32), aligned(2), may_alias));
  *(Q*)y = (Q)__builtin_ia32_cvtneps2bf16_v16sf(*(const F*)a);
}
extern "C" int less(const int* a, const int* b) {
  return __builtin_ia32_ucmpd512_mask(*(const I*)a, *(const I*)b, 1, -1);
}
extern "C" int common(const int* a, const int* b) {
  return __builtin_ia32_ptestmd512(*(const I*)a, *(const I*)b, -1);
}
extern "C" void compressed(int* y, const int* a, int mask) {
  *(I*)y = __builtin_ia32_compresssi512_mask(*(const I*)a, *(const I*)y, mask);
}
"""
LOOP = """
extern "C" void {0}({1}* y, const {1}* x, const {1}* z, long n) {{
  typedef {1} V __attribute__((vector_size(64), aligned(8), may_alias));
  for (long k = 0; k < n; k += 64 / sizeof({1})) {{
    const V a = *(const V*)(x + k), b = *(const V*)(z + k);
    *(V*)(y + k) = {2};
  }}
}}
"""


@pytest.fixture(scope="module")
def machine() -> ctypes.CDLL:
    source = HEAD + "".join(LOOP.format(*each) for each in INSTRUCTIONS) + FLUSH
    return load_shared(source, extra_flags=avx512_flags())


def call(machine: ctypes.CDLL, name: str, a: Any, b: Any) -> Any:
    y = np.empty_like(a)
    given = [ctypes.c_void_p(x.ctypes.data) for x in (y, a, np.ascontiguousarray(b, a.dtype))]
    getattr(machine, name)(*given, ctypes.c_long(a.size))
    return y


def points(dtype: Any, rng: np.random.Generator) -> Any:
    """Of every magnitude, zeros, infinities, NaN and subnormal ones."""
    info, word = np.finfo(dtype), np.uint32 if dtype == np.float32 else np.uint64
    few = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.5,
        np.inf,
        np.nan,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        info.tiny / 3,
    ]
    bits = rng.integers(0, np.iinfo(word).max, 4000, dtype=word, endpoint=True).view(dtype)
    some = (rng.standard_normal(2070) * 40).astype(dtype)
    x = np.concatenate([np.array(few, dtype), -np.array(few, dtype), bits, some])
    return np.resize(rng.permutation(np.where(np.isnan(x), dtype(np.nan), x)), 6144)


def same(found: Any, want: Any) -> None:
    """The same bits; NaN is NaN."""
    some = ~np.isnan(want)
    np.testing.assert_array_equal(np.isnan(found), ~some)
    np.testing.assert_array_equal(found[some], want[some])
    np.testing.assert_array_equal(np.signbit(found[some]), np.signbit(want[some]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats(machine: ctypes.CDLL, dtype: Any) -> None:
    rng = np.random.default_rng(5)
    a, b, t = points(dtype, rng), points(dtype, rng), f"f{8 * np.dtype(dtype).itemsize}"
    with np.errstate(all="ignore"):
        smaller = np.where(np.isnan(a) | (abs(b) < abs(a)), b, a)
        same(call(machine, f"range_{t}", a, b), np.copysign(smaller, a))
        n = np.floor(np.clip(b, -5000, 5000))
        by = np.ldexp(a, np.nan_to_num(n).astype(np.int32))
        special = ~np.isfinite(b) | np.isnan(a)
        same(call(machine, f"scalef_{t}", a, b)[~special], by[~special])
        same(call(machine, f"scalef_{t}", a, np.full_like(a, np.nan)), np.full_like(a, np.nan))
        ends = np.where(np.isnan(a), np.inf, a * np.inf)
        same(call(machine, f"scalef_{t}", a, np.full_like(a, np.inf)), ends)


def test_parts_of_floats(machine: ctypes.CDLL) -> None:
    a = points(np.float32, np.random.default_rng(6))
    with np.errstate(all="ignore"):
        m, e = np.frexp(a)
        e = np.where(a == 0, -np.inf, np.where(np.isinf(a), np.inf, e - 1)).astype(np.float32)
        same(call(machine, "getexp_f32", a, a), np.where(np.isnan(a), a, e))
        m = np.where(a == 0, np.copysign(1, a), np.where(a == np.inf, 1, 2 * m)).astype(np.float32)
        same(call(machine, "getmant_f32", a, a), np.where(a < 0, np.nan, m))
        rest = np.where(np.isinf(a), 0, a - np.rint(a)) + np.float32(0)
        same(call(machine, "reduce_f32", a, a), rest)
        b = points(np.float32, np.random.default_rng(7))
        same(call(machine, "min_f32", a, b), np.where(a < b, a, b))


def test_subnormal_numbers_are_zeros_where_the_modes_say_so(machine: ctypes.CDLL) -> None:
    tiny = np.full(16, 2.0**-140, np.float32)
    one, many = np.ones(16, np.float32), np.full(16, 200, np.float32)
    seen = {}
    for flushed in (False, True):
        machine.flush(int(flushed))
        found = {name: call(machine, f"{name}_f32", tiny, many)[0] for name in ("getexp", "scalef", "range")}
        found |= {"mant": call(machine, "getmant_f32", -tiny, one)[0]}
        found |= {"result": call(machine, "scalef_f32", one, -many * 0 - 130)[0]}
        wide = call(machine, "scalef_f64", np.ones(8), np.full(8, -1030.0))[0]
        machine.flush(0)
        seen[flushed] = {**found, "wide": wide}
    kept, zeros = seen[False], seen[True]
    assert (kept["getexp"], kept["scalef"], kept["range"]) == (-140, 2.0**60, tiny[0]) and np.isnan(
        kept["mant"]
    )
    assert (kept["result"], kept["wide"]) == (2.0**-130, 2.0**-1030)
    assert (zeros["getexp"], zeros["scalef"], zeros["range"], zeros["mant"]) == (-np.inf, 0, 0, -1)
    assert (zeros["result"], zeros["wide"]) == (0, 0)


def test_integers_and_bf16(machine: ctypes.CDLL) -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-(2**15), 2**15, 64).astype(np.int16) for _ in range(2))
    a[:4] = b[:4] = -(2**15)
    products = a.astype(np.int64) * b
    sums = (products[::2] + products[1::2]).astype(np.int32)
    np.testing.assert_array_equal(call(machine, "maddwd_i16", a, b).view(np.int32), sums)
    chosen = np.concatenate([a[k : k + 32][b[k : k + 32] & 31] for k in (0, 32)])
    np.testing.assert_array_equal(call(machine, "permvar_i16", a, b), np.where(np.arange(64) % 2, chosen, 0))
    u, v = (rng.integers(0, 2**32, 16).astype(np.uint32) for _ in range(2))
    u[0] = v[0]
    less = machine.less(ctypes.c_void_p(u.ctypes.data), ctypes.c_void_p(v.ctypes.data))
    np.testing.assert_array_equal([less >> k & 1 for k in range(16)], u < v)
    u, v = u & 5, v & 3
    common = machine.common(ctypes.c_void_p(u.ctypes.data), ctypes.c_void_p(v.ctypes.data))
    np.testing.assert_array_equal([common >> k & 1 for k in range(16)], (u & v) != 0)
    v = np.arange(16, dtype=np.int32)
    y = -v
    machine.compressed(ctypes.c_void_p(y.ctypes.data), ctypes.c_void_p(v.ctypes.data), ctypes.c_int(common))
    kept = v[[common >> k & 1 == 1 for k in range(16)]]
    np.testing.assert_array_equal(y, np.concatenate([kept, -v[len(kept) :]]))
    x = points(np.float32, rng)
    found = np.empty(x.size, np.uint16).view(ml_dtypes.bfloat16)
    for k in range(0, x.size, 32):
        places = (found.ctypes.data + 2 * k, x.ctypes.data + 4 * k, x.ctypes.data + 4 * k + 64)
        machine.bf16(*(ctypes.c_void_p(p) for p in places))
    halves = np.empty_like(found)
    for k in range(0, x.size, 16):
        machine.bf16_half(ctypes.c_void_p(halves.ctypes.data + 2 * k), ctypes.c_void_p(x.ctypes.data + 4 * k))
    with np.errstate(all="ignore"):
        want = np.where(abs(x) < np.finfo(np.float32).tiny, np.copysign(0, x), x).astype(ml_dtypes.bfloat16)
        same(found.astype(np.float32), want.astype(np.float32))
        same(halves.astype(np.float32), want.astype(np.float32))


def test_macros_are_those_of_a_compiler() -> None:
    def macros(*flags: str) -> set[str]:
        command = ["g++", *flags, "-dM", "-E", "-x", "c++", "/dev/null"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return set(re.findall(r"__AVX512\w+", text))

    plain = macros("-march=skylake-avx512")
    assert macros(*avx512_flags(bf16=False)) == plain and len(plain) == 5
    assert macros(*avx512_flags()) == plain | macros("-march=icelake-server") | macros("-march=cooperlake")


def test_every_instruction_of_the_package_has_one_here() -> None:
    package = Path(polyfuse.__file__).parent
    texts = [p.read_text() for p in (*package.glob("codegen/**/*.h"), *package.glob("codegen/**/*.py"))]
    names = {name for text in texts for name in re.findall(r"__builtin_ia32_(?:\w|\$\{S\})+", text)}
    used = {n.replace("${S}", s) for n in names for s in ("ps", "pd")}
    used = {n for n in used if "512" in n or n.endswith("_mask") or "bf16" in n}
    assert used == set(re.findall(r"#define (__builtin_\w+)", (FOLDER / "emulated.h").read_text()))


def test_subnormal_bf16_come_through_in_every_mode() -> None:
    """The instruction that narrows to bf16 takes them for 0, whatever the modes say."""
    text = "op f(x: f32[N, M]) -> (y: bf16[N, M]) { y[i, j] = bf16(x[i, j]) }"
    x = np.full((3, 160), 2.0**-130, np.float32) * np.arange(160, dtype=np.float32)
    with avx512_machine():
        found = polyfuse.compile(text)(x)
    np.testing.assert_array_equal(found.astype(np.float32), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_kernels_are_for_a_core_with_wide_vectors() -> None:
    text = """op f(x: bf16[T, H]) -> (y: bf16[T, H]) {
      m[t] = max[h](f32(x[t, h]))
      e[t, h] = exp(f32(x[t, h]) - m[t])
      s[t] = sum[h](e[t, h])
      y[t, h] = bf16(log(e[t, h] / s[t]))
    }"""
    x = np.random.default_rng(2).standard_normal((9, 149)).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float64)
    want = wide - wide.max(1, keepdims=True)
    want -= np.log(np.exp(want).sum(1, keepdims=True))
    for bf16 in (False, True):
        with avx512_machine(bf16):
            assert compiler.find_compiler().vector_bits == 512
            found = polyfuse.compile(text)(x)
        np.testing.assert_allclose(found.astype(np.float64), want, rtol=2**-8)


@pytest.mark.parametrize(
    "march", ["skylake-avx512", "icelake-server", "cooperlake", "sapphirerapids", "znver4"]
)
def test_compilers_for_such_processors_take_all_functions_without_a_warning(
    march: str, tmp_path: Path
) -> None:
    """Nothing here can run them."""
    gxx = shutil.which("g++")
    known = subprocess.run([str(gxx), f"-march={march}", "-E", "-x", "c++", "/dev/null"], capture_output=True)
    if known.returncode:
        pytest.skip("a compiler that does not know it")
    names = sorted({*FUNCTIONS, *CPU_FUNCTIONS, *ROW_FUNCTIONS, *SHORT_FUNCTIONS})
    source = prelude(names)
    plain = [n for n in names if re.search(rf"^PF_INLINE (?!V )\w+ {n}\(", source, re.MULTILINE)]
    assert {"pf_row_log_f32", "pf_narrow_bf16", "pf_exp_f64"} <= set(plain)
    used = [*plain, "pf_take", "pf_take_f16", "pf_put", "pf_put_f16", "pf_keep", "pf_stream"]
    used += ["pf_dot_words_i32<I>", "pf_add_words_i32<I>", "pf_add_bytes_i32<I>", "pf_add_bytes_i32<J>"]
    used += [f"pf_turn<{size}, 1>" for size in (1, 2, 4, 8)]
    kinds = "".join(
        f"typedef int {n} __attribute__((vector_size({b})));\n" for n, b in (("I", 64), ("J", 32))
    )
    entry = f"extern void* const used[] = {{{', '.join(f'(void*)&{name}' for name in used)}}};\n"
    (tmp_path / "all.cpp").write_text(source + SANITIZED + MASKS + TURNS + STREAM + kinds + entry)
    flags = ["-O0", "-std=c++17", "-Wall", "-Werror", "-c", "-o", "all.o"]
    subprocess.run([str(gxx), f"-march={march}", *flags, "all.cpp"], cwd=tmp_path, check=True)

"""CUDA's prelude: it compiles for every architecture without spills, and means what the CPU's does.

The meaning is tested on the text itself, compiled by g++ after a header that has CUDA's words for one
thread (`cuda_shim.h`): single instructions are then replaced by their portable variants.
"""

from __future__ import annotations

import ctypes
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from polyfuse.codegen.math.prelude import CUDA_FUNCTIONS, FUNCTIONS, prelude
from polyfuse.ir.dtypes import ALL, BF16, BOOL, BY_NAME, F16, F32, F64, I32, QUARTERS, DType
from polyfuse.ir.ops import OPS
from polyfuse.runtime.cuda.compiler import Cubin, compile_cuda, find_nvcc, find_nvrtc

Array = np.ndarray[Any, Any]
GXX = shutil.which("g++")
SHIM = Path(__file__).parents[2] / "helpers" / "cuda_shim.h"
HAS_CUDA = find_nvrtc() is not None or find_nvcc() is not None
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="no compiler for CUDA")
needs_gxx = pytest.mark.skipif(GXX is None, reason="no g++")
BINARY = {
    "pow",
    "pow_alike",
    "fast_div",
    "alike_div",
    "scaled_near_erf",
    "scaled_near_tanh",
    "min",
    "max",
    "mod",
    "floordiv",
    "add",
    "sub",
    "mul",
    "atan2",
    "hypot",
    "fmod",
}
WARP = sorted(f for f in CUDA_FUNCTIONS if f.startswith("pf_warp_"))
ATOMIC = sorted(f for f in CUDA_FUNCTIONS if f.startswith("pf_atomic_"))
PLAIN = sorted(CUDA_FUNCTIONS - set(WARP) - set(ATOMIC))
# CUDA's own or libm's instead of ours: another rounding, within these ulp in the tests below.
APPROXIMATE = {
    "exp": 3,
    "log": 3,
    "tanh": 4,
    "sigmoid": 5,
    "erf": 5,
    "sin": 4,
    "cos": 4,
    "pow": 4,
    "rsqrt": 3,
    **{o.name: math.ceil(max(o.ulp)) + 3 for o in OPS.values() if o.yields and o.ulp and max(o.ulp) > 0.5},
}
VECTORS = {"float": 4, "double": 2, "pf_f16": 8, "pf_bf16": 8, "pf_i8": 16, "pf_u8": 4, "pf_i64": 2}
RNG = np.random.default_rng(11)


def signature(name: str) -> tuple[tuple[DType, ...], DType]:
    """Argument and result dtypes of a function of the prelude."""
    if (cast := re.fullmatch(r"pf_(\w+)_from_(\w+)", name)) is not None:
        return (BY_NAME[cast[2]],), BY_NAME[cast[1]]
    op, t = name[3:].rsplit("_", 1)
    dtype = BY_NAME[t]
    if op == "select":
        return (BOOL, dtype, dtype), dtype
    if op == "joint_erf":
        return (dtype,) * 3, dtype
    if op in ("power", "power_half"):
        return (dtype, I32), dtype
    if op in OPS:
        return (dtype,) * OPS[op].arity, OPS[op].result(dtype)
    return (dtype,) * (2 if op in BINARY else 1), dtype


# --- the text ------------------------------------------------------------------------------------------


def test_only_what_is_asked_for() -> None:
    empty = prelude((), target="cuda")
    assert "pf_load" in empty and "pf_grid_barrier" in empty and "#include" not in empty
    assert "pf_exp" not in empty and "pf_atomic" not in empty
    one = prelude(["pf_warp_max_f32"], target="cuda")
    assert one.startswith(empty.rstrip("\n"))
    assert set(re.findall(r"^PF_INLINE \w+ (pf_\w+)\(", one[len(empty) :], re.M)) == {
        "pf_warp_max_f32", "pf_lanes", "pf_max_f32", "pf_bits_f32", "pf_from_bits_f32",
    }  # fmt: skip


def test_same_text_for_the_same_functions() -> None:
    names = sorted(CUDA_FUNCTIONS)
    assert prelude(names, target="cuda") == prelude(reversed(names), target="cuda")
    assert FUNCTIONS.keys() <= CUDA_FUNCTIONS


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError, match="pf_nothing"):
        prelude(["pf_nothing"], target="cuda")
    with pytest.raises(KeyError):
        prelude(["pf_atomic_sum_f32"])  # the CPU has none


def test_no_builtins_that_nvrtc_lacks() -> None:
    used = set(re.findall(r"__builtin_\w+", prelude(CUDA_FUNCTIONS, target="cuda")))
    assert used == {f"__builtin_{n}" for n in ("bit_cast", "inf", "inff", "nan", "nanf")}


# --- compiled for GPUs ---------------------------------------------------------------------------------


def kernel(name: str) -> str:
    """A kernel that calls one function."""
    if name in WARP or name in ATOMIC:
        t = BY_NAME[name.rsplit("_", 1)[1]].c_name
        parameters = [f"PF_IN({t}) a0", f"PF_OUT({t}) o"]
        body = f"{name}(&o[i / 7], a0[i]);" if name in ATOMIC else f"o[i] = {name}({name}(a0[i], 8), 32);"
    else:
        args, result = signature(name)
        parameters = [f"PF_IN({t.c_name}) a{k}" for k, t in enumerate(args)] + [f"PF_OUT({result.c_name}) o"]
        body = f"o[i] = {name}({', '.join(f'a{k}[i]' for k in range(len(args)))});"
    return (
        f'extern "C" __global__ void __launch_bounds__(256) k_{name}({", ".join(parameters)}) {{\n'
        f"  const pf_i64 i = threadIdx.x + (pf_i64)blockIdx.x * 256; {body}\n}}\n"
    )


def vector_kernel(t: str, n: int) -> str:
    return f"""
extern "C" __global__ void v_{t}(PF_IN({t}) x, PF_OUT({t}) y, const pf_i64 n) {{
  PF_SHARED({t}, s, {32 * n});
  for (pf_i64 it = blockIdx.x; it < n; it += gridDim.x) {{
    const pf_vec<{t}, {n}> a = pf_load<{n}>(x, (it * 32 + threadIdx.x) * {n});
    pf_vec<{t}, {n}> b;
#pragma unroll
    for (int i = 0; i < {n}; ++i) b[i] = a[i] * ({t})3;
    pf_store<{n}>(s, threadIdx.x * {n}, b);
    __syncthreads();
    const pf_vec<{t}, {n}> c = pf_load<{n}>(s, (threadIdx.x ^ 1) * {n});
    pf_store<{n}>(y, (it * 32 + threadIdx.x) * {n}, c);
    __syncthreads();
  }}
}}
"""


LITERALS = """
extern "C" __global__ void barrier(PF_OUT(float) x, PF_OUT(double) y, pf_u32* const state) {
  x[threadIdx.x] = __builtin_inff() * 0x1.8p3f;
  pf_grid_barrier(state);
  x[blockIdx.x] += (-__builtin_inff()) + __builtin_nanf("");
  y[blockIdx.x] = __builtin_inf() + __builtin_nan("");
}
"""


@pytest.fixture(scope="module")
def every() -> str:
    parts = [prelude(CUDA_FUNCTIONS, target="cuda"), LITERALS, *map(kernel, sorted(CUDA_FUNCTIONS))]
    return "\n".join([*parts, *(vector_kernel(t, n) for t, n in VECTORS.items())])


@needs_cuda
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_every_function_compiles_without_spills(every: str, arch: str) -> None:
    made = compile_cuda(every, arch)
    assert set(made.resources) == set(
        re.findall(r"__global__ void (?:__launch_bounds__\(256\) )?(\w+)", every)
    )
    spilled = {n: r for n, r in made.resources.items() if r.spill_stores or r.spill_loads}
    assert not spilled
    # The slow path of CUDA's sine keeps the bits of 2/pi in an array.
    stack = {name for name, r in made.resources.items() if r.stack}
    assert stack <= {f"k_pf_{op}_{t}" for op in ("sin", "cos", "tan") for t in ("f32", "f64")}
    assert made.resources["v_float"].shared == 512 and made.resources["k_pf_exp_f32"].shared == 0


@pytest.fixture(scope="module")
def sm_90(every: str) -> Cubin:
    return compile_cuda(every, "sm_90")


def ptx_of(made: Cubin, name: str) -> str:
    start = made.ptx.index(f".entry {name}(")
    return made.ptx[start : made.ptx.index("\n}", start)]


@needs_cuda
@pytest.mark.parametrize("t", VECTORS)
def test_vectors_are_single_accesses(t: str, sm_90: Cubin) -> None:
    text = ptx_of(sm_90, f"v_{t}")
    if VECTORS[t] == 4 and t == "pf_u8":
        words = r"\.[ubf]32"
    else:
        words = r"\.v2\.[ubf]64" if t in ("double", "pf_i64") else r"\.v4\.[ubf]32"
    for access in (r"ld\.global\.nc", r"st\.global", r"ld\.shared", r"st\.shared"):
        assert len(re.findall(access + words + r"\s", text)) == 1, access
        assert len(re.findall(access + r"\.", text)) == 1, access
    assert ".local" not in text


@needs_cuda
def test_single_instructions_are_used(sm_90: Cubin) -> None:
    wanted = {
        "min_f32": "min.NaN.f32", "f32_from_f16": "cvt.f32.f16", "f16_from_f32": "cvt.rn.f16.f32",
        "bf16_from_f32": "cvt.rn.bf16.f32", "atomic_sum_f16": "add.noftz.f16",
        "atomic_sum_bf16": "add.noftz.bf16", "atomic_sum_f32": "add.f32", "atomic_sum_f64": "add.f64",
        "atomic_min_i64": "min.s64", "atomic_sum_i64": "add.u64",
        "short_exp_f32": "ex2.approx.ftz.f32", "fast_reciprocal_f32": "rcp.approx.ftz.f32",
        "near_log_f32": "lg2.approx.ftz.f32", "fast_sqrt_f32": "sqrt.approx.ftz.f32",
        "fast_rsqrt_f32": "rsqrt.approx.ftz.f32", "fast_div_f32": "div.full.ftz.f32",
        "alike_div_f32": "rcp.approx.f32", "bf16_rounded_f32": "cvt.rn.bf16x2.f32",
    }  # fmt: skip
    for name, instruction in wanted.items():
        assert instruction in ptx_of(sm_90, f"k_pf_{name}"), name
    assert re.search(r"atom(\.\w+)*\.cas\.b64", ptx_of(sm_90, "k_pf_atomic_max_f64"))


# --- the same meaning as on the CPU --------------------------------------------------------------------


def loop(name: str) -> str:
    args, result = signature(name)
    parameters = ", ".join(f"const {t.c_name}* a{k}" for k, t in enumerate(args))
    values = ", ".join(f"a{k}[i]" for k in range(len(args)))
    return (
        f'extern "C" void loop_{name}({parameters}, {result.c_name}* o, long n) {{\n'
        f"  for (long i = 0; i < n; i++) o[i] = {name}({values});\n}}\n"
    )


def lanes_loop(name: str) -> str:
    """Every lane's result of a reduction over `width` of 64 lanes in two rows."""
    t = BY_NAME[name.rsplit("_", 1)[1]].c_name
    return f"""
static const {t}* in_{name};
static int width_{name};
static {t} run_{name}() {{ return {name}(in_{name}[threadIdx.x + 32 * threadIdx.y], width_{name}); }}
extern "C" const char* lanes_{name}(const {t}* in, {t}* out, int width) {{
  in_{name} = in;
  width_{name} = width;
  lane_call = [] {{ run_{name}(); }};
  for (unsigned l = 0; l < 64; ++l) {{
    threadIdx = {{l % 32, l / 32}};
    shuffles = 0;
    wanted = -1;
    try {{ out[l] = run_{name}(); }} catch (const char* what) {{ return what; }}
  }}
  return nullptr;
}}
"""


def atomic_loop(name: str) -> str:
    t = BY_NAME[name.rsplit("_", 1)[1]].c_name
    return (
        f'extern "C" void loop_{name}({t}* to, const long* at, const {t}* v, long n, unsigned char* b) {{\n'
        f"  disturbed = b;\n  for (long i = 0; i < n; i++) {name}(&to[at[i]], v[i]);\n}}\n"
    )


class Library:
    """Loops over functions of one prelude, callable on arrays."""

    def __init__(self, path: Path, source: str) -> None:
        path.with_suffix(".cpp").write_text(source)
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing"]
        subprocess.run([str(GXX), *flags, str(path.with_suffix(".cpp")), "-o", str(path)], check=True)
        self.library = ctypes.CDLL(str(path))

    def __call__(self, name: str, *args: Array) -> Array:
        types, result = signature(name)
        arrays = [np.ascontiguousarray(a, dtype=t.numpy) for a, t in zip(args, types, strict=True)]
        out = np.empty(arrays[0].shape, dtype=result.numpy)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
        getattr(self.library, f"loop_{name}")(*pointers, ctypes.c_long(out.size))
        return out


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("cpu")
    return Library(folder / "cpu.so", prelude(FUNCTIONS) + "\n".join(map(loop, sorted(FUNCTIONS))))


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("cuda")
    parts = [SHIM.read_text(), prelude(CUDA_FUNCTIONS, target="cuda"), *map(loop, PLAIN)]
    return Library(folder / "cuda.so", "\n".join([*parts, *map(lanes_loop, WARP), *map(atomic_loop, ATOMIC)]))


def edges(t: DType) -> Array:
    """Values where functions of a dtype change what they do."""
    if t.is_bool:
        return np.array([False, True])
    if t.is_integer:
        info = np.iinfo(t.numpy)
        values = {info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7, 10, 100, info.max // 2}
        values |= {-v for v in values}
        return np.array(sorted(v for v in values if info.min <= v <= info.max), dtype=t.numpy)
    info = ml_dtypes.finfo(t.numpy)
    powers = [2.0**k for k in (-30, -16, -14, -1, 7, 8, 11, 15, 16, 24, 31, 32, 52, 53, 63, 64)]
    values = [0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 3.0, 88.7, 127.5, 255.5, 65519.0, 65520.0, 745.0, np.inf, np.nan]
    values += [float(info.max), float(info.tiny), float(info.smallest_subnormal), *powers]
    values += [v + 1 for v in powers] + [v * (1 + 2.0**-9) for v in powers] + [2.0**31 - 0.5, 2.0**63 - 1024]
    with np.errstate(over="ignore"):
        a = np.array(values).astype(t.numpy)
    return np.concatenate([a, -a])


def arguments(types: tuple[DType, ...]) -> list[Array]:
    """All combinations of edge values, and random bits."""
    grids = [g.ravel() for g in np.meshgrid(*map(edges, types))]
    out = []
    for grid, t in zip(grids, types, strict=True):
        bits = RNG.integers(0, 256, 2000 * t.bytes, dtype=np.uint8)
        random = bits % 2 == 1 if t.is_bool else bits.view(t.numpy)
        out.append(np.concatenate([grid, random]))
    return out


def plain(a: Array) -> Array:
    """In a type that NumPy knows all about."""
    with np.errstate(invalid="ignore"):
        return a.astype(np.float32) if a.dtype in (BF16.numpy, *(t.numpy for t in QUARTERS)) else a


@needs_gxx
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_means_what_the_cpu_means(name: str, cpu: Library, cuda: Library) -> None:
    args = arguments(signature(name)[0])
    op = name[3:].rsplit("_", 1)[0]
    if op in ("lgamma", "digamma"):
        args = [np.abs(args[0])]  # left of 0 it has zeros, where errors are absolute
    if op in ("sin", "cos", "tan"):
        args = [np.where(np.abs(args[0]) < 1e4, args[0], 0.5)]  # beyond, ours gives up in f64
    if op in ("mod", "floordiv", "fmod") and args[0].dtype == np.float64:
        size = [np.abs(a) for a in args]  # beyond, a processor without fused multiply-add gives up
        inside = [~((s < 2.0**-900) & (s > 0)) & ~((s > 2.0**990) & np.isfinite(s)) for s in size]
        args = [a[inside[0] & inside[1]] for a in args]
    want, got = (plain(library(name, *args)) for library in (cpu, cuda))
    if op not in APPROXIMATE or not signature(name)[1].is_float:
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want) & np.isfinite(got)
    np.testing.assert_array_equal(got[~finite], want[~finite])
    with np.errstate(all="ignore"):
        error = np.abs(got[finite].astype(float) - want[finite]) / np.spacing(np.abs(want[finite]))
    assert error.max() <= APPROXIMATE[op]


@needs_gxx
@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_min_and_max_do_not_mind_the_order(t: DType, cuda: Library) -> None:
    """Lanes of a warp combine the same two values in either order, and must end with the same bits."""
    a, b = arguments((t, t))
    number = ~np.isnan(a) & ~np.isnan(b)
    for op in ("min", "max"):
        one, two = cuda(f"pf_{op}_{t.name}", a, b), cuda(f"pf_{op}_{t.name}", b, a)
        np.testing.assert_array_equal(one, (np.minimum if op == "min" else np.maximum)(a, b))
        np.testing.assert_array_equal(np.signbit(one[number]), np.signbit(two[number]))


@needs_gxx
def test_selects_and_squares(cuda: Library) -> None:
    for t in ALL:
        a, b = arguments((t, t))
        c = RNG.integers(0, 2, a.size).astype(bool)
        chosen = cuda(f"pf_select_{t.name}", c, a, b)
        np.testing.assert_array_equal(plain(chosen), plain(np.where(c, a, b)))
        if f"pf_square_{t.name}" in CUDA_FUNCTIONS:
            with np.errstate(all="ignore"):
                np.testing.assert_array_equal(cuda(f"pf_square_{t.name}", a), a * a)


def reduced(op: str, values: Array, t: DType) -> Any:
    """The reduction of a few values, in exact or in wrapping arithmetic."""
    if t.is_bool or op in ("any", "all"):
        return (np.bitwise_or if op in ("any", "sum", "max") else np.bitwise_and).reduce(values)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    with np.errstate(all="ignore"):
        return function.reduce(values.astype(np.float64)) if t.is_float else function.reduce(values)


@needs_gxx
@pytest.mark.parametrize("name", WARP)
def test_reductions_over_lanes(name: str, cuda: Library) -> None:
    op, t = name[len("pf_warp_") :].rsplit("_", 1)
    dtype = BY_NAME[t]
    # Small integers are exact in floats, whatever the order; two of them in a product.
    low, high = (0, 2) if dtype.is_bool else (1, 3) if op == "prod" else (0, 100)
    values = RNG.integers(low, high, 64).astype(dtype.numpy)
    if dtype.is_float and op != "prod":
        values = -values
    run = getattr(cuda.library, f"lanes_{name}")
    run.restype = ctypes.c_char_p
    for width in (1, 2, 4, 8, 16, 32):
        out = np.empty_like(values)
        error = run(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(out.ctypes.data), width)
        assert error is None
        groups = values.reshape(-1, width)
        want = np.repeat([reduced(op, g, dtype) for g in groups], width).astype(dtype.numpy)
        np.testing.assert_array_equal(out, want)


@needs_gxx
@pytest.mark.parametrize("name", ATOMIC)
def test_atomics(name: str, cuda: Library) -> None:
    op, t = name[len("pf_atomic_") :].rsplit("_", 1)
    dtype = BY_NAME[t]
    low, high = (0, 2) if dtype.is_bool else (1, 3) if op == "prod" else (0, 16)
    count = 8
    start = RNG.integers(low, high, count).astype(dtype.numpy)
    at = np.concatenate([np.arange(4), RNG.integers(0, 4, 8)])  # the others are not touched
    values = RNG.integers(low, high, at.size).astype(dtype.numpy)
    to = start.copy()
    byte = None
    if dtype.bytes < 4:
        # Before the first exchange somebody changes the neighbour, which shares the word.
        at = np.where(at == 1, 0, at)
        byte = to.ctypes.data + dtype.bytes
    elif dtype.is_integer and op == "prod":
        byte = to.ctypes.data  # the element itself
    arguments = [ctypes.c_void_p(a.ctypes.data) for a in (to, at, values)]
    getattr(cuda.library, f"loop_{name}")(*arguments, ctypes.c_long(at.size), ctypes.c_void_p(byte))
    if byte is not None and ctypes.c_void_p.in_dll(cuda.library, "disturbed").value is None:
        start.view(np.uint8)[byte - to.ctypes.data] ^= 0x2A
    want = [reduced(op, np.concatenate([[start[k]], values[at == k]]), dtype) for k in range(count)]
    np.testing.assert_array_equal(to, np.array(want).astype(dtype.numpy))


@needs_gxx
@pytest.mark.parametrize("t", [F32, F64, F16, BF16], ids=str)
def test_atomic_minimum_keeps_nan(t: DType, cuda: Library) -> None:
    for op in ("min", "max"):
        to = np.array([1.0, np.nan, 2.0, 0.0], dtype=t.numpy)
        at, values = np.arange(4), np.array([np.nan, 1.0, 3.0, -1.0], dtype=t.numpy)
        arguments = [ctypes.c_void_p(a.ctypes.data) for a in (to, at, values)]
        getattr(cuda.library, f"loop_pf_atomic_{op}_{t.name}")(*arguments, ctypes.c_long(4), None)
        want = [np.nan, np.nan, 2.0, -1.0] if op == "min" else [np.nan, np.nan, 3.0, 0.0]
        np.testing.assert_array_equal(to.astype(float), want)

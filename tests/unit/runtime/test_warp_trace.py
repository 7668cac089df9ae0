"""Machine code that is read and followed: loops with their trip counts, accesses, integers, what waits."""

from __future__ import annotations

import struct

import pytest

from polyfuse.diagnostics import ToolchainError
from polyfuse.ir.warp_work import HotLoops, WarpWork
from polyfuse.runtime.cuda import sass
from polyfuse.runtime.cuda.compiler import compile_cuda, find_cuda_compiler
from polyfuse.runtime.cuda.cubin import Elf, parameter_base
from polyfuse.runtime.cuda.sass import Function, Instruction, find_nvdisasm, functions, parse
from polyfuse.runtime.cuda.warp_trace import (
    CACHED_CYCLES,
    MEMORY_CYCLES,
    TracedLaunch,
    _Trace,
    hot_loops,
    registers,
    work_of,
)

TEXT = """
//--------------------- .text.k             --------------------------
	.section	.text.k,"ax",@progbits
k:
.text.k:
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/                   MOV R5, RZ ;
.L_x_0:
        /*0020*/                   LDG.E.128.CONSTANT R8, desc[UR4][R2.64+0x10] ;
        /*0030*/                   IADD3 R5, R5, 0x1, RZ ;
        /*0040*/                   FADD.FTZ R8, R8, R9.reuse ;
        /*0050*/                   ISETP.GE.AND P0, PT, R5, c[0x0][0x210], PT ;
        /*0060*/                   STG.E [R2.64], R8 ;
        /*0070*/              @!P0 BRA `(.L_x_0) ;
        /*0080*/                   EXIT ;
.L_x_1:
        /*0090*/                   BRA `(.L_x_1);
.text.other:
        /*0000*/                   EXIT ;
"""


def have(arch: str = "sm_90") -> None:
    try:
        find_cuda_compiler()
    except ToolchainError:
        pytest.skip("no compiler for CUDA")
    if find_nvdisasm() is None:
        pytest.skip("no nvdisasm")


def compiled(source: str, arch: str = "sm_90") -> tuple[Function, int]:
    have(arch)
    cubin = compile_cuda(source, arch).cubin
    base = parameter_base(Elf(cubin), "k")
    assert base is not None
    return functions(cubin)["k"], base


def traced(
    source: str, parameters: bytes, blocks: int = 4, threads: int = 64, arch: str = "sm_90"
) -> WarpWork:
    function, base = compiled(source, arch)
    return work_of(function, TracedLaunch((blocks, 1, 1), (threads, 1, 1), parameters, base))


# --- text ----------------------------------------------------------------------------------------------


def test_instructions_and_labels() -> None:
    found = parse(TEXT)
    assert list(found) == ["k", "other"]
    k = found["k"]
    assert [i.name for i in k.code[:3]] == ["S2R", "MOV", "LDG"] and len(k.code) == 10
    assert k.code[2] == Instruction("LDG", ("E", "128", "CONSTANT"), ("R8", "desc[UR4][R2.64+0x10]"))
    assert (k.code[2].width, k.code[6].width) == (16, 4)
    assert (k.code[7].guard, k.code[7].target) == ("!P0", 2)
    assert str(k.code[7]) == "@!P0 BRA `(.L_x_0)"
    (loop,) = k.loops()
    assert (loop.first, loop.last, loop.inner) == (2, 7, True)
    assert hot_loops(k) == HotLoops(1, 0, 0, 1, 2)


def test_registers_that_are_written_and_read() -> None:
    k = parse(TEXT)["k"]
    assert registers(k.code[2]) == (("R8", "R9", "R10", "R11"), ("R2", "R3"))
    assert registers(k.code[5]) == (("P0",), ("R5",))
    assert registers(k.code[6]) == ((), ("R2", "R3", "R8"))
    wide = Instruction("IMAD", ("WIDE",), ("R2", "R5", "0x4", "R6"))
    assert registers(wide) == (("R2", "R3"), ("R5", "R6", "R7"))
    carry = Instruction("IADD3", (), ("R2", "P1", "R4", "R6", "RZ"))
    assert registers(carry) == (("R2", "P1"), ("R4", "R6"))


@pytest.mark.parametrize("trips", [1, 7, 1000])
def test_a_loop_runs_as_often_as_its_bound_says(trips: int) -> None:
    launch = TracedLaunch((1, 1, 1), (32, 1, 1), struct.pack("<i", trips))
    found = work_of(parse(TEXT)["k"], launch)
    assert found.instructions["issue"] == 2 + 6 * trips + 1
    assert found.loads == {16: 512.0 * trips} and found.stores == {4: 128.0 * trips}
    assert found.wide == 0.8 and found.trips == trips
    assert not found.cut


def test_what_waits_for_memory() -> None:
    """The address is unknown: each load comes from memory, and the sum waits for it."""
    one, two = (
        work_of(parse(TEXT)["k"], TracedLaunch((1, 1, 1), (32, 1, 1), struct.pack("<i", n))) for n in (1, 2)
    )
    assert MEMORY_CYCLES < two.cycles - one.cycles < MEMORY_CYCLES + 50
    assert one.in_flight == 512


def test_a_loop_without_an_end_is_cut() -> None:
    text = TEXT.replace("@!P0 BRA", "BRA")
    assert work_of(parse(text)["k"], TracedLaunch((1, 1, 1), (32, 1, 1), b"")).cut


def test_without_nvdisasm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    with pytest.raises(ToolchainError, match=r"PF726.*nvdisasm(.|\n)*cuda-compile"):
        functions(b"")


def test_a_file_that_is_no_cubin() -> None:
    if find_nvdisasm() is None:
        pytest.skip("no nvdisasm")
    with pytest.raises(ToolchainError, match=r"PF726.*cannot print"):
        functions(b"no cubin")


# --- kernels -------------------------------------------------------------------------------------------

POINTERS = struct.pack("<QQ", 1 << 36, 2 << 36)
STRIDED = """
extern "C" __global__ void k(const float4* x, float4* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    float4 v = x[i]; v.x += 1.0f; y[i] = v;
  }
}"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("rounds", [1, 5, 23])
def test_rounds_of_a_grid(arch: str, rounds: int) -> None:
    """However the compiler unrolls the loop: so many bytes are loaded and stored."""
    found = traced(STRIDED, POINTERS + struct.pack("<i", 4 * 64 * rounds), arch=arch)
    assert found.loads == {16: 512.0 * rounds} and found.stores == {16: 512.0 * rounds}


def test_blocks_that_have_nothing_to_do() -> None:
    """The first half of the blocks has an element for each thread, the second half none."""
    found = traced(STRIDED, POINTERS + struct.pack("<i", 2 * 64))
    assert found.loads == {16: 256.0}


def test_a_grid_of_which_one_block_works() -> None:
    """A third of the three blocks that are followed."""
    source = """
extern "C" __global__ void k(const float* x, float* y) {
  if (blockIdx.x == 0) y[threadIdx.x] = x[threadIdx.x];
}"""
    found = traced(source, POINTERS, 400, 32)
    assert found.loads == found.stores == {4: pytest.approx(128 / 3)} and found.trips == 1


def test_a_form_that_is_not_known_gives_what_is_unknown() -> None:
    text = TEXT.replace("IADD3 R5, R5, 0x1, RZ", "LEA R5, R5").replace("MOV R5, RZ", "SEL R5")
    found = work_of(parse(text)["k"], TracedLaunch((1, 1, 1), (32, 1, 1), struct.pack("<i", 9)))
    assert found.loads == {16: 512.0}  # a loop whose end nobody knows ends


def test_what_was_read_before_is_near() -> None:
    source = """
extern "C" __global__ void k(const float* x, float* y, int n) {
  float s = 0;
  for (int i = 0; i < n; ++i) { s += x[threadIdx.x]; y[i * 32 + threadIdx.x] = s; }
}"""
    found = traced(source, POINTERS + struct.pack("<i", 10), 1, 32)
    assert found.again == 9 * 128 and found.loads == {4: 1280.0}
    assert found.cycles < MEMORY_CYCLES + 9 * (CACHED_CYCLES + 30) + 200


def test_barriers_are_counted() -> None:
    source = """
extern "C" __global__ void k(const float* x, float* y, unsigned* state) {
  __shared__ float s[64];
  for (int r = 0; r < 3; ++r) {
    s[threadIdx.x] = x[r * 64 + threadIdx.x];
    __syncthreads();
    y[r * 64 + threadIdx.x] = s[63 - threadIdx.x];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    atomicAdd(state, 1u);
    while (*(volatile unsigned*)state < 4u) {}
  }
  __syncthreads();
}"""
    found = traced(source, POINTERS + struct.pack("<Q", 3 << 36))
    assert (found.block_barriers, found.grid_barriers) == (7, 1)


DIVISIONS = """
extern "C" __global__ void k(const float* x, float* y, int n, int m) {
  for (int i = 0; i < n; ++i) y[i * 64 + threadIdx.x] = x[WHERE];
}"""


@pytest.mark.parametrize(
    ("where", "inside"),
    [("i * 64 + threadIdx.x", 0), ("i / 8", 0), ("i / 7", 1), ("(i + (int)threadIdx.x) / m", 1)],
)
def test_divisions_in_loops(where: str, inside: int) -> None:
    function, _ = compiled(DIVISIONS.replace("WHERE", where))
    found = hot_loops(function)
    assert (found.divisions > 0) == (inside > 0)
    assert found.loops >= 1 and found.narrow == found.accesses > 0


# Of two integers of the caller, in a way that no compiler folds.
EXPRESSIONS = [
    "a + b", "a - b * 3", "a / 7", "a % 192", "(unsigned)a / 13u", "a >> 3", "(a & 0xff) | (b << 5)", "a * b",
    "min(a, b) + max(a, 5)", "a < b ? a : b + 1", "(int)(((long long)a * b) >> 20)", "abs(a - b)",
    "(a ^ b) & ~(a | 3)", "(int)((long long)a + ((long long)b << 33) - 77 >> 7)",
    "__popc(a) + __umulhi(a, b)", "a > 10 && b < 500 || a == b ? a / 3 : b % 5",
    "b ? a / b : 7", "b ? (unsigned)a % (unsigned)b : 7",
]  # fmt: skip


def expected(text: str, a: int, b: int) -> int:
    """As C computes it."""

    def division(x: int, y: int) -> int:
        return abs(x) // abs(y) * (1 if (x >= 0) == (y > 0) else -1)

    table = {
        "a / 7": division(a, 7), "a % 192": a - 192 * division(a, 192),
        "(unsigned)a / 13u": (a % 2**32) // 13, "b ? a / b : 7": division(a, b) if b else 7,
        "b ? (unsigned)a % (unsigned)b : 7": (a % 2**32) % (b % 2**32) if b else 7,
        "a < b ? a : b + 1": a if a < b else b + 1, "(int)(((long long)a * b) >> 20)": a * b >> 20,
        "(int)((long long)a + ((long long)b << 33) - 77 >> 7)": a + (b << 33) - 77 >> 7,
        "__popc(a) + __umulhi(a, b)": (a % 2**32).bit_count() + ((a % 2**32) * (b % 2**32) >> 32),
        "a > 10 && b < 500 || a == b ? a / 3 : b % 5":
            division(a, 3) if (a > 10 and b < 500) or a == b else b - 5 * division(b, 5),
    }  # fmt: skip
    return (
        table[text]
        if text in table
        else int(eval(text, {"min": min, "max": max, "abs": abs}, {"a": a, "b": b}))
    )


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_120"])
def test_integers_are_computed(arch: str) -> None:
    stores = "\n".join(f"  y[{k}] = {text};" for k, text in enumerate(EXPRESSIONS))
    source = f'extern "C" __global__ void k(int* y, int a, int b) {{\n{stores}\n}}'
    function, base = compiled(source, arch)
    for a, b in ((1000003, 77), (-5, 12345), (250, 250), (2**30 + 17, -(2**20)), (0, 0)):
        launch = TracedLaunch((1, 1, 1), (32, 1, 1), struct.pack("<Qii", 1 << 36, a, b), base)
        found = stored(function, launch)
        want = {k: expected(text, a, b) % 2**32 for k, text in enumerate(EXPRESSIONS)}
        assert found == want, (a, b)


def stored(function: Function, launch: TracedLaunch) -> dict[int, int | None]:
    """What a kernel stores, by the place."""
    found: dict[int, int | None] = {}

    class Storing(_Trace):
        def _global(self, i: Instruction, written: object) -> float:
            address = self._address(i)
            assert address is not None and i.name == "STG"
            value = i.operands[-1]
            for k in range(i.width // 4):
                head = value.rstrip("0123456789")
                name = value if value == "RZ" else f"{head}{int(value[len(head) :]) + k}"
                found[(address - (1 << 36)) // 4 + k] = self.value(name)
            return 1.0

    Storing(function, launch, 0, 0).run()
    return found

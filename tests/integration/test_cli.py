"""The command as a user sees it: output, errors with carets, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import polyfuse
from polyfuse.cli import app
from polyfuse.cli.explain import TITLES
from polyfuse.codegen.cpu.emit import CpuCode
from polyfuse.cost.gpu_projection import RATES
from polyfuse.diagnostics import ToolchainError
from polyfuse.driver.targets import passes
from polyfuse.ir.dtypes import BY_NAME
from polyfuse.ir.index_expr import evaluate
from polyfuse.runtime.cuda.compiler import find_cuda_compiler
from polyfuse.runtime.cuda.sass import find_nvdisasm

NORM = """\
op add_norm(x: f32[T, H], r: f32[T, H], eps: f32 = 1e-5) -> (y: f32[T, H]) {
  s[t, h] = x[t, h] + r[t, h]
  ms[t] = sum[h](s[t, h] ** 2) / H
  y[t, h] = s[t, h] * rsqrt(ms[t] + eps)
}
"""
SMALL = ("--size", "T=6", "--size", "H=10")


def _no_cuda_compiler() -> bool:
    try:
        find_cuda_compiler()
    except ToolchainError:
        return True
    return False


needs_cuda_compiler = pytest.mark.skipif(_no_cuda_compiler(), reason="no compiler for CUDA")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of its own, where reproducers would go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def norm(workplace: Path) -> str:
    (workplace / "norm.pf").write_text(NORM, encoding="utf-8")
    return "norm.pf"


def call(*args: str, given: str | None = None, code: int = 0) -> Result:
    result = CliRunner().invoke(app, args, input=given)
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result


def process(*args: str, given: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "polyfuse", *args]
    environment = {**os.environ, **env}
    return subprocess.run(command, input=given, capture_output=True, text=True, env=environment, timeout=200)


# --- run ---------------------------------------------------------------------------------------------


def test_run(norm: str) -> None:
    done = call("run", norm, *SMALL, "--repeat", "2")
    assert done.stdout.startswith("add_norm(T=6, H=10)\n")
    for text in ("kernel", "one call", "this machine:", "GB/s", "NumPy:", "y: agrees with the float64"):
        assert text in done.stdout
    assert done.stderr == ""


def test_run_says_which_sizes_it_chose(norm: str) -> None:
    done = call("run", norm, "--size", "H=10", "--target", "interpret")
    assert "sizes not given: T=" in done.stderr and "H=" not in done.stderr


def test_run_takes_size_parameters(tmp_path: Path) -> None:
    text = "op f[K: size, S: size = K](x: f32[N]) -> (y: f32[N // S]) where S >= 1, K >= 1, S >= K {\n"
    (tmp_path / "f.pf").write_text(text + "  y[i] = max[a in 0..K](x[i*S + a])\n}\n")
    done = call("run", str(tmp_path / "f.pf"), "-s", "N=20", "-s", "K=3", "--target", "interpret")
    assert "f(N=20, S=3, K=3)" in done.stdout and "y: agrees" in done.stdout
    done = call("run", str(tmp_path / "f.pf"), "-s", "N=20", "-s", "K=3,S=5", "--target", "interpret")
    assert "f(N=20, S=5, K=3)" in done.stdout and "y: agrees" in done.stdout


def test_optional_tensors_that_are_absent() -> None:
    shown = call("emit", "stdlib:linear", "--stage", "graph", "--without", "bias").stdout
    assert "bias" not in shown and "w: f32[N, K]" in shown
    call("run", "stdlib:linear", "--without", "bias", "-s", "B_0=3,K=5,N=2", "--target", "interpret")
    said = call("emit", "stdlib:linear", "--without", "w", code=2).stderr
    assert "no optional tensor 'w'" in said and "those are bias" in said


def test_run_standard_library_with_generics() -> None:
    sizes = ("-s", "B_0=3,B_1=2", "-s", "H=5")
    done = call("run", "stdlib:softmax", *sizes, "-d", "F=f16", "-r", "B=2", "--target", "interpret")
    assert "softmax(B_0=3, B_1=2, H=5)" in done.stdout and "y: agrees" in done.stdout


def test_run_in_place_and_gathers() -> None:
    done = call("run", "stdlib:scatter_add", "-s", "N=4,D_0=3,E=7", "--repeat", "1", "--checked")
    assert "y: agrees" in done.stdout


def test_run_without_layers(norm: str) -> None:
    done = call("run", norm, *SMALL, "--layers", "none", "--no-check", "--repeat", "1")
    assert "agrees" not in done.stdout and "one call" in done.stdout


def test_run_standard_input() -> None:
    done = call("run", "-", *SMALL, "--target", "interpret", given=NORM)
    assert "y: agrees" in done.stdout


@pytest.fixture
def slow_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an H200 whose kernels are emulated, and take 2 ms each."""
    from polyfuse.driver import pipeline
    from polyfuse.runtime.cuda.driver_recording import SMALL_DEVICE
    from polyfuse.runtime.emulator.emulator import EmulatedKernels

    class Gpu(EmulatedKernels):
        driver = SimpleNamespace(properties=replace(SMALL_DEVICE, name="NVIDIA H200"))

        def profile(self, arrays: dict[str, Any], repeat: int) -> list[float]:
            return [2e-3 for _ in self.plan.launches]

        def output(self, b: Any) -> Any:
            return np.empty([evaluate(e, {}) for e in b.shape], b.dtype.numpy)

    monkeypatch.setattr(pipeline, "load", lambda code, *_: Gpu(code))


def test_run_in_the_emulator(norm: str) -> None:
    done = call("run", norm, *SMALL, "--target", "emulate", "--seed", "3", "--resident", "1")
    assert re.search(r"^compiled in [\d.]+ s.*, peak memory \d+ MiB$", done.stdout, re.MULTILINE)
    assert "emulated in " in done.stdout and ", nothing wrong found\n" in done.stdout
    assert "y: agrees" in done.stdout and done.stderr == ""


def test_what_the_emulator_finds_is_an_error(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.driver import pipeline

    right = pipeline.load

    def without_barriers(code: Any, *rest: Any) -> Any:
        return right(replace(code, source=code.source.replace("__syncthreads();  //", "//")), *rest)

    monkeypatch.setattr(pipeline, "load", without_barriers)
    done = call("run", norm, "-s", "T=2,H=1024", "--target", "emulate", code=1)
    assert "error PF730: pf_k0_0: race: thread" in done.stderr
    assert "hint: a barrier is missing between the two" in done.stderr
    assert "more: polyfuse explain PF730" in done.stderr and "y:" not in done.stdout


def test_run_on_a_gpu(norm: str, slow_gpu: None) -> None:
    done = call("run", norm, *SMALL, "--target", "cuda", "--layers", "loop")
    assert "GB/s" in done.stdout and "4 ms" in done.stdout and "4800 GB/s" in done.stdout
    assert "copies to and from the GPU included" in done.stdout and "y: agrees" in done.stdout


def test_a_gpu_is_needed(norm: str) -> None:
    done = process("run", norm, *SMALL, "--target", "cuda", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1 and "error PF74" in done.stderr and "hint:" in done.stderr


def test_a_wrong_result_exits_with_1(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.driver.compiled import Compiled

    right = Compiled.__call__
    monkeypatch.setattr(Compiled, "__call__", lambda *a, **k: right(*a, **k) + 1.0)  # type: ignore[operator]
    done = call("run", norm, *SMALL, "--target", "interpret", code=1)
    assert "y: differs from the float64 reference: 60 of 60 elements differ" in done.stdout


ROOTS = "op f(x: f32[N]) -> (y: f32[N], s: f32) { y[i] = sqrt(x[i])\n s = sum[i](y[i]) }"
NEVER = "op f(x: f32[N]) -> (s: f32) { s = sum[i](sqrt(-1.0 - x[i] * x[i])) }"
INTERPRETED = ("--target", "interpret")


def test_inputs_are_chosen_so_that_results_are_checked() -> None:
    done = call("run", "-", "-s", "N=50", *INTERPRETED, given=ROOTS)
    assert "values chosen so that results are numbers: x between 0.05 and 0.95" in done.stderr
    assert "y: agrees" in done.stdout and "s: agrees" in done.stdout and "undecided" not in done.stdout


@pytest.mark.parametrize("n", ["1", "50", "5000"])
def test_what_is_not_checked_does_not_agree(n: str) -> None:
    """Whatever its size: a loss is one number."""
    done = call("run", "-", "-s", f"N={n}", *INTERPRETED, given=NEVER, code=1)
    assert "s: not checked" in done.stdout and "100.00% of it is NaN or undecided" in done.stdout
    assert "agrees" not in done.stdout
    done = call("compare", "-", "-s", f"N={n}", *INTERPRETED, given=NEVER, code=1)
    assert "s: not checked" in done.stdout and "agrees" not in done.stdout


def test_one_per_cent_is_too_much(workplace: Path) -> None:
    for bad, code in ((1, 0), (3, 1)):
        np.savez(workplace / "x.npz", x=np.r_[np.full(bad, -1.0), np.ones(200 - bad)].astype(np.float32))
        text = "op f(x: f32[N]) -> (y: f32[N]) { y[i] = sqrt(x[i]) }"
        done = call("run", "-", "--input", "x.npz", *INTERPRETED, given=text, code=code)
        assert f"{bad / 2:.2f}% of it is NaN or undecided" in done.stdout


@pytest.mark.parametrize(
    "command", [("run",), ("compare",), ("explain", "--tune", "measure", "--target", "cpu")]
)
def test_sizes_beyond_the_machine(command: tuple[str, ...], workplace: Path) -> None:
    """One message that names the tensor, its bytes and what the machine has; and no file."""
    name, *rest = command
    done = call(name, "stdlib:softmax", "-s", "H=10000000", "-s", "B_0=1000000000000", *rest, code=2)
    assert done.stderr.count("error PF") == 1 and "error PF423" in done.stderr
    assert "'x' of shape (1000000000000, 10000000) takes 40 EB" in done.stderr
    assert "this machine has" in done.stderr and not list(workplace.iterdir())


def test_inputs_from_a_file(workplace: Path) -> None:
    """They give sizes, generics and ranks."""
    import ml_dtypes

    x = np.array([[1.0, 4.0, 9.0]] * 2, ml_dtypes.bfloat16)
    np.savez(workplace / "a.npz", x=x, k=np.array([2, 0], np.int64))
    text = "op f(x: bf16[N, M], k: i64[K]) -> (y: bf16[N, K]) { y[n, m] = x[n, k[m]] }"
    done = call("run", "-", "--input", "a.npz", *INTERPRETED, given=text)
    assert "f(N=2, M=3, K=2)" in done.stdout and "y: agrees" in done.stdout and done.stderr == ""
    np.savez(workplace / "b.npz", x=np.ones((2, 3, 4), np.float16))
    done = call("run", "stdlib:softmax", "--input", "b.npz", *INTERPRETED)
    assert "softmax(B_0=2, B_1=3, H=4)" in done.stdout and "y: agrees" in done.stdout


def test_inputs_in_a_range() -> None:
    body = "y[i] = x[i]\n z = all[i](k[i] >= 3 and k[i] < 5)"
    text = f"op f(x: f32[N], k: i32[N]) -> (y: f32[N], z: bool) {{ {body} }}"
    done = call("run", "-", "--range", "x=2..3,k=3..5", "-s", "N=99", *INTERPRETED, given=text)
    assert "y: agrees" in done.stdout and "z: agrees" in done.stdout
    call("run", "-", "--range", "x=-2..-1", "-s", "N=9", *INTERPRETED, given=ROOTS, code=1)


@pytest.mark.parametrize(
    "args, said",
    [
        (("--input", "none.npz"), "No such file"),
        (("--input", "norm.pf"), "no archive of named arrays"),
        (("--input", "pipe"), "no regular file"),
        (("--range", "x"), "NAME=VALUE"),
        (("--range", "x=1"), "two numbers"),
        (("--range", "x=2..1"), "to a larger one"),
        (("--range", "x=0..inf"), "to a larger one"),
        (("--range", "w=0..1"), "has no input 'w'"),
        (("--input", "x.npz", "--range", "x=0..1"), "an array of that name"),
        (("--input", "w.npz"), "has no input 'w'"),
        (("--input", "wide.npz"), "PF402"),
        (("--input", "x.npz", "--size", "T=7"), "PF405"),
    ],
)
def test_inputs_that_do_not_fit(norm: str, workplace: Path, args: tuple[str, ...], said: str) -> None:
    x = np.ones((6, 10), np.float32)
    np.savez(workplace / "x.npz", x=x)
    np.savez(workplace / "w.npz", w=x)
    np.savez(workplace / "wide.npz", x=x.astype(np.float64))
    os.mkfifo(workplace / "pipe")
    done = call("run", norm, *INTERPRETED, *args, code=2)
    assert said in " ".join(done.output.replace("│", " ").split())


def test_several_operators_take_the_last(workplace: Path) -> None:
    two = NORM + NORM.replace("add_norm", "second")
    done = call("emit", "-", "--stage", "graph", given=two)
    assert done.stdout.startswith("graph second") and "the last of 2" in done.stderr
    assert call("emit", "-", "--stage", "graph", "--op", "add_norm", given=two).stdout.startswith(
        "graph add_norm"
    )


# --- emit, explain, compare, passes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("ast", "OpDef name='add_norm'"),
        ("graph", "graph add_norm(T, H)"),
        ("schedule", "band* t"),
        ("kernels", "kernel k0"),
        ("plan", "launches\n  0. pf_k0_0"),
        ("loops", "function pf_k0_0"),
        ("cpp", "void pf_k0_0"),
        ("cuda", "__global__ void __launch_bounds__("),
    ],
)
def test_emit(norm: str, stage: str, text: str) -> None:
    assert text in call("emit", norm, "--stage", stage).stdout


@pytest.mark.parametrize(
    ("stage", "cpu", "gpu"),
    [
        ("kernels", "kernel k0\n", " threads, vectors of "),
        ("plan", "parallel over", " blocks of "),
        ("loops", "parallel over", "tx"),
    ],
)
def test_emit_for_a_target(norm: str, stage: str, cpu: str, gpu: str) -> None:
    one = call("emit", norm, "--stage", stage, "--target", "cpu").stdout
    other = call("emit", norm, "--stage", stage, "--target", "cuda", "--device", "A100").stdout
    assert cpu in one and gpu in other and gpu not in one
    assert call("emit", norm, "--stage", stage, "--target", "emulate", "--device", "sm_80").stdout == other


@needs_cuda_compiler
def test_emit_ptx(norm: str) -> None:
    assert ".target sm_80" in call("emit", norm, "--stage", "ptx", "--device", "a100").stdout
    text = call("emit", norm, "--stage", "ptx", "--layers", "none").stdout
    assert ".target sm_90" in text and ".entry pf_k0_0(" in text


@needs_cuda_compiler
def test_emit_resources(norm: str) -> None:
    done = call("emit", norm, "--stage", "resources", "-s", "T=4096,H=1024", "--device", "H100")
    head, columns, *rows = done.stdout.splitlines()
    assert head.startswith("H100 (sm_90, 132 multiprocessors of 64 warps), ")
    assert columns.split()[:3] == ["kernel", "blocks", "threads"]
    kernels = [r for r in rows[: len(rows) // 2] if r.startswith("pf_k")]
    assert kernels and all(" 0/0 " in r for r in kernels)
    if find_nvdisasm() is None:
        assert rows[-1].startswith("no projected time: no nvdisasm found")
        return
    title, headings, *times = rows[len(kernels) :]
    assert title == "projected from machine code, in microseconds" and len(times) == len(kernels)
    assert headings.split()[:4] == ["kernel", "in", "flight", "memory"] and headings.endswith("limit")
    assert all(t.split()[-1] in (*RATES, "memory", "latency", "launch") for t in times)


def test_emit_into_a_file(norm: str, workplace: Path) -> None:
    done = call("emit", norm, "--stage", "cpp", *SMALL, "-o", "norm.cpp")
    assert done.output == ""
    assert "void pf_k0_0" in (workplace / "norm.cpp").read_text()
    assert sorted(p.name for p in workplace.iterdir()) == ["norm.cpp", "norm.pf"]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
def test_emit_shows_what_runs(workplace: Path, dtype: str) -> None:
    text = f"""op f(x: {dtype}[T, H], w: {dtype}[H, T], b: f32[T]) -> (y: {dtype}[T, T]) {{
  s[t, k] = sum[h](f32(x[t, h]) * f32(w[h, k])) + b[k]
  y[t, k] = {dtype}(sigmoid(s[t, k]))
}}"""
    (workplace / "f.pf").write_text(text)
    shown = call("emit", "f.pf", "--stage", "cpp", "--size", "T=96,H=160").stdout
    x, b = np.ones((96, 160), BY_NAME[dtype].numpy), np.ones(96, "f4")
    built = polyfuse.compile(text, target="cpu").built(x, x.T.copy(), b)
    assert isinstance(built.code, CpuCode)
    assert shown.rstrip() == built.code.source.rstrip()


def test_layers_make_a_difference(norm: str) -> None:
    fused = call("emit", norm, "--stage", "schedule").stdout
    assert call("emit", norm, "--stage", "schedule", "--layers", "none").stdout != fused


def test_explain(norm: str) -> None:
    assert "+ schedule add_norm: legal" in call("explain", norm, *SMALL).stdout
    two = call("explain", norm, "ms__sum", "y")
    assert "share the loop over t" in two.stdout
    assert "PF416" in call("explain", norm, "nothing", "y", code=2).stderr
    call("explain", norm, "y", code=2)


def test_compare(norm: str) -> None:
    done = call("compare", norm, *SMALL, "--repeat", "1")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [r[0] for r in rows if r and r[-1] == "agrees"] == ["none", "loop", "stitch", "loop,"]


def test_compare_in_the_emulator(norm: str) -> None:
    rows = [r.split() for r in call("compare", norm, *SMALL, "--target", "emulate").stdout.splitlines()]
    assert [r[-3:] for r in rows if r and r[0] in ("none", "loop")] == [["-", "-", "agrees"]] * 2


def test_explain_the_code_of_an_error() -> None:
    text = call("explain", "PF402").stdout
    assert text.startswith("PF402: dtype of an argument\n") and "How to mend it" in text
    assert call("explain", "pf402").stdout == text
    assert "there is no error PF999" in call("explain", "PF999", code=2).stderr
    told = call("explain", "pf7666", code=2).stderr
    assert "there is no error PF7666 (near it: " in told and "PF766" in told and "polyfuse errors" in told
    assert "no statements" in call("explain", "PF402", "y", code=2).stderr


def test_errors_are_listed() -> None:
    every = call("errors").stdout
    assert "PF402  dtype of an argument\n" in every and len(every.splitlines()) > 150
    some = call("errors", "pf2").stdout.splitlines()
    assert some and all(line.startswith("PF2") for line in some)
    assert "no code begins with" in call("errors", "X", code=2).stderr


def test_every_message_names_the_command_that_shows_its_page(workplace: Path) -> None:
    (workplace / "bad.pf").write_text("op f(x: f32[N]) -> (y: f32[N]) { y[i] = z[i] }", encoding="utf-8")
    command = call("check", "bad.pf", code=1).stderr.split("more: polyfuse ")[1].split()
    assert call(*command).stdout.startswith("PF201: ")


def test_explain_for_a_gpu(norm: str) -> None:
    text = call("explain", norm, "-s", "T=6,H=100", "--target", "cuda", "--device", "B200").stdout
    assert "+ map " in text and " threads share a row" in text


def test_passes() -> None:
    text = call("passes").stdout
    assert "LoopFusion" in text and "rematerialise" in text and "Recompute cheap" in text


def test_passes_are_in_order_with_what_they_do() -> None:
    lines = call("passes").stdout.splitlines()
    graph, loops, gpu = (lines.index(x) for x in (TITLES["graph"], TITLES["cpu loops"], TITLES["gpu loops"]))
    assert graph < loops < gpu
    (unswitch,) = (x for x in lines if x.startswith("  unswitch "))
    assert unswitch.endswith("branches around the loop") and loops < lines.index(unswitch) < gpu
    needed = [x.split()[1] for x in lines if x.startswith("! ") and x != lines[-2]]
    assert {"lower-statements", "outline"} <= set(needed) and "unswitch" not in needed
    assert "POLYFUSE_DISABLE=unswitch" in lines[-1]
    assert len([x for x in lines if x.endswith(" (CPU only)")]) >= 8


def test_every_list_of_passes_has_a_title() -> None:
    assert list(TITLES) == list(passes())


def test_help_says_how_to_switch_passes_off() -> None:
    text = call("passes", "--help").stdout
    assert "POLYFUSE_DISABLE=" in text and "Options(disable=" in text


def test_a_pass_is_off(norm: str) -> None:
    done = process("run", norm, *SMALL, POLYFUSE_DISABLE="unswitch,nan-free-extremes")
    assert done.returncode == 0, done.stderr
    done = process("run", norm, *SMALL, POLYFUSE_DISABLE="unswich")
    assert done.returncode != 0 and "did you mean 'unswitch'?" in done.stderr


# --- check, fmt, stdlib ------------------------------------------------------------------------------


def test_check(norm: str, workplace: Path) -> None:
    assert call("check", norm).stdout == "1 operator: no errors\n"
    (workplace / "bad.pf").write_text("op f(x: f32[N]) -> (y: f32[N]) {\n  u[i] = x[i]\n  y[i] = x[i+1]\n}\n")
    done = call("check", norm, "bad.pf", code=1)
    assert "bad.pf:3:10: error PF350" in done.stderr and "^^^^^^" in done.stderr
    assert "bad.pf:2:3: warning PF290" in done.stderr
    assert "1 error, 1 warning" in done.stdout


def test_check_strict(workplace: Path) -> None:
    (workplace / "w.pf").write_text("op f(x: f32[N]) -> (y: f32[N]) {\n  u[i] = x[i]\n  y[i] = x[i]\n}\n")
    call("check", "w.pf")
    call("check", "--strict", "w.pf", code=1)


def test_fmt(workplace: Path) -> None:
    file = workplace / "f.pf"
    ugly = "# why\nop f(x:f32[N])->(y:f32[N]){y[i]=x[i]*2.0}\n"
    file.write_text(ugly)
    file.chmod(0o640)
    assert "f.pf would change" in call("fmt", "--check", "f.pf", code=1).stderr
    assert "-op f(x:f32[N])" in call("fmt", "--diff", "f.pf").stdout
    assert file.read_text() == ugly
    call("fmt", "f.pf")
    pretty = file.read_text()
    assert pretty.startswith("# why\nop f(x: f32[N]) -> (y: f32[N]) {\n")
    assert file.stat().st_mode & 0o777 == 0o640
    call("fmt", "--check", "f.pf")
    assert call("fmt", "-", given=ugly).stdout == pretty


def test_fmt_leaves_a_wrong_file_alone(workplace: Path) -> None:
    (workplace / "f.pf").write_text("op f(")
    assert "error PF1" in call("fmt", "f.pf", code=1).stderr
    assert (workplace / "f.pf").read_text() == "op f("


def test_folders_are_the_files_in_them(workplace: Path) -> None:
    for name, body in (("a/one.pf", "y[i]=x[i]"), ("a/b/two.pf", "y[i]=x[i]"), ("a/.git/no.pf", "no")):
        (workplace / name).parent.mkdir(parents=True, exist_ok=True)
        (workplace / name).write_text(f"op f(x: f32[N]) -> (y: f32[N]) {{ {body} }}\n")
    assert call("check", "a").stdout == call("check", "a", "a/one.pf").stdout == "2 operators: no errors\n"
    assert call("fmt", "--check", "a", code=1).stderr == "a/b/two.pf would change\na/one.pf would change\n"
    call("fmt", "a")
    call("fmt", "--check", "a")
    (workplace / "empty").mkdir()
    assert "no .pf file in the folder 'empty'" in call("check", "empty", code=2).stderr


FIXABLE = """op f(inout m: f32[N], x: f32[N, H]) -> (y: f32[N], z: f32[N]) {
  m[i] = 0.9 * m[i]
  a[i] = x[i, 1]
  y[i] = m[i] − 1.0
  z[i] = sum[h](x[i, h]) / H
}
"""


def test_check_fix(workplace: Path) -> None:
    (workplace / "f.pf").write_text(FIXABLE, encoding="utf-8")
    done = call("check", "--fix", "f.pf")
    assert done.stderr.startswith("mended f.pf: 3 edits\nf.pf:4:10: warning PF296")
    kept = FIXABLE.replace("  a[i] = x[i, 1]\n", "").replace("m[i] − 1.0", "old(m[i]) - 1.0")
    assert (workplace / "f.pf").read_text(encoding="utf-8") == kept
    assert call("check", "--fix", "--unsafe", "f.pf").stdout == "1 operator: no errors\n"
    fixed = (workplace / "f.pf").read_text(encoding="utf-8")
    assert fixed == kept.replace(" {", " where H >= 1 {", 1)
    assert call("check", "--fix", "f.pf").stderr == ""


def test_fix_is_for_files(workplace: Path) -> None:
    assert "--fix is for files" in call("check", "--fix", "-", given="", code=2).stderr
    assert "--unsafe is for --fix" in call("check", "--unsafe", "f.pf", code=2).stderr


def test_stdlib() -> None:
    listed = call("stdlib").stdout
    assert "softmax[F: float](x: F[B..., H]) -> (y: F[B..., H])" in listed
    source = call("stdlib", "softmax").stdout
    assert source.startswith("#") and "op softmax" in source and source.rstrip().endswith("}")
    assert "did you mean 'softmax'" in call("stdlib", "softmx", code=2).stderr


# --- wrong usage and wrong programs ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("run", "missing.pf"), "there is no file 'missing.pf'"),
        (("run", "softmax"), "did you mean stdlib:softmax?"),
        (("run", "."), "is a folder"),
        (("run", "norm.pf", "--size", "Q=3"), "has no size 'Q'; it has T, H"),
        (("run", "norm.pf", "--size", "T=-1"), "a number from 0 on"),
        (("run", "norm.pf", "--size", "T"), "takes NAME=VALUE"),
        (("run", "norm.pf", "--size", "T=1", "--size", "T=2"), "gives T twice"),
        (("run", "norm.pf", "--dtype", "F=f16"), "no generic type 'F'"),
        (("run", "stdlib:softmax", "--dtype", "F=float"), "a type is one of f64"),
        (("run", "norm.pf", "--target", "soup"), "there is no target 'soup'"),
        (("run", "norm.pf", "--layers", "warp"), "no layer 'warp'"),
        (("run", "norm.pf", "--denormals", "kept"), "did you mean keep? There are flush, keep"),
        (("run", "norm.pf", "--library", "mine"), "no --library mine; there are auto, always, never"),
        (("run", "norm.pf", "--target", "emulat"), "did you mean emulate? There are auto"),
        (("run", "nrom.pf"), "did you mean norm.pf?"),
        (("emit", "norm.pf", "-o", "nowhere/out"), "nowhere'; make it first"),
        (("emit", "norm.pf", "-o", "."), "is a folder, not a file"),
        (("build", "norm.pf", "--device", "H200"), "--device is for --target cuda"),
        (("grad", "stdlib:zzz"), "`polyfuse stdlib` lists them"),
        (("errors", "ZZ"), "they begin with PF1 to PF9"),
        (("run", "norm.pf", "--device", "H200"), "--device is for kernels of a GPU"),
        (("run", "norm.pf", "--target", "emulate", "--device", "G1"), "no figures of a GPU called 'G1'"),
        (("run", "norm.pf", "--resident", "2"), "--resident is for --target emulate"),
        (("run", "norm.pf", "--target", "emulate", "--resident", "0"), "greater than or equal to 1"),
        (("compare", "norm.pf", "--target", "soup"), "there is no target 'soup'"),
        (("explain", "norm.pf", "--device", "H200"), "--device is for kernels of a GPU"),
        (("run", "norm.pf", "--op", "nothing"), "PF411"),
        (("run", "norm.pf", "--tune", "guess"), "no way 'guess' to tune; there are model, measure"),
        (("explain", "norm.pf", "--tune", "measure", "--target", "emulate"), "is for --target cpu or cuda"),
        (
            ("run", "norm.pf", "--cost", "guess"),
            "no model of cost 'guess'; there are auto, projected, learned",
        ),
        (("explain", "norm.pf", "--cost", "learned", "--target", "cuda"), "is for --target cpu"),
        (("run", "norm.pf", "--partition", "luck"), "no partition 'luck'; there are connect, rules, search"),
        (("run", "norm.pf", "--partition", "rules", "--layers", "stitch"), "--layers must name loop"),
        (("explain", "norm.pf", "a", "b", "--partition", "search"), "--partition connect or rules"),
        (("emit", "norm.pf", "--stage", "schedule", "--partition", "search"), "the stage schedule is of one"),
        (("emit", "norm.pf", "--stage", "cpp", "--target", "cuda"), "the stage cpp is of --target cpu"),
        (("emit", "norm.pf", "--stage", "ptx", "--target", "cpu"), "the stage ptx is of --target cuda"),
        (("emit", "norm.pf", "--stage", "ptx", "--device", "sm_35"), "architecture 'sm_35'; known are H200"),
        (("emit", "norm.pf", "--stage", "soup"), "no stage 'soup'"),
        (("nothing",), "No such command"),
        (("check", "stdlib:softmax"), "is not a file"),
    ],
)
def test_wrong_usage(norm: str, args: tuple[str, ...], said: str) -> None:
    text = call(*args, code=2).stderr.replace("│", " ")
    assert "".join(said.split()) in "".join(text.split()), "lines end anywhere in a long path"


def test_errors_of_a_program_have_carets() -> None:
    done = call("run", "-", given="op f(x: f32[N]) -> (y: f32[N]) { y[i] = x[i] + z[i] }", code=1)
    lines = done.stderr.splitlines()
    assert lines[0].startswith("<stdin>:1:48: error PF201: unknown")
    assert lines[2].index("^") == lines[1].index("z[i]")
    assert "more: polyfuse explain PF201" in done.stderr


def test_an_index_from_data_is_a_wrong_program(workplace: Path) -> None:
    """Sizes are right, what the program does with its data is not: exit code 1."""
    text = "op f(x: f32[N], i: i32[K]) -> (y: f32[K]) { y[k] = x[i[k] + 100] }"
    done = call("run", "-", "-s", "N=5,K=9", "--checked", given=text, code=1)
    assert "PF450" in done.stderr


# --- internal errors ------------------------------------------------------------------------------------


def test_an_internal_error_leaves_a_reproducer(
    norm: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyfuse.api import Operator

    def broken(*args: object, **kwargs: object) -> object:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(Operator, "graph", broken)
    done = call("emit", norm, "--stage", "graph", "--size", "T=3", code=3)
    (file,) = workplace.glob("polyfuse-bug-*.pf")
    assert "polyfuse has a bug: ZeroDivisionError: injected" in done.stderr
    assert f"run it again: polyfuse emit {file.name} --stage graph --size T=3" in done.stderr
    text = file.read_text()
    assert "# arguments: emit norm.pf --stage graph --size T=3" in text
    assert "# ZeroDivisionError: injected" in text and "# numpy " in text
    monkeypatch.undo()
    os.chdir(workplace)
    assert "graph add_norm" in call("emit", file.name, "--stage", "graph", "--size", "T=3").stdout


def test_a_folder_that_cannot_be_written(norm: str, monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    done = call("emit", norm, "-o", "no/such/folder/out.txt", code=2)
    assert "there is no folder" in done.stderr and "A bug in" not in done.stderr


# --- doctor and cache -------------------------------------------------------------------------------------


def test_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    assert "Compiler" in call("doctor").stdout
    found = json.loads(call("doctor", "--json").stdout)
    assert found["compiler"]["C++"]["state"] == "ok"
    monkeypatch.setenv("CXX", "/nonexistent")
    done = call("doctor", code=1)
    assert "missing" in done.stdout and "-> install one" in done.stdout


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.runtime.cache.disk import Cache, cache_key

    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder))
    assert call("cache", "ls").stdout == f"0 entries, 0 B in {folder}\n"
    cache = Cache.open_default()
    for name in ("a", "b"):
        entry = cache.put(cache_key([("n", name)]), {"file": b"12345"}, {"what": f"entry {name}"})
    listed = call("cache", "ls").stdout
    assert "entry a" in listed and "2 entries, 10 B" in listed
    assert "2 entries checked, 0 damaged" in call("cache", "verify").stdout
    (entry / "file").write_bytes(b"123")
    assert "1 damaged" in call("cache", "verify", code=1).stdout
    assert call("cache", "clear").stdout == f"removed 1 entry from {folder}\n"


# --- as a process -----------------------------------------------------------------------------------------


def test_help_is_quick_and_complete() -> None:
    heavy = ("numpy", "islpy", "lark", "rich.table")
    code = f"import sys, polyfuse.cli; print(sorted(set({heavy}) & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    done = process("--help")
    assert done.returncode == 0
    for name in (
        "run",
        "compare",
        "emit",
        "explain",
        "passes",
        "check",
        "fmt",
        "stdlib",
        "errors",
        "doctor",
        "cache",
    ):
        assert name in done.stdout


@pytest.mark.parametrize("command", ["run", "compare", "emit", "explain", "fmt", "cache"])
def test_help_of_a_command(command: str) -> None:
    assert "Usage: " in call(command, "--help").stdout


def test_brackets_in_help_are_no_markup() -> None:
    assert "pip install '.[lsp]'" in call("lsp", "--help").stdout
    assert "ignore[PF298]" in call("check", "--help").stdout


def test_version() -> None:
    assert process("--version").stdout.startswith("polyfuse ")


def test_without_a_compiler(norm: str) -> None:
    done = process("run", norm, *SMALL, CXX="/nonexistent")
    assert done.returncode == 1 and "error PF701" in done.stderr and "Traceback" not in done.stderr
    assert "--target interpret" in done.stderr
    done = process("run", norm, *SMALL, "--target", "interpret", CXX="/nonexistent")
    assert done.returncode == 0, done.stderr
    assert "y: agrees" in done.stdout


def test_a_hint_names_the_option(workplace: Path) -> None:
    program = "op f[S: size](x: f32[N]) -> (y: f32[N // S]) { y[i] = x[i * S] }"
    (workplace / "steps.pf").write_text(program)
    told = call("build", "steps.pf", "-o", "out", code=2).stderr
    assert "error PF766" in told and "give values, as in --size S=64" in told and "sizes=" not in told


def test_no_colours_in_a_pipe(norm: str) -> None:
    done = process("check", "-", given="op f(", FORCE_COLOR="", TERM="xterm-256color")
    assert "\x1b" not in done.stdout + done.stderr


def test_dump_writes_a_file_for_each_step(norm: str, workplace: Path) -> None:
    folder = workplace / "dump"
    done = process("run", norm, *SMALL, "--repeat", "1", "--no-check", POLYFUSE_DUMP=str(folder))
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in folder.iterdir() if p.is_file())
    steps = [n.split("_", 1)[1] for n in names]
    wanted = [
        "source.txt",
        "graph.txt",
        "clean.txt",
        "clusters.txt",
        "online.txt",
        "schedule.txt",
        "kernels.txt",
        "in_place.txt",
        "launches.txt",
        "loops.txt",
        "cpp.cpp",
    ]
    assert steps == [*wanted, "build.txt"]
    assert [int(n[:2]) for n in names] == list(range(len(names)))
    assert not any("object at 0x" in (folder / n).read_text() for n in names)
    assert all((folder / n).stat().st_size for n in names)
    (passes_of_code,) = folder.glob("*_cpp_passes")
    after = sorted(p.name for p in (passes_of_code / "k0").iterdir())
    assert after[0] == "000_loops_before.txt" and int(after[-1][:3]) == len(after) - 1
    assert [n for n in after if n.endswith("_functions_outline.txt")]
    assert all((passes_of_code / "k0" / n).stat().st_size for n in after)


def test_a_reader_that_goes_away_is_no_error(norm: str) -> None:
    command = f"{sys.executable} -m polyfuse stdlib | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout

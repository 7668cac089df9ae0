"""CUDA source to a cubin for one architecture; no GPU, driver or toolkit is needed.

NVRTC does it where it is found (`find_nvrtc`), in a helper process (`runtime.cuda.nvrtc`); elsewhere nvcc
does. Flags: contraction gives FMA, as on the CPU; f32 denormals are flushed if the options say so; division
and square root stay correctly rounded and nothing is reassociated.  What kernels take is read from the
cubin (`runtime.cuda.cubin`).
"""

from __future__ import annotations

import base64
import ctypes.util
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache as memoised
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from polyfuse.diagnostics import ToolchainError, install
from polyfuse.options import Options
from polyfuse.runtime.cache.disk import Built, Cache, cache_key, package_version, read_file, read_text
from polyfuse.runtime.cuda.cubin import Resources, kernel_resources
from polyfuse.runtime.cuda.nvrtc import HelperEnded, HelperLate, helper
from polyfuse.runtime.toolchain.work_folders import BUILDS, work_folder

# --- compilers --------------------------------------------------------------------------------------------

# On this machine that is NVRTC's library, from its wheel or the system, or else nvcc.
#
# The wheel comes first: it is what the extra ``cuda-compile`` installs, in a version that is known to work.
# Nothing is loaded to find it.


WHEELS = ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13")
TOOLKITS = (Path("/usr/local/cuda"), Path("/opt/cuda"))
INSTALL = install("cuda-compile")


@dataclass(frozen=True, slots=True)
class CudaCompiler:
    """`path` of NVRTC's library or of nvcc; `origin` says where it comes from."""

    kind: Literal["nvrtc", "nvcc"]
    path: str
    origin: str

    @property
    def identity(self) -> str:
        """Changes when the file changes, for cache keys."""
        real = os.path.realpath(self.path)
        if not os.path.exists(real):
            return f"{self.kind} {self.path}"  # a name that the system's loader resolves
        info = os.stat(real)
        return f"{self.kind} {real} {info.st_size} {info.st_mtime_ns}"


def find_cuda_compiler() -> CudaCompiler:
    """NVRTC's wheel, else the system's NVRTC, else nvcc. Raises ToolchainError PF720 if there is none."""
    found = find_nvrtc() or find_nvcc()
    if found is None:
        raise ToolchainError(
            "no compiler for CUDA found: neither NVRTC (a wheel, or libnvrtc of the system) nor nvcc",
            code="PF720",
            hint=f"{INSTALL} installs NVRTC; no GPU, driver or toolkit is needed to compile",
        )
    return found


def find_nvrtc() -> CudaCompiler | None:
    """NVRTC's library, or None."""
    found = find_library("nvrtc", WHEELS)
    return CudaCompiler("nvrtc", *found) if found else None


def find_library(name: str, wheels: Sequence[str]) -> tuple[str, str] | None:
    """The path of one of NVIDIA's libraries, and where it comes from: a wheel, a toolkit, the system."""
    file_name = re.compile(rf"lib{name}\.so(\.\d+)*")
    for wheel in wheels:
        try:
            distribution = metadata.distribution(wheel)
        except metadata.PackageNotFoundError:
            continue
        for file in sorted(distribution.files or (), key=str):
            path = Path(str(distribution.locate_file(file)))
            if file_name.fullmatch(file.name) and path.is_file():
                return str(path), f"{wheel} {distribution.version}"
    for folder in toolkits():
        for path in sorted((folder / "lib64").glob(f"lib{name}.so*")):
            return str(path), str(folder)
    found = ctypes.util.find_library(name)
    return (found, "the system") if found else None


def find_nvcc() -> CudaCompiler | None:
    """nvcc on the PATH or where toolkits are installed, or None."""
    places = [shutil.which("nvcc"), *(shutil.which(str(t / "bin" / "nvcc")) for t in TOOLKITS)]
    path = next((p for p in places if p), None)
    return CudaCompiler("nvcc", path, path) if path else None


def toolkits() -> list[Path]:
    """Folders of toolkits: that of nvcc on the PATH, and the usual ones."""
    nvcc = shutil.which("nvcc")
    own = [Path(os.path.realpath(nvcc)).parent.parent] if nvcc else []
    return [folder for folder in (*own, *TOOLKITS) if folder.is_dir()]


# --- nvcc -------------------------------------------------------------------------------------------------


VERSION_LIMIT_S = 30.0


def compile_with_nvcc(nvcc: str, source: str, options: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """The answer of NVRTC's helper, from nvcc. Raises TimeoutError after killing it, or OSError."""
    with work_folder(prefix=BUILDS) as folder:
        (folder / "kernel.cu").write_text(source, encoding="utf-8")
        command = [nvcc, "-cubin", "kernel.cu", "-o", "kernel.cubin", "--keep", *options]
        status, log = _run(command, folder, timeout_s)
        answer: dict[str, Any] = {"status": status, "log": log, "version": nvcc_version(nvcc)}
        if status == 0:
            answer["cubin"] = (folder / "kernel.cubin").read_bytes()
            answer["ptx"] = (folder / "kernel.ptx").read_text(encoding="utf-8")
        return answer


@memoised
def nvcc_version(nvcc: str) -> str:
    """As ``13.0.88``; "unknown" if it does not say."""
    with suppress(OSError, TimeoutError):
        _, text = _run([nvcc, "--version"], Path(tempfile.gettempdir()), VERSION_LIMIT_S)
        _, _, after = text.partition(", V")
        return after.split()[0] if after else "unknown"
    return "unknown"


def _run(command: Sequence[str], folder: Path, timeout_s: float) -> tuple[int, str]:
    """Exit status and output.  A file takes the output: a pipe could be held open by what nvcc started."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # its own process group, so that all of it can be killed
        )
        try:
            status = process.wait(timeout=timeout_s)
        except BaseException as error:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError from None
            raise
        output.seek(0)
        return status, output.read().decode("utf-8", "replace")


# --- compilations -----------------------------------------------------------------------------------------

OLDEST = 70
_ARCH = re.compile(r"sm_([1-9]\d{1,2})[af]?")
_REFUSED_ARCH = re.compile(r"invalid value for --gpu-architecture|Unsupported gpu architecture")
_REPORT = re.compile(r"ptxas (info    :|        \.)")
_KERNEL = re.compile(r"__global__\s+void\s+(?:__\w+__\s*\([^)]*\)\s*)*(\w+)\s*\(")
_PLACE = re.compile(r"kernel\.cu\((\d+)\): (?:catastrophic |fatal )?error")
_LOG_LIMIT = 6000
_MOST_LINES = 5


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled source: machine code, PTX, what each kernel takes, and who made it.

    `resources` has each kernel of the source; what nobody says of one is None. `log` is the compiler's
    output, with the assembler's report where it prints one.
    """

    cubin: bytes
    ptx: str
    resources: Mapping[str, Resources]
    log: str
    compiler: str


def require_arch(text: str) -> str:
    """`text` if it names an architecture that polyfuse has code for, as ``sm_90``. Raises PF722."""
    found = _ARCH.fullmatch(text)
    if found is None:
        raise ToolchainError(
            f"{text!r} is not an architecture of CUDA",
            code="PF722",
            hint="they are written like sm_80 or sm_90",
        )
    if int(found[1]) < OLDEST:
        raise ToolchainError(
            f"{text} is too old: the emitted code needs sm_{OLDEST} (Volta) or later, whose lanes of a warp "
            "make progress on their own",
            code="PF722",
            hint='target="cpu" runs everywhere',
        )
    return text


def compile_cuda(
    source: str, arch: str = "sm_90", *, options: Options | None = None, timeout_s: float = 60.0
) -> Cubin:
    """The cubin of a CUDA source (one string without headers), from the cache if possible.

    Raises ToolchainError: PF720 no compiler; PF721 it found errors, which the message shows with their
    lines; PF722 it does not know `arch`; PF723 it crashed, or ran longer than `timeout_s` seconds and was
    killed. Nothing half-written stays behind.
    """
    require_arch(arch)
    compiler = find_cuda_compiler()
    flags = _flags(arch, options or Options())

    def build() -> Built:
        cubin = _compile(compiler, source, arch, flags, timeout_s)
        resources = {name: asdict(r) for name, r in cubin.resources.items()}
        facts = {"resources": resources, "log": cubin.log, "compiler": cubin.compiler}
        files = {
            "kernel.cubin": cubin.cubin,
            "kernel.ptx": cubin.ptx.encode(),
            "kernel.cu": source.encode(),
            "facts.json": json.dumps(facts).encode(),
        }
        return Built(files, {"what": f"cubin for {arch}"})

    version = nvcc_version(compiler.path) if compiler.kind == "nvcc" else ""
    key = cache_key(
        [
            ("what", "cubin"),
            ("source", source),
            ("compiler", f"{compiler.identity} {version}"),
            ("flags", " ".join(flags)),
            ("polyfuse", package_version()),
        ]
    )
    folder = Cache.open_default().get_or_build(key, build)
    facts = json.loads(read_file(folder / "facts.json"))
    return Cubin(
        cubin=read_file(folder / "kernel.cubin"),
        ptx=read_text(folder / "kernel.ptx"),
        resources={name: Resources(**r) for name, r in facts["resources"].items()},
        log=facts["log"],
        compiler=facts["compiler"],
    )


def _flags(arch: str, options: Options) -> tuple[str, ...]:
    return (
        f"--gpu-architecture={arch}",
        "-std=c++17",
        "--fmad=true",
        f"--ftz={'true' if options.denormals == 'flush' else 'false'}",
        "--prec-div=true",
        "--prec-sqrt=true",
        "--ptxas-options=-v",
        "--disable-warnings",
    )


def _compile(
    compiler: CudaCompiler, source: str, arch: str, flags: tuple[str, ...], timeout_s: float
) -> Cubin:
    answer = _answer(compiler, source, flags, timeout_s)
    if "error" in answer:
        raise ToolchainError(
            f"NVRTC ({compiler.path}) cannot be used: {answer['error']}",
            code="PF720",
            hint=f"{INSTALL} installs one that works",
        )
    log = str(answer["log"])
    if answer["status"] != 0:
        raise _unknown_arch(arch, compiler, log) if _REFUSED_ARCH.search(log) else _failed(source, log)
    data = answer["cubin"]
    cubin = base64.b64decode(data) if isinstance(data, str) else bytes(data)
    resources = kernel_resources(cubin, log, _kernels(source))
    name = "NVRTC" if compiler.kind == "nvrtc" else "nvcc"
    return Cubin(cubin, str(answer["ptx"]), resources, log, f"{name} {answer['version']}")


def _answer(compiler: CudaCompiler, source: str, flags: tuple[str, ...], timeout_s: float) -> dict[str, Any]:
    try:
        if compiler.kind == "nvcc":
            return compile_with_nvcc(compiler.path, source, flags, timeout_s)
        return helper(compiler.path).compile(source, flags, timeout_s)
    except (HelperLate, TimeoutError):
        raise ToolchainError(
            f"the CUDA compiler still ran after {timeout_s:g} s and was killed",
            code="PF723",
            hint="a smaller kernel compiles faster; a loaded machine needs a longer time-out",
        ) from None
    except (HelperEnded, OSError) as error:
        raise ToolchainError(f"the CUDA compiler {error}", code="PF723", hint="out of memory?") from None


def _kernels(source: str) -> list[str]:
    """Names of the kernels that a source defines."""
    return _KERNEL.findall(source)


def _unknown_arch(arch: str, compiler: CudaCompiler, log: str) -> ToolchainError:
    return ToolchainError(
        f"the CUDA compiler ({compiler.origin}) has no code for {arch}: {_shortened(log)}",
        code="PF722",
        hint=f"NVRTC 12.8 or 12.9 knows sm_70 to sm_121, 13 knows sm_75 and later; {INSTALL} installs 12.9",
    )


def _failed(source: str, log: str) -> ToolchainError:
    lines = source.splitlines()
    log = "\n".join(line for line in log.splitlines() if not _REPORT.match(line))
    places = [int(n) for n in dict.fromkeys(_PLACE.findall(log))][:_MOST_LINES]
    quoted = [f"{n:6d} | {lines[n - 1]}" for n in places if 0 < n <= len(lines)]
    text = "\n".join([_shortened(log), *(["of the emitted source:", *quoted] if quoted else [])])
    return ToolchainError(
        f"the CUDA compiler failed:\n{text}",
        code="PF721",
        hint="that is a bug in polyfuse: please report the message",
    )


def _shortened(text: str) -> str:
    """The beginning, where the first error is, and the end."""
    text = text.strip() or "(no output)"
    if len(text) <= _LOG_LIMIT:
        return text
    head, tail = text[: _LOG_LIMIT * 3 // 4], text[-_LOG_LIMIT // 4 :]
    return f"{head}\n... ({len(text) - _LOG_LIMIT} more characters) ...\n{tail}"

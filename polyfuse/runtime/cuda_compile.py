"""CUDA source to a cubin for one architecture; no GPU, driver or toolkit is needed.

NVRTC does it where it is found (`cuda_find`), in a helper process (`cuda_helper`); elsewhere nvcc does.
Flags: contraction gives FMA, as on the CPU; f32 denormals are flushed if the options say so; division and
square root stay correctly rounded and nothing is reassociated.  The assembler's report comes with the cubin.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polyfuse.diagnostics import ToolchainError
from polyfuse.options import Options
from polyfuse.runtime.cache import Built, Cache, cache_key, package_version
from polyfuse.runtime.cache_files import read_file, read_text
from polyfuse.runtime.cuda_find import INSTALL, CudaCompiler, find_cuda_compiler
from polyfuse.runtime.cuda_helper import HelperEnded, HelperLate, helper
from polyfuse.runtime.cuda_nvcc import compile_with_nvcc, nvcc_version
from polyfuse.runtime.cuda_resources import Resources, read_resources

OLDEST = 70
_ARCH = re.compile(r"sm_([1-9]\d{1,2})[af]?")
_REFUSED_ARCH = re.compile(r"invalid value for --gpu-architecture|Unsupported gpu architecture")
_REPORT = re.compile(r"ptxas (info    :|        \.)")
_PLACE = re.compile(r"kernel\.cu\((\d+)\): (?:catastrophic |fatal )?error")
_LOG_LIMIT = 6000
_MOST_LINES = 5


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled source: machine code, PTX, what each kernel takes, and who made it.

    `log` is the compiler's output, with the assembler's report.
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
    resources = read_resources(log, cubin)
    missing = [name for name in _kernels(source) if name not in resources]
    if missing:
        raise ToolchainError(
            f"the assembler's report says nothing of {', '.join(missing)}:\n{_shortened(log)}",
            code="PF724",
            hint=f"{INSTALL} installs a version whose report is known",
        )
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
    return re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(", source)


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

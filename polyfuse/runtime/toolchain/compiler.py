"""The user's C++ compiler: found, identified, and run on a source, or on several parts of it side by side.

Why these flags and no others (see docs/lab/targets.md): vectors of 512 bits are faster than
gcc's default of 256; without errno and traps the polynomial loops vectorise; contraction gives FMA.
Nothing that lets the compiler reassociate: it would fold ``(a - b) + b`` to ``a`` and break exp, Welford
and compensated sums, and linking with ``-ffast-math`` flips denormals off for the whole process.
A flag that this compiler refuses is dropped, after a probe that is kept in the cache.
"""

from __future__ import annotations

import _ctypes
import ctypes
import errno
import hashlib
import json
import math
import os
import platform
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache as memoised
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, TypeVar

from polyfuse.codegen.cpu.units import units_of
from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.cache.disk import Built, Cache, cache_key, package_version, read_file
from polyfuse.runtime.toolchain.sanitizers import compiler_environment, sanitized, sanitizer_flags
from polyfuse.runtime.toolchain.vector_report import REPORT, Missed, flag, missed, to_json
from polyfuse.runtime.toolchain.work_folders import BUILDS, sweep_once, work_folder
from polyfuse.support.processes import ForkLock, jobs
from polyfuse.support.progress import tell

# --- runs -------------------------------------------------------------------------------------------------

# Runs of the C++ compiler: a shared object from one source or from several parts, made side by side.
#
# Each run has a limit, a folder and a process group of its own; when one fails, is late or is interrupted,
# all are ended with what they started.  The limit is seconds of the processor, for each process: what
# compiles does not depend on what else the machine does.  The clock ends only what waits for something.


PHASE = "C++ parts compiled"
PROBE_TIMEOUT_S = 10.0
# Seconds of the clock for each of the processor's, before a run counts as one that hangs.
PATIENCE = 10
# The limit is set in the new process, before it starts others.  A lower one of the user's stays.
_LIMITED = ("/bin/sh", "-c", 'ulimit -S -t "$0" 2>/dev/null; exec "$@"')
_OUTPUT_LIMIT = 6000
_TOO_LONG = "time limit exceeded"  # how systems call the signal SIGXCPU
INSTALL_HINT = (
    "install one: `apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora, RHEL), "
    "`xcode-select --install` or `brew install gcc` (macOS), or point $CXX at one; "
    "`--target interpret` works without a compiler"
)


class OutOfTime(ToolchainError):
    """The compiler was busy all the time that it had."""


def ask(command: Sequence[str]) -> str:
    """What a command prints."""
    return _run_all([command], Path(tempfile.gettempdir()), PROBE_TIMEOUT_S)[0]


def of_parts(flags: Sequence[str]) -> list[str]:
    """The flags without those of the linker."""
    return [f for f in flags if f != "-shared" and not f.startswith(("-Wl,", "-l", "-L"))]


def build_shared(
    command: Sequence[str],
    flags: Sequence[str],
    units: Sequence[str],
    timeout_s: float,
    reports: list[Missed] | None = None,
) -> bytes:
    """Compile in a folder of its own, which goes away whatever happens. What gcc says of loops that are no
    vector loops goes into `reports`, if there is such a list."""
    names = ["kernel"] if len(units) == 1 else [f"kernel_{k}" for k in range(len(units))]
    with work_folder(prefix=BUILDS) as folder:
        for name, unit in zip(names, units, strict=True):
            Path(folder, f"{name}.cpp").write_text(unit, encoding="utf-8")
        inputs = [f"{names[0]}.cpp"]
        told = {n: [flag(f"{n}.vec")] if reports is not None else [] for n in names}
        if len(units) > 1:
            parts = [[*command, "-c", f"{n}.cpp", *of_parts(flags), *told[n], "-o", f"{n}.o"] for n in names]
            _run_all(parts, Path(folder), timeout_s)
            inputs = [f"{n}.o" for n in names]
        # The source comes first: a `-l` among the flags must follow what needs it under --as-needed.
        alone = told[names[0]] if len(units) == 1 else []
        whole = [*command, *inputs, *flags, *alone, "-o", "kernel.so"]
        _run_all([whole], Path(folder), timeout_s)
        made = Path(folder, "kernel.so")
        if not made.is_file():
            raise _failed(whole, 0, "")
        for name, unit in zip(names, units, strict=True):
            report = Path(folder, f"{name}.vec")
            if reports is not None and report.is_file():
                reports += missed(unit, report.read_text(encoding="utf-8", errors="replace"))
        return made.read_bytes()


def _run_all(commands: Sequence[Sequence[str]], folder: Path, timeout_s: float) -> list[str]:
    """Run all side by side; their output. Raises ToolchainError for one that fails; then none runs on."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    found: list[str] = []
    with ExitStack() as stack:
        running: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []
        for command in commands:
            # A file takes the output: a pipe could be held open by grandchildren.
            output: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())
            running.append((_start(command, folder, output, timeout_s), output))
            stack.callback(_end, running[-1][0])
        for command, (process, output) in zip(commands, running, strict=True):
            text = shlex.join(command)
            try:
                code = _status(process, max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise ToolchainError(
                    f"the compiler still ran after {PATIENCE * timeout_s:g} s and was killed: {text}",
                    code="PF703",
                    hint="it seems to wait for something: run the command by hand",
                ) from None
            output.seek(0)
            found.append(output.read().decode("utf-8", "replace"))
            if _was_too_long(code, found[-1]):
                raise OutOfTime(
                    f"the compiler used {timeout_s:g} s of the processor and was ended: {text}",
                    code="PF703",
                    hint="a smaller kernel compiles faster",
                )
            if code != 0:
                raise _failed(command, code, found[-1])
            if len(commands) > 1:
                tell(PHASE, len(found), len(commands))
    return found


def _start(
    command: Sequence[str], folder: Path, output: IO[bytes], limit_s: float
) -> subprocess.Popen[bytes]:
    try:
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return subprocess.Popen(
            [*_LIMITED, str(math.ceil(limit_s)), *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # What the compiler leaves when it is killed goes with the folder.
            env={**compiler_environment(), "LC_ALL": "C", "TMPDIR": str(folder)},
            start_new_session=True,  # its own process group, so that all of it can be killed
        )
    except OSError as e:
        raise ToolchainError(
            f"cannot run {command[0]}: {e.strerror or e}", code="PF701", hint=INSTALL_HINT
        ) from e


def _was_too_long(code: int, text: str) -> bool:
    """Did a process, or one that it started and tells of, end because its seconds were used up?"""
    return code in (-signal.SIGXCPU, 128 + signal.SIGXCPU) or (code != 0 and _TOO_LONG in text.lower())


def _status(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """What a process ends with. Raises subprocess.TimeoutExpired.

    `wait` with a limit looks from time to time, soon only every 50 ms; a small kernel takes 200 to compile.
    So the system is asked to tell at once, where it can.
    """
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):  # an old kernel, or no descriptor left
            ended = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(ended, select.POLLIN)
                if not poll.poll(limit_s * 1000):
                    limit_s = 0.0
            finally:
                os.close(ended)
    return process.wait(limit_s)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, with all that it started."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failed(command: Sequence[str], code: int, text: str) -> ToolchainError:
    how = f"was killed by signal {-code}" if code < 0 else f"failed with status {code}"
    hint = "out of memory?" if code == -signal.SIGKILL else f"the command was: {shlex.join(command)}"
    return ToolchainError(f"the C++ compiler {how}:\n{_shortened(text)}", code="PF702", hint=hint)


def _shortened(text: str) -> str:
    """The beginning, where the first error is, and the end."""
    text = text.strip() or "(no output)"
    if len(text) <= _OUTPUT_LIMIT:
        return text
    head, tail = text[: _OUTPUT_LIMIT * 3 // 4], text[-_OUTPUT_LIMIT // 4 :]
    return f"{head}\n... ({len(text) - _OUTPUT_LIMIT} more characters) ...\n{tail}"


# --- libraries in this process ----------------------------------------------------------------------------

# Libraries of kernels in this process: loaded for those that use them, and unloaded with the last one.
#
# `KernelLibrary` is held by whatever has an address of its functions: an executable, the steps of a call
# (`runtime.cpu.pool.StepArray`), a function taken from it.  The system counts how often a file is loaded, so
# two operators of one source have a library each.  No thread is in a kernel when the last owner goes: whoever
# calls holds an owner, and the pool returns when all threads have left the kernels.


# Not documented, so not everywhere: without it libraries stay.
_close: Callable[[int], None] | None = getattr(_ctypes, "dlclose", None)
_symbol: Callable[[int, str], int] | None = getattr(_ctypes, "dlsym", None)


class KernelLibrary(ctypes.CDLL):
    """A library that the process no longer has when nothing refers to this object. Functions of ctypes do,
    and to themselves: with one of them it stays until the garbage collector runs.

    It stays where the process ends, and with sanitizers, whose reports name functions of libraries that are
    there.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        if _close is not None and not sanitized():
            weakref.finalize(self, _close, self._handle).atexit = False

    def address(self, name: str) -> int:
        """Where a function is, for as long as the library is there."""
        if _symbol is not None:
            return _symbol(self._handle, name)
        found = ctypes.cast(self[name], ctypes.c_void_p).value
        assert found is not None
        return found


Library = TypeVar("Library", bound=ctypes.CDLL)
# --- the compiler -----------------------------------------------------------------------------------------

OPTIMISE = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-fno-math-errno",
    "-fno-trapping-math",
    # gcc 12 turns comparisons of selected values into control flow that it then cannot vectorise.
    "-fno-tree-pre",
    # Nor where it lets what follows a comparison jump by another one: a clip before a cast.
    "-fno-thread-jumps",
    # gcc 12 distributes a loop over rows that depend on one another (stencils in time), wrongly; it may not
    # turn our loops into calls of memset or memcpy either. Splitting loops is layer I's business.
    "-fno-tree-loop-distribution",
    "-fno-tree-loop-distribute-patterns",
    # gcc 12 puts two rounds of a reduction's lanes together, and then keeps the accumulators in memory.
    "-fno-loop-unroll-and-jam",
    # gcc 12 takes minima of 64-bit integers, indices among them, to vector registers and back.
    "-mno-stv",
    "-ffp-contract=fast",
)
# What the second try goes without: of straight lines gcc's vectoriser makes much longer ones, and its range
# propagation takes more than linear time for them.
LIGHTER = ("-fno-tree-vrp", "-fno-tree-slp-vectorize")
SHARED = ("-std=c++17", "-fPIC", "-shared")
OPTIONAL = ("-fno-exceptions", "-fno-rtti", "-fno-plt", "-Wl,--as-needed")
CANDIDATES = ("g++", "clang++", "c++")
# A line of a source that asks for a flag.
_NEEDS = re.compile(r"^// needs (-f[a-z0-9-]+)$", re.MULTILINE)
_PROBE_SOURCE = 'extern "C" int pf_probe(int x) { return x + 1; }\n'
# Characters of a source for each process of the compiler: such a part takes it 0.1 to 0.2 s, its start and
# the linking of the parts 0.03 s (measured: docs/lab/long_compilations.md).
UNIT_CHARS = 16_000
_SOURCES_KEPT = 16


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler that works.

    command: the words that run it; kind: ``gcc`` or ``clang``; version: the first line of its
    ``--version``; machine: its target triple; flags: those it accepts, for a shared object;
    vector_bits: width of a vector register as compiled for; macros: digest of what it predefines
    with these flags, which is what ``-march=native`` means here.
    """

    command: tuple[str, ...]
    kind: str
    version: str
    machine: str
    flags: tuple[str, ...]
    vector_bits: int
    macros: str

    @property
    def identity(self) -> str:
        """Everything about it that can change its output, for cache keys."""
        return json.dumps(asdict(self), sort_keys=True)


_found: dict[tuple[str | None, str | None], Compiler] = {}
_found_lock = ForkLock()


def find_compiler() -> Compiler:
    """The C++ compiler: ``$CXX`` if set, else the first of g++, clang++, c++ on the PATH that works.

    Remembered per value of CXX and PATH.  Raises ToolchainError: PF701 if there is none, PF702 if it
    cannot compile an empty library, PF703 if it hangs.
    """
    env = (os.environ.get("CXX"), os.environ.get("PATH"))
    with _found_lock:
        if env not in _found:
            _found[env] = _from_variable(env[0]) if env[0] and env[0].strip() else _from_path()
        return _found[env]


def flags_for(source: str, compiler: Compiler) -> tuple[str, ...]:
    """A compiler's flags for a shared object, and those that a source asks for in lines ``// needs -fwrapv``.

    Only gcc can be told when to choose an order of instructions, and needs `-fno-ivopts` and
    `-fno-predictive-commoning`.
    """
    of_gcc = ("sched", "ivopts", "commoning")
    asked = [f for f in _needs(source) if compiler.kind == "gcc" or not any(w in f for w in of_gcc)]
    return (*compiler.flags, *asked)


@lru_cache(maxsize=_SOURCES_KEPT)
def _needs(source: str) -> tuple[str, ...]:
    """The flags that a source asks for."""
    return tuple(dict.fromkeys(_NEEDS.findall(source)))


@lru_cache(maxsize=_SOURCES_KEPT)
def _key(source: str, compiler: Compiler, flags: tuple[str, ...]) -> str:
    """The key of a shared object; each of several operators in one source asks for it."""
    return cache_key(
        [
            ("what", "shared object"),
            ("source", source),
            ("compiler", compiler.identity),
            ("flags", shlex.join(flags)),
            ("cpu", cpu_identity()),
            ("polyfuse", package_version()),
        ]
    )


def compile_shared(
    source: str, *, timeout_s: float = 60.0, extra_flags: Sequence[str] = (), plain: bool = False
) -> Path:
    """The shared object of a C++ source (one string), from the cache if possible.

    A long one is compiled in parts, as far as it allows; `flags_for` says with which flags.  What is `plain`
    never has sanitizers: code that measures the machine, or changes its stack.

    Raises ToolchainError: PF701 no compiler; PF702 it failed, with its output; PF703 it used more than
    `timeout_s` seconds of the processor, of gcc also without `LIGHTER`, or hung, and was ended with all it
    started.  Nothing half-written stays behind.
    """
    compiler = find_compiler()
    flags = (*flags_for(source, compiler), *extra_flags, *(() if plain else sanitizer_flags()))

    def build() -> Built:
        units = units_of(source, min(jobs(), len(source) // UNIT_CHARS))
        about = {"what": "shared object"}
        reports: list[Missed] | None = [] if compiler.kind == "gcc" and not plain else None
        try:
            data = build_shared(compiler.command, flags, units, timeout_s, reports)
        except OutOfTime:
            if compiler.kind != "gcc":
                raise
            about["second try"] = shlex.join(LIGHTER)
            reports = None if reports is None else []
            data = build_shared(compiler.command, (*flags, *LIGHTER), units, timeout_s, reports)
        files = {"kernel.so": data, "kernel.cpp": source.encode()}
        files |= {REPORT: to_json(reports)} if reports else {}
        return Built(files, about)

    return Cache.open_default().get_or_build(_key(source, compiler, flags), build) / "kernel.so"


def load_shared(
    source: str, *, timeout_s: float = 60.0, extra_flags: Sequence[str] = (), plain: bool = False
) -> ctypes.CDLL:
    """`compile_shared`, loaded into the process for good; its functions release the GIL while they run.

    Raises what `compile_shared` raises, and ToolchainError PF704 if the system refuses to load it.
    """
    return _loaded(lambda path: ctypes.CDLL(str(path)), source, timeout_s, extra_flags, plain)


def load_kernels(
    source: str, *, timeout_s: float = 60.0, extra_flags: Sequence[str] = (), plain: bool = False
) -> KernelLibrary:
    """`load_shared` for as long as the result, or a function of it, is used."""
    return _loaded(KernelLibrary, source, timeout_s, extra_flags, plain)


def _loaded(
    load: Callable[[Path], Library], source: str, timeout_s: float, extra_flags: Sequence[str], plain: bool
) -> Library:
    sweep_once(Path(tempfile.gettempdir()), BUILDS)  # also where everything is in the cache
    for last in (False, True):
        path = compile_shared(source, timeout_s=timeout_s, extra_flags=extra_flags, plain=plain)
        try:
            return load(path)
        except OSError as e:
            if last or path.exists():  # else somebody cleared the cache in between: build again
                raise ToolchainError(
                    f"the compiled library {path} cannot be loaded: {e}",
                    code="PF704",
                    hint="the cache folder may forbid execution (noexec); set POLYFUSE_CACHE_DIR to another",
                ) from e
    raise AssertionError("unreachable")


@memoised
def cpu_features() -> frozenset[str]:
    """Names of the processor's features as the operating system gives them (``avx512f``, ``asimd``)."""
    told = _first_processor()
    text = told.get("flags") or told.get("Features", "")
    if platform.system() == "Darwin":
        text = _sysctl("machdep.cpu.features") + " " + _sysctl("machdep.cpu.leaf7_features")
    return frozenset(text.lower().split())


@memoised
def _first_processor() -> dict[str, str]:
    """What Linux tells of the first processor, by name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cpu_family() -> tuple[str, int]:
    """Vendor and family of an x86 processor; ("", 0) for others."""
    told = _first_processor()
    with suppress(ValueError):
        return told.get("vendor_id", ""), int(told.get("cpu family", "0"))
    return "", 0


@memoised
def cpu_identity() -> str:
    """Model and features in one line: code made with ``-march=native`` belongs to this."""
    names = ("vendor_id", "cpu family", "model", "model name", "CPU part")
    model = [value for name, value in _first_processor().items() if name in names]
    if platform.system() == "Darwin":
        model.append(_sysctl("machdep.cpu.brand_string"))
    return " ".join([platform.machine(), *model, *sorted(cpu_features())])


def cpu_name() -> str:
    """The processor as people call it, as far as the system tells."""
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return _first_processor().get("model name", "") or platform.processor() or platform.machine()


def _sysctl(name: str) -> str:
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            ["sysctl", "-n", name], capture_output=True, text=True, timeout=5
        ).stdout.strip()
    return ""


def _from_variable(text: str) -> Compiler:
    try:
        command = tuple(shlex.split(text))
    except ValueError:
        command = (text,)
    if not command or shutil.which(command[0]) is None:
        raise ToolchainError(
            f"$CXX names {text!r}, which is not a program on the PATH", code="PF701", hint=INSTALL_HINT
        )
    return _identify(command)


def _from_path() -> Compiler:
    present = [name for name in CANDIDATES if shutil.which(name)]
    if not present:
        raise ToolchainError(
            f"no C++ compiler found (looked for {', '.join(CANDIDATES)} on the PATH)",
            code="PF701",
            hint=INSTALL_HINT,
        )
    for i, name in enumerate(present):
        try:
            return _identify((name,))
        except ToolchainError:
            if i == len(present) - 1:
                raise
    raise AssertionError("unreachable")


def _identify(command: tuple[str, ...]) -> Compiler:
    """Ask the compiler once per machine: the answers are kept in the cache."""
    programs = []
    for word in command:  # `ccache g++` is two programs that can change
        path = shutil.which(word)
        if path:
            info = os.stat(path)
            programs.append(f"{os.path.realpath(path)} {info.st_size} {info.st_mtime_ns}")
    key = cache_key(
        [
            ("what", "compiler probe"),
            ("command", shlex.join(command)),
            ("programs", "\n".join(programs)),
            ("wanted", shlex.join([*OPTIMISE, *SHARED, *OPTIONAL])),
            ("cpu", cpu_identity()),
            ("polyfuse", package_version()),
        ]
    )

    def build() -> Built:
        record = asdict(_probe(command))
        return Built({"probe.json": json.dumps(record).encode()}, {"what": "compiler probe"})

    record = json.loads(read_file(Cache.open_default().get_or_build(key, build) / "probe.json"))
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in record.items()}
    return Compiler(**fields)


def _probe(command: tuple[str, ...]) -> Compiler:
    version = ask([*command, "--version"])
    kind = "clang" if "clang" in version.lower() else "gcc"
    flags = _accepted(command, kind)
    compile_only = of_parts(flags)
    macros = ask([*command, *compile_only, "-dM", "-E", "-x", "c++", os.devnull])
    defined = {line.split()[1] for line in macros.splitlines() if line.startswith("#define ")}
    return Compiler(
        command=command,
        kind=kind,
        version=version.splitlines()[0] if version else "unknown",
        machine=ask([*command, "-dumpmachine"]).strip(),
        flags=flags,
        vector_bits=512 if "__AVX512F__" in defined else 256 if "__AVX__" in defined else 128,
        macros=hashlib.sha256(macros.encode()).hexdigest()[:16],
    )


def _accepted(command: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """The wanted flags without those that the compiler refuses or (clang) ignores."""
    strict = ("-Werror",) if kind == "clang" else ()

    def works(flags: Sequence[str]) -> bool:
        try:
            build_shared(command, [*flags, *strict], [_PROBE_SOURCE], PROBE_TIMEOUT_S)
        except ToolchainError as e:
            if e.code == "PF703":
                raise
            return False
        return True

    wanted = (*OPTIMISE, *SHARED, *OPTIONAL)
    if works(wanted):
        return wanted
    build_shared(command, SHARED, [_PROBE_SOURCE], PROBE_TIMEOUT_S)  # if this fails, let the user see why
    return tuple(f for f in wanted if f in SHARED or works((*SHARED, f)))


def build_library(units: Sequence[str], *, timeout_s: float = 60.0, extra_flags: Sequence[str] = ()) -> bytes:
    """A shared object of several sources that know of each other, for others than this process.

    Raises ToolchainError as `compile_shared` does."""
    compiler = find_compiler()
    flags = (*flags_for("\n".join(units), compiler), *extra_flags)
    try:
        return build_shared(compiler.command, flags, units, timeout_s)
    except OutOfTime:
        if compiler.kind != "gcc":
            raise
        return build_shared(compiler.command, (*flags, *LIGHTER), units, timeout_s)

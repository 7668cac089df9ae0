"""Options of a compilation, and every environment variable that polyfuse reads.

`Options` is one frozen object that goes through the whole pipeline; a pass has fields of its own.
`ENVIRONMENT` is the table of the environment variables: ``docs/reference/environment.md`` is made from
it, and a test compares it with the names that occur in the package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Literal, cast, get_args

from polyfuse.diagnostics import ArgumentError, ToolchainError, nearest
from polyfuse.gpu_plan import GpuPlan
from polyfuse.support.progress import Report

Denormals = Literal["flush", "keep"]
Tune = Literal["model", "measure"]
Cost = Literal["auto", "projected", "learned"]
Library = Literal["auto", "always", "never"]
Math = Literal["auto", "precise"]
Sizes = Literal["fixed", "auto", "open"]
Compile = Literal["now", "async"]
Search = Literal["anneal", "random"]
SEARCHES: tuple[str, ...] = get_args(Search)
Specialise = Literal["model", "often", "never"]
Scan = Literal["ordered", "parallel"]
DENORMALS: tuple[str, ...] = get_args(Denormals)
LIBRARY: tuple[str, ...] = get_args(Library)
TUNE: tuple[str, ...] = get_args(Tune)
COST: tuple[str, ...] = get_args(Cost)
TargetName = Literal["auto", "cpu", "interpret", "emulate", "cuda"]
TARGETS: tuple[str, ...] = get_args(TargetName)
ON_GPU = ("emulate", "cuda")
Partition = Literal["connect", "rules", "search"]
PARTITIONS: tuple[str, ...] = get_args(Partition)
Blas = Literal["never", "caller"]
"""Whose matrix products an exported library has: kernels of its own, or functions that the caller passes."""
BLAS: tuple[str, ...] = get_args(Blas)
LAYERS = ("loop", "stitch", "pack")

MOST_THREADS = 1024


class Open:
    """`pf.open`: a size that kernels have as a parameter."""

    def __repr__(self) -> str:
        return "open"

    def __reduce__(self) -> str:
        return "open"


open = Open()
Wish = Mapping[str, int | Open]
"""What a caller says of sizes by name; the others are as `Options.sizes` has them."""

ENV_VERIFY = "POLYFUSE_VERIFY"
ENV_DUMP = "POLYFUSE_DUMP"
ENV_DISABLE = "POLYFUSE_DISABLE"
ENV_MATH = "POLYFUSE_MATH"
ENV_SIZES = "POLYFUSE_SIZES"
# Options whose defaults are read from the environment, with what they are if nothing is set.
_READ: dict[str, tuple[str, object]] = {
    "verify": (ENV_VERIFY, False),
    "dump": (ENV_DUMP, None),
    "disable": (ENV_DISABLE, ()),
    "math": (ENV_MATH, "auto"),
    "sizes": (ENV_SIZES, "auto"),
}
_NUMBERS = ("threads", "seed", "resident")
_ON, _OFF = ("1", "true", "on", "yes"), ("", "0", "false", "off", "no")


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable: its name, what it sets, and what holds without it."""

    name: str
    meaning: str
    default: str


ENVIRONMENT = (
    Variable(
        "POLYFUSE_CACHE_DIR",
        "Folder of the compiled kernels. It must be private: not a symbolic link, owned by you, not "
        "writable by others.",
        "the platform's cache folder, `~/.cache/polyfuse` on Linux",
    ),
    Variable(
        "POLYFUSE_NUM_THREADS",
        "Threads that run a kernel, 1 to 1024.",
        "the cores that the process may use (its affinity mask)",
    ),
    Variable(
        "POLYFUSE_ARENA_BYTES",
        "Memory that is kept for the next results when arrays die: a number of bytes, also with K, M or "
        "G (`512M`); 0 keeps nothing.",
        "4 GB, or a quarter of the memory if that is less",
    ),
    Variable(
        "POLYFUSE_LAUNCHER",
        "`0` checks the arguments of repeated calls in Python instead of in C: slower, the same results. "
        "`1`: in C with sanitizers too.",
        "in C, where the interpreter is one that the launcher knows and there are no sanitizers",
    ),
    Variable(
        ENV_DUMP,
        "Folder that receives the program after every step of the compiler, one numbered text file each.",
        "nothing is written",
    ),
    Variable(
        ENV_VERIFY,
        "`1` verifies the intermediate forms between every two passes, `0` does not. Passes over loops are "
        "checked by running short loops before and after each of them (`PF906`). The proof that a "
        "schedule is legal is made in either case.",
        "`0`",
    ),
    Variable(
        ENV_DISABLE,
        "Optional passes that are switched off, by name, with commas between (`unroll-and-jam` for all of "
        "its rules, `unroll-and-jam:stencils` for one); `polyfuse passes` lists them. Results are "
        "as right without.",
        "none",
    ),
    Variable(
        ENV_MATH,
        "`precise` computes functions, quotients and roots as exactly as the target can, `auto` as exactly "
        "as results need ([functions of GPUs](../explanation/gpu_functions.md)).",
        "`auto`",
    ),
    Variable(
        ENV_SIZES,
        "Which sizes kernels have as parameters: `fixed`: none, `auto`: those that have had a second value, "
        "`open`: all that can be ([open sizes](open_sizes.md)).",
        "`auto`",
    ),
    Variable(
        "POLYFUSE_WORKER",
        "`0` runs isl's scheduler inside the process instead of in a helper process. What it finds is the "
        "same; where isl hangs, only the helper can be ended.",
        "`1`, the helper process",
    ),
    Variable(
        "POLYFUSE_JOBS",
        "Processes that a long compilation may use, 1 to 1024: clusters are scheduled and sources compiled "
        "side by side. Results are the same with any number; `1` starts no process besides those of isl "
        "and of the compilers.",
        "the cores that the process may use (its affinity mask)",
    ),
    Variable(
        "POLYFUSE_SANITIZE",
        "`1` compiles for the CPU with sanitizers of gcc, in a process that has their runtime: "
        "`python -m polyfuse.runtime.toolchain.run_sanitized` starts one.",
        "without",
    ),
    Variable(
        "CXX",
        "The C++ compiler, if need be with arguments (`ccache g++`).",
        "the first of `g++`, `clang++`, `c++` on the PATH that works",
    ),
)
"""Every environment variable that polyfuse reads, in the order of the documentation."""


def verify_from_environment() -> bool:
    """Whether ``$POLYFUSE_VERIFY`` is on. Raises ToolchainError PF705 unless it is on, off or unset."""
    text = os.environ.get(ENV_VERIFY, "").strip().lower()
    if text in _ON:
        return True
    if text in _OFF:
        return False
    raise ToolchainError(
        f"{ENV_VERIFY} is {text!r}, neither on nor off",
        code="PF705",
        hint=f"one of {', '.join(_ON)} or {', '.join(filter(None, _OFF))}; or unset it",
    )


def dump_from_environment() -> Path | None:
    """The folder that ``$POLYFUSE_DUMP`` names, if it is set."""
    text = os.environ.get(ENV_DUMP, "").strip()
    return Path(text).expanduser() if text else None


def disabled_from_environment() -> tuple[str, ...]:
    """The passes that ``$POLYFUSE_DISABLE`` names."""
    return tuple(filter(None, (n.strip() for n in os.environ.get(ENV_DISABLE, "").split(","))))


def math_from_environment() -> Math:
    """What ``$POLYFUSE_MATH`` says; `Options` refuses what it cannot have."""
    return cast(Math, os.environ.get(ENV_MATH, "").strip().lower() or "auto")


def sizes_from_environment() -> Sizes:
    """What ``$POLYFUSE_SIZES`` says; `Options` refuses what it cannot have."""
    return cast(Sizes, os.environ.get(ENV_SIZES, "").strip().lower() or "auto")


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile and run: fields for all passes and targets, in keywords of `compile` too.

    Parameters
    ----------
    denormals
        "flush" lets denormals but those of f16 become zero inside kernels of a CPU (much faster where they
        occur), "keep" computes with them.
    checked
        Gathers and scatters out of range are errors instead of being clamped.
    threads
        Of a kernel on the CPU, 1 to 1024; None: ``$POLYFUSE_NUM_THREADS``, else every core of the process.
    verify
        Check the intermediate forms between every two passes.
    dump
        A folder for the text of each step.
    device
        The GPU that kernels are made for, by name ("H200") or architecture ("sm_90"); None: the machine's, or
        an H200.
    seed
        Of the emulator: the random order of threads.
    resident
        Of the emulator: how many blocks its device holds at once; None: all.
    tune
        "model" leaves the choice among variants of the code to the cost model, "measure" compiles several and
        takes the one that runs fastest in a process of its own (some seconds, once for each shape).
    tune_budget
        The most seconds that this may take; None: 4 on a CPU, 10 on a GPU.
    tuned
        A file of choices that were measured before (`Compiled.keep_tuning`); what it has is taken, not
        measured.
    progress
        None shows how far a long compilation is, after a second, where somebody looks at standard error: a
        terminal or a notebook; True shows it anywhere, False nowhere. A function is called with a
        `polyfuse.support.progress.Progress` whenever a step begins or a piece of one is done.
    library
        "auto" leaves matrix products to cuBLAS on a GPU, where it is found, and to BLAS on a CPU where the
        cost model finds generated tiles slower; "always" leaves to a library all that it can compute, "never"
        nothing.
    disable
        Names of optional passes that are switched off (`polyfuse passes` lists them).
    math
        "auto" computes functions as exactly as the results need, with approximate instructions of a GPU;
        "precise" as exactly as the target can.
    scan
        "ordered" keeps the order of recurrences that are written out; "parallel" lets linear ones of few rows
        run in chunks, within the bound of a sum of as many terms.
    plan
        A file that `polyfuse tune` or `Compiled.keep_tuning` wrote, whose choice is taken, and missed where
        it has none for an operator (PF428); or fields of the plans of a GPU's kernels that are decided by
        hand (`GpuPlan`).
    sizes
        "fixed" compiles for each choice of sizes, "auto" for the first value of a size, and at its second one
        with the size as a parameter of kernels, "open" with all sizes as parameters that can be.
    compile
        "now" lets a call wait for its kernels, "async" compiles in the background: NumPy computes calls, or
        kernels with open sizes do, until theirs are there.
    specialise
        Which shapes that kernels with open sizes run have kernels of their own compiled there: "model" those
        called so often that by the cost model it pays, "often" all that are called a thousand times, "never"
        none.
    cost
        Which model tells how long variants of the code take. "learned" asks the graph network that was
        trained on measured times: of all variants it chooses one, or with ``tune="measure"`` those that are
        measured. "projected" asks the model of the machine's resources, "auto" the one that is better on
        programs that it never saw, and only where variants are measured.

    Raises
    ------
    ArgumentError
        PF490 for a value that an option cannot have.

    Examples
    --------
    >>> pf.Options(denormals="keep", threads=2)
    Options(denormals='keep', checked=False, threads=2, ...)
    """

    denormals: Denormals = "flush"
    checked: bool = False
    threads: int | None = None
    verify: bool = field(default_factory=verify_from_environment)
    dump: Path | None = field(default_factory=dump_from_environment)
    device: str | None = None
    seed: int = 0
    resident: int | None = None
    tune: Tune = "model"
    tune_budget: float | None = None
    tuned: Path | None = None
    progress: bool | Report | None = None
    library: Library = "auto"
    disable: tuple[str, ...] = field(default_factory=disabled_from_environment)
    math: Math = field(default_factory=math_from_environment)
    scan: Scan = "ordered"
    plan: GpuPlan | Path | None = None
    sizes: Sizes = field(default_factory=sizes_from_environment)
    compile: Compile = "now"
    specialise: Specialise = "model"
    cost: Cost = "auto"

    def __post_init__(self) -> None:
        for name, choices in (
            ("denormals", DENORMALS),
            ("tune", TUNE),
            ("library", LIBRARY),
            ("math", get_args(Math)),
            ("sizes", get_args(Sizes)),
            ("compile", get_args(Compile)),
            ("specialise", get_args(Specialise)),
            ("scan", get_args(Scan)),
            ("cost", COST),
        ):
            value = getattr(self, name)
            if value not in choices:
                near = nearest(str(value).strip().lower(), choices)
                hint = f"did you mean {near!r}?" if near else None
                raise _unfit(name, value, f"one of {', '.join(map(repr, choices))}", hint)
        for name in ("checked", "verify"):
            if not isinstance(getattr(self, name), bool):
                raise _unfit(name, getattr(self, name), "True or False")
        if self.threads is not None and not (type(self.threads) is int and 1 <= self.threads <= MOST_THREADS):
            raise _unfit("threads", self.threads, f"a whole number from 1 to {MOST_THREADS}, or None")
        if self.resident is not None and (type(self.resident) is not int or self.resident < 1):
            raise _unfit("resident", self.resident, "a whole number from 1 on, or None")
        if isinstance(self.plan, str | os.PathLike):
            object.__setattr__(self, "plan", Path(self.plan))
        elif not (self.plan is None or isinstance(self.plan, GpuPlan)):
            raise _unfit("plan", self.plan, "the path of a file, a GpuPlan, or None")
        if not (self.progress is None or isinstance(self.progress, bool) or callable(self.progress)):
            raise _unfit("progress", self.progress, "True, False, a function or None")
        if not (isinstance(self.disable, tuple | list) and all(isinstance(n, str) for n in self.disable)):
            given: object = self.disable
            names = tuple(n.strip() for n in given.split(",")) if isinstance(given, str) else None
            hint = None if names is None else f"write disable={names!r}"
            raise _unfit("disable", self.disable, "a tuple of names of passes", hint)
        object.__setattr__(self, "disable", tuple(self.disable))
        if type(self.seed) is not int or self.seed < 0:
            raise _unfit("seed", self.seed, "a whole number from 0 on")
        if self.device is not None and not isinstance(self.device, str):
            raise _unfit("device", self.device, "the name or architecture of a GPU, or None")
        budget = self.tune_budget
        if budget is not None and not (isinstance(budget, int | float) and 0 < budget < float("inf")):
            raise _unfit("tune_budget", budget, "a number of seconds, or None")
        for name, what in (("dump", "a folder"), ("tuned", "a file")):
            path = getattr(self, name)
            try:
                object.__setattr__(self, name, None if path is None else Path(path))
            except TypeError:
                raise _unfit(name, path, f"the path of {what}, or None") from None

    @property
    def chooses(self) -> bool:
        """Is one of several variants of the code taken, rather than what the passes do?"""
        pinned = self.tuned is not None or self.plan_file is not None
        return self.tune == "measure" or pinned or self.cost == "learned"

    @property
    def plan_file(self) -> Path | None:
        """The file of `plan`, if it is one."""
        return self.plan if isinstance(self.plan, Path) else None

    @property
    def gpu_plan(self) -> GpuPlan | None:
        """The fields of `plan`, if it has some."""
        return self.plan if isinstance(self.plan, GpuPlan) else None


def _unfit(name: str, value: object, expected: str, hint: str | None = None) -> ArgumentError:
    """The error for a value that an option cannot have. Without a `hint` of its own it says what does."""
    variable, default = _READ.get(name, ("", None))
    if name in _NUMBERS and isinstance(value, str) and value.isascii() and value.isdecimal():
        hint = f"write {name}={int(value)}"
    elif hint is None and isinstance(value, str) and os.environ.get(variable, "").strip().lower() == value:
        hint = f"unset {variable}, where it is from"
    elif hint is None:
        found = next(f.default for f in fields(Options) if f.name == name)
        hint = f"{name}={(default if found is MISSING else found)!r} is the default"
    message = f"option {name} cannot be {value!r}: {expected} is expected"
    return ArgumentError(message, code="PF490", hint=hint)

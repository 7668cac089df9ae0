"""Machine code of a cubin, as ``nvdisasm`` prints it: instructions, functions, loops.

No GPU is needed.  ``nvdisasm`` is that of the wheel ``nvidia-cuda-nvdisasm``, of the PATH or of a toolkit;
versions from 13.1 on know sm_75 and later.  An instruction is kept with its operands as they are printed;
`runtime.cuda.warp_trace` gives them a meaning.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from polyfuse.diagnostics import ToolchainError
from polyfuse.runtime.cuda.compiler import INSTALL, toolkits
from polyfuse.runtime.toolchain.work_folders import BUILDS, work_folder

# --- nvdisasm ----------------------------------------------------------------------------------------------

WHEEL, TOOL = "nvidia-cuda-nvdisasm", "nvdisasm"
LIMIT_S = 60.0


def find_nvdisasm() -> str | None:
    """The path of nvdisasm, or None."""
    try:
        distribution = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        files = []
    else:
        files = [Path(str(distribution.locate_file(f))) for f in distribution.files or () if f.name == TOOL]
    places = [*map(str, files), TOOL, *(str(t / "bin" / TOOL) for t in toolkits())]
    return next((found for p in places if (found := shutil.which(p))), None)


def disassembled(cubin: bytes) -> str:
    """The text of a cubin's code. Raises ToolchainError PF726 without nvdisasm, or where it fails."""
    tool = find_nvdisasm()
    if tool is None:
        message = f"no {TOOL} found, which prints machine code"
        raise ToolchainError(message, code="PF726", hint=f"{INSTALL} installs it")
    with work_folder(prefix=BUILDS) as folder:
        (folder / "kernel.cubin").write_bytes(cubin)
        try:
            done = subprocess.run(
                [tool, "-c", str(folder / "kernel.cubin")], capture_output=True, text=True, timeout=LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{tool} cannot be used: {error}", code="PF726") from None
    if done.returncode:
        raise ToolchainError(
            f"{tool} cannot print this code: {done.stderr.strip()[:500]}",
            code="PF726",
            hint="versions from 13.1 on know sm_75 and later",
        )
    return done.stdout


# --- instructions ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: ``@!P0 LDG.E.128 R4, desc[UR8][R2.64]`` has the guard `!P0`, the name `LDG`, modifiers
    ``("E", "128")`` and two operands. `target` is where it jumps, as a place in the function."""

    name: str
    modifiers: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    guard: str = ""
    target: int | None = None

    @property
    def jumps(self) -> bool:
        return self.name in ("BRA", "BRX", "JMP", "JMX")

    @property
    def width(self) -> int:
        """Bytes of a lane, of what accesses memory."""
        widths = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
        return next((widths[m] for m in self.modifiers if m in widths), 4)

    def __str__(self) -> str:
        guard = f"@{self.guard} " if self.guard else ""
        operands = " " + ", ".join(self.operands) if self.operands else ""
        return f"{guard}{'.'.join((self.name, *self.modifiers))}{operands}"


@dataclass(frozen=True, slots=True)
class Loop:
    """Instructions `first` to `last`, which jumps back to the first; `inner`: no other loop is inside."""

    first: int
    last: int
    inner: bool

    def __contains__(self, place: int) -> bool:
        return self.first <= place <= self.last


@dataclass(frozen=True)
class Function:
    """A kernel with the functions that it calls; `places` of labels."""

    name: str
    code: tuple[Instruction, ...]
    places: Mapping[str, int] = field(default_factory=dict)

    def loops(self) -> tuple[Loop, ...]:
        """By their first instruction. Jumps of slow paths and returns are none, nor does a jump to itself,
        with which code ends, make one."""
        ends: dict[int, int] = {}
        for k, i in enumerate(self.code):
            if i.jumps and i.target is not None and i.target < k and "DIV" not in i.modifiers:
                ends[i.target] = max(k, ends.get(i.target, k))
        spans = [(a, b) for a, b in sorted(ends.items()) if not self._detour(a, b)]
        return tuple(Loop(a, b, not any(a <= c and d <= b and (a, b) != (c, d) for c, d in spans))
                     for a, b in spans)  # fmt: skip

    def _detour(self, first: int, last: int) -> bool:
        """Is a jump back the end of code that was moved away, behind the end of the kernel?"""
        return any(i.name == "EXIT" and not i.guard for i in self.code[first : last + 1])


_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
_LABEL = re.compile(r"^([.$\w]+):\s*$")
_SECTION = ".text."
_JUMP = re.compile(r"`\(([^)]+)\)")


def parse(text: str) -> dict[str, Function]:
    """The kernels of a disassembly, by name."""
    found: dict[str, Function] = {}
    name, code, places = "", list[Instruction](), dict[str, int]()
    for line in text.splitlines():
        if label := _LABEL.match(line):
            if label[1].startswith(_SECTION):
                if name:
                    found[name] = _linked(name, code, places)
                name, code, places = label[1].removeprefix(_SECTION), [], {}
            places[label[1]] = len(code)
        elif name and (read := _LINE.match(line)):
            code.append(_instruction(read[1]))
    if name:
        found[name] = _linked(name, code, places)
    return found


def functions(cubin: bytes) -> dict[str, Function]:
    """The kernels of a cubin, by name. Raises as `disassembled` does."""
    return parse(disassembled(cubin))


def _instruction(text: str) -> Instruction:
    guard = ""
    if text.startswith("@"):
        guard, _, text = text[1:].partition(" ")
    head, _, rest = text.strip().partition(" ")
    name, *modifiers = head.split(".")
    operands = tuple(part.strip() for part in rest.split(",") if part.strip())
    return Instruction(name, tuple(modifiers), operands, guard)


def _linked(name: str, code: Sequence[Instruction], places: Mapping[str, int]) -> Function:
    """Jumps with the places of their labels."""
    made = []
    for i in code:
        label = _JUMP.search(" ".join(i.operands))
        if label and label[1] in places:
            i = Instruction(i.name, i.modifiers, i.operands, i.guard, places[label[1]])
        made.append(i)
    return Function(name, tuple(made), dict(places))

"""What is in the hot loops of object code: counts that no noise of a machine changes.

An object file is disassembled by `objdump`.  A jump back to a block that every way to the jump goes through
closes a loop, and a loop without another one inside is hot: whatever a kernel does, nearly all of it happens
there.  Of their instructions we count

    instructions   all
    vector         those on packed numbers: arithmetic, moves, permutations
    loads, stores  those with an operand in memory (prefetches are none)
    gathers        loads and stores of a vector from places here and there
    scalar         floating-point arithmetic on single numbers
    divisions      of vectors, numbers and integers, and square roots
    calls          of anything
    around         instructions in loops, but in none of the innermost ones: where short loops were unrolled,
                   nearly all of it happens there
    packed         those of them on packed numbers

Counts are static: a loop that ends a row counts as much as the one that runs it.  They change with the
compiler and with the instructions that it may use, not with the machine they are taken on.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory

from polyfuse.runtime.toolchain.compiler import Compiler, find_compiler, flags_for

MARCHES = ("x86-64-v3", "x86-64-v4")

_HEAD = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S.*)$")
_RELOCATION = re.compile(r"^\s*[0-9a-f]+: R_\w+\s+(\S+)$")
_TARGET = re.compile(r"([0-9a-f]+) <")
_MEMORY = re.compile(r"\([^()]*%")
_PACKED = re.compile(r"%[xyz]mm\d")
_SINGLE = re.compile(r"^v?(?:\w*(?:add|sub|mul|div|sqrt|rcp14|max|min|rndscale|round|scalef)\w*)s[sd]$")
_SINGLE_MOVE = re.compile(r"^v?(?:movs[sd]|cvt\w*s[sdi]\w*|u?comis[sd]|mov[dq])$")
_DIVISION = re.compile(r"^(?:v?(?:div|sqrt)[ps][sd]|i?div[bwlq]?)$")
_PREFIXES = ("notrack", "rep", "repz", "repnz", "lock", "data16", "cs")


@dataclass(frozen=True)
class Counts:
    """Of one or of several loops."""

    loops: int = 0
    instructions: int = 0
    vector: int = 0
    loads: int = 0
    stores: int = 0
    gathers: int = 0
    scalar: int = 0
    divisions: int = 0
    calls: int = 0
    around: int = 0
    packed: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True)
class Instruction:
    """`target`: where a jump goes; `symbol`: what a call names, as far as it is known."""

    address: int
    name: str
    operands: str
    symbol: str = ""

    @property
    def target(self) -> int | None:
        found = _TARGET.match(self.operands) if self.name.startswith("j") else None
        return int(found[1], 16) if found else None

    def counts(self) -> Counts:
        """What one instruction is."""
        last = _split(self.operands)[-1:] or [""]
        reads_only = self.name.startswith(("cmp", "test", "vucomi", "vcomi", "ucomi", "comi", "j", "call"))
        memory = bool(_MEMORY.search(self.operands)) and not self.name.startswith(("lea", "prefetch", "nop"))
        stored = memory and bool(_MEMORY.search(last[0])) and not reads_only
        changed = stored and not self.name.startswith(("mov", "vmov", "set", "vpmov", "vextract", "vscatter"))
        changed = changed and not self.name.startswith(("vcvt", "vcompress", "pextr", "vpextr", "kmov"))
        scalar = bool(_SINGLE.match(self.name))
        packed = bool(_PACKED.search(self.operands)) and not (scalar or _SINGLE_MOVE.match(self.name))
        return Counts(
            instructions=1,
            vector=packed,
            loads=memory and (not stored or changed),
            stores=stored,
            gathers="gather" in self.name or "scatter" in self.name,
            scalar=scalar,
            divisions=bool(_DIVISION.match(self.name)),
            calls=self.name.startswith("call"),
        )


@dataclass(frozen=True)
class Loop:
    """A hot loop of a function, or what is `around` all of them."""

    function: str
    body: tuple[Instruction, ...]
    around: bool = False

    def counts(self) -> Counts:
        found = sum((i.counts() for i in self.body), Counts(loops=1))
        if not self.around:
            return found
        return Counts(calls=found.calls, around=found.instructions, packed=found.vector)

    @property
    def called(self) -> tuple[str, ...]:
        """What it calls, by name."""
        return tuple(i.symbol or i.operands for i in self.body if i.name.startswith("call"))


def _split(operands: str) -> list[str]:
    """Operands at the commas outside of parentheses."""
    return re.split(r",(?![^(]*\))", operands.split(" <")[0]) if operands else []


def functions(disassembly: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Functions of an objdump with relocations."""
    name, body = "", list[Instruction]()
    for line in disassembly.splitlines():
        if head := _HEAD.match(line):
            if body:
                yield name, body
            name, body = head[1], []
        elif moved := _RELOCATION.match(line):
            if body and not body[-1].symbol:
                last = body[-1]
                symbol = re.split(r"[-+]0x", moved[1])[0]
                body[-1] = Instruction(last.address, last.name, last.operands, symbol)
        elif found := _LINE.match(line):
            words = found[2].split(None, 1)
            while len(words) > 1 and words[0] in _PREFIXES:
                words = words[1].split(None, 1)
            operands = words[1].split("#")[0].strip() if len(words) > 1 else ""
            body.append(Instruction(int(found[1], 16), words[0], operands))
    if body:
        yield name, body


def hot_loops(disassembly: str) -> list[Loop]:
    """Loops without loops inside, of all functions; then, for each function, what is around them."""
    return [loop for name, body in functions(disassembly) for loop in _loops(name, body)]


def _loops(name: str, body: list[Instruction]) -> Iterator[Loop]:
    """The natural loops of a function that hold no other one: compilers move parts of a loop out of the way,
    so that its instructions need not follow each other."""
    blocks = _blocks(body)
    following = dict(itertools.pairwise(sorted(blocks)))
    followers = {s: _followers(block, blocks, following.get(s)) for s, block in blocks.items()}
    before = _dominators(followers, body[0].address)
    parents: dict[int, set[int]] = {}
    for start, after in followers.items():
        for a in after:
            parents.setdefault(a, set()).add(start)
    loops: dict[int, set[int]] = {}
    for tail, after in followers.items():
        for head in after & before.get(tail, set()):
            loops.setdefault(head, {head}).update(_reaching(tail, head, parents))
    around = set().union(*loops.values())
    for head, inside in loops.items():
        if not any(other in inside for other in loops if other != head):
            around -= inside
            yield Loop(name, tuple(i for start in sorted(inside) for i in blocks[start]))
    if around:
        yield Loop(name, tuple(i for start in sorted(around) for i in blocks[start]), around=True)


def _blocks(body: list[Instruction]) -> dict[int, list[Instruction]]:
    """Address -> instructions that always run one after the other."""
    starts = {body[0].address}
    for k, i in enumerate(body):
        if i.target is not None:
            starts.add(i.target)
        if i.name.startswith(("j", "ret", "ud2")) and k + 1 < len(body):
            starts.add(body[k + 1].address)
    found: dict[int, list[Instruction]] = {}
    current: list[Instruction] = []
    for i in body:
        if i.address in starts:
            current = found.setdefault(i.address, [])
        current.append(i)
    return found


def _followers(
    block: list[Instruction], blocks: dict[int, list[Instruction]], following: int | None
) -> set[int]:
    """Where a block goes on; `following` is the one behind it."""
    last = block[-1]
    found = {last.target, None if last.name.startswith(("jmp", "ret", "ud2")) else following}
    return {a for a in found if a is not None and a in blocks}


def _dominators(followers: dict[int, set[int]], entry: int) -> dict[int, set[int]]:
    """Block -> the blocks that every way to it goes through, for those that can be reached."""
    order: list[int] = []
    seen: set[int] = set()
    stack = [(entry, iter(sorted(followers[entry])))]
    seen.add(entry)
    while stack:
        _, rest = stack[-1]
        following = next((a for a in rest if a not in seen), None)
        if following is None:
            order.append(stack.pop()[0])
        else:
            seen.add(following)
            stack.append((following, iter(sorted(followers[following]))))
    order.reverse()
    parents: dict[int, set[int]] = {a: set() for a in order}
    for a in order:
        for b in followers[a]:
            parents[b].add(a)
    found = {entry: {entry}}
    changed = True
    while changed:
        changed = False
        for a in order[1:]:
            known = [found[b] for b in parents[a] if b in found]
            mine = set.intersection(*known) | {a}
            if found.get(a) != mine:
                found[a], changed = mine, True
    return found


def _reaching(tail: int, head: int, parents: dict[int, set[int]]) -> set[int]:
    """Blocks that lead to `tail` without going through `head`."""
    found, waiting = {head}, [tail]
    while waiting:
        a = waiting.pop()
        if a not in found:
            found.add(a)
            waiting += parents.get(a, ())
    return found


def disassembled(source: str, march: str) -> str:
    """The object code of C++ for a kind of machine, which need not be this one."""
    compiler = find_compiler()
    with TemporaryDirectory() as folder:
        text, made = Path(folder) / "kernel.cpp", Path(folder) / "kernel.o"
        text.write_text(source, encoding="utf-8")
        command = [*compiler.command, *_flags(source, compiler, march), "-c", str(text), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        shown = ["objdump", "-d", "-r", "--no-show-raw-insn", str(made)]
        return subprocess.run(shown, check=True, capture_output=True, text=True).stdout


def _flags(source: str, compiler: Compiler, march: str) -> list[str]:
    """The compiler's flags for a source with another machine, and without those of linking."""
    asked = flags_for(source, compiler)
    kept = [f for f in asked if not f.startswith(("-march", "-Wl", "-shared"))]
    return [*kept, f"-march={march}"]


def compiler_key(compiler: Compiler | None = None) -> str:
    """Kind and major version of the compiler."""
    c = compiler or find_compiler()
    version = re.search(r"(\d+)\.\d+", re.sub(r"\([^)]*\)", "", c.version))
    return f"{c.kind}-{version[1] if version else 'unknown'}"


def missing() -> str:
    """Why loops cannot be counted here; empty if they can."""
    c = find_compiler()
    if not c.machine.startswith("x86_64"):
        return f"the baseline is of x86-64, and the compiler makes code for {c.machine}"
    return "" if shutil.which("objdump") else "objdump (of binutils) is not on the PATH"


def total(loops: Sequence[Loop]) -> Counts:
    return sum((x.counts() for x in loops), Counts())

"""Random valid programs, for property tests: the same seed gives the same program everywhere.

    p = random_program(7)
    graph = instantiate(parse_text(p.text), p.op)
    evaluate(graph, p.sizes, p.inputs)

Programs have 3 to 10 statements over small odd sizes (now and then 1 or 0), in one of the float types
with integers and bools beside it: elementwise chains with broadcasts and transpositions, reductions,
contractions, guards, slices, pads, concatenations, strided reads, gathers, scatters and recurrences.
Numbers stay moderate, and comparisons are between inputs and literals, so that few elements are
undecided.  Every tensor that nothing reads is a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from program_expressions import MOST_POINTS, SIZES, Axes, Expressions, Start, Tensor, padded

from polyfuse.ir.ops import PLACED


@dataclass(frozen=True)
class RandomProgram:
    """A program, and what to call it with."""

    seed: int
    text: str
    op: str
    sizes: dict[str, int]
    inputs: dict[str, np.ndarray]


class _Maker(Expressions):
    def make(self) -> RandomProgram:
        names = ["A", "B", "C"][: self.rng.choice([2, 3, 3])]
        while True:
            self.sizes = {n: self.rng.choice(SIZES) for n in names}
            if np.prod(list(self.sizes.values())) <= MOST_POINTS:
                break
        if self.rng.random() < 0.04:
            self.sizes[self.rng.choice(names)] = 0
        other = {"f16": "bf16", "bf16": "f32"}.get(self.float, self.float) if self.seed % 2 else self.float
        for k, n in enumerate(names):  # every size follows from an argument
            self.new_input(
                other if k == 1 else self.float, (n, *self.rng.sample(names, self.rng.choice([0, 1, 1])))
            )
        for _ in range(self.rng.randint(3, 8)):
            self.statement()
        return self.program()

    def program(self) -> RandomProgram:
        written = [t for t in self.tensors if not t.is_input]
        results = [t for t in written if t.declared or not t.used]
        kept = [t for t in self.tensors if t.is_input]
        params = ", ".join(self.signature(t) for t in kept)
        outs = ", ".join(self.signature(t) for t in results)
        where = f" where {', '.join(dict.fromkeys(self.constraints))}" if self.constraints else ""
        names = {t.name for t in results}
        lines = [x if isinstance(x, str) else x.line(x.tensor.name in names) for x in self.lines]
        body = "\n".join(f"  {line}" for line in lines)
        text = f"op p({params})\n    -> ({outs}){where} {{\n{body}\n}}\n"
        return RandomProgram(self.seed, text, "p", dict(self.sizes), dict(self.inputs))

    # --- statements ---

    def statement(self) -> None:
        makers: list[tuple[int, Callable[[], bool]]] = [
            (5, self.elementwise), (4, self.reduction), (2, self.contraction), (1, self.slice), (1, self.pad),
            (1, self.concat), (1, self.strided), (1, self.gather), (2, self.scatter), (2, self.scan),
            (1, self.guarded_scan), (1, self.recurrent), (1, self.integers), (1, self.booleans),
            (1, self.triangle), (1, self.argument), (1, self.cast), (1, self.scalar),
        ]  # fmt: skip
        for _ in range(5):
            make = self.rng.choices([m for _, m in makers], [w for w, _ in makers])[0]
            self.covered = set()
            if make():
                return
        self.covered = set()
        self.elementwise()

    def define(
        self, t: Tensor, at: list[str], right: str, ranges: dict[str, str], always: bool = False
    ) -> None:
        """Write a definition; ranges that can be inferred are mostly left out."""
        left = f"{t.name}[{', '.join(at)}]" if at else t.name
        if ranges and (always or not set(ranges) <= self.covered or self.rng.random() < 0.2):
            right += " for " + ", ".join(f"{v} in {r}" for v, r in ranges.items())
        self.lines.append(f"{left} = {right}")

    def over(self, axes: Axes) -> tuple[list[str], dict[str, str]]:
        """The loops of some axes, and their whole ranges."""
        loops = [f"i{k}" for k in range(len(axes))]
        return loops, {v: f"0..{e}" for v, e in zip(loops, axes, strict=True)}

    def elementwise(self) -> bool:
        axes = self.axes()
        right = self.expr(axes, self.rng.choice([1, 2, 2, 3]))
        rounds = self.float != self.compute and self.rng.random() < 0.5
        loops, ranges = self.over(axes)
        if rounds:
            self.define(self.new_tensor(axes, self.float, True), loops, f"{self.float}({right})", ranges)
        else:
            self.define(self.new_tensor(axes), loops, right, ranges, always=not axes)
        return True

    def reduction(self) -> bool:
        axes = self.axes(1)
        count = self.rng.randint(1, min(2, len(axes)))
        outer, inner = axes[: len(axes) - count], axes[len(axes) - count :]
        name = self.rng.choice(["sum", "sum", "max", "min", "mean", "prod"])
        if name in ("max", "min", "mean") and not all(self.need(e) for e in inner):
            return False
        term = self.expr(axes, self.rng.choice([0, 1, 2]))
        if name == "prod":
            term = f"(1.0 + 0.1 * tanh({term}))"
        loops, ranges = self.over(outer)
        reduced = ", ".join(
            f"i{k}" if f"i{k}" in self.covered else f"i{k} in 0..{axes[k]}"
            for k in range(len(outer), len(axes))
        )
        right = f"{name}[{reduced}]({term})"
        if self.rng.random() < 0.3:
            right = f"{right} * 0.25 + 1.0"
        self.define(self.new_tensor(outer), loops, right, ranges)
        return True

    def contraction(self) -> bool:
        pairs = [t for t in self.tensors if self.is_float(t) and len(t.extents) == 2]
        matching = [(a, b) for a in pairs for b in pairs if a.extents[1] == b.extents[0]]
        if not matching:
            return False
        a, b = self.rng.choice(matching)
        left, right = self.read(a, ["i0", "k"]), self.read(b, ["k", "i1"])
        out = (a.extents[0], b.extents[1])
        scale = "" if self.rng.random() < 0.5 else " * 0.125"
        loops, ranges = self.over(out)
        self.define(self.new_tensor(out), loops, f"sum[k]({left} * {right}){scale}", ranges)
        return True

    def one_axis(self) -> tuple[Tensor, str] | None:
        """A float tensor with at least one axis, and its first extent."""
        found = [t for t in self.tensors if self.is_float(t) and 1 <= len(t.extents) <= 2]
        t = self.rng.choice(found[-5:])
        return t, t.extents[0]

    def shifted(self, t: Tensor, first: str) -> str:
        rest = [f"i{k}" for k in range(1, len(t.extents))]
        text = self.read(t, [first, *rest], plain=False)
        self.covered.update(rest)
        return text

    def slice(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        if not extent.isalpha() or not self.need(extent):
            return False
        axes = (f"{extent} - 1", *t.extents[1:])
        loops, ranges = self.over(axes)
        right = f"{self.shifted(t, 'i0 + 1')} - 0.5 * {self.shifted(t, 'i0')}"
        self.define(self.new_tensor(axes), loops, right, ranges, always=True)
        return True

    def pad(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        axes = (f"{extent} + 2", *t.extents[1:])
        loops, ranges = self.over(axes)
        form = self.rng.random()
        if form < 0.5:
            read = self.shifted(t, "i0 - 1")
            right = padded(read, "0.25") if form < 0.25 else f"{read} if 1 <= i0 <= {extent} else 0.25"
            self.define(self.new_tensor(axes), loops, right, ranges, always=True)
            return True
        new, rest = self.new_tensor(axes), loops[1:]
        inner = {v: ranges[v] for v in rest}
        self.define(new, ["0", *rest], "0.0", inner, always=True)
        self.define(new, [f"{extent} + 1", *rest], "1.0", inner, always=True)
        if self.seed % 2:
            self.define(new, ["i0 + 1", *rest], self.shifted(t, "i0"), {**ranges, "i0": f"0..{extent}"}, True)
            return True
        self.define(new, loops, self.shifted(t, "i0 - 1"), {**ranges, "i0": f"1..{extent} + 1"}, always=True)
        return True

    def concat(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        others = [
            u for u in self.tensors if self.is_float(u) and u.extents[1:] == t.extents[1:] and u.extents
        ]
        u = self.rng.choice(others)
        end = f"{extent} + {u.extents[0]}"
        axes = (end, *t.extents[1:])
        loops, ranges = self.over(axes)
        new = self.new_tensor(axes)
        self.define(new, loops, self.shifted(t, "i0"), {**ranges, "i0": f"0..{extent}"}, always=True)
        if self.seed % 2:
            moved, here = [f"i0 + ({extent})", *loops[1:]], {**ranges, "i0": f"0..{u.extents[0]}"}
            self.define(new, moved, f"2.0 * {self.shifted(u, 'i0')}", here, always=True)
            return True
        right = f"2.0 * {self.shifted(u, f'i0 - ({extent})')}"
        self.define(new, loops, right, {**ranges, "i0": f"{extent}..{end}"}, always=True)
        return True

    def strided(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        form = self.rng.choice(["repeat", "reverse", "half", "modulo"])
        if form == "repeat":
            axes, at = (f"2*({extent})", *t.extents[1:]), "i0 // 2"
        elif form == "reverse":
            axes, at = t.extents, f"{extent} - 1 - i0"
        elif form == "half":
            axes, at = (f"({extent}) // 2", *t.extents[1:]), "2*i0 + 1"
        else:
            if not self.need(extent):
                return False
            axes, at = (f"{extent} + 3", *t.extents[1:]), f"i0 % ({extent})"
        loops, ranges = self.over(axes)
        if self.seed % 2 and form in ("repeat", "reverse"):
            return self.interleaved(t, axes, ["2*i0 + 1", "2*i0"] if form == "repeat" else [at])
        right = f"{self.shifted(t, at)} + 0.5"
        self.define(self.new_tensor(axes), loops, right, ranges, always=True)
        return True

    def interleaved(self, t: Tensor, axes: Axes, left: list[str]) -> bool:
        """Each piece has an element for each of `t`, at an index of the left side."""
        loops, ranges = self.over(t.extents)
        new = self.new_tensor(axes)
        for k, index in enumerate(left):
            right = f"{self.shifted(t, 'i0')} + 0.5"
            if k and self.seed % 4 == 3:  # it reads the piece before
                right += f" - 0.5 * {new.name}[{', '.join([left[0], *loops[1:]])}]"
            self.define(new, [index, *loops[1:]], right, ranges, always=True)
        return True

    def gather(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        if self.value(extent) < 1:
            return False
        rows = self.rng.choice(list(self.sizes))
        index = self.new_input(self.rng.choice(["i32", "i64", "i64"]), (rows,), 0, self.value(extent))
        index.used = True
        axes = (rows, *t.extents[1:])
        loops, ranges = self.over(axes)
        right = f"{self.shifted(t, f'{index.name}[i0]')} * 1.5"
        self.define(self.new_tensor(axes), loops, right, ranges, always=True)
        return True

    def scatter(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        rows = self.rng.choice(list(self.sizes))
        if self.value(rows) < 1:
            return False
        index = self.new_input(self.rng.choice(["i32", "i64"]), (extent,), 0, self.value(rows))
        index.used = True
        new = self.new_tensor((rows, *t.extents[1:]))
        rest = [f"i{k}" for k in range(1, len(t.extents))]
        sign = self.rng.choice(["+=", "+=", "max=", "min="])
        start = self.rng.choice(["0", "0.5"])
        self.lines.append(Start(new, start))
        right = self.shifted(t, "i0")
        if self.rng.random() < 0.5:
            right = f"{right} * {self.compute}(i0 + 1) * 0.0625"
        ranges = ", ".join(f"i{k} in 0..{e}" for k, e in enumerate(t.extents))
        self.lines.append(
            f"{new.name}[{', '.join([f'{index.name}[i0]', *rest])}] {sign} {right} for {ranges}"
        )
        return True

    def scan(self) -> bool:
        t, extent = self.one_axis() or (self.tensors[0], "A")
        if not extent.isalpha() or not self.need(extent):
            return False
        new = self.new_tensor(t.extents)
        loops, ranges = self.over(t.extents)
        rest = loops[1:]
        down = self.rng.random() < 0.4
        start = f"{extent} - 1" if down else "0"
        before = "i0 + 1" if down else "i0 - 1"
        inner = {v: ranges[v] for v in rest}
        self.define(new, [start, *rest], self.shifted(t, start), inner, always=True)
        last = f"{new.name}[{', '.join([before, *rest])}]"
        right = self.rng.choice(["{l} * 0.75 + {x}", "max({l}, {x})", "tanh({l} + {x})"])
        right = right.format(l=last, x=self.shifted(t, "i0"))
        steps = f"0..{extent} - 1" if down else f"1..{extent}"
        if self.seed % 2 and not down:  # from an element to the next
            right, loops = right.replace("i0 - 1", "i0"), ["i0 + 1", *rest]
            steps = f"0..{extent} - 1"
        self.define(new, loops, right, {**ranges, "i0": steps}, always=True)
        return True

    def guarded_scan(self) -> bool:
        """A stencil over time in one statement, or a wavefront."""
        found = [t for t in self.tensors if self.is_float(t) and len(t.extents) == 2]
        if not found:
            return False
        t = self.rng.choice(found)
        new = self.new_tensor(t.extents)
        loops, ranges = self.over(t.extents)
        n = new.name
        left = f"({n}[i0 - 1, i1 - 1] if i0 >= 1 and i1 >= 1 else 0.0)"
        right = f"({n}[i0 - 1, i1 + 1] if i0 >= 1 and i1 < {t.extents[1]} - 1 else 0.0)"
        same = f"({n}[i0, i1 - 1] if i1 >= 1 else 1.0)"
        up = f"({n}[i0 - 1, i1] if i0 >= 1 else 1.0)"
        a, b = self.rng.choice([(left, right), (same, up), (up, right)])
        self.define(new, loops, f"{self.shifted(t, 'i0')} + 0.25 * {a} + 0.5 * {b}", ranges, always=True)
        return True

    def recurrent(self) -> bool:
        """h[t] = tanh(w h[t - 1] + x[t]), through a reduction."""
        found = [
            t for t in self.tensors if self.is_float(t) and len(t.extents) == 2 and t.extents[1].isalpha()
        ]
        if not found:
            return False
        t = self.rng.choice(found)
        width = t.extents[1]
        weight = self.new_input(self.float, (width, width))
        new = self.new_tensor(t.extents)
        loops, ranges = self.over(t.extents)
        inner = f"{self.read(weight, ['i1', 'k'])} * {new.name}[i0 - 1, k]"
        right = f"tanh({self.shifted(t, 'i0')} + 0.125 * (sum[k in 0..{width}]({inner}) if i0 >= 1 else 0.0))"
        self.define(new, loops, right, ranges, always=True)
        return True

    def integers(self) -> bool:
        dtype = self.rng.choice(["i32", "i64", "i16", "i8", "u8"])
        size = self.rng.choice(list(self.sizes))
        x = self.new_input(dtype, (size,), 0 if dtype == "u8" else -100, 100)
        x.used = True
        right = self.rng.choice(["{x} * 3 + 1", "{x} // 4 - {x} % 3", "max({x}, 7) * {x}", "abs({x}) + 5"])
        self.define(
            self.new_tensor((size,), dtype), ["i0"], right.format(x=f"{x.name}[i0]"), {"i0": f"0..{size}"}
        )
        if self.rng.random() < 0.5:
            self.lines.append(f"{self.new_tensor((), dtype).name} = sum[i0]({x.name}[i0])")
        return True

    def booleans(self) -> bool:
        found = [t for t in self.tensors if t.is_input and self.is_float(t) and len(t.extents) == 2]
        if not found:
            return False
        t = self.rng.choice(found)
        t.used = True
        name = self.rng.choice(["any", "all"])
        test = f"{t.name}[i0, i1] > {self.rng.choice(['1.0', '-1.5'])}"
        self.covered.update(("i0", "i1"))
        self.define(
            self.new_tensor(t.extents[:1], "bool"),
            ["i0"],
            f"{name}[i1]({test})",
            {"i0": f"0..{t.extents[0]}"},
        )
        return True

    def triangle(self) -> bool:
        t, _ = self.one_axis() or (self.tensors[0], "A")
        rest = [f"i{k}" for k in range(1, len(t.extents))]
        text = self.read(t, ["j", *rest], plain=False)
        loops, ranges = self.over(t.extents)
        name = self.rng.choice(["sum", "max"])
        self.define(self.new_tensor(t.extents), loops, f"{name}[j in 0..i0 + 1]({text})", ranges, always=True)
        return True

    def argument(self) -> bool:
        """argmax of an input or the like: its elements are exact, so the choice is decided."""
        found = [t for t in self.tensors if t.is_input and self.is_float(t) and len(t.extents) == 2]
        if not found:
            return False
        t = self.rng.choice(found)
        if not self.need(t.extents[1]):
            return False
        t.used = True
        self.covered.update(("i0", "i1"))
        name = self.rng.choice(["argmax", "argmin", "arglargest", "argsmallest"])
        places = ["0", f"({t.extents[1]}) // 2", f"i0 % ({t.extents[1]})"]
        place = f", {self.rng.choice(places)}" if name in PLACED else ""
        right = f"{name}[i1]({t.name}[i0, i1]{place})"
        self.define(self.new_tensor(t.extents[:1], "i64"), ["i0"], right, {"i0": f"0..{t.extents[0]}"})
        return True

    def cast(self) -> bool:
        """Rounding in the middle: an element kept in another type."""
        t, _ = self.one_axis() or (self.tensors[0], "A")
        dtype = self.rng.choice(["f16", "bf16", "f64", "f32"])
        at = [f"i{k}" for k in range(len(t.extents))]
        t.used = True
        self.covered.update(at)
        loops, ranges = self.over(t.extents)
        if dtype in ("f16", "bf16"):
            new = self.new_tensor(t.extents, dtype, declared=True)
        else:
            new = self.new_tensor(t.extents, dtype)
        self.define(new, loops, f"{dtype}({t.name}[{', '.join(at)}])", ranges)
        return True

    def scalar(self) -> bool:
        """A scalar result of a whole tensor, and its use."""
        t, _ = self.one_axis() or (self.tensors[0], "A")
        at = [f"i{k}" for k in range(len(t.extents))]
        text = self.read(t, at)
        self.define(self.new_tensor(()), [], f"sqrt(sum[{', '.join(at)}]({text} ** 2) + 1.0)", {})
        return True


def random_program(seed: int) -> RandomProgram:
    """The program of a seed; equal seeds give equal programs and inputs."""
    return _Maker(seed).make()

"""Pieces: tensors each of which several statements define, cut along one axis or two, one made of another."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from targets import Call

from kinds.writer import Writer, cast, compute_type

SHAPE = ["N", "M"]


@dataclass
class _Pieces(Writer):
    def make(self) -> Call:
        self.sizes = {"N": self.pick(6, 7, 16, 17, 33), "M": self.pick(5, 6, 17, 34)}
        self.need("N", 6)
        self.need("M", 5)
        self.dtype = self.pick("f32", "f32", "f64", "f16")
        self.compute = compute_type(self.dtype)
        self.argument("x", self.dtype, SHAPE, special=self.pick(0, 0, 2))
        self.argument("y", self.dtype, ["M", "N"])
        self.last = "x"
        for k in range(self.pick(1, 2, 3)):
            self.tensor(f"t{k}")
            self.reader(k)
            if self.chance(0.5):
                self.result(f"t{k}", self.compute, SHAPE)
        if not self.is_result(self.last):
            self.result(self.last, self.compute, SHAPE)
        return self.call()

    def read(self, i: str, j: str) -> str:
        """An element of the tensor before."""
        text = f"{self.last}[{i}, {j}]"
        return cast(self.compute, text, self.dtype) if self.last == "x" else text

    def tensor(self, name: str) -> None:
        columns = self.cuts("M") if self.chance(0.6) else ["0", "M"]
        made = [
            f"{name}[i, j] = {self.piece()} for i in {a}..{b}, j in {c}..{d}"
            for a, b in pairwise(self.cuts("N"))
            for c, d in pairwise(columns)
        ]
        self.lines += made
        self.last = name

    def cuts(self, axis: str) -> list[str]:
        """Where an axis is cut; no piece is empty."""
        places = ["1", "2", "3", "4", f"{axis} - 2", f"{axis} - 1"]
        drawn = self.dice.sample(places, self.pick(1, 2, 3))
        inside = {self.number(p): p for p in drawn}
        return ["0", *(inside[k] for k in sorted(inside)), axis]

    def piece(self) -> str:
        read, turned = self.read, cast(self.compute, "y[j, i]", self.dtype)
        return self.pick(
            read("i", "j"),
            turned,
            f"{read('i', 'j')} * 0.5",
            f"{read('N - 1 - i', 'j')} + 1.0",
            f"tanh({read('i', 'M - 1 - j')})",
            "0.25",
            f"{self.compute}(i * M + j) * 0.01",
            f"({read('i - 1', 'j')} if i >= 1 else {read('i', 'j')})",
            f"({read('i - 1', 'j + 1')} if i >= 1 and j < M - 1 else 0.5)",
            f"({read('i', 'j - 2')} if 2 <= j < M - 1 and i % 2 == 0 else {turned})",
            f"sum[k in 0..min(i + 1, M)]({read('i', 'k')})",
        )

    def reader(self, k: int) -> None:
        """Something that reads all pieces."""
        element, form = f"{self.last}[i, j]", self.dice.random()
        if form < 0.3:
            self.define(f"s{k}", ["i"], f"{self.pick('sum', 'max')}[j]({element})")
            self.result(f"s{k}", self.compute, ["N"])
        elif form < 0.5:
            self.define(f"s{k}", ["j"], f"{self.pick('sum', 'min')}[i]({element})")
            self.result(f"s{k}", self.compute, ["M"])
        elif form < 0.7:
            self.define(f"m{k}", ["i"], f"max[j]({element})")
            self.define(f"e{k}", ["i", "j"], f"exp({element} - m{k}[i])")
            inside = f"j < M - {self.pick(1, 2)} and i >= {self.pick(0, 1)}"
            share = f"e{k}[i, j] / sum[k](e{k}[i, k])"
            self.define(f"o{k}", ["i", "j"], f"{share} if {inside} else e{k}[i, j]")
            self.result(f"o{k}", self.compute, SHAPE)


def pieces(seed: int) -> Call:
    return _Pieces("pieces", seed).make()

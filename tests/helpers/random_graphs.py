"""Random tensor graphs; the same for the same seed."""

from __future__ import annotations

import random

from graphs import graph

from polyfuse.ir.tensor_graph import TensorGraph


class _Random:
    """Random graphs: elementwise, broadcast, reduced, transposed and recurrent statements over T, H, S."""

    def __init__(self, seed: int, length: int) -> None:
        self.rng = random.Random(seed)
        # Tensors by the sizes of their dims, in order of their making.
        self.known = {"TH": ["x", "w"], "HT": ["v"], "T": ["r"], "H": ["g"], "THS": ["z"], "": ["k"]}
        self.lines: list[str] = []
        for n in range(length):
            makers = (
                self.elementwise, self.elementwise, self.broadcast, self.reduce, self.transpose,
                self.recurrence, self.total, self.gather,
            )  # fmt: skip
            self.rng.choice(makers)(f"s{n}")

    def pick(self, shape: str) -> str:
        name = self.rng.choice(self.known.setdefault(shape, [])[-5:])
        return f"{name}[{self.index(shape)}]" if shape else f"{name}[()]"

    def index(self, shape: str) -> str:
        return ",".join(c.lower() for c in shape)

    def loops(self, shape: str, reduced: str = "") -> str:
        return ", ".join(f"{c.lower()}<{c}" + ("*" if c in reduced else "") for c in shape)

    def add(self, name: str, shape: str, text: str) -> None:
        self.known.setdefault(shape, []).append(name)
        self.lines.append(text)

    def elementwise(self, name: str) -> None:
        shape = self.rng.choice([s for s, names in self.known.items() if names])
        text = f"{name}[{self.index(shape)}] = {self.pick(shape)} + {self.pick(shape)} | {self.loops(shape)}"
        self.add(name, shape, text)

    def broadcast(self, name: str) -> None:
        whole, part = self.rng.choice((("TH", "T"), ("TH", "H"), ("HT", "T"), ("THS", "TH"), ("TH", "")))
        text = f"{name}[{self.index(whole)}] = {self.pick(whole)} - {self.pick(part)} | {self.loops(whole)}"
        self.add(name, whole, text)

    def reduce(self, name: str) -> None:
        whole, part = self.rng.choice(
            (("TH", "T"), ("TH", "H"), ("HT", "T"), ("THS", "TH"), ("THS", "T"), ("THS", "H"))
        )
        left = "".join(c for c in whole if c not in part)
        kind = self.rng.choice(("sum", "max"))
        dims = self.loops(part + left, left)
        self.add(name, part, f"{name}[{self.index(part)}] {kind}= {self.pick(whole)} | {dims}")

    def transpose(self, name: str) -> None:
        old, new = self.rng.choice((("TH", "HT"), ("HT", "TH")))
        self.add(name, new, f"{name}[{self.index(new)}] = {self.pick(old)} + 1 | {self.loops(new)}")

    def recurrence(self, name: str) -> None:
        edge, step, where = self.rng.choice(
            (("0", "t-1", "t in 1..T"), ("T-1", "t+1", "t in 0..T-1"), ("0", "t-1", "t in 1..T"))
        )
        read = self.pick("TH")
        self.lines.append(f"{name}_first: {name}[{edge},h] = {read.replace('[t,', f'[{edge},')} | h<H")
        self.add(name, "TH", f"{name}[t,h] = {name}[{step},h] + {read} | {where}, h<H")

    def total(self, name: str) -> None:
        self.add(name, "", f"{name}[] sum= {self.pick('TH')} | t<T*, h<H*")

    def gather(self, name: str) -> None:
        read = self.pick("TH").replace("[t,", "[id[t],")
        self.add(name, "TH", f"{name}[t,h] = {read} + {self.pick('TH')} | t<T, h<H")

    def graph(self, name: str) -> TensorGraph:
        recurrent = [line.split(":")[0] for line in self.lines if "_first:" in line]
        temps = " ".join(f"{n.removesuffix('_first')}[T,H]" for n in recurrent)
        inputs = "x[T,H] w[T,H] v[H,T] r[T] g[H] z[T,H,S] k[] id[T]"
        return graph(name, inputs, "", "\n".join(self.lines), temps)


def random_graph(seed: int, length: int) -> TensorGraph:
    return _Random(seed, length).graph(f"random{seed}")

"""Scans: recurrences over time, forward and backward, of one step or two, on any layout, and readers."""

from __future__ import annotations

from dataclasses import dataclass

from targets import Call

from kinds.writer import Writer, brackets, loops, over

LAYOUTS = (["B", "T", "D"], ["T", "B", "D"], ["T", "D"], ["D", "T"], ["T"], ["B", "D", "T"])
STEPS = (
    "{p} * 0.75 + {x}", "max({p}, {x})", "{p} * g{at} * 0.5 + {x}", "tanh({p} + {x})", "min({p}, {x}) * 0.5",
    "{x} if {x} > {p} else {p} * 0.9",
)  # fmt: skip


@dataclass
class _Scans(Writer):
    def make(self) -> Call:
        self.sizes = {
            "T": self.pick(3, 3, 8, 17, 33, 64, 65, 130),
            "D": self.pick(1, 2, 5, 16, 17, 33, 64),
            "B": self.pick(1, 2, 3),
        }
        self.need("T", 3)
        self.dtype, self.axes = self.pick("f32", "f32", "f64"), self.pick(*LAYOUTS)
        self.others = [x for x in self.axes if x != "T"]
        self.numbers_of(self.dtype, *self.sizes)
        self.argument("x", self.dtype, self.axes, special=self.pick(0, 0, 0, 1))
        self.argument("g", self.dtype, self.axes)
        self.last = "x"
        for k in range(self.pick(1, 2, 3)):
            self.pick(self.forward, self.backward, self.guarded, self.two_steps, self.no_scan)(f"c{k}")
            self.last = f"c{k}"
            if self.chance(0.6):
                self.result(self.last, self.dtype, self.axes)
            self.pick(self.over_all_but_time, self.over_time, self.neighbour, self.unread)(k)
        if not self.is_result(self.last):
            self.result(self.last, self.dtype, self.axes)
        return self.call()

    def at(self, t: str = "t") -> list[str]:
        """The indices of an element at a time."""
        return [t if a == "T" else a.lower() for a in self.axes]

    def read(self, name: str, t: str = "t") -> str:
        return f"{name}{brackets(self.at(t))}"

    def step(self, name: str, before: str) -> str:
        form = self.pick(*STEPS)
        return form.format(p=self.read(name, before), x=self.read(self.last), at=brackets(self.at()))

    # --- recurrences ---

    def forward(self, name: str) -> None:
        self.define(name, self.at("0"), self.read(self.last, "0"), over(self.others))
        self.define(name, self.at(), self.step(name, "t - 1"), over(self.others, t="1..T"))

    def backward(self, name: str) -> None:
        self.define(name, self.at("T - 1"), self.read(self.last, "T - 1"), over(self.others))
        self.define(name, self.at(), self.step(name, "t + 1"), over(self.others, t="0..T - 1"))

    def guarded(self, name: str) -> None:
        earlier = f"({self.read(name, 't - 2')} if t >= 2 else v_t[t])"
        self.define(name, self.at(), f"{self.read(self.last)} + 0.5 * {earlier}", over(self.axes))

    def two_steps(self, name: str) -> None:
        self.define(name, self.at("0"), "0.5", over(self.others))
        self.define(name, self.at("1"), self.read(self.last, "0"), over(self.others))
        before = f"{self.read(name, 't - 1')} * 0.5 + {self.read(name, 't - 2')} * 0.25"
        inner = over(self.others, t="2..T - 1")
        self.define(name, self.at(), f"{before} + {self.read(self.last)}", inner)
        self.define(name, self.at("T - 1"), f"{self.read(name, 'T - 2')} * 2.0", over(self.others))

    def no_scan(self, name: str) -> None:
        right = f"{self.read(self.last, 'T - 1 - t')} * 0.5 + {self.read(self.last)}"
        self.define(name, self.at(), right, over(self.axes))

    # --- what reads them ---

    def over_all_but_time(self, k: int) -> None:
        whole = ", ".join(f"{x.lower()} in 0..{x}" for x in self.others)
        read = self.read(self.last)
        self.define(f"s{k}", ["t"], f"sum[{whole}]({read})" if whole else f"{read} * 2.0", over(["T"]))
        self.result(f"s{k}", self.dtype, ["T"])

    def over_time(self, k: int) -> None:
        row = loops(self.others)
        reduction = self.pick("max", "sum", "min")
        right = f"{reduction}[t in 0..T]({self.read(self.last)} * {self.read('g')})"
        self.define(f"m{k}", row, right, over(self.others))
        self.define(f"d{k}", self.at(), f"{self.read(self.last)} - m{k}{brackets(row)}", over(self.axes))
        self.result(f"m{k}", self.dtype, self.others)
        self.result(f"d{k}", self.dtype, self.axes)

    def neighbour(self, k: int) -> None:
        later = f"({self.read(self.last, 't + 1')} if t < T - 1 else 0.0)"
        self.define(f"d{k}", self.at(), f"{self.read(self.last)} * 0.5 + {later}", over(self.axes))
        self.result(f"d{k}", self.dtype, self.axes)

    def unread(self, k: int) -> None:
        """Nothing but the next one reads it."""


def scans(seed: int) -> Call:
    return _Scans("scans", seed).make()

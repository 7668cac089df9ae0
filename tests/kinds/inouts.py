"""Parameters written in place while others read what they were: turned, moved, reduced, in halves."""

from __future__ import annotations

from dataclasses import dataclass

from targets import Call

from kinds.writer import Writer, cast, compute_type, over


@dataclass
class _Inouts(Writer):
    def make(self) -> Call:
        self.sizes = {"N": self.pick(1, 2, 17, 40), "M": self.pick(1, 3, 17, 33)}
        self.dtype = self.pick("f32", "f64", "f16", "i32")
        self.compute = compute_type(self.dtype)
        self.factor = "2" if self.dtype == "i32" else "0.5"
        self.square = self.chance(0.3)
        self.axes = ["N", "N" if self.square else "M"]
        self.width = self.axes[1]
        self.argument("p", self.dtype, self.axes, inout=True)
        self.argument("q", self.dtype, ["N"], inout=True)
        self.argument("g", self.dtype, self.axes)
        self.numbers_of(self.dtype, "M")
        whole = f" for i in 0..N, j in 0..{self.width}"
        p, q = self.read("p[i, j]"), self.read("q[i]")
        self.define("r", ["i"], f"sum[j]({p})")
        self.define("c", ["j"], f"sum[i]({p})", over([], j=f"0..{self.width}"))
        self.lines.append(self.update_of_p(whole))
        self.define("q", ["i"], self.update_of_q())
        self.define("o", ["i", "j"], f"{p} + {q} + r[i] - c[j]")
        self.result("o", self.compute, self.axes)
        if self.chance(0.5):
            self.define("d", ["j"], f"sum[i]({p} * {q})")
            self.result("d", self.compute, [self.width])
        return self.call()

    def read(self, element: str) -> str:
        """An element in the type that is computed in; one of `p` and `q` is that at entry, said or not."""
        if self.seed % 3 == 1 and element[0] in "pq":
            element = f"old({element})"
        return cast(self.compute, element, self.dtype)

    def stored(self, right: str) -> str:
        return cast(self.dtype, right, self.compute)

    def update_of_p(self, whole: str) -> str:
        read, w = self.read, self.width
        p, g = read("p[i, j]"), read("g[i, j]")
        rights = [
            self.stored(f"{p} * {self.factor} + {g}"),
            "p[N - 1 - i, j]",
            self.stored(f"{read(f'p[i, {w} - 1 - j]')} + {read('q[i]')}"),
            "(p[i - 1, j] if i >= 1 else g[i, j])",
            "(p[i + 1, j] if i < N - 1 else g[i, j])",
            f"(p[i, j + 1] if j < {w} - 1 else g[i, j])",
            self.stored(f"{p} - r[i]"),
            self.stored(f"c[j] + {p}"),
        ]
        if self.square:
            rights += 2 * ["p[j, i]", self.stored(f"{read('p[j, i]')} + {p}")]
        updates = [f"p[i, j] = {right}{whole}" for right in rights]
        partial = f"p[i, j] = g[i, j] for i in 0..N, j in 0..{w} - 1"
        triangle = ["p[i, j] = p[j, i] for i in 0..N, j in 0..i"] * 4 if self.square else []
        chosen = self.pick(*updates, partial, *triangle)
        if chosen == partial:
            self.need(w)
        return chosen

    def update_of_q(self) -> str:
        read = self.read
        if self.chance(0.4):
            self.need(self.width)
            added = self.stored(f"{read('q[i]')} + {read('p[i, 0]')}")
            return self.pick(added, "(q[i - 1] if i >= 1 else p[i, 0]) for i in 0..N")
        product = f"sum[j]({read('p[i, j]')} * {read('g[i, j]')})"
        return self.pick(
            self.stored(f"{read('q[i]')} + r[i]"),
            self.stored(f"{read('q[N - 1 - i]')} * {self.factor}"),
            self.stored(product),
        )


def inouts(seed: int) -> Call:
    return _Inouts("inouts", seed).make()

"""Windows: sums, means and extremes of a few neighbours along one axis or two, and what follows them.

Filters, pools, and convolutions along time: channels last, first, between, summed or none; windows that go in
steps, lie apart, run backwards, begin before the first element or end behind the last, by a condition, by
their bounds or in a padded copy; weights of any layout or none; totals that are added to what is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from math import prod

from program_expressions import padded
from targets import Call

from kinds.writer import HALVES, Writer, brackets, cast, compute_type, over

CHANNELS_LAST = ("HC", "BHC", "HWC", "BHWC", "BHWC")
LAYOUTS = ("HC", "BHWC", "HBWC", "HBC", "CH", "BCH", "CHW", "CHW", "BCHW", "BCHW", "HCW", "H", "HW", "HW")
CHANNELS = (1, 3, 8, 15, 16, 16, 17, 32, 32, 40, 40, 64, 64, 100, 130, 200)
COUNTS = (1, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14)
LENGTHS = (1, 2, 2, 3, 3, 3, 4, 5)
MOST_TERMS = 60_000
# Of an axis: the loop over results, the loop over terms, and the length of a window.
NAMES = {"H": ("p", "r", "R"), "W": ("q", "s", "S")}
SIGNS = {"sum": "+=", "mean": "+=", "max": "max=", "min": "min="}
LOWEST = {"max": "-inf", "min": "inf"}


@dataclass(frozen=True)
class _Form:
    """How a window of `R` moves along an axis of `h`: the index of a term and the condition that it is there,
    extents of what is read and of the result, the range of terms, what a padded copy has before it, and which
    weight a term has."""

    index: str
    results: str = "{h}"
    least: str = ""
    given: str = "{h}"
    guard: str = ""
    part: str = "0..{R}"
    padding: str = ""
    weight: str = "{r}"

    def along(self, axis: str, length: str) -> _Form:
        p, r, _ = NAMES[axis]
        return _Form(*(text.format(h=axis, p=p, r=r, R=length) for text in astuple(self)))


AHEAD = _Form("{p} + {r}", "{h} - {R} + 1", "{R} - 1")
INSIDE = (
    *(AHEAD, AHEAD, AHEAD),
    _Form("{p} + {r}", given="{h} + {R} - 1"),
    _Form("{p} + {R} - 1 - {r}", "{h} - {R} + 1", "{R} - 1"),
    _Form("2*{p} + {r}", "({h} - {R}) // 2 + 1", "{R} - 1"),
    _Form("2*{p} + {r}", given="2*{h} + {R}"),
    _Form("{p} + 2*{r}", "{h} - 2*{R} + 2", "2*{R} - 2"),
    _Form("{p} + 2*{r}", given="{h} + 2*{R} - 2"),
    _Form("{p} + {r}", "{h} - {R} + 1", "{R} - 1", part="1..{R}"),
    _Form("{r}", "{h} - {R} + 1", "{R} - 1", part="{p}..{p} + {R}", weight="{r} - {p}"),
)
BEYOND = (
    *(_Form("{p} + {r}", padding="{R} // 2"),) * 2,
    _Form("{p} + {r}", padding="{R} - 1"),
    _Form("{p} - {r}", guard="{p} >= {r}"),
    _Form("{p} - {R} + 1 + {r}", guard="{p} - {R} + 1 + {r} >= 0"),
    _Form("{p} + {r} - {R} // 2", guard="0 <= {p} + {r} - {R} // 2 < {h}"),
    _Form("{p} - 2*{r}", guard="{p} >= 2*{r}"),
    _Form("2*{p} + {r} - 1", "({h} + 1) // 2", guard="0 <= 2*{p} + {r} - 1 < {h}"),
    _Form("{p} - {r}", part="0..min({R}, {p} + 1)"),
    _Form("{p} - {R} + 1 + {r}", part="max(0, {R} - 1 - {p})..{R}"),
    _Form("{p} + {r}", part="0..min({R}, {h} - {p})"),
    _Form("{r}", part="max(0, {p} - {R} + 1)..{p} + 1", weight="{p} - {r}"),
)


# Windows that overlap, with rows of their own bounds at most.
USUAL = (*(AHEAD,) * 4, INSIDE[3], INSIDE[4], INSIDE[-1], *BEYOND[:6], *BEYOND[8:])


@dataclass
class _Windows(Writer):
    forms: dict[str, _Form] = field(default_factory=dict)

    def make(self) -> Call:
        self.usual = self.chance(0.5)  # what is computed several rows at a time
        self.dtype = self.pick(*("f32",) * 7, "f64", "f64", *(() if self.usual else (*HALVES, "i32", "i32")))
        self.compute = compute_type(self.dtype)
        self.is_float = self.dtype[0] in "fb"
        self.zero, self.factor = ("0.0", "0.5") if self.is_float else ("0", "3")
        self.reduction = self.pick(*("sum",) * 7, "max", "max", "min", *("mean",) * self.is_float)
        self.layout = list(self.pick(*(CHANNELS_LAST if self.usual else LAYOUTS)))
        self.spatial = [a for a in self.layout if a in NAMES]
        self.choose_weights()
        self.choose_forms()
        self.choose_sizes()
        self.choose_result()
        forms = [self.added, self.computed, self.computed, self.computed, self.computed, self.at_once]
        if not (self.summed or self.is_turned or self.named):
            forms.append(self.changed)
        self.pick(*forms)()
        return self.call()

    # --- what there is ---

    def choose_weights(self) -> None:
        """The axes of weights; none where there are no weights."""
        windows = [NAMES[a][2] for a in self.spatial]
        choices = [windows, [], []]
        if "C" in self.layout:
            choices += [[*windows, "C"]] * 5 + [["C", *windows]] * 2
        if "B" in self.layout and "C" in self.layout:
            choices.append(["B", *windows, "C"])
        self.weights = self.pick(*choices)
        self.turned = self.chance(0.15)

    def choose_forms(self) -> None:
        """The length of each window, by a name or a number, and how it moves; mostly all in one manner."""
        self.lengths: dict[str, str] = {}
        mostly = self.pick(*(USUAL if self.usual else self.pick(INSIDE, INSIDE, BEYOND)))
        for axis in self.spatial:
            window, length = NAMES[axis][2], self.pick(*LENGTHS)
            form = mostly if self.chance(0.7) else self.pick(*(USUAL if self.usual else INSIDE + BEYOND))
            least = 2 if form.part.startswith("1") and self.reduction != "sum" else 1
            self.sizes[window] = length = max(length, least)
            named = window in self.weights and self.chance(0.5)
            if named:
                self.need(window, least)
            self.lengths[window] = window if named else str(length)
            self.forms[axis] = form.along(axis, self.lengths[window])

    def choose_sizes(self) -> None:
        """So few results that all terms are few enough, and the extents that give them."""
        terms = prod(self.sizes.values())
        while True:
            channels = [c for c in CHANNELS if c >= 15] if self.usual else CHANNELS
            counts = {a: self.pick(*COUNTS) for a in self.spatial}
            counts |= {"C": self.pick(*channels), "B": self.pick(1, 2, 3)}
            if terms * prod(counts[a] for a in self.layout) <= MOST_TERMS:
                break
        self.sizes |= {a: counts[a] for a in "BC"}
        if self.chance(0.06):
            counts[self.pick(*self.spatial)] = 0
        for axis, form in self.forms.items():
            if form.least:
                self.conditions.append(f"{axis} >= {form.least}")
            self.sizes[axis] = self.number(form.least or "0")
            while self.number(form.results) < counts[axis]:
                self.sizes[axis] += 1
            self.sizes[axis] += self.pick(0, 0, 0, 1)
        used = [*self.layout, *(n for n, length in self.lengths.items() if n == length)]
        self.sizes = {n: self.sizes[n] for n in used}
        padded = any(f.padding for f in self.forms.values())
        self.named = self.pick(*self.spatial) if self.chance(0.06) and not padded else ""
        if self.named:  # elements along this axis are those that numbers name
            self.sizes["K"] = self.pick(1, 7, 20)

    def choose_result(self) -> None:
        self.summed = "C" in self.layout and self.chance(0.3 if self.layout[-1] != "C" else 0.04)
        self.axes = [a for a in self.layout if not (self.summed and a == "C")]
        self.is_turned = self.chance(0.1)
        if self.is_turned:
            self.axes = self.shuffled(self.axes)
        self.at = self.loops_of(self.axes)
        self.extents = [self.forms[a].results if a in NAMES else a for a in self.axes]
        self.ranges = dict(zip(self.at, (f"0..{e}" for e in self.extents), strict=True))
        terms = {NAMES[a][1]: self.forms[a].part for a in self.spatial}
        terms |= {"c": "0..C"} if self.summed else {}
        self.terms = dict(self.shuffled(terms.items())) if self.chance(0.2) else terms

    def loops_of(self, axes: Iterable[str]) -> list[str]:
        return [NAMES[a][0] if a in NAMES else a.lower() for a in axes]

    @property
    def last(self) -> tuple[str, str]:
        """An axis of the result and its loop, that of a parameter of one axis: channels, if there are."""
        axis = next((a for a in "CB" if a in self.axes), "")
        return axis, axis.lower()

    # --- terms ---

    def arguments(self, inout: bool = False) -> None:
        """What is read, and weights."""
        given = [self.given(a) for a in self.layout]
        special = self.pick(0, 0, 0, 2, 4) if self.is_float else 0
        self.argument("x", self.dtype, given, special=special, inout=inout)
        self.source, self.source_type = "x", self.dtype
        if any(f.padding for f in self.forms.values()):
            self.pad()
        if self.weights:
            self.weights_type = self.pick(self.compute, self.dtype, self.dtype)
            extents = [self.lengths.get(a, a) for a in self.weights]
            special = self.pick(0, 0, 0, 0, 0, 1) if self.is_float else 0
            self.argument("w", self.weights_type, extents, special=special)
        self.numbers_of(self.compute, *self.last[0])
        if self.named:
            places = self.numbers.integers(0, self.sizes["K"], self.number(self.forms[self.named].given))
            self.argument("k", "i32", [self.forms[self.named].given], values=places)

    def given(self, axis: str) -> str:
        if axis == self.named:
            return "K"
        return self.forms[axis].given if axis in NAMES else axis

    def pad(self) -> None:
        """`z` has more elements before and after those of `x`."""
        loops, places, tests, ranges = [], [], [], {}
        for axis in self.layout:
            loop, extent = axis.lower(), axis
            form = self.forms.get(axis)
            place = loop
            if form is not None:
                extent = form.given
                if form.padding:
                    place = f"{loop} - ({form.padding})"
                    tests.append(f"{form.padding} <= {loop} < {axis} + {form.padding}")
                    extent = f"{axis} + {self.lengths[NAMES[axis][2]]} - 1"
            loops.append(loop)
            places.append(place)
            ranges[loop] = f"0..{extent}"
        other = self.nothing if self.chance(0.8) else self.factor
        read = cast(self.compute, f"x{brackets(places)}", self.dtype)
        self.define("z", loops, f"{read} if {' and '.join(tests)} else {other}", over([], **ranges))
        self.source, self.source_type = "z", self.compute

    @property
    def nothing(self) -> str:
        """What changes no total, or nearly so."""
        lowest = LOWEST.get(self.reduction)
        return lowest if lowest and self.is_float and self.chance(0.7) else self.zero

    def term(self) -> str:
        indices = [self.forms[a].index if a in NAMES else a.lower() for a in self.layout]
        if self.named:
            indices = [f"k[{i}]" if a == self.named else i for a, i in zip(self.layout, indices, strict=True)]
        x = plain = cast(self.compute, f"{self.source}{brackets(indices)}", self.source_type)
        if self.chance(0.2):
            x = self.pick(f"abs({x})", f"max({x}, {self.zero})", f"({x} - {self.factor})", f"{x} * {x}")
        elif self.chance(0.1) and self.last[0]:
            x = f"({x} + v_{self.last[1]}[{self.last[1]}])"
        factors = [x]
        if self.weights:
            at = [self.place_of_weight(a) for a in self.weights]
            factors = self.shuffled([x, cast(self.compute, f"w{brackets(at)}", self.weights_type)])
        guard = " and ".join(f.guard for f in self.forms.values() if f.guard)
        if guard and self.chance(0.25):
            nothing = self.nothing
            if x == plain and self.seed % 2 and not self.named:
                factors = [padded(y, nothing) if y == x else y for y in factors]
            else:
                factors = [f"({y} if {guard} else {nothing})" if y == x else y for y in factors]
            guard = ""
        return " * ".join(factors) + (f" if {guard} else {self.nothing}" if guard else "")

    def place_of_weight(self, axis: str) -> str:
        form = next((f for a, f in self.forms.items() if NAMES[a][2] == axis), None)
        if form is None:
            return axis.lower()
        return f"{self.lengths[axis]} - 1 - ({form.weight})" if self.turned else form.weight

    def totals(self) -> str:
        terms = ", ".join(f"{r} in {part}" for r, part in self.terms.items())
        return f"{self.reduction}[{terms}]({self.term()})"

    # --- what is made of it ---

    def added(self) -> None:
        """To an argument, a result or a tensor that begins with a number."""
        self.arguments()
        value = self.term()
        line = f"t{brackets(self.at)} {SIGNS[self.reduction]} {value}{over([], **self.ranges, **self.terms)}"
        form = self.pick("inout", "inout", "result", "let")
        if form == "inout":
            self.argument("t", self.compute, self.extents, inout=True)
        elif form == "let":
            self.lines.append(f"let t: {self.compute}{brackets(self.extents)} = {self.factor}")
        self.lines.append(line)
        if form == "result":
            self.result("t", self.compute, self.extents)
        if form == "let" or (form == "result" and self.chance(0.5)):
            self.followed()

    def changed(self) -> None:
        """Windows over an argument become part of it."""
        self.arguments(inout=True)
        right = self.totals()
        if self.chance(0.3):
            right = f"{right} * {self.factor}"
        self.define("x", self.at, cast(self.dtype, right, self.compute), over([], **self.ranges))

    def computed(self) -> None:
        self.arguments()
        self.define("t", self.at, self.totals(), over([], **self.ranges))
        if self.chance(0.15):
            if self.reduction in LOWEST:
                self.reduction = self.pick("sum", "max", "min")
            self.define("t2", self.at, self.totals(), over([], **self.ranges))
            self.result("t2", self.compute, self.extents)
        self.followed()

    def at_once(self) -> None:
        """Totals and what follows in one expression."""
        self.arguments()
        dtype = self.pick(self.dtype, self.compute)
        self.result("y", dtype, self.extents)
        right = self.pick("{0}", "{0} + {1}", "max({0} + {1}, {2})", "{1} - {0} * {0}")
        text = right.format(self.totals(), self.bias, self.zero)
        self.define("y", self.at, cast(dtype, text, self.compute), over([], **self.ranges))

    @property
    def bias(self) -> str:
        axis, loop = self.last
        return f"v_{loop}[{loop}]" if axis else self.factor

    @property
    def is_local(self) -> bool:
        """Are totals declared as no result?"""
        return any(line.startswith("let t:") for line in self.lines)

    @property
    def element(self) -> str:
        return f"t{brackets(self.at)}"

    def followed(self) -> None:
        forms = [self.alone] * 3 + [self.active] * 3 + [self.with_other] * 2 + [self.pooled, self.neighbours]
        if not (self.summed or self.named):
            forms.append(self.with_own)
        if self.is_float:
            forms.append(self.gated)
        if self.is_float and "C" in self.axes:
            forms.append(self.normed)
        step = self.pick(*forms)
        step()
        if step != self.alone and not self.is_result("t") and not self.is_local and self.chance(0.25):
            self.alone()

    def whole(self, right: str) -> None:
        dtype = self.pick(self.dtype, self.compute)
        self.result("y", dtype, self.extents)
        self.define("y", self.at, cast(dtype, right, self.compute), over([], **self.ranges))

    def alone(self) -> None:
        if self.is_local:
            self.whole(self.element)
        elif not self.is_result("t"):
            self.result("t", self.compute, self.extents)

    def active(self) -> None:
        self.whole(f"max({self.element} + {self.bias}, {self.zero})")

    def with_other(self) -> None:
        self.argument("u", self.dtype, self.extents, special=self.pick(0, 0, 0, 2) if self.is_float else 0)
        other = cast(self.compute, f"u{brackets(self.at)}", self.dtype)
        forms = (
            "{t} * {u}",
            "{t} + {u}",
            "max({t} + {b}, {z}) * {u} - {t}",
            "{u} - {t} if {u} > {z} else {t}",
        )
        self.whole(self.pick(*forms).format(t=self.element, u=other, b=self.bias, z=self.zero))

    def with_own(self) -> None:
        """The element where the window is, or near it."""
        x = cast(self.compute, f"x{brackets(self.loops_of(self.layout))}", self.dtype)
        self.whole(f"{self.element} + {x}")

    def gated(self) -> None:
        t = self.element
        forms = ("tanh({0} * 0.1)", "{0} * sigmoid({0} * 0.5)", "exp(-abs({0}))")
        self.whole(self.pick(*forms).format(t))

    def pooled(self) -> None:
        rest = [(a, e) for a, e in zip(self.axes, self.extents, strict=True) if a not in NAMES]
        self.result("y", self.compute, [e for _, e in rest])
        terms = ", ".join(f"{p} in {self.ranges[p]}" for p in self.loops_of(self.spatial))
        self.define("y", self.loops_of(a for a, _ in rest), f"sum[{terms}]({self.element})")

    def normed(self) -> None:
        """Without the mean of channels."""
        rest = [loop for loop in self.at if loop != "c"]
        ranges = {loop: self.ranges[loop] for loop in rest}
        self.define("m", rest, f"sum[c]({self.element}) / C", over([], **ranges))
        self.whole(f"({self.element} - m{brackets(rest)}) * {self.bias}")

    def neighbours(self) -> None:
        """With totals before or after it, along an axis that windows move along."""
        axis = self.pick(*self.spatial)
        loop, extent = NAMES[axis][0], self.forms[axis].results
        back, ahead = (
            brackets(f"{loop} {step}" if x == loop else x for x in self.at) for step in ("- 1", "+ 1")
        )
        before = f"{self.element} - (t{back} if {loop} >= 1 else {self.bias})"
        after = f"max({self.element}, t{ahead} if {loop} < {extent} - 1 else {self.zero})"
        windows = [f"{loop} - g" if x == loop else x for x in self.at]
        again = f"sum[g in 0..3](t{brackets(windows)} if {loop} >= g else {self.zero})"
        self.whole(self.pick(before, after, again))


def windows(seed: int) -> Call:
    return _Windows("windows", seed).make()

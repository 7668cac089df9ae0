"""The page of the learned cost model: tables and plots of what `benchmarks.learned` found.

Text between two lines `<!-- NAME -->` and `<!-- end -->` of docs/lab/learned_cost.md is written anew;
all else is written by hand.  Plots are SVG whose colours follow the reader's theme.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.sax.saxutils import escape

from benchmarks import learn_speed
from benchmarks.learned_trees import TREES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "lab" / "learned_cost.md"
PICTURES = ROOT / "docs" / "pictures"
USUAL = "graph network"
SPLITS = ("programs", "machine", "machine, calibrated", "kernels", "sizes", "code path")
SHIPPED = "shipped: three networks together"
HEAD = (
    "| | MAPE | tau, variants | tau, plans | pairs | first, variants | first, plans "
    "| five, variants | five, plans |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
Found = Mapping[str, Any]

# --- tables -----------------------------------------------------------------------------------------------


def row(name: str, several: Sequence[Found]) -> str:
    """A line of a table: the mean of some seeds, and how far they are apart where there are several."""

    def cell(task: str, figure: str, form: str) -> str:
        values = [x[task][figure] for x in several if math.isfinite(x[task][figure])]
        if not values:
            return ""
        apart = f" ±{(max(values) - min(values)) / 2:{form}}" if len(values) > 1 else ""
        return f"{fmean(values):{form}}{apart}"

    pairs = fmean(x["all"]["right"] / max(1, x["all"]["pairs"]) for x in several)
    cells = [
        cell("all", "mape", ".1%"),
        cell("variants", "tau", ".2f"),
        cell("plans", "tau", ".2f"),
        f"{pairs:.0%}",
        *(cell(task, name, ".1%") for name in ("first", "five") for task in ("variants", "plans")),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def default_row(shipped: Found) -> str:
    """What the compiler does on its own names one plan and no times."""
    f = shipped["figures"]
    cells = ["", "", "", "", *(f"{f[t]['default']:.1%}" for t in ("variants", "plans")), "", ""]
    return f"| the compiler's own choice | {' | '.join(cells)} |"


def of(found: Found, kind: str, split: str = "programs", part: float = 1.0) -> list[Found]:
    """What was found of a kind of model, from all seeds."""
    every = found.get("experiments", {}).values()
    same = [e for e in every if (e["kind"], e["split"], e["part"]) == (kind, split, part)]
    return [e["test"] for e in same]


def held_out(found: Found) -> str:
    """Held-out programs: the models beside what there is without them."""
    shipped = found["shipped"]
    rows = [row(name, [f]) for name, f in shipped["baselines"]["programs"].items()]
    rows.insert(1, default_row(shipped))
    models = (TREES, "features of kernels only", USUAL)
    rows += [row(name, each) for name in models if (each := of(found, name))]
    return "\n".join([HEAD, *rows, row(SHIPPED, [shipped["figures"]])])


def trained_text(found: Found) -> str:
    """How the models of the tables were trained."""
    every = [e for e in found.get("experiments", {}).values() if e["epochs"]]
    epochs, seconds = sorted({e["epochs"] for e in every}), sum(e["cpu_seconds"] for e in every)
    told = f"{len(every)} networks, {' or '.join(map(str, epochs))} epochs each"
    return f"The tables are of {told}, which took a core {seconds / 60:.0f} minutes."


def splits(found: Found) -> str:
    """Programs that are held out beside sizes and kernels that are."""
    rows = []
    names = ("a repeat of the measurement", "its time on the other machine", "projected model")
    for split in SPLITS:
        bases = found["shipped"]["baselines"].get(split, {})
        rows += [row(f"{split}: {name}", [bases[name]]) for name in names if name in bases]
        rows += [row(f"{split}: {USUAL}", each) for each in [of(found, USUAL, split)] if each]
    return "\n".join([HEAD, *rows])


def ablations(found: Found) -> str:
    """Every kind of model on the programs that are held out."""
    kinds = dict.fromkeys(e["kind"] for e in found.get("experiments", {}).values())
    rows = [row(f"{kind} ({len(each)} seeds)", each) for kind in kinds if (each := of(found, kind))]
    return "\n".join([HEAD, *rows])


def curve(found: Found) -> list[tuple[float, list[Found]]]:
    """Figures by the part of the programs that was trained on."""
    parts = sorted({e["part"] for e in found.get("experiments", {}).values() if e["kind"] == USUAL})
    return [(part, each) for part in parts if (each := of(found, USUAL, part=part))]


def data_text(found: Found) -> str:
    """What the figures are of."""
    about, shipped = found["about"], found["shipped"]["figures"]["all"]
    cores = ", ".join(f"{count} on `{core}`" for core, count in about["cores"].items())
    return (
        f"{found['samples']} samples of {about['programs']} programs with {about['graphs']} kernels that "
        f"differ ({cores}), {about['threads']} thread, {about['date']}. Timed were {about['timed']} plans; "
        f"{about['noisy']} were left out because their repeats were apart by more than 10 %, "
        f"{about['failed']} failed. Held out are "
        f"{shipped['samples']} samples in {shipped['groups']} groups."
    )


def importance_text(found: Found) -> str:
    """The features, by what is lost without them."""
    ranked = sorted(found["shipped"]["importance"].items(), key=lambda x: -x[1])
    return "\n".join(
        ["| features | error of log time, more by |", "|---|---|", *(f"| {n} | {v:.3f} |" for n, v in ranked)]
    )


def verdict(found: Found) -> str:
    """Which model is asked unless told otherwise."""
    mine, other = found["shipped"]["figures"], found["shipped"]["baselines"]["programs"]["projected model"]
    told = "; ".join(
        f"{name} {form(mine['variants'])} against {form(other['variants'])}"
        for name, form in (
            ("MAPE", lambda f: f"{f['mape']:.0%}"),
            ("pairs in order", lambda f: f"{f['right']} of {f['pairs']}"),
            ("the first choice loses", lambda f: f"{f['first']:.1%}"),
            ("the best of five", lambda f: f"{f['five']:.1%}"),
        )
    )
    if found["wins"]:
        first = "The learned model wins over the projected one among variants of held-out programs"
        return f'{first} ({told}), so `cost="auto"` asks it which variants to measure, for one thread.'
    first = "The learned model does not surely win over the projected one among variants of held-out programs"
    sure = (
        f"that its first choice is the faster one is {found['shipped']['sure']:.0%} sure, and 95 % are needed"
    )
    return f'{first} ({told}): {sure}. So the projected one stays what `cost="auto"` asks.'


def switching_text(found: Found) -> str:
    """What a choice without a measurement brings, by how sure it has to be."""
    head = "| faster by | another choice | mean gain | slower by over 3 % | least gain |"
    rows = [
        f"| {1 - s['sure']:.0%} | {s['switched']} of {s['groups']} | {s['gain']:.3f} | {s['slower']} "
        f"| {s['worst']:.2f} |"
        for s in found["shipped"]["switching"]
    ]
    f, most = found["shipped"]["figures"]["variants"], max(s["gain"] for s in found["shipped"]["switching"])
    pays = "pays" if most > 1 else "does not pay yet"
    told = (
        f"So a choice without a measurement {pays}: what the passes do loses {f['default']:.1%} against the "
        f"fastest variant of a group, what the model names first {f['first']:.1%}, and the fastest of the "
        f"first five that it names {f['five']:.1%}. A measurement of these five brings more."
    )
    return "\n".join([head, "|---|---|---|---|---|", *rows, "", told])


def speed_text(found: Found) -> str:
    """What choices without a measurement bring by the clock."""
    return learn_speed.table(found["speed"]) if found.get("speed") else "Not timed yet."


# --- plots ------------------------------------------------------------------------------------------------

SANS = "'DejaVu Sans', Verdana, system-ui, Arial, sans-serif"
STYLE = (
    f"text{{font:12px {SANS};fill:#1f2328}} "
    ".line{stroke:#c4ccd4;fill:none} .a{fill:#2f6fb2;stroke:#2f6fb2} .b{fill:#d07a2a;stroke:#d07a2a} "
    ".p{stroke:none;fill-opacity:.45} .w{fill:none;stroke-width:2} "
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3} .line{stroke:#444c56} "
    ".a{fill:#6ea8e5;stroke:#6ea8e5} .b{fill:#f0a35e;stroke:#f0a35e}}"
)
SIDE, LEFT, TOP = 380, 70, 46


def framed(title: str, width: float, height: float, parts: Iterator[str]) -> str:
    """A plot with its title."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">'
    )
    name = f"<title>{escape(title)}</title><style>{STYLE}</style>"
    return "\n".join([head, name, label(LEFT, 20, title), *parts, "</svg>"]) + "\n"


def label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="line" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def scatter(points: Sequence[Sequence[float]]) -> str:
    """Predicted against measured times of held-out programs, beside those of the projected model."""
    least = min(min(p) for p in points)
    low, high = math.floor(math.log10(least * 1e6)), math.ceil(math.log10(max(max(p) for p in points) * 1e6))

    def at(seconds: float) -> float:
        return SIDE * (math.log10(seconds * 1e6) - low) / (high - low)

    def parts() -> Iterator[str]:
        for k, (name, column, color) in enumerate((("learned", 1, "a"), ("projected", 2, "b"))):
            left = LEFT + k * (SIDE + 60)
            for power in range(low, high + 1):
                spot = SIDE * (power - low) / (high - low)
                yield line(left, TOP + SIDE - spot, left + SIDE, TOP + SIDE - spot)
                yield line(left + spot, TOP, left + spot, TOP + SIDE)
                yield label(left + spot, TOP + SIDE + 18, f"{10**power:g}", "middle")
                if not k:
                    yield label(left - 6, TOP + SIDE - spot + 4, f"{10**power:g}", "end")
            yield line(left, TOP + SIDE, left + SIDE, TOP)
            for p in points:
                x, y = left + at(p[0]), TOP + SIDE - at(p[column])
                yield f'<circle class="{color} p" cx="{x:.1f}" cy="{y:.1f}" r="2"/>'
            yield label(left + 8, TOP + 16, f"{name}, us")
            yield label(left + SIDE, TOP + SIDE + 36, "measured, us", "end")

    return framed("Held-out programs", LEFT + 2 * SIDE + 80, TOP + SIDE + 48, parts())


def curves(found: Found) -> str:
    """What more data bring: MAPE and the loss of the first choice, held-out programs."""
    each = curve(found)
    projected = found["shipped"]["baselines"]["programs"]["projected model"]["all"]
    lines = {"a": ("mape", "MAPE"), "b": ("first", "loss of the first choice")}
    top = max([projected["mape"], *(x["all"]["mape"] for _, some in each for x in some)]) * 1.1
    wide, tall = 480, 260

    def parts() -> Iterator[str]:
        step = 0.1 if top > 0.25 else 0.05
        for k in range(math.floor(top / step) + 1):
            y = TOP + tall * (1 - k * step / top)
            yield line(LEFT, y, LEFT + wide, y)
            yield label(LEFT - 6, y + 4, f"{k * step:.0%}", "end")
        for part, _ in each:
            x = LEFT + wide * (3.2 + math.log2(part)) / 3.4
            yield label(x, TOP + tall + 18, "all" if part == 1 else f"1/{round(1 / part)}", "middle")
        for k, (color, (figure, name)) in enumerate(lines.items()):
            spots = [
                (
                    LEFT + wide * (3.2 + math.log2(part)) / 3.4,
                    TOP + tall * (1 - fmean(x["all"][figure] for x in some) / top),
                )
                for part, some in each
            ]
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
            yield f'<path class="{color} w" d="M{path}"/>' if spots else ""
            for (x, _), (_, some) in zip(spots, each, strict=True):
                ends = [
                    TOP + tall * (1 - of_all(v["all"][figure] for v in some) / top) for of_all in (min, max)
                ]
                yield f'<path class="{color} w" d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}"/>'
            yield from (f'<circle class="{color}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in spots)
            y = TOP + tall * (1 - projected[figure] / top)
            yield f'<path class="{color} w" stroke-dasharray="5 5" d="M{LEFT} {y:.1f}h{wide}"/>'
            yield f'<rect class="{color}" x="{LEFT + 230 * k}" y="28" width="10" height="10"/>'
            yield label(LEFT + 16 + 230 * k, 37, f"{name} (dashed: projected)")

    return framed("Held-out programs, by the part of the data", LEFT + wide + 40, TOP + tall + 34, parts())


def bars(values: Mapping[str, float]) -> str:
    """What each group of kernel features brings."""
    ranked = sorted(values.items(), key=lambda x: -x[1])
    most, wide = max(*values.values(), 1e-6), 360

    def parts() -> Iterator[str]:
        for k, (name, value) in enumerate(ranked):
            y, long = TOP + 24 * k, wide * max(0.0, value) / most
            yield label(LEFT + 60, y + 13, name, "end")
            yield f'<rect class="a" x="{LEFT + 70}" y="{y}" width="{long:.1f}" height="16"/>'
            yield label(LEFT + 78 + long, y + 13, f"{value:.3f}")

    title = "Error of log time without the features, more by"
    return framed(title, LEFT + 70 + wide + 80, TOP + 24 * len(ranked) + 12, parts())


def kinds_plot(found: Found) -> str:
    """Kinds of models by their error: the mean of some seeds, and the best and the worst of them."""
    kinds = dict.fromkeys(e["kind"] for e in found.get("experiments", {}).values())
    figures = {
        "a": ("MAPE", lambda x: x["all"]["mape"]),
        "b": ("pairs in the wrong order", lambda x: 1 - x["all"]["right"] / max(1, x["all"]["pairs"])),
    }
    rows = {kind: each for kind in kinds if (each := of(found, kind))}
    ranked = sorted(rows, key=lambda kind: fmean(figures["a"][1](x) for x in rows[kind]))
    most = max((f(x) for _, f in figures.values() for each in rows.values() for x in each), default=1.0)
    names, wide = 260, 400

    def parts() -> Iterator[str]:
        for k in range(math.floor(most / 0.2) + 1):
            x = names + wide * 0.2 * k / most
            yield line(x, TOP, x, TOP + 28 * len(ranked))
            yield label(x, TOP + 28 * len(ranked) + 16, f"{20 * k}%", "middle")
        for k, kind in enumerate(ranked):
            y = TOP + 28 * k + 8
            yield label(names - 10, y + 8, kind, "end")
            for j, (color, (_, of_each)) in enumerate(figures.items()):
                values, at = [of_each(x) for x in rows[kind]], y + 8 * j
                low, mean, high = (names + wide * v / most for v in (min(values), fmean(values), max(values)))
                yield f'<path class="{color} w" d="M{low:.1f} {at}H{high:.1f}"/>'
                yield f'<circle class="{color}" cx="{mean:.1f}" cy="{at}" r="3.5"/>'
        for j, (color, (name, _)) in enumerate(figures.items()):
            yield f'<rect class="{color}" x="{LEFT + 130 * j}" y="28" width="10" height="10"/>'
            yield label(LEFT + 16 + 130 * j, 37, name)

    title = "Kinds of models on held-out programs, and how far seeds are apart"
    return framed(title, names + wide + 40, TOP + 28 * len(ranked) + 30, parts())


# --- the page ---------------------------------------------------------------------------------------------


def written(page: str, name: str, text: str) -> str:
    """The page with the text between the marks of a name."""
    found = re.sub(
        rf"(<!-- {name} -->\n).*?(<!-- end -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL
    )
    if f"<!-- {name} -->" not in found:
        raise SystemExit(f"{PAGE} has no mark {name}")
    return found


def write(found: Found) -> None:
    """All of it."""
    text = PAGE.read_text(encoding="utf-8")
    made = {
        "data": data_text,
        "verdict": verdict,
        "held out": held_out,
        "splits": splits,
        "ablations": ablations,
        "trained": trained_text,
        "speed": speed_text,
        "features": importance_text,
        "switching": switching_text,
    }
    for name, what in made.items():
        text = written(text, name, what(found))
    PAGE.write_text(text, encoding="utf-8")
    pictures = {
        "learned-points.svg": scatter(found["shipped"]["points"]),
        "learned-curve.svg": curves(found),
        "learned-kinds.svg": kinds_plot(found),
        "learned-features.svg": bars(found["shipped"]["importance"]),
    }
    for name, picture in pictures.items():
        (PICTURES / name).write_text(picture, encoding="utf-8")

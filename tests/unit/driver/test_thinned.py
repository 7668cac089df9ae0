"""Which parameters of a test that is marked thin(k) a usual run takes."""

from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from thinned import places_of_thin_tests

COLUMNS, ROWS = ("f32", "f64", "f16"), ((0, 16, 4), (0, 21, 5), (3, 16, 4), (5, 23, 4))


def made(row: tuple[int, ...], column: str, *marks: Any) -> Any:
    """What pytest makes of `test_it[...]`, as far as it is asked."""
    marks = (pytest.mark.thin(3).mark, *marks)
    marks += (pytest.mark.parametrize("dtype", COLUMNS).mark,)
    marks += (pytest.mark.parametrize(("first", "length", "places"), ROWS).mark,)
    return SimpleNamespace(
        nodeid=f"t.py::test_it[{row}-{column}]",
        callspec=SimpleNamespace(
            params={"dtype": column, **dict(zip(("first", "length", "places"), row, strict=True))}
        ),
        get_closest_marker=lambda name: next((m for m in marks if m.name == name), None),
        iter_markers=lambda name: (m for m in marks if m.name == name),
    )


def test_each_value_of_each_parameter_is_taken() -> None:
    tests = [made(row, column) for row, column in product(ROWS, COLUMNS)]
    places = {t.nodeid: place for t, every, place in places_of_thin_tests(tests) if every == 3}
    assert len(places) == len(tests)
    taken = [t.callspec.params for t in tests if places[t.nodeid] % 3 == 0]
    assert len(taken) == 4 and len({(p["first"], p["length"]) for p in taken}) == len(ROWS)
    assert set(Counter(p["dtype"] for p in taken)) == {*COLUMNS}


def test_what_is_slow_already_has_no_place() -> None:
    """Else every third test might be a slow one, and none be left."""
    tests = [made(row, "f32", *[pytest.mark.slow.mark] * (k % 3 == 0)) for k, row in enumerate(ROWS)]
    assert [place for *_, place in places_of_thin_tests(tests)] == [0, 1]

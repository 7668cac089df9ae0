"""The process that compiles for the explorer: one line of JSON each way, with so much memory at most.

It is started by name, answers until its pipe is closed, and keeps the stages of the last programs, so that
the tabs of one program share them.  Whoever asks has the clock, and ends a job that takes too long.
"""

from __future__ import annotations

import contextlib
import json
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyfuse.diagnostics import InternalError, PolyfuseError
from polyfuse.explore.jobs import GREETING, failed
from polyfuse.explore.programs import (
    VIEWS,
    Asked,
    Place,
    Stages,
    Units,
    controls,
    findings,
    library,
    own_span,
    told,
)
from polyfuse.explore.views import view
from polyfuse.highlight import RULES
from polyfuse.lsp.document import Document
from polyfuse.support.processes import serve

KEPT = 4
"""Programs whose stages are kept."""


def main() -> None:
    """Answer lines of JSON, within the memory that a child may have."""
    _limit_memory()
    warnings.simplefilter("ignore")
    serve(GREETING, answer)


def _limit_memory() -> None:
    """At most half of the machine's memory: a program with huge sizes shall not take all of it."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        import psutil

        most = psutil.virtual_memory().total // 2
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard == resource.RLIM_INFINITY or hard > most:
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def answer(line: str) -> str:
    """The answer to a request, as a line."""
    request = json.loads(line)
    try:
        found = _answered(request)
    except MemoryError:
        _stages.cache_clear()
        message = "there is not enough memory for this program at these sizes"
        found = {"errors": [failed("PF821", message, "choose smaller sizes")]}
    return json.dumps(found)


def _answered(request: Mapping[str, Any]) -> dict[str, Any]:
    place = Place(request["name"], Path(request["folder"]) if request["folder"] else None)
    text = ""
    try:
        if request["do"] == "library":
            return {"library": library(), "rules": [[pattern, scope] for pattern, scope, _ in RULES]}
        asked = Asked.of(request["state"])
        text = asked.text
        return _DONE[request["do"]](asked, place, request)
    except PolyfuseError as error:
        bug = isinstance(error, InternalError)
        return {"errors": told(error.diagnostics, place, text), "bug": _trace(error) if bug else ""}
    except MemoryError:
        raise
    except Exception as error:  # shown with its trace: a page that stands still says nothing
        message = f"polyfuse has a bug: {type(error).__name__}: {error}"
        return {"errors": [failed("PF900", message, "please report it")], "bug": _trace(error)}


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


@lru_cache(KEPT)
def _stages(asked: Asked, place: Place) -> Stages:
    return Stages(asked, place)


# --- requests ----------------------------------------------------------------------------------------------


def _check(asked: Asked, place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    """All findings; of a text without errors also what may be chosen."""
    checked, found = findings(asked, place)
    program = checked.program if checked is not None else None
    answered: dict[str, Any] = {"found": told(found, place, asked.text, program)}
    if any(d.severity.value == "error" for d in found):
        return answered
    try:
        return {**answered, "controls": controls(_stages(asked, place))}
    except PolyfuseError as error:
        return {**answered, "errors": told(error.diagnostics, place, asked.text)}


def _view(asked: Asked, place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a tab."""
    name = request.get("view")
    if name not in VIEWS:
        raise InternalError(f"there is no view {name!r}")
    return {"parts": view(name, _stages(asked, place))}


def _complete(asked: Asked, place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    """What may stand at a place."""
    document = Document(asked.text, place.path, alone=place.folder is None)
    found = document.proposals(Units(asked.text).back(int(request["at"])))
    return {"proposals": [[p.label, p.kind, p.detail] for p in found]}


def _hover(asked: Asked, place: Place, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a name is."""
    document = Document(asked.text, place.path, alone=place.folder is None)
    units = Units(asked.text)
    found = document.hover(units.back(int(request["at"])))
    span = own_span(found[0], place) if found is not None else None
    if found is None or span is None:
        return {}
    return {"from": units(span.start), "to": units(span.end), "text": found[1]}


_DONE: Mapping[str, Callable[[Asked, Place, Mapping[str, Any]], dict[str, Any]]] = {
    "check": _check,
    "view": _view,
    "complete": _complete,
    "hover": _hover,
}

if __name__ == "__main__":
    main()

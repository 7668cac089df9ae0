"""An operator's signature as Python's `inspect` shows it."""

from __future__ import annotations

from inspect import Parameter
from inspect import Signature as PythonSignature
from keyword import iskeyword

from polyfuse.frontend_dsl.signature import ParamSig, Signature


def python_signature(signature: Signature) -> PythonSignature:
    """Parameters with their types as written, ``x: f32[N]``, and the results.

    Those with names that Python reserves, and all before them, can be given by position only.
    """
    params = signature.params
    reserved = max((k for k, p in enumerate(params) if iskeyword(p.name)), default=-1)
    made = [
        Parameter(
            p.name,
            Parameter.POSITIONAL_ONLY if k <= reserved else Parameter.POSITIONAL_OR_KEYWORD,
            default=p.default if p.has_default else Parameter.empty,
            annotation=_type(p),
        )
        for k, p in enumerate(params)
    ]
    results = ", ".join(f"{r.name}: {_type(r)}" for r in signature.results)
    several = f"({results})" if len(signature.results) != 1 else _type(signature.results[0])
    # An operator may have parameters without a default behind others with one.
    return PythonSignature(
        made,
        return_annotation=several if signature.results else None,
        __validate_parameters__=False,
    )


def _type(p: ParamSig) -> str:
    shape = f"[{', '.join(p.extents)}]" if p.extents else ""
    return f"{'inout ' if p.inout else ''}{p.dtype}{shape}"

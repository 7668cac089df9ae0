"""An operator as torch has operators: a schema, a kernel, what tracers ask, what autograd and autocast do.

layer_norm[F: float](x: F[B..., H], gamma: F[H], eps: F = 1e-5) -> (y: F[B..., H])
polyfuse::layer_norm_3f2a(Tensor x, Tensor gamma, float eps=1e-05) -> Tensor
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path
from typing import Any

import torch
import torch.compiler.config
from torch.autograd import forward_ad

from polyfuse.diagnostics import ArgumentError
from polyfuse.driver.compiled import Compiled
from polyfuse.frontend_dsl.semantics.signature import ParamSig, Signature
from polyfuse.interop.device_arrays import torch_dtypes
from polyfuse.interop.torch_tensors import no_gradient
from polyfuse.ir.dtypes import BY_NAME, DType, from_numpy
from polyfuse.runtime.cache.disk import package_version
from polyfuse.torch.shapes import result_shapes

Function = Callable[..., Any]
NAMESPACE = "polyfuse"

_libraries: dict[str, Any] = {}
"""By name of the operator."""
_DTYPES: dict[Any, DType] = {t: d for t, n in torch_dtypes(torch) if (d := from_numpy(n)) is not None}
_TORCH_DTYPES = {d.name: t for t, d in _DTYPES.items()}


def mark_caches() -> None:
    """Have torch's caches of compiled models tell versions of polyfuse apart: a graph has the name of an
    operator, and not those of what its gradient is made of."""
    config = torch.compiler.config
    package = Path(__file__).parents[1]
    sources = sorted(f for folder in ("autodiff", "torch") for f in package.joinpath(folder).rglob("*.py"))
    told = hashlib.sha256(b"".join(f.read_bytes() for f in sources)).hexdigest()[:16]
    mark = f"polyfuse {package_version()} {told}"
    if mark not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag} {mark}".strip()


mark_caches()

# --- schemas ------------------------------------------------------------------------------------------------


def schema(signature: Signature, tensors: frozenset[str] = frozenset()) -> str:
    """The schema of an operator in torch's language; `tensors`: scalar parameters that are tensors."""
    params, may_default = [], True
    for p in reversed(signature.params):
        has_default = p.optional or (p.has_default and p.name not in tensors)
        may_default = may_default and has_default
        params.append(_parameter(signature, p, p.name in tensors, may_default))
    params.reverse()
    inout = iter("abcdefghijklmnopqrstuvwxyz")
    params = [p.replace("(!)", f"({next(inout)}!)") if "(!)" in p else p for p in params]
    if signature.size_params:
        params.append("*")
        params += [
            f"SymInt? {s.name}=None" if s.default else f"SymInt {s.name}" for s in signature.size_params
        ]
    results = ", ".join("Tensor" for _ in signature.results)
    return f"({', '.join(params)}) -> {results if len(signature.results) == 1 else f'({results})'}"


def _parameter(signature: Signature, p: ParamSig, as_tensor: bool, may_default: bool) -> str:
    if p.optional:
        return f"Tensor? {p.name}" + ("=None" if may_default else "")
    if p.inout:
        return f"Tensor(!) {p.name}"
    if p.extents or as_tensor:
        return f"Tensor {p.name}"
    default = f"={p.default}" if may_default else ""
    return f"{_number(signature, p)} {p.name}{default}"


def _number(signature: Signature, p: ParamSig) -> str:
    kind = dict(signature.generics).get(p.dtype)
    dtype = BY_NAME.get(p.dtype)
    if kind == "float" or (dtype is not None and dtype.is_float):
        return "float"
    if dtype is not None and dtype.name == "bool":
        return "bool"
    return "SymInt" if kind == "int" or dtype is not None else "Scalar"


# --- an operator of torch -----------------------------------------------------------------------------------


@dataclass
class Registered:
    """One operator of torch. `function` gives what runs for the tensors of a call."""

    name: str
    signature: Signature
    function: Callable[[Mapping[str, Any]], Compiled]
    tensors: frozenset[str] = frozenset()
    overload: Any = field(init=False)
    library: Any = field(init=False)

    def __post_init__(self) -> None:
        namespace, _, own = self.name.partition("::")
        if self.name in _libraries:  # it is defined anew
            _libraries[self.name]._destroy()
        self.library = _libraries[self.name] = torch.library.Library(namespace, "FRAGMENT")
        text = schema(self.signature, self.tensors)
        self.library.define(own + text, tags=(torch.Tag.pt2_compliant_tag,))
        self.overload = getattr(getattr(torch.ops, namespace), own).default
        self.library.impl(own, self._run, "CompositeExplicitAutograd")
        torch.library.register_fake(self.name, self._fake, lib=self.library)
        for device in ("CPU", "CUDA"):
            self.library.impl(own, self._autocast(f"Autocast{device}", device.lower()), f"Autocast{device}")

    def without_gradient(self) -> None:
        """It is an error to ask for a gradient."""

        def refuse(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            given = self.named(args, kwargs)
            name = next(n for n, v in given.items() if requires_grad(v))
            what = f"argument '{name}' of {self.signature.name}"
            written = [p.name for p in self.signature.params if p.inout]
            if not written:
                raise no_gradient(what, name)
            because = f"it writes '{written[0]}' in place"
            raise no_gradient(what, name, because, "for a gradient, give a result in place of inout")

        self.on_autograd(refuse)

    def on_autograd(self, differentiated: Function) -> None:
        """What a call does where a gradient is asked for: a function of dispatch keys and arguments."""

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            _require_no_tangents(self.signature, args)
            if torch.is_grad_enabled() and any(requires_grad(a) for a in args):
                return differentiated(keyset, *args, **kwargs)
            with torch._C._AutoDispatchBelowAutograd():
                return self.overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

        self.library.impl(self.name.partition("::")[2], kernel, "Autograd", with_keyset=True)

    def on_vmap(self, batched: Function) -> None:
        """What a call with batched tensors does: (values by name, names of the batched) -> results, which of
        them are batched. The batch axis is the first one."""

        def rule(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
            given = {p.name: d for p, d in zip(self.signature.params, in_dims, strict=False) if d is not None}
            values = self.named(args, kwargs)
            values |= {n: values[n].movedim(d, 0) for n, d in given.items()}
            results, which = batched(info.batch_size, values, tuple(given))
            dims = tuple(0 if r.name in which else None for r in self.signature.results)
            return results, None if not dims else dims[0] if len(dims) == 1 else dims

        torch.library.register_vmap(self.name, rule, lib=self.library)

    # --- kernels ---

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by name, defaults in place; size parameters only where they are given."""
        found = dict(zip((p.name for p in self.signature.params), args, strict=False))
        found |= {n: v for n, v in kwargs.items() if v is not None}
        for p in self.signature.params:
            found.setdefault(p.name, None if p.optional else p.default)
        return found

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        named = {n: _memory(v) for n, v in self.named(args, kwargs).items()}
        function = self.function(named)
        sizes = {s.name for s in self.signature.size_params}
        found = NotImplemented
        if not kwargs:
            found = function.in_short(tuple(named.values()))
        if found is NotImplemented:
            values = {n: v for n, v in named.items() if n not in sizes}
            found = function.run(tuple(values.values()), {n: int(named[n]) for n in sizes if n in named})
        return found

    def _fake(self, *args: Any, **kwargs: Any) -> Any:
        named = self.named(args, kwargs)
        function, _, values = self.function(named).chosen((), named)
        device = self._device(values)
        given = {n: v for n, v in values.items() if n in {s.name for s in self.signature.size_params}}
        arrays = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        graph = function.graph_for(
            {n: dtype_of(n, v) for n, v in arrays.items()},
            {n: v.dim() if isinstance(v, torch.Tensor) else 0 for n, v in values.items() if n not in given},
        )
        found = tuple(
            torch.empty(shape, dtype=_TORCH_DTYPES[graph.tensor(n).dtype.name], device=device)
            for n, shape in zip(
                graph.outputs,
                result_shapes(graph, {n: v.shape for n, v in arrays.items()}, given),
                strict=True,
            )
        )
        return None if not found else found[0] if len(found) == 1 else found

    def _device(self, values: Mapping[str, Any]) -> Any:
        """Where the tensors are. Raises ArgumentError PF417 for several places."""
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        found: dict[Any, str] = {}
        for n, v in tensors.items():
            if v.dim():  # numbers may be anywhere
                found.setdefault(v.device, n)
        if len(found) > 1:
            told = ", ".join(f"'{n}' is on {d}" for d, n in found.items())
            message = f"the tensors of {self.signature.name} are on several devices: {told}"
            raise ArgumentError(message, code="PF417", hint="move them to one device")
        return next(iter(found), next(v.device for v in tensors.values()))

    def _autocast(self, key: str, device: str) -> Function:
        """A kernel that gives arguments one dtype, where the operator wants that."""
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return self.overload(*_of_one_dtype(self.signature, args, device), **kwargs)

        return kernel


def require_tensors(signature: Signature, named: Mapping[str, Any]) -> None:
    """Raises ArgumentError PF425 for what torch's dispatcher takes neither as a tensor nor as a number."""
    for p in signature.params:
        value = named[p.name]
        fits = _stands_for_tensor(value) or (p.is_scalar and _is_number(value))
        if fits or (value is None and p.optional):
            continue
        what = "None" if value is None else f"a {type(value).__name__}"
        kind = "a number" if p.is_scalar else "a tensor of torch"
        is_array = hasattr(value, "__array__") or isinstance(value, (list, tuple))
        raise ArgumentError(
            f"argument '{p.name}' is {what}; {kind} is expected beside other tensors: {p}",
            code="PF425",
            span=p.span,
            hint=_as_tensor(p.name, named) if is_array and not p.is_scalar else None,
        )


def _as_tensor(name: str, named: Mapping[str, Any]) -> str:
    """How an array becomes a tensor where the other tensors are."""
    other = next(n for n, v in named.items() if isinstance(v, torch.Tensor))
    device = "" if named[other].device.type == "cpu" else f", device={other}.device"
    return f"make a tensor of it: torch.as_tensor({name}{device})"


def _stands_for_tensor(value: Any) -> bool:
    """Is it a tensor, or what tracers have in place of one?"""
    return hasattr(type(value), "__torch_function__")


def _is_number(value: Any) -> bool:
    """Python's, NumPy's, or a symbol of a tracer."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(value, (Number, *symbols)) or getattr(value, "ndim", None) == 0


def _require_no_tangents(signature: Signature, args: tuple[Any, ...]) -> None:
    """Raises ArgumentError PF421 for dual tensors: below autograd nobody sees their tangents."""
    if forward_ad._current_level < 0:
        return
    for p, value in zip(signature.params, args, strict=False):
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise ArgumentError(
                f"argument '{p.name}' of {signature.name} has a tangent, which would be lost",
                code="PF421",
                hint="operators have gradients of the reverse mode only: torch.func.vjp or jacrev in place "
                "of jvp or jacfwd",
            )


def _memory(value: Any) -> Any:
    """A tensor of a subclass as a plain one: what the subclass knows has had its say in the dispatcher."""
    odd = isinstance(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter)
    return value.as_subclass(torch.Tensor) if odd else value


def requires_grad(value: Any) -> bool:
    """Is it a tensor whose gradient is asked for?"""
    return isinstance(value, torch.Tensor) and value.requires_grad


def dtype_of(name: str, tensor: Any) -> DType:
    """The type of a tensor's elements. Raises ArgumentError PF402 for one that the language does not have."""
    found = _DTYPES.get(tensor.dtype)
    if found is None:
        message = f"argument '{name}' has dtype {tensor.dtype}, which the language does not have"
        raise ArgumentError(message, code="PF402")
    return found


def _of_one_dtype(signature: Signature, args: tuple[Any, ...], device: str) -> list[Any]:
    """Arguments under autocast: where a generic has several floating types, the widest; where a parameter has
    one type, that."""
    wanted: dict[str, Any] = {n: t for n, t in _TORCH_DTYPES.items() if t.is_floating_point}
    fixed = set(wanted)
    pairs = list(zip(signature.params, args, strict=False))

    def concerned(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type == device

    for p, value in pairs:
        if concerned(value) and p.dtype not in fixed:
            known = wanted.get(p.dtype)
            wanted[p.dtype] = value.dtype if known is None else torch.promote_types(known, value.dtype)
    return [
        value.to(wanted[p.dtype]) if concerned(value) and not p.inout and p.dtype in wanted else value
        for p, value in pairs
    ]

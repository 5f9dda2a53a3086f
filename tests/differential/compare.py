"""What a call did, as far as a caller can see, and the first difference between two calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Outcome:
    """error: the type of what was raised. leaves: the result's parts in order; shape: the result's nest.

    after: inputs and state after the call. written: which of them have a new version. shares, same: for each output,
    the tensors (inputs, state, earlier outputs, by number) whose memory it lies in, and which it is. generator:
    torch's, after the call.
    """

    error: type[BaseException] | None
    text: str = ""
    generator: torch.Tensor = dataclasses.field(default_factory=torch.get_rng_state)
    leaves: list[Any] = dataclasses.field(default_factory=list)
    nest: str = ""
    after: list[torch.Tensor] = dataclasses.field(default_factory=list)
    written: list[bool] = dataclasses.field(default_factory=list)
    shares: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    same: list[tuple[int, ...]] = dataclasses.field(default_factory=list)


def observe(fn: Callable[..., Any], args: Sequence[Any], state: Sequence[torch.Tensor] = (), seed: int = 0) -> Outcome:
    """Call with torch's generator at `seed`, and note all that can be seen of it. Outputs stay live in `leaves`."""
    torch.manual_seed(seed)
    outside = [*(a for a in args if isinstance(a, torch.Tensor)), *state]
    before = [_version(t) for t in outside]
    try:
        result = fn(*args)
    except Exception as error:
        return Outcome(type(error), str(error))
    leaves = list(leaves_of(result))
    outcome = Outcome(None, leaves=leaves, nest=nest_of(result), generator=torch.get_rng_state())
    outcome.written = [_version(t) != v for t, v in zip(outside, before, strict=True)]
    outcome.after = [snapshot(t) for t in outside]
    known = list(outside)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        address = _storage(leaf)
        outcome.shares.append(
            tuple(
                # Where in the memory, if somebody else knows that memory.
                (i, leaf.data_ptr() - other.data_ptr() if leaf.numel() and other.numel() else 0)
                for i, other in enumerate(known)
                # Itself is in its own memory, which may be none: `same` says so. Empty ones made here may have none.
                if address and other is not leaf and _storage(other) == address
                if leaf.numel() or i < len(outside)
            )
        )
        outcome.same.append(tuple(i for i, other in enumerate(known) if other is leaf))
        known.append(leaf)
    return outcome


def _version(t: torch.Tensor) -> int:
    return 0 if t.is_inference() else t._version


def _storage(t: torch.Tensor) -> int:
    return t.untyped_storage().data_ptr() if t.layout is torch.strided and t.device.type == "cpu" else 0


def snapshot(t: torch.Tensor) -> torch.Tensor:
    """A copy in the same dtype, whatever the strides."""
    plain = t.detach()
    return plain.clone(memory_format=torch.contiguous_format) if t.layout is torch.strided else plain.clone()


def leaves_of(result: Any, above: tuple[int, ...] = ()) -> Iterator[Any]:
    """The parts of a nest of tuples, lists, dicts and dataclasses. above: those that it lies in, which end a circle."""
    if id(result) in above:
        return
    inner = (*above, id(result))
    if isinstance(result, Mapping):
        for value in result.values():
            yield from leaves_of(value, inner)
    elif isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        for value in result:
            yield from leaves_of(value, inner)
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for f in dataclasses.fields(result):
            yield from leaves_of(getattr(result, f.name), inner)
    else:
        yield result


def nest_of(result: Any) -> str:
    """The result's structure as text."""
    if isinstance(result, Mapping):
        return f"{type(result).__name__}{{{','.join(f'{k}:{nest_of(v)}' for k, v in result.items())}}}"
    if isinstance(result, (tuple, list)) and not isinstance(result, torch.Size):
        return f"{type(result).__name__}({','.join(nest_of(v) for v in result)})"
    return "tensor" if isinstance(result, torch.Tensor) else type(result).__name__


def difference(expected: Outcome, found: Outcome, *, is_exact: bool, least: float = 0.0) -> str | None:
    """The first difference, as a sentence; None where there is none. is_exact: every bit must agree.

    least: how much of the largest value may be rounding whatever the dtype (an output may have come of narrower ones).
    """
    if expected.error is not None or found.error is not None:
        if expected.error is found.error:
            return None
        return f"raised {found.error} ({found.text}) instead of {expected.error} ({expected.text})"
    if expected.nest != found.nest:
        return f"result is {found.nest} instead of {expected.nest}"
    for i, (a, b) in enumerate(zip(expected.leaves, found.leaves, strict=True)):
        if isinstance(a, torch.Tensor):
            text = tensor_difference(a, b, is_exact=is_exact, least=least)
            if text is not None:
                return f"output {i} {text}"
        elif not (a == b or (a != a and b != b)):
            return f"output {i} is {b!r} instead of {a!r}"
    for i, (a, b) in enumerate(zip(expected.after, found.after, strict=True)):
        text = tensor_difference(a, b, is_exact=is_exact, least=least)
        if text is not None:
            return f"input or state {i}, after the call, {text}"
    if not torch.equal(expected.generator, found.generator):
        return "torch's generator is left in another state"
    # A version too many is seen by nobody but autograd, and `x.data.add_(1)` has no other way to be written back.
    if any(a and not b for a, b in zip(expected.written, found.written, strict=True)):
        return f"written: {found.written} instead of {expected.written}"
    for what in ("shares", "same"):
        if getattr(expected, what) != getattr(found, what):
            return f"{what}: {getattr(found, what)} instead of {getattr(expected, what)}"
    return None


def tensor_difference(a: torch.Tensor, b: torch.Tensor, *, is_exact: bool, least: float = 0.0) -> str | None:
    """The first difference between two tensors, as what is said of the second."""
    for what in ("dtype", "shape", "device", "layout", "requires_grad"):
        if getattr(a, what) != getattr(b, what):
            return f"has {what} {getattr(b, what)} instead of {getattr(a, what)}"
    if type(a) is not type(b):
        return f"is a {type(b).__name__} instead of a {type(a).__name__}"
    if a.layout is not torch.strided:
        return None if torch.equal(a.to_dense(), b.to_dense()) else "has other values"
    if a.stride() != b.stride():
        return f"has strides {b.stride()} instead of {a.stride()}"
    a, b = snapshot(a), snapshot(b)
    if bits_equal(a, b):
        return None
    if is_exact or not (a.dtype.is_floating_point or a.dtype.is_complex):
        return f"is {_short(b)} instead of {_short(a)}"
    return _roundings(a, b, least)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether all bits agree, except that any NaN is as good as another."""
    if a.dtype.is_complex:
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    if a.dtype.is_floating_point and a.element_size() > 1:
        nan_a, nan_b = torch.isnan(a), torch.isnan(b)
        if not torch.equal(nan_a, nan_b):
            return False
        a, b = a.masked_fill(nan_a, 0), b.masked_fill(nan_b, 0)
    if a.is_quantized:
        a, b = a.int_repr(), b.int_repr()
    if not a.numel():
        return True
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.contiguous().view(kind), b.contiguous().view(kind))


ROUNDINGS = {torch.float64: 1e-12, torch.float32: 3e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def _roundings(a: torch.Tensor, b: torch.Tensor, least: float) -> str | None:
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    x, y = a.to(wide), b.to(wide)
    finite = torch.isfinite(x) & torch.isfinite(y)
    if not torch.equal(torch.isnan(x), torch.isnan(y)) or not torch.equal(torch.isinf(x), torch.isinf(y)):
        return f"has NaN or infinity in other elements: {_short(b)} instead of {_short(a)}"
    scale = float(x[finite].abs().max()) if bool(finite.any()) else 0.0
    largest = float((x - y)[finite].abs().max()) if bool(finite.any()) else 0.0
    if largest > max(ROUNDINGS.get(a.dtype, 3e-5), least) * max(scale, 1e-30):
        return f"differs by {largest:.3g} where the largest value is {scale:.3g}"
    return None


def _short(t: torch.Tensor) -> str:
    return str(t.flatten()[:12].tolist()) + (" …" if t.numel() > 12 else "")

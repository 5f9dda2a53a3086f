"""Values of two runs, compared: containers by structure, numbers by value, floats within what rounding explains.

Invariant: nothing is written to. Integers, bools and everything that is no float must be equal; of floats, NaN and
infinities stand in the same places, and the rest is held to the bound of docs/decisions/0004: the error against float64
relative to eager's own, one ulp of the scale forgiven. Without a float64 run, floats are close by their dtype.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library import pytree
from smelt.diag.records import record

# Largest difference relative to the largest finite value, where no float64 run tells what rounding explains.
_CLOSE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
# Rounding adds up over the terms of a sum, which one random rounding of each result does not show.
_NOISE = 16.0
# Of a result that is _MANY roundings of its scale away from float64, so much more.
_CANCELLED, _MANY = 8.0, 256.0
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


@record
class Tolerance:
    """How far floats may lie from float64, in eager's own errors; what steps give away on purpose comes on top.

    rms, largest: factors on eager's root mean square and largest error. lossy: an error relative to the answer's rms.
    """

    rms: float = 3.0
    largest: float = 6.0
    lossy: float = 0.0

    @property
    def noise(self) -> float:
        """The rounding of each operator that makes about such an error in a model of some depth."""
        return self.lossy / 8


@record
class Item:
    """A leaf of a nested value, or (with `value` a text) what a container is: its type and length."""

    path: str
    value: Any
    is_structure: bool = False


@record
class Difference:
    """The first place where two values differ.

    path: which value (`output.logits`, `gradient of fc.weight`). index: where in a tensor, or None. expected, got: the
    two values there, or in words what is different. why: how far apart, and by what measure. is_rounding: whether it
    is one between finite floats, which another measure of rounding may explain.
    """

    path: str
    index: tuple[int, ...] | None
    expected: Any
    got: Any
    why: str = ""
    is_rounding: bool = False

    def __str__(self) -> str:
        place = self.path + (f"[{', '.join(map(str, self.index))}]" if self.index else "")
        return f"{place} is {self.got!r} instead of {self.expected!r}"


def items(value: Any, path: str) -> list[Item]:
    """All leaves of a nested value in order, each container before its contents; objects count by their attributes."""
    return list(_items(value, path, set()))


def _items(value: Any, path: str, above: set[int]) -> Iterator[Item]:
    if isinstance(value, torch.Tensor | torch.dtype | torch.device | torch.Size) or type(value) in _PLAIN:
        yield Item(path, value)
        return
    if id(value) in above:
        yield Item(path, f"a {type(value).__qualname__} that contains this", is_structure=True)
        return
    contents = _contents(value)
    yield Item(path, _text_of(value, contents), is_structure=True)
    for name, part in contents:
        yield from _items(part, path + name, above | {id(value)})


def _contents(value: Any) -> list[tuple[str, Any]]:
    """What a container or an object holds, each with how it is reached."""
    if isinstance(value, Mapping):
        by_name = dataclasses.is_dataclass(value)
        return [(f".{key}" if by_name else f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=True)]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", part) for i, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    kind = pytree.registered(type(value))
    if kind is not None:
        return [(f"[{i}]", part) for i, part in enumerate(kind.flatten(value)[0])]
    if isinstance(value, type) or callable(value):
        return []
    return [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


def _text_of(value: Any, contents: Sequence[tuple[str, Any]]) -> str:
    if isinstance(value, type) or callable(value):
        return f"{getattr(value, '__qualname__', type(value).__qualname__)}"
    if isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
        return f"a {type(value).__qualname__} of {list(value)}"
    if not contents:
        return f"a {type(value).__qualname__}" if isinstance(value, list | tuple) else _safe_repr(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return f"a {type(value).__qualname__} of {len(contents)}"
    return f"a {type(value).__qualname__} of {[name.lstrip('.') for name, _ in contents]}"


def _safe_repr(value: Any) -> str:
    """An object's text where that says something, else its class: addresses differ from copy to copy."""
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    shown: Any = type(value).__repr__
    return f"a {type(value).__qualname__}" if shown is object.__repr__ else repr(value)


class Comparer:
    """Compares lists of items, and remembers the largest error that it let pass.

    tolerance: None where all bits must be equal. errors: the largest error so far of float answers, and of gradients,
    rms relative to their own rms. is_bitwise: whether all that was compared so far had equal bits.
    """

    def __init__(self, tolerance: Tolerance | None) -> None:
        self.tolerance = tolerance
        self.errors = {"output": 0.0, "gradient": 0.0}
        self.is_bitwise = True

    def first(
        self,
        expected: Sequence[Item],
        got: Sequence[Item],
        exact: Sequence[Item] | None = None,
        noisy: Sequence[Sequence[Item]] = (),
    ) -> Difference | None:
        """The first difference; None where the two agree.

        exact: the same values in float64; noisy: those of float64 runs with roundings of the narrow type put in. They
        are left aside where they are not made like `expected`.
        """
        for i, (want, have) in enumerate(zip(expected, got, strict=False)):
            if want.path != have.path:
                return Difference(want.path, None, _shown(want), f"nothing, but {have.path}")
            found = self._pair(want, have, _at(exact, i, want), [_at(run, i, want) for run in noisy])
            if found is not None:
                return found
        if len(expected) != len(got):
            longer, i = (expected, len(got)) if len(expected) > len(got) else (got, len(expected))
            extra = longer[i]
            missing = ("nothing", _shown(extra)) if longer is got else (_shown(extra), "nothing")
            return Difference(extra.path, None, *missing)
        return None

    def _pair(self, want: Item, have: Item, exact: Any, noisy: Sequence[Any]) -> Difference | None:
        a, b = want.value, have.value
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return self._tensors(want.path, a.detach(), b.detach(), exact, noisy)
        if type(a) is float and type(b) is float:
            wide = [torch.tensor(v, dtype=torch.float64) for v in (a, b)]
            narrow = torch.get_default_dtype()
            finer = _number(exact), [_number(run) for run in noisy]
            return self._floats(want.path, wide[0], wide[1], *finer, torch.finfo(narrow).eps)
        if isinstance(a, torch.dtype) and isinstance(b, torch.dtype) and self._is_narrowed(a, b):
            return None
        same = type(a) is type(b) and want.is_structure == have.is_structure and bool(a == b)
        return None if same else Difference(want.path, None, Words(_shown(want)), Words(_shown(have)))

    def _tensors(self, path: str, a: Any, b: Any, exact: Any, noisy: Sequence[Any]) -> Difference | None:
        if type(a) is not type(b) and not {type(a), type(b)} <= {torch.Tensor, torch.nn.Parameter}:
            return Difference(path, None, Words(type(a).__qualname__), Words(type(b).__qualname__))
        for what in ("dtype", "shape", "device", "layout"):
            left, right = getattr(a, what), getattr(b, what)
            if left != right and not (what == "dtype" and self._is_narrowed(left, right)):
                shown = [Words(f"of {what} {list(v) if what == 'shape' else v}") for v in (left, right)]
                return Difference(path, None, shown[0], shown[1])
        if a.device.type == "meta":
            return None
        if a.is_quantized:
            a, b = a.dequantize(), b.dequantize()
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
            exact, noisy = None, ()
        if a.is_complex():
            a, b, exact, *noisy = (_as_real(t) for t in (a, b, exact, *noisy))
        if not a.is_floating_point():
            unequal = a != b
            return _at_first(path, unequal, a, b, "must be equal") if bool(unequal.any()) else None
        eps = torch.finfo(a.dtype).eps
        dtype = a.dtype
        if dtype == b.dtype and torch.equal(a, b):
            return None
        a, b, exact, *noisy = (None if t is None else t.detach().double() for t in (a, b, exact, *noisy))
        return self._floats(path, a, b, exact, noisy, eps, _CLOSE.get(dtype, 4 * eps))

    def _is_narrowed(self, wanted: torch.dtype, found: torch.dtype) -> bool:
        """Whether a step that gives precision away may have made one float type of another."""
        lossy = self.tolerance is not None and self.tolerance.lossy > 0
        return lossy and wanted.is_floating_point and found in (torch.bfloat16, torch.float16)

    def _floats(
        self, path: str, a: Any, b: Any, exact: Any, noisy: Sequence[Any], eps: float, close: float = 1e-4
    ) -> Difference | None:
        """Two tensors in float64, of values with the precision `eps`."""
        if a.numel() == 0 or torch.equal(a, b):
            return None
        mask = a.isfinite()
        finite: torch.Tensor | None = None if bool(mask.all()) else mask
        same = b.isfinite() if finite is None else torch.where(finite, b.isfinite(), (a == b) | (a.isnan() & b.isnan()))
        if not bool(same.all()):
            return _at_first(path, ~same, a, b, "NaN and infinities stay where they are")
        if self.tolerance is None:
            unequal = a != b if finite is None else finite & (a != b)
            return _at_first(path, unequal, a, b, "other bits", True) if bool(unequal.any()) else None
        noisy = [run for run in noisy if run is not None and _is_usable(run, a, finite)]
        truth = exact if exact is not None and _follows(exact, a, noisy, finite, eps) else a
        scale, size = _largest(truth, finite), _rms(truth, finite)
        own = b - truth if finite is None else torch.where(finite, b - truth, 0.0)
        error, worst = _rms(own, finite), _largest(own, finite)
        if truth is a:
            reach = close * max(scale, 1e-30)
            mean_bound = peak_bound = reach
            measure = f"{worst:.3g} apart, where values of up to {scale:.3g} are close within {reach:.3g}"
        else:
            runs = [a, *noisy]
            mean = max(_rms(run - truth, finite) for run in runs)
            peak = max(_largest(run - truth, finite) for run in runs)
            loosely = self.tolerance.lossy > 0 and path.startswith("gradient")
            # Where so much cancels, rounding at random and another order of sums are alike in magnitude, no nearer.
            least = _CANCELLED if noisy and peak > _MANY * eps * scale else 0.0
            mean_bound = (_NOISE if loosely else max(self.tolerance.rms, least)) * mean + scale * eps
            peak_bound = math.inf if loosely else max(self.tolerance.largest, least) * peak + scale * eps
            measure = f"up to {worst:.3g} from float64, where eager is up to {peak:.3g} away"
        # Gradients pass each narrow part twice, and single ones turn where a relu does.
        mean_bound += (4 if path.startswith("gradient") else 1) * self.tolerance.lossy * size
        peak_bound += 4 * self.tolerance.lossy * scale
        if error <= mean_bound and worst <= peak_bound:
            self.is_bitwise = False
            for kind in self.errors:
                # What is zero but for rounding has no size.
                if size and path.startswith(kind) and _largest(a - truth, finite) <= _near(eps) * scale:
                    self.errors[kind] = max(self.errors[kind], error / size)
            return None
        over = own.abs() > peak_bound
        if not bool(over.any()):
            over = own.abs() >= worst
        return _at_first(path, over, a, b, measure, True)


class Words(str):
    """A description that prints without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _at(items: Sequence[Item] | None, i: int, like: Item) -> Any:
    """The value at the same place of another run; None where it is made otherwise."""
    if items is None or i >= len(items) or items[i].path != like.path:
        return None
    return items[i].value if type(items[i].value) is type(like.value) else None


def _number(value: Any) -> torch.Tensor | None:
    return torch.tensor(value, dtype=torch.float64) if type(value) is float else None


def _as_real(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None:
        return None
    wide = tensor.resolve_conj()
    return torch.view_as_real(wide) if wide.is_complex() else None


def _finite(values: torch.Tensor, finite: torch.Tensor | None) -> torch.Tensor:
    """The values at places that `finite` names, None where those are all: taking them costs more than what follows."""
    return values if finite is None else values[finite]


def _rms(values: torch.Tensor, finite: torch.Tensor | None) -> float:
    kept = _finite(values, finite)
    return float(kept.square().mean().sqrt()) if kept.numel() else 0.0


def _largest(values: torch.Tensor, finite: torch.Tensor | None) -> float:
    kept = _finite(values, finite)
    if not kept.numel():
        return 0.0
    low, high = kept.aminmax()
    return float(torch.maximum(-low, high))


def _follows(
    exact: torch.Tensor, a: torch.Tensor, noisy: Sequence[torch.Tensor], finite: torch.Tensor | None, eps: float
) -> bool:
    """Whether a float64 run computed what the narrow one did, so that their distance is one of rounding."""
    if not _is_usable(exact, a, finite):
        return False
    far = _largest(a - exact, finite)
    if far <= _near(eps) * max(_largest(exact, finite), 1e-300):
        return True
    # What is zero but for rounding has no size to compare with: random rounding then shows how far it goes.
    return any(far <= _NOISE * _largest(run - exact, finite) for run in noisy)


def _near(eps: float) -> float:
    """How far, relative to the scale, rounding takes a program of the usual kind at most."""
    return min(0.3, 32 * math.sqrt(eps))


def _is_usable(run: torch.Tensor, a: torch.Tensor, finite: torch.Tensor | None) -> bool:
    return run.shape == a.shape and bool(_finite(run, finite).isfinite().all())


def _at_first(
    path: str, wrong: torch.Tensor, a: torch.Tensor, b: torch.Tensor, why: str, is_rounding: bool = False
) -> Difference:
    index = tuple(int(i) for i in wrong.nonzero()[0])
    return Difference(path, index, a[index].item(), b[index].item(), why, is_rounding)


def _shown(item: Item) -> str:
    value = item.value
    if isinstance(value, torch.Tensor):
        return f"a tensor of {value.dtype} {list(value.shape)}"
    return value if item.is_structure else repr(value)

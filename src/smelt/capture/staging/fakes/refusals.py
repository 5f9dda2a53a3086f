"""Calls that eager refuses for the kinds of their operands, whatever the data are.

    x *= 1.5        x: i64[n]        "result type Float can't be cast to the desired output type Long"

Many of torch's kernels for tensors without data do not ask (those of `mul_`, `sub_` with a bool, `gcd_`, comparisons of
complex numbers). So each kind of call is tried once, on ones; what goes by elements refuses these as any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from smelt._torch.library.schemas import Overload
from smelt._torch.seen.dispatch import unseen
from smelt.capture.dynamic.arithmetic import is_symbolic
from smelt.ops.sets import is_by_elements

_NUMBERS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype)


class Refusal(NamedTuple):
    """kind, text: of what eager raises. of_empty: whether it raises where there are no elements, too."""

    kind: type[Exception]
    text: str
    of_empty: bool


class _Tensor(NamedTuple):
    dtype: torch.dtype
    is_scalar: bool


class _Number(NamedTuple):
    kind: type
    value: Any


class _UntriedError(Exception):
    """The call has an argument of which nothing is known here."""


def refusal_of_kinds(
    overload: object, name: str, args: Sequence[object], kwargs: Mapping[str, object], is_written: bool
) -> Refusal | None:
    """What eager says to such a call; None: it takes it, or that is not known. is_written: the first operand is."""
    if not is_by_elements(name) or torch.is_autocast_enabled("cpu"):
        return None
    try:
        forms = tuple(map(_form, args))
        named = tuple((key, _form(arg)) for key, arg in kwargs.items())
    except _UntriedError:
        return None
    written = forms[0] if forms else named[0][1]
    if is_written and isinstance(written, _Tensor) and written.is_scalar:
        return None  # by what it may be written, sizes tell, too
    return _tried(overload, forms, named)


@lru_cache(maxsize=4096)
def _tried(overload: object, forms: tuple[object, ...], named: tuple[tuple[str, object], ...]) -> Refusal | None:
    found = _refused(overload, forms, named, 1)
    if found is None:
        return None
    return Refusal(type(found), str(found), _refused(overload, forms, named, 0) is not None)


def _refused(
    overload: Overload, forms: tuple[object, ...], named: tuple[tuple[str, Any], ...], length: int
) -> Exception | None:
    with unseen(), torch.no_grad():
        try:
            overload(*[_made(form, length) for form in forms], **{key: _made(form, length) for key, form in named})
        except (RuntimeError, TypeError, ValueError) as error:
            # Not of kinds: of a number that is 0, which says nothing where there are no elements.
            return None if "ZeroDivision" in str(error) else error
    return None


def _form(arg: object) -> object:
    if isinstance(arg, torch.Tensor):
        if arg.layout is not torch.strided or arg.device.type != "cpu":
            raise _UntriedError
        return _Tensor(arg.dtype, arg.dim() == 0)
    kind = type(arg)
    if kind in _NUMBERS or is_symbolic(arg):
        return _Number(_NUMBERS.get(kind, kind), 1)
    if kind not in _PLAIN:
        raise _UntriedError
    return _Number(kind, arg)


def _made(form: Any, length: int) -> object:
    if isinstance(form, _Tensor):
        return torch.ones(() if form.is_scalar else length, dtype=form.dtype, device="cpu")
    return form.kind(form.value) if form.kind in (int, float, bool) else form.value

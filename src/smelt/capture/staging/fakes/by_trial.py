"""What an operator gives by trying it on the CPU, where its kernel without data says something else, or refuses.

    _native_multi_head_attention(..., need_weights=False)    no weights: None on the CPU, an empty tensor without data
    batch_norm(x.mT, ...)                                    row-major on the CPU, laid out as x without data

A call with free sizes is tried at several of them: each size and stride of its results must be one expression of its
operands' at all of them, and whether there is a result at all must not depend on sizes.

Invariant: nothing of the program's is run or written; the trials run on tensors of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from smelt._torch.seen.dispatch import unseen
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.typed_calls import fake_of, tensors_in, type_of, typed_call
from smelt.capture.staging.fakes.refused_kernels import has_symbols
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import Arg, TensorType, Type, values_in
from smelt.ir.size_numbers import Size, SizeFloat
from smelt.ir.size_trace import Division, Rounded, Symbol
from smelt.ops.meta import MOST_TRIED, CannotRun, cpu_outcome
from smelt.ops.shapes.symbolic import CannotTell, Found, TooLargeError, TypeOf, infer_symbolic
from smelt.ops.typing import infer

_FEW_ELEMENTS = 1 << 20  # that an operand with free sizes may have in a trial


def is_doubtful(result: Any) -> bool:
    """Whether one of several results is missing, or an empty vector that may stand for a missing one."""
    if type(result) not in (list, tuple) or len(result) < 2:
        return False
    return any(r is None or (isinstance(r, torch.Tensor) and r.dim() == 1 and _is_zero(r.shape[0])) for r in result)


def _is_zero(size: object) -> bool:
    return type(size) is int and size == 0


def by_trial(
    fakes: FakeTensors,
    trace: CaptureTrace | None,
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    is_refused: bool = False,
) -> object:
    """The results of an operator on fake tensors, as the CPU gives them. Raises: CannotTell.

    is_refused: the kernel without data may have asked for values, so several are tried.
    """
    types = types_by_trial(trace, name, args, kwargs, is_refused=is_refused)
    with unseen():
        grad = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        made = [fake_of(fakes, trace, type_, grad) for type_ in types]
    return made[0] if len(made) == 1 else tuple(made)


def types_by_trial(
    trace: CaptureTrace | None,
    name: str,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    is_refused: bool = False,
    most: int | None = None,
) -> tuple[Type, ...]:
    """The types of these results, none of which is a view. Raises: CannotTell.

    most: elements that an operand may have in a trial, where it is not worth much.
    """
    with unseen():
        if any(t.layout is not torch.strided or t.device.type != "cpu" for t in tensors_in((*args, *kwargs.values()))):
            raise CannotTell("an operand is no strided tensor on the CPU")
        arguments, named, values = typed_call(args, kwargs)
        if any(type(arg) is SizeFloat for arg in (*arguments, *named.values())):
            raise CannotTell("an argument is a float that is free")
        operands = [v.type for v in values if isinstance(v.type, TensorType)]
        if trace is None or not any(map(has_symbols, (*args, *kwargs.values()))):
            ask = _OnCpu(is_refused, most or MOST_TRIED)
            types, shares = _at_once(ask, name, arguments, named, is_typed=most is None)
        elif not all(isinstance(atom, (Symbol, Division, Rounded)) for atom in trace.atoms):
            raise CannotTell("a size is computed by code that staging does not follow")
        else:
            known = [t.numel for t in operands if all(type(n) is int for n in t.sizes)]
            ask = _OnCpu(is_refused, most or min(max(known, default=0) + _FEW_ELEMENTS, MOST_TRIED))
            infer_with = partial(infer_symbolic, trace, name, arguments, named, type_of, ask)
            types, shares = _with_ties(infer_with, _alike(trace, operands))
    if any(shares):
        raise CannotTell(f"{name} gives a view")
    return types


def _with_ties(infer_with: Callable[[Mapping[str, str]], Found], alike: Mapping[str, str]) -> Found:
    """What trials tell; where the CPU takes none of them as they are (sizes of two operands must agree, which nobody
    has asked for yet), what those tell in which as few sizes as need be are equal. Raises: CannotTell.
    """
    try:
        return infer_with({})
    except CannotTell:
        if not alike:
            raise
    ties = dict(alike)
    found = infer_with(ties)
    for name in alike if len(alike) > 1 else ():
        fewer = {k: v for k, v in ties.items() if k != name}
        with suppress(CannotTell):
            found, ties = infer_with(fewer), fewer
    return found


def _alike(trace: CaptureTrace, operands: Sequence[TensorType]) -> dict[str, str]:
    """Symbols that are sizes of the same dimension of two operands, and equal now: the later by the earlier."""
    first: dict[tuple[int, int], str] = {}
    found: dict[str, str] = {}
    for type_ in operands:
        for d, size in enumerate(type_.sizes):
            name = next((n for n, s in trace.symbols.items() if isinstance(size, Size) and s.poly == size.poly), "")
            if name and isinstance(size, Size):
                known = first.setdefault((d, size.value), name)
                if known != name:
                    found[name] = known
    return found


@record
class _OnCpu:
    """Asks the CPU. most: elements that an operand may have. Raises: TooLargeError, CannotTell."""

    is_refused: bool
    most: int

    def __call__(self, name: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], type_of: TypeOf) -> Found:
        types = [type_of(value) for arg in (*args, *kwargs.values()) for value in values_in(arg)]
        if any(isinstance(t, TensorType) and t.numel > self.most for t in types):
            raise TooLargeError
        try:
            return cpu_outcome(name, args, kwargs, type_of, is_for_all_data=self.is_refused)
        except CannotRun as error:
            raise CannotTell(str(error)) from None


def _at_once(ask: _OnCpu, name: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], *, is_typed: bool) -> Found:
    """is_typed: what is too large to be tried is inferred from types."""
    try:
        return ask(name, args, kwargs, type_of)
    except TooLargeError:
        if not is_typed:
            raise CannotTell(f"the operands of {name} are large") from None
        try:
            types = infer(name, args, kwargs)
        except InternalError as error:
            raise CannotTell(error.what) from None
        return types, tuple(frozenset() for _ in types)

"""Results of operators on fake tensors by the type functions of `ops.shapes`, without torch's kernels for these.

Those kernels take milliseconds for an operator that is decomposed (a linear layer, a norm) and ask for more than is
needed. A type function that is not told what eager gives says nothing (None); torch's kernel runs then.

Invariant: a type function asks nothing of the trace that leaves a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs
from smelt._torch.seen.staged_fakes import FakeTensors
from smelt._torch.state import is_any_autocast
from smelt.capture.dynamic.arithmetic import is_symbolic
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.typed_calls import shown, tensors_in, type_of, typed_call
from smelt.diag import InternalError
from smelt.ir import TensorType
from smelt.ir.sizes import SizeLeak, UndecidedError
from smelt.ops.convert import dtype_to_torch
from smelt.ops.meta import CannotRun, static_outcome
from smelt.ops.shapes.symbolic import CannotTell, has_type_function, infer_ruled, ruled_view
from smelt.ops.shapes.views import Layout, row_major

Rule = Callable[[FakeTensors, OpArgs, OpKwargs], Any]

# Operators whose kernels without data take one step after the other.
_LAYERS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
PACKED_LAYERS = frozenset(f"aten.{name}.data" for name in _LAYERS)
TURNS = frozenset(f"aten.{name}.input" for name in _LAYERS) | PACKED_LAYERS
_VIEWS = frozenset(("aten.view.default", "aten.reshape.default"))
"""Views of which torch's kernels without data ask more than the view does."""


def has_rule(name: str, trace: CaptureTrace | None) -> bool:
    """Whether there may be a rule for an operator, and torch's kernel is not sooner done."""
    return has_type_function(name) or (trace is not None and (name in _OWN or name in _VIEWS))


def by_rule(
    fakes: FakeTensors, trace: CaptureTrace | None, name: str, args: Sequence[object], kwargs: dict[str, object]
) -> object:
    """The result of an operator on fake tensors where there is a rule for it, and it says something; else None.

    Autocast chooses the dtypes below the operator's entry, where rules do not look.
    """
    if is_any_autocast() or _needs_grad(tensors_in((*args, *kwargs.values()))):
        return None
    own = _OWN.get(name)
    if own is not None:
        return own(fakes, args, kwargs)
    try:
        with nullcontext() if trace is None else trace.without_guards():
            told = _told(trace, name, args, kwargs)
    except (CannotTell, CannotRun, UndecidedError, SizeLeak, InternalError, TypeError, IndexError):
        return None
    if isinstance(told, Layout):
        return fakes.view(args[0], shown(trace, told.sizes), shown(trace, told.strides))
    made = [_made(fakes, trace, type_) for type_ in told or ()]
    return None if not made or None in made else made[0] if len(made) == 1 else tuple(made)


def _told(
    trace: CaptureTrace | None, name: str, args: Sequence[Any], kwargs: dict[str, object]
) -> Layout | list[TensorType] | None:
    """How the view lies that an operator gives, or the types of results that have memory of their own."""
    if any(t.is_neg() or (t.dtype.is_complex and t.is_conj()) for t in tensors_in((*args, *kwargs.values()))):
        return None
    arguments, named, _ = typed_call(args, kwargs)
    if name in _VIEWS and trace is not None:
        layouts = ruled_view(name, arguments, named, type_of, 0)
        if layouts is not None:
            return layouts[0] if _are_sizes(layouts[0].sizes) else None
    types, shares = infer_ruled(name, arguments, named, type_of, static_outcome) or ((), ())
    found = [t for t in types if isinstance(t, TensorType) and _are_sizes(t.sizes)]
    return None if any(shares) or len(found) < len(types) else found


def _are_sizes(sizes: Sequence[Any]) -> bool:
    """Whether numbers are sizes from which strides follow, whatever symbols are: all but the first are positive."""
    least = [n.trace.bounds(n.poly)[0] if is_symbolic(n) else n for n in sizes]
    return all(n >= (i > 0) for i, n in enumerate(least))


def _made(fakes: FakeTensors, trace: CaptureTrace | None, type_: TensorType) -> object:
    """A fake tensor of memory of its own."""
    steps = row_major(type_.sizes) if type_.strides is None else type_.strides
    sizes = shown(trace, type_.sizes), shown(trace, steps)
    return fakes.direct(dtype_to_torch(type_.dtype), *sizes, torch.device(type_.device))


def _needs_grad(tensors: Iterable[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


# --- operators whose kernels without data take no symbols


def _truth(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    """Of all elements: torch's own gives a Python object, which takes no symbols."""
    return fakes.direct(torch.bool, [], [], args[0].device)


def _filled(fakes: FakeTensors, args: OpArgs, kwargs: OpKwargs) -> object:
    """Of a matrix of any sizes: torch's own asks for numbers. A write to all of it counts as this one does."""
    if args[0].dim() != 2:
        return None
    with fakes.running(), torch.no_grad():
        return args[0].zero_()


_OWN: dict[str, Rule] = {
    **dict.fromkeys(("aten._is_all_true.default", "aten._is_any_true.default"), _truth),
    "aten.fill_diagonal_.default": _filled,
}

"""What open tensors answer: sizes, ranks, element types, indexing; to converted code here, to all other by patches.

Invariant: nothing of the stand-in behind an open tensor is ever seen: what types do not tell is staged.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from smelt._torch.seen.dispatch import is_live
from smelt._torch.seen.record_patches import Getter, Patches
from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.putting import put
from smelt.capture.scripting.values.sequences import OpenTuple, PlainShape
from smelt.capture.staging import current
from smelt.capture.staging.fakes.symbols import StagedObject, is_staged, slot_of, wrap
from smelt.ir import ANY, BOOL, COMPLEX, FLOAT, INT, DType, ListType, TensorType
from smelt.ops.unknown_kinds import POSITIONS, is_known

_patches = Patches()
_READ = ("dtype", "device", "layout", "requires_grad", "is_cuda", "is_leaf", "itemsize", "nbytes")
# A tensor of these picks what it is true for; without dimensions it picks all or nothing.
_OF_MASKS = (DType.BOOL, DType.U8)


def session_now() -> Open | None:
    """The session of a scripted run of this thread, where the program itself asks."""
    found = current.found()
    return found.domain if found is not None and isinstance(found.domain, Open) and is_live() else None


def is_symbolic(domain: Open, tensor: object) -> bool:
    """Whether a tensor depends on what only a run knows; parameters have true types."""
    return isinstance(tensor, torch.Tensor) and domain.recorder.slot_of(tensor).kind in ("result", "input")


def attribute(domain: Open, tensor: torch.Tensor, name: str) -> Any:
    """`tensor.name` where it is one that a type may not tell; NotImplemented for all others."""
    if name == "_version":
        domain.recorder.read_version(tensor)
    if not is_symbolic(domain, tensor):
        return NotImplemented
    if name == "__class__":
        return torch.Tensor
    if name in _METHODS:
        return TensorMethod(domain, tensor, name)
    type_ = domain.type_of(tensor)
    match name:
        case "data":
            return torch.ops.aten.detach.default(tensor)
        case "shape":
            return domain.sizes(tensor)
        case "ndim":
            return domain.rank(tensor)
        case "dtype" | "itemsize" if type_.dtype != DType.UNKNOWN:
            return NotImplemented
        case "layout" | "device" if type_.is_static:
            return NotImplemented
        case "is_leaf" | "requires_grad":
            return domain.attribute(tensor, name)
        case "is_sparse" | "is_quantized" | "is_mkldnn" | "is_meta":
            return False
    if name in _READ:
        return domain.attribute(tensor, name)
    if name in ("grad", "grad_fn"):
        domain.cannot(f".{name} of a tensor", "a graph knows values only")
    return NotImplemented


# --- methods ---------------------------------------------------------------------------------------------------------


def _size(domain: Open, tensor: torch.Tensor, dim: Any = None) -> object:
    return domain.sizes(tensor) if dim is None else domain.session.size(tensor, dim)


def _stride(domain: Open, tensor: torch.Tensor, dim: Any = None) -> object:
    if dim is not None:
        return domain.session.size(tensor, dim, "stride")
    rank = domain.type_of(tensor).rank
    if rank is None:
        return PlainShape(domain.read("aten.sym_stride.default", tensor, ListType(INT)))
    return tuple(domain.session.size(tensor, i, "stride") for i in range(rank))


def _is(kinds: tuple[str, ...], op: str) -> Callable[..., object]:
    def ask(domain: Open, tensor: torch.Tensor) -> Any:
        dtype = domain.type_of(tensor).dtype
        return wrap(domain.read(op, tensor, BOOL)) if dtype == DType.UNKNOWN else dtype.kind in kinds

    return ask


def _is_contiguous(domain: Open, tensor: torch.Tensor, memory_format: object = torch.contiguous_format) -> object:
    if domain.type_of(tensor).is_static:
        return NotImplemented
    if memory_format != torch.contiguous_format:
        domain.cannot(f"is_contiguous({memory_format}) of a tensor of open sizes")
    return wrap(domain.read("aten.is_contiguous.default", tensor, BOOL))


def _contiguous(domain: Open, tensor: torch.Tensor, *args: object, **kwargs: object) -> object:
    # torch's method gives a tensor back that lies so, as the stand-in may do, without calling the operator.
    type_ = domain.type_of(tensor)
    if type_.is_static or (type_.shape is not None and type_.strides is None):
        return NotImplemented
    return torch.ops.aten.contiguous.default(tensor, *args, **kwargs)


def _conj(domain: Open, tensor: torch.Tensor) -> object:
    # torch gives a real tensor back as it is, as the stand-in may be, without calling the operator.
    return torch.ops.aten.conj.default(tensor) if domain.type_of(tensor).dtype == DType.UNKNOWN else NotImplemented


def _tolist(domain: Open, tensor: torch.Tensor) -> object:
    type_ = domain.type_of(tensor)
    if type_.rank == 0:
        return domain.item(tensor)
    if type_.is_static and type_.numel <= 64:
        return NotImplemented
    if type_.rank == 1 and type_.dtype != DType.UNKNOWN:
        return domain.emit("py.call", "Tensor.tolist", tensor)
    return domain.cannot(
        f"tolist() of a tensor {type_}", 'what it holds follows from its type: annotate it (smelt.i64["B"])'
    )


_METHODS: dict[str, Callable[..., object]] = {
    "size": _size, "stride": _stride, "dim": lambda s, t: s.rank(t), "ndimension": lambda s, t: s.rank(t),
    "numel": lambda s, t: s.numel(t), "nelement": lambda s, t: s.numel(t), "item": lambda s, t: s.item(t),
    "is_floating_point": _is(("float",), "aten.is_floating_point.default"),
    "is_complex": _is(("complex",), "aten.is_complex.default"),
    "is_contiguous": _is_contiguous, "contiguous": _contiguous, "conj": _conj, "tolist": _tolist,
    "element_size": lambda s, t: s.attribute(t, "itemsize"),
}  # fmt: skip


def method(domain: Open, name: str, tensor: object, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """`tensor.name(...)` where it asks for what a type may not tell; NotImplemented for all others."""
    answer = _METHODS.get(name)
    if answer is None or not is_symbolic(domain, tensor):
        return NotImplemented
    return answer(domain, tensor, *args, **kwargs)


class TensorMethod:
    """`tensor.name`, not called yet."""

    def __init__(self, domain: Open, tensor: torch.Tensor, name: str) -> None:
        self.domain, self.tensor, self.name = domain, tensor, name

    def __call__(self, *args: object, **kwargs: object) -> object:
        found = method(self.domain, self.name, self.tensor, args, kwargs)
        return getattr(self.tensor, self.name)(*args, **kwargs) if found is NotImplemented else found


# --- indexing --------------------------------------------------------------------------------------------------------


def needs_care(domain: Open, tensor: object, key: object) -> bool:
    """Whether C would look at the stand-in's sizes, or need numbers that only a run knows."""
    if has_open_sizes(domain, tensor):
        return True
    keys = key if isinstance(key, tuple) else (key,)
    return any(
        is_staged(item)
        or (isinstance(item, slice) and any(_is_run_time(domain, b) for b in (item.start, item.stop, item.step)))
        or (isinstance(item, torch.Tensor) and is_symbolic(domain, item))
        for item in keys
    )


def has_open_sizes(domain: Open, value: object) -> bool:
    """Whether only a run knows the sizes of a value, which is a tensor."""
    if domain.is_open(value):
        return True
    return isinstance(value, torch.Tensor) and is_symbolic(domain, value) and not domain.type_of(value).is_static


def _is_run_time(domain: Open, value: object) -> bool:
    return is_staged(value) or (isinstance(value, torch.Tensor) and is_symbolic(domain, value))


def index(domain: Open, tensor: torch.Tensor, key: Any) -> Any:
    """`tensor[key]` as the operators that eager calls."""
    if _is_of_tensors(key):
        if not _takes_all(domain, key):
            return _with_unsure(domain, torch.ops.aten.index.Tensor(tensor, domain.tensors_mark(slot_of(key))), key)
        key = ()
    view, rest = _basic(domain, tensor, key)
    if rest is None:
        # An index that takes all is a view of its own.
        return torch.ops.aten.alias.default(view) if view is tensor else view
    return _with_unsure(domain, torch.ops.aten.index.Tensor(view, rest), key)


def _is_of_tensors(key: object) -> bool:
    """Whether an index is a tuple of tensors, of a length that a run knows."""
    return isinstance(key, OpenTuple) and isinstance(key.items_type, TensorType)


def _takes_all(domain: Open, key: OpenTuple) -> bool:
    """Whether such an index is empty; positions of elements never are, for a number has one too."""
    is_known_full = key.items_type == POSITIONS
    return not is_known_full and not domain.fork(slot_of(domain.emit("py.gt", domain.emit("py.len", key), 0)))


def _with_unsure(domain: Open, found: object, key: object) -> object:
    """What an index took: a single number takes a view, all else a copy."""
    type_: Any = key.items_type if isinstance(key, OpenTuple) else None
    if isinstance(key, torch.Tensor):
        type_ = domain.type_of(key)
    if type_ is not None and not is_known(type_):
        family = domain.recorder.slot_of(found).family
        domain.operators.unsure[id(family)] = family
    return found


def set_index(domain: Open, tensor: torch.Tensor, key: Any, value: object) -> None:
    """`tensor[key] = value`."""
    if _is_of_tensors(key):
        view, rest = tensor, None if _takes_all(domain, key) else domain.tensors_mark(slot_of(key))
    else:
        view, rest = _basic(domain, tensor, key)
    if not isinstance(value, torch.Tensor):
        number = _mark(domain, value)
        if isinstance(number, torch.Tensor):
            value = number if rest is None else number.to(view)
        elif rest is None:
            torch.ops.aten.fill_.Scalar(view, number)
            return
        else:
            value = torch.scalar_tensor(number).to(view)
    if rest is not None:
        torch.ops.aten.index_put_.default(view, rest, value)
    else:
        put(domain, view, value)


def _mark(domain: Open, value: Any) -> object:
    """A number for torch's parsers; a tensor for a value of which even the kind is known to a run only."""
    if not is_staged(value):
        return value
    type_ = slot_of(value).type
    if type_ == BOOL:
        return bool(value)
    found = domain.operators.marks.of(slot_of(value))
    if found is None and type_ != ANY:
        domain.cannot(f"a {type_} is written into a tensor")
    return domain.as_tensor(value) if found is None else found


def _basic(domain: Open, tensor: torch.Tensor, key: object) -> tuple[object, list[object] | None]:
    """The view that numbers and slices stand for, and the tensors that index it, by dimension."""
    if isinstance(key, torch.Tensor) and not _is_number(domain, key) and not _is_flag(domain, key):
        return tensor, [key]
    if isinstance(key, list):
        _check_list(domain, key)
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(_dims_of(domain, k) for k in keys if k is not None and k is not Ellipsis)
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    rank = domain.type_of(tensor).rank
    dim, view = 0, tensor
    rest: dict[int, object] = {}
    for number, item in enumerate(keys):
        if item is Ellipsis:
            dim += 0 if rank is None else rank - used
            continue
        # Behind an ellipsis of open width, dimensions are counted from the end.
        is_behind = number > at and rank is None
        place = -1 - sum(_dims_of(domain, k) for k in keys[number + 1 :] if k is not None) if is_behind else dim
        if item is None:
            view = torch.unsqueeze(view, place)
            dim += 1
        elif isinstance(item, slice):
            bounds = [_bound(domain, b) for b in (item.start, item.stop, item.step)]
            if bounds != [None, None, None]:
                step = 1 if bounds[2] is None else bounds[2]
                view = torch.ops.aten.slice.Tensor(view, place, bounds[0], bounds[1], step)
            dim += 1
        elif isinstance(item, (list, range, tuple)) and not is_staged(item):
            rest[place] = torch.tensor(list(item))
            dim += 1
        elif isinstance(item, torch.Tensor) and _is_flag(domain, item):
            # It takes all or nothing, along a dimension of its own.
            view = torch.unsqueeze(view, place)
            rest[place] = torch.unsqueeze(item != 0, 0)
            dim += 1
        elif isinstance(item, torch.Tensor) and not _is_number(domain, item):
            rest[place] = item
            dim += _dims_of(domain, item)
        elif is_staged(item) and slot_of(item).type == ListType(INT):
            rest[place] = domain.emit("py.call", "torch.LongTensor", item)
            dim += 1
        elif isinstance(item, (bool, StagedObject)):
            kind = slot_of(item).type if is_staged(item) else type(item).__qualname__
            domain.cannot(f"a tensor is indexed with a value {kind}", "annotate the tensor that it comes from")
        elif is_staged(item) and slot_of(item).type in (FLOAT, COMPLEX):
            torch.ones(1)[0.0 if slot_of(item).type == FLOAT else 0j]  # torch says that it is no index
        elif not hasattr(item, "__index__"):
            torch.ones(1)[item]
        elif not isinstance(item, torch.Tensor) and getattr(item, "shape", None):
            domain.cannot("a tensor is indexed with an array of NumPy's", "give it as a tensor")
        else:
            view = torch.ops.aten.select.int(view, place, _bound(domain, item))
    if not rest:
        return view, None
    if any(place < 0 for place in rest):
        domain.cannot("a tensor of unknown rank is indexed with a tensor after an ellipsis")
    return view, [rest.get(i) for i in range(max(rest) + 1)]


def _check_list(domain: Open, key: list[object]) -> None:
    """Raises: CannotStage for a list of what torch takes for a tuple, and is going to take for a tensor."""
    if any(not hasattr(item, "__index__") or isinstance(item, torch.Tensor) for item in key):
        domain.cannot("a tensor is indexed with a list that holds more than numbers", "give a tuple, or a tensor")


def _dims_of(domain: Open, item: object) -> int:
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        type_ = domain.type_of(item)
        if type_.dtype in _OF_MASKS:
            if type_.rank is None:
                domain.cannot("a tensor is indexed with a mask of unknown rank")
            return type_.rank or 0
    return 1


def _is_number(domain: Open, item: torch.Tensor) -> bool:
    type_ = domain.type_of(item)
    return type_.rank == 0 and type_.dtype.is_integral and type_.dtype not in _OF_MASKS


def _is_flag(domain: Open, item: torch.Tensor) -> bool:
    """Whether a tensor is a mask of no dimensions."""
    type_ = domain.type_of(item)
    return type_.rank == 0 and type_.dtype in _OF_MASKS


def _bound(domain: Open, value: object) -> object:
    if isinstance(value, torch.Tensor):
        value = domain.item(value) if is_symbolic(domain, value) else int(value)
    value = domain.index_of(value)
    if value is not None and not is_staged(value) and not hasattr(value, "__index__"):
        slice(value).indices(0)  # Python says what is no bound
    if is_staged(value):
        mark = domain.operators.marks.of(slot_of(value))
        return domain.cannot(f"a tensor is indexed with a {slot_of(value).type}") if mark is None else mark
    return value


# --- patches for code that is not converted --------------------------------------------------------------------------


def _is_own(frame: FrameType) -> bool:
    """Whether Smelt itself asks, or torch for it."""
    name = frame.f_globals.get("__name__", "")
    return bool(name.startswith(("smelt.", "torch._subclasses", "torch._prims", "torch._refs", "torch._meta")))


def _property(name: str) -> Callable[[object], object]:
    def make(original: Any) -> Any:
        def read(self: Any) -> Any:
            domain = None if _is_own(sys._getframe(1)) else session_now()
            found = NotImplemented if domain is None else attribute(domain, self, name)
            return original.__get__(self, type(self)) if found is NotImplemented else found

        return Getter(original, read)

    return make


def _asked(name: str) -> Callable[[object], object]:
    def make(original: Any) -> Any:
        def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
            domain = None if _is_own(sys._getframe(1)) else session_now()
            found = NotImplemented if domain is None else method(domain, name, self, args, kwargs)
            return original(self, *args, **kwargs) if found is NotImplemented else found

        return ask

    return make


@contextlib.contextmanager
def answering_open() -> Iterator[None]:
    """Open tensors answer code that is not converted, too, in what the staged run leaves to torch."""
    with contextlib.ExitStack() as stack:
        for name in ("ndim", "dtype", "device", "layout", "requires_grad", "is_cuda", "is_leaf", "grad", "grad_fn"):
            stack.enter_context(_patches.replaced(torch.Tensor, name, _property(name)))
        for name in (
            "dim",
            "ndimension",
            "is_floating_point",
            "is_complex",
            "is_contiguous",
            "contiguous",
            "element_size",
        ):
            stack.enter_context(_patches.replaced(torch.Tensor, name, _asked(name)))
        yield


AS_PYTHON: tuple[Callable[..., object], ...] = (
    method,
    index,
    set_index,
    _basic,
    _bound,
    _property,
    _asked,
    *_METHODS.values(),
)
"""What does for the program what Python does: what is raised there is the program's."""

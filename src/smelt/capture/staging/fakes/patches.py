"""What torch's tensors answer Python during a staged run: sizes, elements, truth, indexing with staged numbers.

Invariant: replacements look at the thread, and at whether the program itself asks (`is_live`), so that torch's own
kernels for fake tensors and other threads see what is really there.
"""

from __future__ import annotations

import builtins
import contextlib
import warnings
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.dispatch import is_live, unseen
from smelt._torch.seen.record_patches import Descriptor, Getter, Method, Patches
from smelt._torch.seen.staged_fakes import is_fake, sets_fakes
from smelt.capture.convert.runtime import current as current_runtime
from smelt.capture.dynamic.values import is_sized, own
from smelt.capture.recording.tensor_slots import StateSlot, slot_type
from smelt.capture.staging import current
from smelt.capture.staging.calls import record_print
from smelt.capture.staging.fakes.symbols import is_staged, slot_of
from smelt.capture.staging.flow.branches import condition
from smelt.capture.staging.flow.stops import CannotMerge
from smelt.capture.staging.objects.handlers import is_caught
from smelt.capture.staging.warned import record_warning
from smelt.capture.structure.plain import is_plain_sequence
from smelt.ir import INT, ListType, UnknownDim
from smelt.ir.size_numbers import MARK

if TYPE_CHECKING:
    from smelt.capture.staging.fakes.fake_tensors import FakeRecorder
    from smelt.capture.staging.session import Session

_patches = Patches()
_NEW = object()
_NO_MORE = "a graph changes the elements of tensors, and no more"


def _session() -> Session | None:
    found = current.found()
    return found if found is not None and is_live() else None


def _tainted(session: Session, tensor: object) -> bool:
    return bool(session.recorder.slot_of(tensor).family.tainted)


def _shape(original: Descriptor) -> property:
    def read(self: torch.Tensor) -> object:
        sizes = original.__get__(self, type(self))
        session = _session()
        if session is None or session.recorder.slot_of(self) not in session.recorder.varied:
            return sizes if session is None or session.size_trace is None else torch.Size(session.reading.shown(sizes))
        return torch.Size([session.size(self, i) for i in range(len(sizes))])

    return Getter(original, read)


def _size(what: str) -> Callable[[Method], Method]:
    def make(original: Method) -> Method:
        def size(self: torch.Tensor, dim: int | None = None) -> object:
            session = _session()
            if session is None or session.recorder.slot_of(self) not in session.recorder.varied:
                found = original(self) if dim is None else original(self, dim)
                if session is None or session.size_trace is None:
                    return found
                return own(found) if dim is not None else type(found)(session.reading.shown(found))
            if dim is not None:
                return session.size(self, dim, what)
            found = [session.size(self, i, what) for i in range(self.dim())]
            return torch.Size(found) if what == "size" else tuple(found)

        return size

    return make


def _is_contiguous(original: Method) -> Method:
    def is_contiguous(self: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format) -> object:
        session = _session()
        if session is None or session.recorder.slot_of(self) not in session.recorder.varied:
            return original(self, memory_format=memory_format)
        return session.reading.is_contiguous(self, memory_format)

    return is_contiguous


def _storage_offset(original: Method) -> Method:
    def storage_offset(self: torch.Tensor) -> object:
        session = _session()
        if session is None or not _tainted(session, self):
            return original(self)
        return session.reading.storage_offset(self)

    return storage_offset


def _base(original: Descriptor) -> property:
    def read(self: torch.Tensor) -> object:
        found = original.__get__(self, type(self))
        session = _session()
        return found if session is None else session.reading.base_of(self)

    return Getter(original, read)


def _is_view(original: Method) -> Method:
    def read(self: torch.Tensor) -> bool:
        session = _session()
        if session is not None:
            session.reading.check_made_on_all_paths(self)
        found: bool = original(self)
        return found

    return read


def _version(original: Descriptor) -> property:
    def read(self: torch.Tensor) -> int:
        found: int = original.__get__(self, type(self))
        session = _session()
        return found if session is None else session.reading.version_of(self)

    return Getter(original, read)


def _numel(original: Method) -> Method:
    def numel(self: torch.Tensor) -> object:
        session = _session()
        return original(self) if session is None else session.numel(self)

    return numel


def _nbytes(original: Descriptor) -> property:
    def read(self: torch.Tensor) -> object:
        session = _session()
        if session is None or session.recorder.slot_of(self) not in session.recorder.varied:
            return original.__get__(self, type(self))
        return session.numel(self) * self.element_size()

    return Getter(original, read)


def _is_open(session: Session, tensor: object) -> bool:
    """Whether how a tensor lies follows from data."""
    slot = session.recorder.slot_of(tensor)
    return slot in session.recorder.varied and slot_type(slot).strides is not None


def _contiguous(original: Method) -> Method:
    def contiguous(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        session = _session()
        if session is None or not _is_open(session, self):
            return original(self, *args, **kwargs)
        # torch's method asks the fake tensor only, and calls no operator where that lies so.
        return torch.ops.aten.contiguous.default(self, *args, **kwargs)

    return contiguous


def _len(original: Method) -> Method:
    def length(self: torch.Tensor) -> object:
        session = _session()
        if session is None or self.dim() == 0:
            return original(self)
        if session.size_trace is None and session.recorder.slot_of(self) not in session.recorder.varied:
            return original(self)
        found = session.size(self, 0)
        return int(found)

    return length


def _item(original: Method) -> Method:
    def item(self: torch.Tensor) -> object:
        session = _session()
        return session.item(self) if session is not None and _tainted(session, self) else original(self)

    return item


def _truth(original: Method) -> Method:
    def truth(self: torch.Tensor) -> object:
        session = _session()
        if session is None or not _tainted(session, self):
            return original(self)
        known = session.reading.known_value(self)
        if known is not None:
            return bool(known)
        asked = condition(session, self)
        assert asked is not None, "a tainted tensor's truth depends on data"
        return session.decide(asked)

    return truth


def _number(kind: type) -> Callable[[Method], Method]:
    def make(original: Method) -> Method:
        def convert(self: torch.Tensor) -> object:
            session = _session()
            if session is None or not _tainted(session, self):
                return original(self)
            session.want_converted()
            return kind(session.item(self))

        return convert

    return make


def _tolist(original: Method) -> Method:
    def tolist(self: torch.Tensor) -> object:
        session = _session()
        if session is None or not _tainted(session, self):
            return original(self)
        type_ = slot_type(session.recorder.slot_of(self))
        if not type_.is_static or type_.numel > 256:
            session.cannot(f"the elements of a tensor {type_} become a list", "there are too many, or unknown ones")
        return _nested(session, self)

    return tolist


def _nested(session: Session, tensor: torch.Tensor) -> object:
    if tensor.dim() == 0:
        return session.item(tensor)
    return [_nested(session, torch.select(tensor, 0, i)) for i in range(tensor.shape[0])]


def _text(original: Method) -> Method:
    def text(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        session = _session()
        if session is None or not _tainted(session, self):
            return original(self, *args, **kwargs)
        session.want_converted()
        return session.cannot("a tensor becomes text", "code that is not converted formats it")

    return text


def _contains(original: Method) -> Method:
    def contains(self: torch.Tensor, item: object) -> object:
        session = _session()
        if session is None or not _tainted(session, self):
            return original(self, item)
        return bool(session.item((item == self).any()))

    return contains


def _iter(original: Method) -> Method:
    def iterate(self: torch.Tensor) -> object:
        session = _session()
        if session is not None and self.dim():
            size = slot_type(session.recorder.slot_of(self)).shape
            if size is None or not isinstance(size[0], int):
                session.want_converted()
                if size is None or isinstance(size[0], UnknownDim):
                    session.cannot("a tensor is iterated over whose first size depends on data")
        return original(self)

    return iterate


# --- indexing --------------------------------------------------------------------------------------------------------


def _getitem(original: Method) -> Method:
    def getitem(self: torch.Tensor, key: object) -> object:
        session = _session()
        if session is not None:
            key = _with_tensors(session, key)
        if session is None or not _needs_care(session, self, key):
            with _indexing(session, key):
                return original(self, key)
        view, rest = _basic(session, self, key)
        return view if rest is None else original(view, rest)

    return getitem


def _setitem(original: Method) -> Method:
    def setitem(self: torch.Tensor, key: object, value: object) -> None:
        session = _session()
        if session is not None:
            key = _with_tensors(session, key)
        if session is None or not (_needs_care(session, self, key) or is_staged(value) or is_sized(value)):
            indices = key if isinstance(key, tuple) else (key,)
            if session is not None and _is_one_by_chance(session, value) and all(map(torch.is_tensor, indices)):
                # C drops leading sizes of 1 from what is put, and this one is the data's.
                self.index_put_(indices, value)
                return
            with _indexing(session, key):
                original(self, key, value)
            return
        view, rest = _basic(session, self, key)
        if is_staged(value):
            value = torch.scalar_tensor(value, dtype=view.dtype)
        if rest is not None:
            original(view, rest, torch.scalar_tensor(value, dtype=view.dtype) if is_sized(value) else value)
        elif isinstance(value, torch.Tensor):
            view.copy_(value.expand(view.shape) if value.dim() <= view.dim() else value.reshape(view.shape))
        else:
            view.fill_(value)

    return setitem


def _is_one_by_chance(session: Session, value: object) -> bool:
    """Whether this is a tensor whose first size is 1 in this run, and follows from data."""
    if not isinstance(value, torch.Tensor) or session.recorder.slot_of(value) not in session.recorder.varied:
        return False
    with unseen():  # asks what is there
        return value.dim() > 0 and value.shape[0] == 1


@contextlib.contextmanager
def _indexing(session: Session | None, key: object) -> Iterator[None]:
    """Several indices at once: torch passes over slices of the whole where it knows the sizes, and so do we.

    Raises: CannotStage where the program catches an error whose text has a size that is free.
    """
    if session is None or session.size_trace is None:
        yield
        return
    before = session.recorder.is_indexing
    session.recorder.is_indexing = before or isinstance(key, tuple)
    try:
        yield
    except IndexError as error:
        if MARK in str(error) and is_caught(session):
            session.cannot("an index raises what is caught", "its text names sizes that are free")
        raise
    finally:
        session.recorder.is_indexing = before


def _with_tensors(session: Session, key: object) -> object:
    """A key in which a list or tuple of numbers that depend on data is a tensor, which is what torch makes of it, and a
    byte without dimensions the mask that it is to torch.
    """
    if type(key) is tuple:
        return tuple(_with_tensor(session, item) for item in key)
    # A list that holds tensors or lists is a tuple to torch.
    is_plain = type(key) is list and not any(isinstance(item, (torch.Tensor, list, tuple)) for item in key)
    return _with_tensor(session, key) if is_plain or isinstance(key, torch.Tensor) else key


def _with_tensor(session: Session, item: object) -> object:
    if isinstance(item, torch.Tensor) and item.dtype == torch.uint8 and not item.dim() and _tainted(session, item):
        return item != 0
    if not is_plain_sequence(item) or not item or not _is_of_numbers(item) or not _holds_data(session, item):
        return item
    return torch.stack([_as_tensor(session, part) for part in item])


def _as_tensor(session: Session, item: object) -> torch.Tensor:
    if is_plain_sequence(item):
        return torch.stack([_as_tensor(session, part) for part in item])
    if isinstance(item, torch.Tensor):
        return item if item.dtype == torch.int64 else item.to(torch.int64)
    return torch.scalar_tensor(item, dtype=torch.int64)


def _is_of_numbers(item: object) -> bool:
    """Whether this is a whole number (one in a tensor, or staged), or a list or tuple of some however deep."""
    if is_plain_sequence(item):
        return bool(item) and all(map(_is_of_numbers, item))
    if isinstance(item, torch.Tensor):
        return item.dim() == 0 and _is_index(item)
    return type(item) is int or (is_staged(item) and slot_of(item).type == INT)


def _holds_data(session: Session, item: object) -> bool:
    if is_plain_sequence(item):
        return any(_holds_data(session, part) for part in item)
    return is_staged(item) or (isinstance(item, torch.Tensor) and _tainted(session, item))


def _needs_care(session: Session, tensor: object, key: object) -> bool:
    """Whether C would need a number for what depends on data: staged indices, slices of unknown sizes; and places
    among items, which it compares with how many there are in this run.
    """
    keys = key if isinstance(key, tuple) else (key,)
    varied = session.recorder.slot_of(tensor) in session.recorder.varied
    for item in keys:
        if is_staged(item) or is_sized(item) or (varied and _is_place(item)):
            return True
        if isinstance(item, slice) and (varied or any(map(is_staged, (item.start, item.stop, item.step)))):
            return True
        if isinstance(item, torch.Tensor) and item.dim() == 0 and _is_index(item) and _tainted(session, item):
            return True
        if isinstance(item, slice) and any(isinstance(b, torch.Tensor) for b in (item.start, item.stop, item.step)):
            return True
    return False


def _is_place(item: object) -> bool:
    """Whether this is a whole number, Python's or NumPy's."""
    return isinstance(item, Integral) and not isinstance(item, bool)


def _is_of_ints(item: object) -> bool:
    """Whether this is an int, or a list of them however deep."""
    return all(map(_is_of_ints, item)) if type(item) is list else type(item) is int


def _is_index(item: torch.Tensor) -> bool:
    return item.dtype in (torch.int64, torch.int32, torch.int16, torch.int8)


def _basic(session: Session, tensor: torch.Tensor, key: object) -> tuple[torch.Tensor, tuple[object, ...] | None]:
    """The view that the numbers and slices of a key stand for, and what is left of the key (None: nothing)."""
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(1 if not isinstance(k, torch.Tensor) or not _is_mask(k) else k.dim() for k in keys
               if k is not None and k is not Ellipsis)  # fmt: skip
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    dim, view = 0, tensor
    rest: list[object] = []
    for item in keys:
        if item is Ellipsis:
            for _ in range(tensor.dim() - used):
                rest.append(slice(None))
                dim += 1
        elif item is None:
            view = view.unsqueeze(dim)
            rest.append(slice(None))
            dim += 1
        elif isinstance(item, slice):
            bounds = [_index(session, b) for b in (item.start, item.stop, item.step)]
            if any(bound is not None for bound in bounds):
                view = torch.ops.aten.slice.Tensor(view, dim, *bounds[:2], 1 if bounds[2] is None else bounds[2])
            rest.append(slice(None))
            dim += 1
        elif isinstance(item, torch.Tensor) and not (item.dim() == 0 and _is_index(item)):
            rest.append(item)
            dim += item.dim() if _is_mask(item) else 1
        elif type(item) is list and _is_of_ints(item):
            rest.append(torch.tensor(item, dtype=torch.int64))  # which is what torch makes of it
            dim += 1
        elif is_staged(item) and slot_of(item).type == ListType(INT):
            rest.append(session.emit("py.call", "torch.LongTensor", item))
            dim += 1
        elif not (_is_place(item) or isinstance(item, torch.Tensor) or is_staged(item)):
            session.cannot(f"a tensor is indexed with a {type(item).__qualname__} beside what depends on data")
        else:
            view = torch.select(view, dim, _index(session, item))
    return view, tuple(rest) if any(isinstance(r, torch.Tensor) for r in rest) else None


def _is_mask(item: torch.Tensor) -> bool:
    return item.dtype in (torch.bool, torch.uint8)


def _index(session: Session, value: object) -> object:
    if isinstance(value, torch.Tensor):
        return session.item(value) if _tainted(session, value) else int(value)
    return (
        int(value)
        if isinstance(value, Integral) and _is_place(value) and not (is_staged(value) or is_sized(value))
        else value
    )


def _differentiating(name: str) -> Callable[[Method], Method]:
    def make(original: Method) -> Method:
        def differentiate(*args: object, **kwargs: object) -> object:
            session = _session()
            if session is None:
                return original(*args, **kwargs)
            return getattr(session.gradients, name)(session, args, kwargs)

        return differentiate

    return make


def _grad(original: Descriptor) -> property:
    def read(self: torch.Tensor) -> object:
        session = _session()
        if session is None:
            return original.__get__(self, type(self))
        return session.gradients.of(self, lambda: original.__get__(self, type(self)))

    return Getter(original, read)


def _print(original: Method) -> Method:
    def show(*args: object, **kwargs: object) -> None:
        session = _session()
        if session is None:
            original(*args, **kwargs)
            return
        record_print(session, current_runtime(), args, kwargs)

    return show


def _warn(original: Method) -> Method:
    def warn(*args: Any, **kwargs: Any) -> None:
        session = current.found()
        if session is None:
            kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1 if len(args) < 3 else args[2] + 1
            original(*args[:2], **kwargs)
        elif is_live():  # else torch says something of a fake tensor
            record_warning(session, *args, **kwargs)

    return warn


def _stays_as_it_is(self: object, name: str, value: object = _NEW) -> None:
    """Python is about to change a tensor itself, beside its elements (`p.data = y`, `p.grad = y`, a hook on it).

    The tensors from outside of a staged run are the user's own, on each way that is tried. Others are made anew on each
    way that parts after them, but for those in which an arm or a loop finds them; attributes by name are put back.

    Raises: CannotStage for these, unless nothing changes.
    """
    session = _session()
    if session is None or not isinstance(self, torch.Tensor) or _is_made(self, name):
        return
    if name in ("grad", "requires_grad") and value is not _NEW and getattr(self, name) is value:
        return
    if name == "data" and value is self:  # as `module.to(dtype)` sets it where there is nothing to do
        return
    if _is_from_outside(session.recorder, self):
        session.cannot(f"`{name}` of a tensor from outside is set", _NO_MORE)
    is_noted = name != "data"  # else the recorder refuses it
    if (
        is_noted
        and _is_of_torch(type(self), name)
        and session.heap.snapshots
        and session.heap.snapshots[-1].reached(self)
    ):
        raise CannotMerge(f"`{name}` of a tensor is set on one path only", _NO_MORE, session.site())


def _is_from_outside(recorder: FakeRecorder, tensor: torch.Tensor) -> bool:
    """Whether the run found a tensor; it may have written to it since, which makes it another value of the graph."""
    if id(tensor) in recorder.roots.entries:
        return True
    return isinstance(recorder.slot_of(tensor), StateSlot) or any(slot.ref() is tensor for slot in recorder.inputs)


def _is_made(tensor: torch.Tensor, name: str) -> bool:
    """Whether torch makes a fake tensor where it sets an attribute."""
    return is_fake(tensor) and sets_fakes(name)


def _is_of_torch(cls: type, name: str) -> bool:
    """Whether what tensors of a class have by a name is no attribute in their own dictionary."""
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return hasattr(type(found), "__set__") or callable(found)


def _setattr(original: Method) -> Method:
    def setattr_(self: torch.Tensor, name: str, value: object) -> None:
        session = _session() if name == "grad" else None
        if session is not None and id(self) in session.recorder.roots.entries:
            session.gradients.put(session, self, value)
            return
        _stays_as_it_is(self, name, value)
        original(self, name, value)

    return setattr_


def _delattr(original: Method) -> Method:
    def delattr_(self: torch.Tensor, name: str) -> None:
        _stays_as_it_is(self, name)
        original(self, name)

    return delattr_


def _requires_grad(original: Method) -> Method:
    def requires_grad_(self: torch.Tensor, requires_grad: bool = True) -> object:
        _stays_as_it_is(self, "requires_grad", requires_grad)
        return original(self, requires_grad)

    return requires_grad_


def _hooked(original: Method) -> Method:
    def register(self: torch.Tensor, *args: object, **kwargs: object) -> object:
        _stays_as_it_is(self, original.__name__)
        return original(self, *args, **kwargs)

    return register


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Tensors answer for the session of this thread in the block."""
    tensor = torch.Tensor
    made: dict[str, Callable[[Any], object]] = {
        "shape": _shape, "size": _size("size"), "stride": _size("stride"), "numel": _numel, "nelement": _numel,
        "nbytes": _nbytes,
        "__len__": _len, "item": _item, "__bool__": _truth, "__int__": _number(int), "__float__": _number(float),
        "__index__": _number(int), "__complex__": _number(complex), "tolist": _tolist, "__repr__": _text,
        "__format__": _text, "__str__": _text, "__contains__": _contains, "__iter__": _iter, "__getitem__": _getitem,
        "__setitem__": _setitem, "is_contiguous": _is_contiguous, "contiguous": _contiguous,
        "storage_offset": _storage_offset, "__setattr__": _setattr, "__delattr__": _delattr,
        "grad": _grad, "_base": _base, "_is_view": _is_view, "_version": _version, "requires_grad_": _requires_grad,
        "register_hook": _hooked, "retain_grad": _hooked,
        "register_post_accumulate_grad_hook": _hooked,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, make in made.items():
            stack.enter_context(_patches.replaced(tensor, name, make))
        stack.enter_context(_patches.replaced(builtins, "print", _print))
        stack.enter_context(_patches.replaced(warnings, "warn", _warn))
        for name in ("backward", "grad"):
            stack.enter_context(_patches.replaced(torch.autograd, name, _differentiating(name)))
        yield


AS_PYTHON = (
    _shape, _size, _base, _is_view, _version, _nbytes, _len, _item, _truth, _number, _tolist, _text, _contains, _iter,
    _getitem, _setitem, _is_contiguous, _contiguous, _storage_offset, _setattr, _delattr, _grad, _requires_grad, _numel,
    _differentiating, _with_tensor, _basic, _index,
)  # fmt: skip
"""What does for the program what torch does: what is raised there is the program's."""

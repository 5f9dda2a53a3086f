"""What the dispatcher does not see: data that reach Python without an operator, and tensors made without one.

`tolist`, `numpy`, printing and their kin are replaced on `torch.Tensor` for the time of a recording (at any depth,
torch's own Python functions included). Below the dispatcher's entry, where `torch.tensor([t])` reads its elements
unseen, a torch function mode looks at the arguments too; at the entry it would add nothing and cost much.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Final

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch.overrides import TorchFunctionMode

from smelt._torch.collectives import TRACING, WRAP, functional_collectives
from smelt._torch.seen.dispatch import below_transforms, is_live, is_transformed, suspended
from smelt._torch.seen.leaves import is_leaf, requires_gradient
from smelt._torch.seen.mode_regions import Regions, watching_regions
from smelt._torch.seen.record_patches import (
    Descriptor,
    Getter,
    Method,
    Patches,
    eager_stance,
    has_override,
    higher_order_operator,
    in_class,
    is_custom_function_call,
    tensor_base,
)
from smelt.capture.reads.saved_memory import keeper
from smelt.capture.recording.gradients import flag_set, record_backward, record_grad
from smelt.capture.recording.recorder import Recorder
from smelt.capture.recording.spans import is_smelts, is_users
from smelt.diag.events import put_aside

# Each gives Python the elements, or a way to them.
_READERS = ("tolist", "numpy", "__array__", "__repr__", "__dlpack__", "__reduce_ex__", "apply_", "map_", "map2_")
# Harmless in torch's own code, which compares addresses; the user's code reads or writes through them.
_ADDRESSES = ("data_ptr", "storage", "untyped_storage")
_BUILDERS = ("tensor", "as_tensor", "asarray", "sparse_coo_tensor")


class _Thread(threading.local):
    recorder: Recorder | None = None


_thread = _Thread()
_patches = Patches()


def _active() -> Recorder | None:
    return _thread.recorder if _thread.recorder is not None and is_live() else None


def _regions() -> Regions | None:
    recorder = _active()
    return None if recorder is None else recorder.regions


def _reader(name: str) -> Callable[[Method], Method]:
    def make(original: Method) -> Method:
        def read(self: torch.Tensor, *args: object, **kwargs: object) -> object:
            recorder = _active()
            if recorder is None:
                return original(self, *args, **kwargs)
            with suspended():
                recorder.noted(recorder.read, self, name)
                kept = keeper()
                if kept is not None:
                    kept.save(self)
                return original(self, *args, **kwargs)

        return read

    return make


def _caller_file() -> str:
    """The file that asks, looked for behind our own code, which calls for the program in a staged run."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and is_smelts(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def _address(name: str) -> Callable[[Method], Method]:
    def make(original: Method) -> Method:
        def read(self: torch.Tensor, *args: object, **kwargs: object) -> object:
            recorder = _active()
            if recorder is not None and is_users(_caller_file()):
                recorder.noted(recorder.gives_address, self, name)
                kept = keeper()
                if kept is not None:
                    with suspended():
                        kept.save(self)
            return original(self, *args, **kwargs)

        return read

    return make


def _offset(original: Method) -> Method:
    def read(self: torch.Tensor) -> object:
        found: int = original(self)
        recorder = _active()
        if recorder is not None and is_users(_caller_file()):
            recorder.noted(recorder.asked_for_offset, self, found)
        return found

    return read


def _own_property(name: str, original: Descriptor) -> Descriptor:
    """What gives an attribute of every tensor: where `torch.Tensor` has it from its base, that of the base."""
    found: Descriptor = original if hasattr(original, "__get__") else getattr(tensor_base, name)
    return found


def _data_property(original: Descriptor) -> property:
    own = _own_property("data", original)

    def read(self: torch.Tensor) -> object:
        result = own.__get__(self, type(self))
        recorder = _active()
        if recorder is not None:
            recorder.noted(recorder.alias, self, result)
        return result

    # The dispatcher tells of a replacement: see `_has_compatible_shallow_copy_type` in the recorder.
    return Getter(own, read)


def _version_property(original: Descriptor) -> property:
    own = _own_property("_version", original)

    def read(self: torch.Tensor) -> object:
        recorder = _active()
        if recorder is not None and not is_smelts(sys._getframe(1).f_code.co_filename):
            recorder.noted(recorder.read_version, self)
        return own.__get__(self, type(self))

    return Getter(own, read)


def _base_property(original: Descriptor) -> property:
    own = _own_property("_base", original)

    def read(self: torch.Tensor) -> object:
        _note_base(self, "_base")
        return own.__get__(self, type(self))

    return Getter(own, read)


def _is_view(original: Method) -> Method:
    def read(self: torch.Tensor) -> bool:
        _note_base(self, "_is_view()")
        found: bool = original(self)
        return found

    return read


def _note_base(tensor: object, what: str) -> None:
    recorder = _active()
    if recorder is not None and not is_smelts(sys._getframe(2).f_code.co_filename):
        recorder.read_base(tensor, what)


def _needs_gradient(original: Descriptor) -> property:
    own = _own_property("requires_grad", original)

    def read(self: torch.Tensor) -> object:
        value = own.__get__(self, type(self))
        recorder = _active()
        if recorder is not None and is_users(sys._getframe(1).f_code.co_filename):
            recorder.read_flag("requires_grad", value)
        return value

    def write(self: torch.Tensor, value: object) -> None:
        before = requires_gradient(self)
        own.__set__(self, value)
        _told_of_flag(self, before)

    return Getter(own, read, write)


def _requiring(original: Method) -> Method:
    """For `tensor.requires_grad_()`."""

    def call(self: torch.Tensor, requires_grad: bool = True) -> object:
        before = requires_gradient(self)
        result = original(self, requires_grad)
        _told_of_flag(self, before)
        return result

    return call


def _told_of_flag(tensor: object, before: bool) -> None:
    """Note that a tensor requires gradients from now on, or none any more."""
    recorder = _active()
    if recorder is not None and requires_gradient(tensor) is not before:
        recorder.noted(partial(flag_set, recorder), tensor, not before)


def _retaining(original: Method) -> Method:
    """For `tensor.retain_grad()`: of a tensor in the middle of a graph, nothing has the gradient later."""

    def call(self: torch.Tensor) -> None:
        recorder = _active()
        if recorder is not None and self.requires_grad and not is_leaf(self):
            recorder.fail(
                "a tensor that the program makes is to retain its gradient",
                "a graph's gradients are those of what goes into it",
                "call retain_grad() outside, on a result",
                "S0104",
            )
        original(self)

    return call


def _aliasing(position: int) -> Callable[[Method], Method]:
    """For functions that give their operand back as another object: `as_subclass`, `_make_subclass`."""

    def make(original: Method) -> Method:
        bare = original.__func__ if isinstance(original, staticmethod) else original

        def call(*args: object, **kwargs: object) -> object:
            recorder = _active()
            if recorder is not None and position == 0 and len(args) == 2 and isinstance(args[1], type):
                recorder.becomes(args[1])
            result = bare(*args, **kwargs)
            if recorder is not None and len(args) > position:
                recorder.noted(recorder.alias, args[position], result)
            return result

        return staticmethod(call) if position == 1 else call

    return make


def _constructor(original: Method) -> Method:
    """For `Tensor.__new__`: an operator that makes the tensor for a subclass is seen with a plain one, which C++ would
    refuse to turn into the subclass's, as it may where nobody looks.
    """

    def new(*args: object, **kwargs: object) -> object:
        recorder = _active()
        cls = args[0] if args else None
        if recorder is None or cls is torch.Tensor or not (isinstance(cls, type) and issubclass(cls, torch.Tensor)):
            return original(*args, **kwargs)
        recorder.becomes(cls)
        made = original(torch.Tensor, *args[1:], **kwargs)
        if type(made) is not torch.Tensor:
            with suspended():
                return original(*args, **kwargs)
        with suspended():
            result = in_class(made, cls)
        if result is not made:
            recorder.noted(recorder.alias, made, result)
        return result

    return staticmethod(new)


def _wrapping(original: Method) -> Method:
    """For functions that may put a tensor around the memory of an array or a buffer."""

    def call(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        recorder = _active()
        if recorder is not None and args and not isinstance(args[0], (torch.Tensor, list, tuple, int, float, complex)):
            recorder.noted(recorder.wraps_memory, result)
        return result

    return call


def _opaque(what: str) -> Callable[[Method], Method]:
    """For calls that run on torch's own compilers or tracers: note that they cannot be recorded, and let them run."""

    def make(original: Method) -> Method:
        def call(*args: object, **kwargs: object) -> object:
            recorder = _active()
            if recorder is None:
                return original(*args, **kwargs)
            if is_custom_function_call(args[0] if args else None):
                with below_transforms():
                    return original(*args, **kwargs)
            recorder.fail(
                f"{what} was used in the program",
                "it calls Python functions from inside torch's own tracers, where they cannot be recorded",
                "leave it out of the captured function",
                "S0104",
            )
            recorder.is_unseen = True
            kept = keeper()
            with suspended():
                if kept is not None:
                    kept.save_all()
                return original(*args, **kwargs)

        return call

    return make


def _swapping(original: Method) -> Method:
    def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> object:
        recorder = _active()
        if recorder is not None:
            recorder.noted(recorder.swaps, t1)
            recorder.noted(recorder.swaps, t2)
        return original(t1, t2)

    return swap_tensors


def _not_tracing(original: Method) -> Method:
    def are_we_tracing() -> bool:
        recorder = _active()
        with suspended() if recorder is not None and recorder.is_native else contextlib.nullcontext():
            return bool(original())

    return are_we_tracing


def _awaited(original: Method) -> Method:
    def wrap(tensor: torch.Tensor) -> object:
        recorder = _active()
        if recorder is None or not recorder.is_native:
            return original(tensor)
        with suspended():
            result = original(tensor)
        recorder.noted(recorder.waits_for, tensor, result)
        return result

    return wrap


def _compiling(original: Method) -> Method:
    def compile_(*args: object, **kwargs: object) -> object:
        compiled = original(*args, **kwargs)
        return _opaque("torch.compile")(compiled) if _active() is not None and callable(compiled) else compiled

    return compile_


def _own_backward(original: Descriptor) -> object:
    def noted(cls: type, /, *args: object, **kwargs: object) -> object:
        recorder = _active()
        if recorder is not None:
            recorder.note_own_backward(cls.__qualname__)
        # Written in C (from 2.14 on) or in Python, it is bound to the class alike.
        return original.__get__(None, cls)(*args, **kwargs)

    return classmethod(noted)


_REGION: Final = "_checkpoint_without_reentrant_generator"
"""What `torch.utils.checkpoint` calls around the function, which it runs itself. Another torch may call it otherwise:
then a checkpoint is code that looks at the random generator, and is not compiled."""


SAVES_AS_EVER: Final = "__smelt_saves_as_ever__"
"""What a function that gives a checkpoint its contexts is marked with where the first of them changes nothing."""


def _checkpointed(original: Method) -> Method:
    """For checkpoints: torch's own work around the function is not the program's."""

    def region(*args: object, **kwargs: object) -> Iterator[None]:
        recorder = _active()
        inner = original(*args, **kwargs)
        if recorder is None:
            yield from inner
            return
        given = (*args, kwargs.get("context_fn"))
        if not any(one is torch_checkpoint.noop_context_fn or hasattr(one, SAVES_AS_EVER) for one in given):
            recorder.fail(
                "a checkpoint chooses itself what it saves (context_fn)",
                "that is a mode of torch, which no graph has",
                "leave out context_fn: what is saved is then chosen for the whole graph",
                "S0104",
            )
        with suspended(), put_aside():
            next(inner)
        with recorder.checkpointed():
            yield
        with suspended(), put_aside():
            for _ in inner:
                pass

    return region


def _gradients(original: Method) -> Method:
    """For `torch.autograd.grad`, which calls operators from C++: a number beside a transform's tensor is there a tensor
    that torch cannot hand to Python, so what stands below the transform is seen.
    """

    def grad(*args: object, **kwargs: object) -> object:
        recorder = _active()
        if recorder is not None and is_transformed():
            with below_transforms():
                return original(*args, **kwargs)
        if recorder is None or not recorder.is_native:
            return original(*args, **kwargs)
        return record_grad(recorder, original, args, kwargs)

    return grad


def _backward(original: Method) -> Method:
    def backward(*args: object, **kwargs: object) -> None:
        recorder = _active()
        if recorder is None or not recorder.is_native or is_transformed():
            original(*args, **kwargs)
        else:
            record_backward(recorder, original, args, kwargs)

    return backward


class _NestedTensors(TorchFunctionMode):
    """Sees tensors inside lists that become one tensor: their elements are read where no operator tells of it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.watched = {getattr(torch, name) for name in _BUILDERS} | {
            torch.Tensor.new_tensor, torch.Tensor.__getitem__, torch.Tensor.__setitem__,
        }  # fmt: skip

    def __torch_function__(
        self, func: Method, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if is_live() and func in self.watched:
            for tensor in _in_lists((*args, *(kwargs or {}).values())):
                with suspended():
                    self.recorder.noted(self.recorder.read, tensor, getattr(func, "__name__", "torch.tensor"))
        return func(*args, **(kwargs or {}))


def _in_lists(values: Iterable[object], depth: int = 0) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            # A 0-d tensor in a nested list is an element; as an index of its own it is an operand.
            if depth > 0 and value.dim() == 0:
                yield value
        elif isinstance(value, list) or (depth > 0 and isinstance(value, tuple)):
            yield from _in_lists(value, depth + 1)


def _types_only(original: Method) -> Method:
    """`has_torch_function` that does not count our own mode: modules choose their fast path by it."""

    def has_torch_function(args: Sequence[object]) -> bool:
        if _thread.recorder is None:
            return bool(original(args))
        return has_override(args)

    return has_torch_function


@contextlib.contextmanager
def detecting(recorder: Recorder, level: str) -> Iterator[None]:
    """Watch the calling thread for what the dispatcher does not see."""
    tensor = torch.Tensor
    with contextlib.ExitStack() as stack:
        for name in _READERS:
            stack.enter_context(_patches.replaced(tensor, name, _reader(name)))
        for name in _ADDRESSES:
            stack.enter_context(_patches.replaced(tensor, name, _address(name)))
        stack.enter_context(_patches.replaced(tensor, "storage_offset", _offset))
        stack.enter_context(_patches.replaced(tensor, "data", _data_property))
        stack.enter_context(_patches.replaced(tensor, "_version", _version_property))
        stack.enter_context(_patches.replaced(tensor, "_base", _base_property))
        stack.enter_context(_patches.replaced(tensor, "_is_view", _is_view))
        stack.enter_context(_patches.replaced(tensor, "requires_grad", _needs_gradient))
        stack.enter_context(_patches.replaced(tensor, "requires_grad_", _requiring))
        stack.enter_context(_patches.replaced(tensor, "retain_grad", _retaining))
        stack.enter_context(_patches.replaced(tensor, "as_subclass", _aliasing(0)))
        stack.enter_context(_patches.replaced(tensor, "_make_subclass", _aliasing(1)))
        stack.enter_context(_patches.replaced(tensor, "__new__", _constructor))
        stack.enter_context(_patches.replaced(torch.autograd.Function, "apply", _own_backward))
        if hasattr(torch_checkpoint, _REGION):
            stack.enter_context(_patches.replaced(torch_checkpoint, _REGION, _checkpointed))
        stack.enter_context(_patches.replaced(torch.autograd, "grad", _gradients))
        stack.enter_context(_patches.replaced(torch.autograd, "backward", _backward))
        stack.enter_context(_patches.replaced(torch, "compile", _compiling))
        stack.enter_context(_patches.replaced(torch.jit, "trace", _opaque("torch.jit.trace")))
        stack.enter_context(_patches.replaced(torch.export, "export", _opaque("torch.export")))
        stack.enter_context(_patches.replaced(torch.utils, "swap_tensors", _swapping))
        collectives = functional_collectives()
        if collectives is not None:
            stack.enter_context(_patches.replaced(collectives, TRACING, _not_tracing))
            stack.enter_context(_patches.replaced(collectives, WRAP, _awaited))
        operator = higher_order_operator()
        if operator is not None:
            stack.enter_context(_patches.replaced(operator, "__call__", _opaque("a higher-order operator")))
        stack.enter_context(eager_stance())
        stack.enter_context(watching_regions(_patches, _regions))
        if level != "entry":
            stack.enter_context(_patches.replaced(torch.overrides, "has_torch_function", _types_only))
            mode = _NestedTensors(recorder)
            for name in ("from_numpy", "frombuffer", "as_tensor", "asarray"):
                stack.enter_context(_patches.replaced(torch, name, _wrapping))
            stack.enter_context(mode)
        _thread.recorder = recorder
        try:
            yield
        finally:
            _thread.recorder = None

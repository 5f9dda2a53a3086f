"""Fake tensors of staged runs: sizes, dtypes and aliases without data, and torch's operators on them, unseen by hooks.

Adapter for FakeTensorMode without symbolic sizes. `available()` is False where torch lacks it; nobody stages then.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from smelt._torch.seen import dispatch
from smelt._torch.seen.light_fake import light_mode, unlogged
from smelt._torch.seen.plain_fake import plain_fakes
from smelt._torch.storage import storage_key

try:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
except ImportError:  # pragma: no cover - another torch
    FakeTensor, FakeTensorMode = (), None  # nothing is one

_EnablePythonDispatcher: Any = getattr(torch._C, "_EnablePythonDispatcher", None)
SymInt, SymFloat, SymBool = torch.SymInt, torch.SymFloat, torch.SymBool


def available() -> bool:
    """Whether this torch can run operators on fake tensors below a recording at the dispatcher's entry."""
    return FakeTensorMode is not None and "entry" in dispatch.levels()


def _writes(fake: torch.Tensor) -> int:
    """How often a fake tensor was written; inference tensors, on which a whole program may work, do not count it."""
    return 0 if fake.is_inference() else fake._version


class _Real(NamedTuple):
    """A real tensor with its fake tensor, and the version that the fake tensor had at first."""

    tensor: torch.Tensor
    fake: torch.Tensor
    version: int


class FakeTensors:
    """The fake tensors of one staged run; tensors over one storage have fake tensors over one storage."""

    def __init__(self) -> None:
        self._mode: Any = light_mode(FakeTensorMode)
        self._plain = plain_fakes(self._mode)
        self._real: dict[int, _Real] = {}  # by the identity of the fake tensor
        self._of: dict[int, torch.Tensor] = {}
        # Real tensors that were written and have no fake tensor yet, with how often; by identity.
        self._written: dict[int, tuple[torch.Tensor, int]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor of a real tensor, always the same one."""
        if isinstance(tensor, FakeTensor):
            return tensor
        known = self._of.get(id(tensor))
        if known is not None and self._real[id(known)].tensor is tensor:
            return known
        with dispatch.unseen():
            base = tensor._base
            if base is not None:
                self.of(base)
            fake = self._plain.of(tensor) if base is None and self._plain is not None else None
            if fake is None:
                fake = self._mode.from_tensor(tensor, static_shapes=True)
            self._of[id(tensor)] = fake
            self._real[id(fake)] = _Real(tensor, fake, _writes(fake))
            _, writes = self._written.pop(id(tensor), (tensor, 0))
            for _ in range(writes):
                torch.autograd.graph.increment_version(fake)
        return fake

    def memory_of(self, tensor: torch.Tensor) -> int:
        """What tells the memory of a tensor's fake from that of all others; makes none where none could share it."""
        return storage_key(tensor if self._is_apart(tensor) else self.of(tensor))

    def _is_apart(self, tensor: torch.Tensor) -> bool:
        """Whether nothing has a fake tensor yet that shares a plain real tensor's memory, as a view of it would."""
        if self._plain is None or isinstance(tensor, FakeTensor):
            return False
        return id(tensor) not in self._of and tensor._base is None and self._plain.makes(tensor)

    def base_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """What a tensor is a view of: the real tensor, where the fake tensor of one."""
        with dispatch.unseen():
            base = tensor._base
        real = None if base is None else self._real.get(id(base))
        return base if real is None else real.tensor

    def version_of(self, tensor: torch.Tensor) -> int:
        """How often the memory of a tensor was written, on real tensors and on fake tensors."""
        with dispatch.unseen():
            fake = tensor if isinstance(tensor, FakeTensor) else self._of.get(id(tensor))
            base = tensor._base if fake is None else fake._base
            if fake is None:
                fake = self._of.get(id(tensor if base is None else base))
                whole = fake
            else:
                whole = fake if base is None else base
            real = None if whole is None else self._real.get(id(whole))
            if fake is None or real is None:
                written = self._written.get(id(tensor if base is None else base))
                return tensor._version + (0 if written is None else written[1])
            return real.tensor._version + _writes(fake) - real.version

    def counts_writes(self, tensor: torch.Tensor) -> bool:
        """Whether all that an operator does that writes a tensor's elements is done by `note_write`."""
        if self._is_apart(tensor):
            return True
        fake = self.of(tensor)
        return not fake.is_inference() and getattr(fake, "constant", None) is None

    def note_write(self, tensor: torch.Tensor) -> None:
        """An operator writes a tensor's elements, and no more."""
        if self._is_apart(tensor):
            _, before = self._written.get(id(tensor), (tensor, 0))
            self._written[id(tensor)] = tensor, before + 1
        else:
            torch.autograd.graph.increment_version(self.of(tensor))

    def fresh(self, dtype: torch.dtype, sizes: Any, strides: Any, device: Any, grad: bool = False) -> torch.Tensor:
        """A fake tensor of its own memory."""
        with self.running():
            made = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        return made.requires_grad_() if grad else made

    def admit_symbols(self) -> None:
        """Let sizes be symbolic numbers; torch's cache of results, which asks torch's own symbols, is not used then."""
        self._mode.cache_enabled = False

    def direct(self, dtype: torch.dtype, sizes: Any, strides: Any, device: torch.device) -> torch.Tensor | None:
        """The same without torch's dispatcher, in a third of the time; None where this torch makes fakes otherwise.

        Where nobody sees it, and not inside of `running`.
        """
        made = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        try:
            return FakeTensor(self._mode, made, device)
        except TypeError:  # pragma: no cover - another torch
            return None

    def view(self, tensor: torch.Tensor, sizes: Any, strides: Any, offset: Any = None) -> torch.Tensor:
        """A view of a fake tensor, from its first element on if no offset is given; it knows its base, and
        counts the same writes."""
        with self.running():
            return torch.ops.aten.as_strided.default(tensor, sizes, strides, offset)

    def relaid(self, tensor: torch.Tensor, strides: Any) -> torch.Tensor:
        """A fake tensor that nobody wrote, in memory of its own with other strides."""
        if not tensor.requires_grad:
            return self.fresh(tensor.dtype, tensor.shape, strides, tensor.device)
        with self.running(), torch.no_grad():
            tensor.as_strided_(tensor.shape, strides)
        return tensor

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Operators run on fake tensors in the block, and nobody sees them."""
        with unlogged, dispatch.unseen(), self._mode:
            yield


@lru_cache(maxsize=1)
def names_of_fakes() -> frozenset[str]:
    """What every fake tensor has as attributes. To be asked for before a run that is watched: torch reads files where
    it makes the first one."""
    made = FakeTensors().fresh(torch.float32, (1,), (1,), torch.device("cpu"))
    return frozenset(object.__getattribute__(made, "__dict__"))


def sets_fakes(name: str) -> bool:
    """Whether torch makes a fake tensor where it sets an attribute of this name."""
    return not names_of_fakes().isdisjoint((name, f"_{name}"))


def attributes(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that a tensor was given by name, without what makes it a fake tensor."""
    held: dict[str, Any] = object.__getattribute__(tensor, "__dict__")
    if not held or not is_fake(tensor):
        return dict(held)
    names = names_of_fakes()
    return {name: value for name, value in held.items() if name not in names}


def wants_numbers(error: Exception) -> bool:
    """Whether an operator of C's refused symbolic sizes that torch's Python kernels take."""
    return _EnablePythonDispatcher is not None and "only concrete integers" in str(error)


_NO_KERNEL = tuple(
    found
    for name in ("UnsupportedOperatorException", "DynamicOutputShapeException", "DataDependentOutputException")
    if (found := getattr(sys.modules.get("torch._subclasses.fake_tensor"), name, None)) is not None
)


def has_no_kernel(error: BaseException) -> bool:
    """Whether torch has no kernel without data for an operator, or none that does without values."""
    return isinstance(error, _NO_KERNEL)


@contextlib.contextmanager
def pythons_kernels() -> Iterator[None]:
    """Operators run by torch's Python kernels where it has any, inside of `FakeTensors.running`."""
    guard = _EnablePythonDispatcher()
    try:
        yield
    finally:
        del guard


class _Asking(threading.local):
    """kind: what this thread's program is told to be torch's data-free kind, None for the kind itself."""

    kind: type | None = None


class _Package:
    """`torch._subclasses` while any thread has a stand-in there: the name is looked up by a function.

    Invariant: other threads, and torch itself in any thread, find what is always there. torch's compiler compares the
    very type of tensors with it, and modules that are imported meanwhile keep what they find.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0

    def enter(self, package: Any) -> bool:
        with self.lock:
            space = vars(package)
            if self.users == 0:
                if space.get("FakeTensor") is not FakeTensor or "__getattr__" in space:
                    return False
                # Neither order leaves a moment in which the name is missing.
                package.__getattr__ = _looked_up
                del package.FakeTensor
            self.users += 1
            return True

    def leave(self, package: Any) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                package.FakeTensor = FakeTensor
                del package.__getattr__


_asking = _Asking()
_package = _Package()


def _looked_up(name: str) -> Any:
    if name != "FakeTensor":
        raise AttributeError(f"module 'torch._subclasses' has no attribute {name!r}")
    kind = _asking.kind
    if kind is None:
        return FakeTensor
    asks = sys._getframe(1).f_globals.get("__name__", "")
    return FakeTensor if asks.partition(".")[0] == "torch" else kind


@contextlib.contextmanager
def unrecognized(are: Callable[[Any], bool]) -> Iterator[None]:
    """Programs that ask whether a tensor is torch's data-free kind, to leave out what reads values, hear no in the
    block where `are` says so: its value is known. Only this thread's programs do.
    """

    class Kind(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, FakeTensor) and not are(value)

    package = sys.modules.get("torch._subclasses")
    if package is None or not _package.enter(package):
        yield
        return
    before, _asking.kind = _asking.kind, Kind("FakeTensor", (), {})
    try:
        yield
    finally:
        _asking.kind = before
        _package.leave(package)


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no data of its own."""
    return isinstance(tensor, FakeTensor)

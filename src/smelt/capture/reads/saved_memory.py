"""Memory that a run may read but not keep changed: what is in it is saved right before something may write it.

    keeper = Keeper(tensors)
    with keeper.watching():
        capture(program, args)       # or whatever captures
    keeper.restore()                 # bit for bit as before, also if the program raised

Invariant: all writes of the recorded thread are foreseen: those that an operator's schema tells, all that operators of
others could do to their arguments, and whatever Python may do to memory that it is given (`numpy`, `data_ptr`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

import torch

from smelt._torch.library.schemas import raw_schema
from smelt._torch.seen.dispatch import Record
from smelt.capture.recording.opinfo import op_info, targets_of

_KNOWN = ("aten::", "prims::", "prim::")
_LISTED = (list, tuple)


class Keeper:
    """Copies of storages from right before their memory could first be written.

    tensors: strided ones, whose memory is watched. A run that writes nothing copies nothing.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._watched: dict[int, torch.UntypedStorage] = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._watched.setdefault(storage.data_ptr(), storage)
        self._before: dict[int, torch.UntypedStorage] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block whose captures are watched. Nothing runs there natively but what is captured."""
        token = _keeper.set(self)
        try:
            yield
        finally:
            _keeper.reset(token)

    def around(self, record: Record) -> Record:
        """A recorder's hook with a look at what each operator is about to write."""

        def watched(overload: object, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            if not raw_schema(overload).name.startswith(_KNOWN):
                self._save_all_of((*args, *kwargs.values()))
            elif raw_schema(overload).name.startswith("aten::resize"):
                self._set_apart(args[0])
            else:
                for one in op_info(overload).written(args, kwargs):
                    self._save_all_of(targets_of(one, args, kwargs))
            return record(overload, args, kwargs)

        return watched

    def _set_apart(self, tensor: torch.Tensor) -> None:
        """Give a tensor that is to be resized memory of its own: the watched one would move."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._watched:
            with torch.no_grad():
                tensor.set_(storage.clone(), tensor.storage_offset(), tensor.shape, tensor.stride())

    def _save_all_of(self, values: Iterable[object]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self.save(value)
            elif isinstance(value, _LISTED):
                self._save_all_of(value)

    def save(self, tensor: torch.Tensor) -> None:
        """Keep what is in a tensor's memory, if that is watched and was not saved before."""
        if tensor.layout is torch.strided and tensor.device.type != "meta":
            with contextlib.suppress(RuntimeError, NotImplementedError):  # it has no memory of its own
                self._save_at(tensor.untyped_storage().data_ptr())

    def save_all(self) -> None:
        """Keep all, because nobody sees what comes now."""
        for address in self._watched:
            self._save_at(address)

    def _save_at(self, address: int) -> None:
        storage = self._watched.get(address)
        if storage is not None and address not in self._before:
            self._before[address] = storage.clone()

    def restore(self) -> None:
        """Put back what was saved."""
        for address, before in self._before.items():
            storage = self._watched[address]
            if storage.nbytes() != before.nbytes():
                storage.resize_(before.nbytes())
            storage.copy_(before)
        self._before.clear()


_keeper: ContextVar[Keeper | None] = ContextVar("smelt_keeper", default=None)


def keeper() -> Keeper | None:
    """What watches this thread's captures."""
    return _keeper.get()

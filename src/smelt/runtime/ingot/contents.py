"""An ingot's file, open: entries that were checked, and tensors over the mapped memory.

Invariant: the map is private and copied on writing, so tensors may be written in place and the file never changes; a
check that is made is made before anything uses the entry.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeAlias

import torch

from smelt.runtime.ingot.archive import Archive
from smelt.runtime.ingot.errors import broken
from smelt.runtime.ingot.manifest import NAME, PROGRAM, WEIGHTS, Head, Manifest, Placed, State
from smelt.runtime.ingot.packed import Packed, unpacked
from smelt.runtime.ingot.panels import matrix_of
from smelt.runtime.ingot.tensors import read_header
from smelt.runtime.ingot.texts.json_text import Part, loads

CHECKED_NBYTES = 32 << 20
"""Weights up to this size are checked whenever a file is opened, larger ones where that is asked for."""


_POPULATE_READ = 22  # of Linux 5.14; Python has no name for it before 3.14
_NEAR = 1 << 16  # what lies between is read with what is asked for

Again: TypeAlias = Callable[[int, int], bytearray]
"""From where, how many bytes: the file's, as they were at first."""


def stored_as(state: State) -> Placed:
    """What of the stored tensors holds one of the state."""
    placed, panels = state.placed, state.panels
    return placed if panels is None else Placed(placed.stored, 0, placed.dtype, (panels.nelements,), (1,))


class Contents:
    """The entries of an ingot."""

    def __init__(self, data: memoryview, again: Again, verify: bool | None = None) -> None:
        """verify: check the weights too; None: where they are small. again: reads the file anew.

        Raises: PackageError (S0701).
        """
        self._archive = Archive(data)
        self._again = again
        self._memories: dict[str, Any] = {}
        head = Head.read(loads(self._archive.content(NAME), NAME))
        self._entries = head.entries
        listed = {digest.in_archive(name): digest for name, digest in head.entries.items()}
        for name in sorted((self._archive.entries.keys() - {NAME}) ^ listed.keys()):
            raise broken(name, "the manifest and the archive do not have the same entries")
        for name, wanted in listed.items():
            if self._archive.entries[name].nbytes != wanted.nbytes:
                raise broken(name, "it has another size than the manifest says")
            is_checked = name != WEIGHTS or verify or (verify is None and wanted.nbytes <= CHECKED_NBYTES)
            if is_checked and hashlib.sha256(self._archive.content(name, check=False)).hexdigest() != wanted.sha256:
                raise broken(name, "its digest is not the manifest's: it was changed after it was written")
        if head.program is None and PROGRAM not in head.entries:
            raise broken(PROGRAM, "there is no such entry")
        self.manifest = Manifest.read(head, head.program or self.json(PROGRAM))
        self._stored = read_header(self.entry(WEIGHTS), WEIGHTS)
        for state in self.manifest.state:
            self._check(stored_as(state))

    def entry(self, name: str) -> memoryview:
        """An entry's bytes, which were checked; unpacked, they are in memory of their own.

        Raises: PackageError (S0701) where it cannot be unpacked.
        """
        found = self.in_file(name)
        if not isinstance(found, Packed):
            return found
        return memoryview(unpacked(name, memoryview(found.data), found.nbytes))

    def in_file(self, name: str) -> memoryview | Packed:
        """An entry as it is in the file."""
        digest = self._entries[name]
        data = self._archive.content(digest.in_archive(name), check=False)
        return data if digest.unpacked is None else Packed(data, digest.unpacked)

    def text(self, name: str) -> str:
        """An entry that is text. Raises: PackageError (S0701)."""
        try:
            return str(self.entry(name), "utf-8")
        except UnicodeDecodeError as error:
            raise broken(name, f"it is no text: {error}") from None

    def json(self, name: str) -> Part:
        """An entry that is JSON."""
        return loads(self.entry(name), name)

    def _check(self, placed: Placed) -> None:
        """Raises: PackageError (S0701) where the tensor does not lie within what is stored."""
        extent = self._stored.get(placed.stored)
        if extent is None:
            raise broken(WEIGHTS, f"there is no {placed.stored!r} in it")
        if (placed.offset + placed.span) * placed.dtype.itemsize > extent.nbytes:
            raise broken(WEIGHTS, f"a tensor over {placed.stored!r} reaches beyond it")

    def tensor(self, placed: Placed) -> torch.Tensor:
        """A tensor over the mapped memory; those over the same memory share it."""
        self._check(placed)
        if not placed.span:
            return torch.empty_strided(placed.sizes, placed.strides, dtype=placed.dtype)
        made = torch.empty(0, dtype=placed.dtype)
        return made.set_(self._memory(placed.stored), placed.offset, placed.sizes, placed.strides)

    def state(self, state: State) -> torch.Tensor:
        """A tensor of the state: over the mapped memory, or, where that has it in panels, in memory of its own."""
        if state.panels is None:
            return self.tensor(state.placed)
        return matrix_of(self.tensor(stored_as(state)), state.panels, state.placed.sizes)

    def populate(self, tensors: Sequence[torch.Tensor]) -> None:
        """Have all pages of tensors over the mapped memory that are about to be read: at once, not one after the other.

        It is advice: a system that does not know it reads them when they are asked for.
        """
        mapped, advice = self._archive.data.obj, getattr(mmap, "MADV_POPULATE_READ", _POPULATE_READ)
        if not isinstance(mapped, mmap.mmap) or sys.platform != "linux":
            return
        base = torch.frombuffer(self._archive.data, dtype=torch.uint8).data_ptr()
        spans: list[list[int]] = []
        for start, stop in sorted((t.data_ptr() - base, t.data_ptr() - base + t.nbytes) for t in tensors):
            if not 0 <= start < stop <= len(mapped):
                continue
            if spans and start - spans[-1][1] <= _NEAR:
                spans[-1][1] = max(spans[-1][1], stop)
            else:
                spans.append([start // mmap.PAGESIZE * mmap.PAGESIZE, stop])
        for start, stop in spans:
            with suppress(OSError):
                mapped.madvise(advice, start, stop - start)

    def whole(self, stored: str) -> torch.Tensor:
        """The bytes of a stored tensor."""
        if not self._stored[stored].nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.empty(0, dtype=torch.uint8).set_(self._memory(stored))

    def as_saved(self, placed: Placed) -> torch.Tensor:
        """The tensor with the contents that the file has, in memory of its own."""
        self._check(placed)
        if not placed.span:
            return torch.empty_strided(placed.sizes, placed.strides, dtype=placed.dtype)
        start, nbytes = self._at(placed) + placed.offset * placed.dtype.itemsize, placed.span * placed.dtype.itemsize
        flat = torch.frombuffer(self._again(start, nbytes), dtype=torch.uint8).clone().view(placed.dtype)
        return flat.as_strided(placed.sizes, placed.strides)

    def _at(self, placed: Placed) -> int:
        """Where in the file the memory begins that a tensor lies over."""
        return self._archive.entries[WEIGHTS].start + self._stored[placed.stored].start

    def _memory(self, stored: str) -> Any:
        """A stored tensor's memory as a storage of its own."""
        found = self._memories.get(stored)
        if found is None:
            extent, start = self._stored[stored], self._archive.entries[WEIGHTS].start
            flat = torch.frombuffer(
                self._archive.data, dtype=torch.uint8, count=extent.nbytes, offset=start + extent.start
            )
            found = self._memories[stored] = flat.untyped_storage()
        return found

    def address(self, name: str) -> int:
        """Where in memory an entry begins."""
        return torch.frombuffer(self._archive.data, dtype=torch.uint8).data_ptr() + self._archive.entries[name].start


def open_file(path: str | os.PathLike[str], *, copy: bool = False, verify: bool | None = None) -> Contents:
    """A file's contents, mapped; copy: read into memory, for files that others may write to.

    Raises: PackageError (S0701); OSError where the file cannot be opened.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise broken("the archive", f"{os.fspath(path)} is no plain file")
        if copy:
            return from_bytes(file.read(), verify=verify)
        kept = os.fstat(file.fileno()).st_size
        if not kept:
            raise broken("the archive", "it is empty")
        mapped = mmap.mmap(file.fileno(), kept, access=mmap.ACCESS_COPY)
        again = _FileAgain(file, kept)
        return Contents(memoryview(mapped), again, verify)


class _FileAgain:
    """The file's bytes anew: the same file, whatever has its name by now."""

    def __init__(self, file: BinaryIO, nbytes: int) -> None:
        self._mapped = mmap.mmap(file.fileno(), nbytes, access=mmap.ACCESS_READ)

    def __call__(self, start: int, nbytes: int) -> bytearray:
        return bytearray(self._mapped[start : start + nbytes])


def from_bytes(data: bytes, *, verify: bool | None = None) -> Contents:
    """The contents of an archive in memory. Raises: PackageError (S0701)."""
    if not data:
        raise broken("the archive", "it is empty")
    return Contents(memoryview(bytearray(data)), lambda start, n: bytearray(data[start : start + n]), verify)

"""A zip archive of stored entries, each at a multiple of 64 bytes: what an ingot is made of.

    local header, name, padding | content at 64 n | ... | central directory | end

Invariant: equal entries give equal bytes, whenever and wherever they are written; what is read agrees in local and
central headers, lies in order and apart, and is whole. Other tools read it, and this reader takes nothing that they and
it could understand differently: no comments, no compression, no names twice, no bytes between entries but padding.

Source: APPNOTE.TXT 6.3.10 (zip), sections 4.3 to 4.5.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from smelt.diag.records import record
from smelt.runtime.ingot.errors import broken

ALIGNMENT = 64
ENTRY_LIMIT = 10_000
NAME_LIMIT = 200
_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_LOCAL, _CENTRAL, _END = 0x04034B50, 0x02014B50, 0x06054B50
_END64, _LOCATOR64 = 0x06064B50, 0x07064B50
_LOCAL_FORMAT, _CENTRAL_FORMAT, _END_FORMAT = "<IHHHHHIIIHH", "<IHHHHHHIIIHHHHHII", "<IHHHHIIH"
_END64_FORMAT, _LOCATOR_FORMAT = "<IQHHIIQQQQ", "<IIQI"
_LOCAL_NBYTES, _CENTRAL_NBYTES, _END_NBYTES = 30, 46, 22
_UTF8 = 0x800
_DATE = 33  # 1980-01-01
_PADDING_ID, _ZIP64_ID = 0xD935, 1  # the former is what Android's zipalign writes
_VERSION, _VERSION64 = 20, 45
_MOST = 0xFFFFFFFF
_ARCHIVE = "the archive"


def check_name(name: str) -> None:
    """Raises: PackageError (S0701) for a name that could lead out of a folder, or that systems read differently."""
    if len(name) > NAME_LIMIT or not _NAME.fullmatch(name) or any(part.strip(".") == "" for part in name.split("/")):
        raise broken(repr(name[:NAME_LIMIT]), "an entry's name has letters, digits, '.', '_', '-' and '/' only")


# --- writing ----------------------------------------------------------------------------------------------------------

Pieces = Sequence[bytes | memoryview]
"""An entry's content, in parts that need not be joined in memory."""


def write_archive(file: BinaryIO, entries: Iterable[tuple[str, Pieces]]) -> None:
    """Write entries in this order, from the file's present position, which is its beginning."""
    directory: list[bytes] = []
    at = 0
    for name, pieces in entries:
        check_name(name)
        nbytes = sum(len(piece) for piece in pieces)
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
        local, central = _headers(name.encode(), at, nbytes, crc)
        file.write(local)
        for piece in pieces:
            file.write(piece)
        directory.append(central)
        at += len(local) + nbytes
    joined = b"".join(directory)
    file.write(joined)
    file.write(_end(len(directory), at, len(joined)))


def _headers(name: bytes, at: int, nbytes: int, crc: int) -> tuple[bytes, bytes]:
    is_large = nbytes >= _MOST
    sizes = struct.pack("<HHQQ", _ZIP64_ID, 16, nbytes, nbytes) if is_large else b""
    short, version = (_MOST if is_large else nbytes), (_VERSION64 if is_large else _VERSION)
    pad = -(at + _LOCAL_NBYTES + len(name) + len(sizes) + 4) % ALIGNMENT
    extra = sizes + struct.pack("<HH", _PADDING_ID, pad) + bytes(pad)
    local = struct.pack(
        _LOCAL_FORMAT, _LOCAL, version, _UTF8, 0, 0, _DATE, crc, short, short, len(name), len(extra)
    )  # fmt: skip
    large = [nbytes] * (2 * is_large) + [at] * (at >= _MOST)
    more = struct.pack(f"<HH{len(large)}Q", _ZIP64_ID, 8 * len(large), *large) if large else b""
    version = _VERSION64 if large else _VERSION
    central = struct.pack(
        _CENTRAL_FORMAT, _CENTRAL, version, version, _UTF8, 0, 0, _DATE, crc, short, short, len(name), len(more), 0, 0,
        0, 0, min(at, _MOST),
    )  # fmt: skip
    return local + name + extra, central + name + more


def _end(count: int, at: int, nbytes: int) -> bytes:
    end = struct.pack(_END_FORMAT, _END, 0, 0, count, count, nbytes, min(at, _MOST), 0)
    if at < _MOST:
        return end
    end64 = struct.pack(_END64_FORMAT, _END64, 44, _VERSION64, _VERSION64, 0, 0, count, count, nbytes, at)
    return end64 + struct.pack(_LOCATOR_FORMAT, _LOCATOR64, 0, at + nbytes, 1) + end


def replace_file(path: str | os.PathLike[str], entries: Iterable[tuple[str, Pieces]]) -> None:
    """Write an archive beside the path and move it there when it is on the disk: a full disk, or a process that is
    killed, leaves the old file as it was.
    """
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with open(aside, "xb") as file:
            write_archive(file, entries)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside)
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError, AttributeError):  # no such thing on this system
        where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(where)
        finally:
            os.close(where)


# --- reading ----------------------------------------------------------------------------------------------------------


@record
class Entry:
    """Where an entry's content lies in the file."""

    name: str
    start: int
    nbytes: int
    crc: int


class Archive:
    """The entries of an archive in memory, or in a mapped file."""

    def __init__(self, data: memoryview) -> None:
        """Raises: PackageError (S0701) where it breaks a rule of the format."""
        self.data = data
        try:
            self.entries: Mapping[str, Entry] = {entry.name: entry for entry in _entries(data)}
        except struct.error as error:
            raise broken(_ARCHIVE, f"it ends within a header ({error})") from None

    def content(self, name: str, *, check: bool = True) -> memoryview:
        """An entry's bytes. Raises: PackageError (S0701) where there is none, or its checksum differs."""
        entry = self.entries.get(name)
        if entry is None:
            raise broken(name, "there is no such entry")
        found = self.data[entry.start : entry.start + entry.nbytes]
        if check and zlib.crc32(found) != entry.crc:
            raise broken(name, "its checksum differs: it was changed after it was written")
        return found


def _entries(data: memoryview) -> Iterator[Entry]:
    count, nbytes, at, _ = _directory(data)
    position, end = at, at + nbytes
    expected = 0
    seen: set[str] = set()
    for _ in range(count):
        if position + _CENTRAL_NBYTES > end:
            raise broken(_ARCHIVE, "its directory is shorter than it says")
        fields = struct.unpack_from(_CENTRAL_FORMAT, data, position)
        magic, _, _, flags, method, _, _, crc, _, size, name_nbytes, extra_nbytes, comment, disk, _, _, where = fields
        if magic != _CENTRAL:
            raise broken(_ARCHIVE, "its directory has no entry where one must be")
        name = _name_at(data, position + _CENTRAL_NBYTES, name_nbytes, end)
        after = position + _CENTRAL_NBYTES + name_nbytes + extra_nbytes
        if after > end or comment or disk or flags != _UTF8 or method or fields[8] != size:
            raise broken(name, "it is compressed, encrypted, or has a comment, which no entry of an ingot has")
        size, where = _large(name, data[after - extra_nbytes : after], size, where)
        if name in seen:
            raise broken(name, "there are two entries of this name")
        seen.add(name)
        if where != expected:
            raise broken(name, "it does not begin where the one before it ends")
        start = _content_start(data, name, where, at, crc, size)
        expected = start + size
        if expected > at:
            raise broken(name, "it reaches beyond the archive's end")
        yield Entry(name, start, size, crc)
        position = after
    if position != end or expected != at:
        raise broken(_ARCHIVE, "there are bytes that belong to no entry")


def _directory(data: memoryview) -> tuple[int, int, int, int]:
    """How many entries, bytes of the directory, where it is, and where it ends."""
    at_end = len(data) - _END_NBYTES
    if at_end < 0:
        raise broken(_ARCHIVE, "it is shorter than an empty archive")
    magic, disk, first, here, count, nbytes, at, comment = struct.unpack_from(_END_FORMAT, data, at_end)
    if magic != _END or disk or first or here != count or comment:
        raise broken(_ARCHIVE, "it does not end as an archive does: it is truncated, or something else")
    end = at_end
    if at == _MOST:
        end = at_end - struct.calcsize(_LOCATOR_FORMAT) - struct.calcsize(_END64_FORMAT)
        if end < 0:
            raise broken(_ARCHIVE, "it is too short for what it says it holds")
        fields = struct.unpack_from(_END64_FORMAT, data, end)
        locator = struct.unpack_from(_LOCATOR_FORMAT, data, end + struct.calcsize(_END64_FORMAT))
        at = fields[9]
        if fields != (_END64, 44, _VERSION64, _VERSION64, 0, 0, count, count, nbytes, at) or at < _MOST:
            raise broken(_ARCHIVE, "its end says two things")
        if locator != (_LOCATOR64, 0, end, 1):
            raise broken(_ARCHIVE, "its end says two things")
    if count > ENTRY_LIMIT or at + nbytes != end or nbytes < count * _CENTRAL_NBYTES:
        raise broken(_ARCHIVE, "its directory is not where its end says, or has too many entries")
    return count, nbytes, at, end


def _large(name: str, extra: memoryview, size: int, where: int) -> tuple[int, int]:
    """Size and place, of which those that need more than 32 bits stand in the extra field."""
    wanted = 2 * (size == _MOST) + (where == _MOST)
    if not wanted:
        if len(extra):
            raise broken(name, "its directory entry has more than an entry of an ingot has")
        return size, where
    if len(extra) != 4 + 8 * wanted:
        raise broken(name, "its directory entry does not tell its size")
    kind, nbytes, *values = struct.unpack(f"<HH{wanted}Q", extra)
    if kind != _ZIP64_ID or nbytes != 8 * wanted or (wanted > 1 and values[0] != values[1]):
        raise broken(name, "its directory entry does not tell its size")
    if size == _MOST:
        size = values[0]
    return size, values[-1] if where == _MOST else where


def _content_start(data: memoryview, name: str, where: int, limit: int, crc: int, size: int) -> int:
    """Where the content behind a local header begins; the header says what the directory does."""
    if where + _LOCAL_NBYTES > limit:
        raise broken(name, "it is outside of the archive")
    fields = struct.unpack_from(_LOCAL_FORMAT, data, where)
    magic, _, flags, method, _, _, its_crc, packed, its_size, name_nbytes, extra_nbytes = fields
    start = where + _LOCAL_NBYTES + name_nbytes + extra_nbytes
    if magic != _LOCAL or flags != _UTF8 or method or its_crc != crc or packed != its_size or start > limit:
        raise broken(name, "its own header and the directory differ")
    if _name_at(data, where + _LOCAL_NBYTES, name_nbytes, limit) != name:
        raise broken(name, "its own header has another name")
    extra = data[start - extra_nbytes : start]
    if its_size == _MOST:
        if extra_nbytes < 20 or struct.unpack_from("<HHQQ", extra) != (_ZIP64_ID, 16, size, size):
            raise broken(name, "its own header has another size")
        extra = extra[20:]
    elif its_size != size:
        raise broken(name, "its own header has another size")
    if len(extra) < 4 or struct.unpack_from("<HH", extra) != (_PADDING_ID, len(extra) - 4) or any(extra[4:]):
        raise broken(name, "there is something else than padding before its content")
    if start % ALIGNMENT:
        raise broken(name, f"its content does not begin at a multiple of {ALIGNMENT} bytes")
    return start


def _name_at(data: memoryview, at: int, nbytes: int, limit: int) -> str:
    if nbytes > NAME_LIMIT or at + nbytes > limit:
        raise broken(_ARCHIVE, "an entry's name is too long")
    try:
        name = bytes(data[at : at + nbytes]).decode("ascii")
    except UnicodeDecodeError:
        raise broken(_ARCHIVE, "an entry's name is no plain text") from None
    check_name(name)
    return name

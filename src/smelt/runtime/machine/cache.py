"""Machine code, and plans, on disk: written once, read by every later process, checked before it is believed.

Invariant: `get` returns exactly the bytes that were `put` under that key, or None. An entry is
[magic, version, SHA-256 of its file's name and the payload, the payload's length, the payload]; anything else in the
folder, an entry under another's name included, is removed when it is asked for. Files appear whole (written aside,
then renamed), so processes that write at once only repeat each other's work. The folder belongs
to this user alone (0700), because its content is executed. A disk that refuses is no failure: one warning, then
memory only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from smelt.diag import SmeltWarning, user_level
from smelt.diag.records import record

_MAGIC = b"SMELTOBJ"
_VERSION = 2
_HEADER = struct.Struct("<8sI32sQ")
_SUFFIX = ".obj"
_ASIDE = ".writing-"
_LEFTOVER_AGE_S = 3600.0
# Of the room that was left, the part that a process fills before it looks again: so many may write at once.
_SHARE_UNSEEN = 16


class CodeCache:
    """Entries by key (a hexadecimal digest). `folder` "" keeps them in memory only; `limit_mb` bounds the folder."""

    def __init__(self, folder: str, limit_mb: int = 512) -> None:
        self._folder = Path(folder) if folder else None
        self._limit_nbytes = limit_mb << 20
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._prepared = False
        # How much may still be written before the folder has to be looked through again; other processes write, too.
        self._unseen_nbytes = 0

    def get_or_build(self, key: str, build: Callable[[], bytes]) -> bytes:
        """The entry of this key, built and kept if there is none. Two threads may build at once; both get an answer."""
        found = self.get(key)
        if found is None:
            found = build()
            self.put(key, found)
        return found

    def get(self, key: str) -> bytes | None:
        """The entry of this key, or None. A corrupt one is removed, to be built again."""
        found = self._memory.get(key)
        if found is not None or not self._usable():
            return found
        payload = self._read(self._path(key))
        if payload is not None:
            self._memory[key] = payload
        return payload

    def _read(self, path: Path) -> bytes | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error)
            return None
        payload = _unwrap(path.name, data)
        if payload is None:
            self._remove(path)
            return None
        # The age of its last use is what eviction goes by; where it cannot be set the entry itself is still good.
        with contextlib.suppress(OSError):
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Keep an entry in memory and, where possible, on disk."""
        self._memory[key] = payload
        if self._usable():
            self._write(self._path(key), payload)

    def _write(self, path: Path, payload: bytes) -> None:
        header = _HEADER.pack(_MAGIC, _VERSION, _digest(path.name, payload), len(payload))
        try:
            handle, aside = tempfile.mkstemp(dir=path.parent, prefix=_ASIDE)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(header + payload)
                os.replace(aside, path)
            except BaseException:
                os.unlink(aside)
                raise
            self._unseen_nbytes -= len(header) + len(payload)
            if self._unseen_nbytes < 0:
                self._unseen_nbytes = self._evict() // _SHARE_UNSEEN
        except OSError as error:
            self._give_up(error)

    def take(self, key: str, kind: str) -> bytes | None:
        """An entry of another kind than machine code, which is not kept in memory; None as of `get`."""
        return self._read(self._path(key, kind)) if self._usable() else None

    def keep(self, key: str, payload: bytes, kind: str) -> None:
        """Keep such an entry on disk, where possible."""
        if self._usable():
            self._write(self._path(key, kind), payload)

    def drop(self, key: str, kind: str) -> None:
        """Remove such an entry, whose reader says that it is not what it should be."""
        if self._usable():
            self._remove(self._path(key, kind))

    def clear_memory(self) -> None:
        """Forget what is in memory; the disk stays."""
        self._memory.clear()

    def _path(self, key: str, kind: str = "") -> Path:
        if self._folder is None or not key.isalnum():
            raise ValueError(f"{key!r} is not a cache key")
        return self._folder / (key + (f".{kind}" if kind else "") + _SUFFIX)

    def _usable(self) -> bool:
        if self._folder is None or self._prepared:
            return self._folder is not None
        with self._lock:
            if self._folder is None or self._prepared:
                return self._folder is not None
            try:
                self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                _check_private(self._folder)
            except OSError as error:
                self._give_up(error)
                return False
            self._prepared = True
            return True

    def _give_up(self, error: OSError) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            text = f"machine code is not cached on disk: {folder}: {error.strerror or error}"
            warnings.warn(text, SmeltWarning, stacklevel=user_level())

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self._give_up(error)

    def _evict(self) -> int:
        """Remove the entries used longest ago until the folder fits, and what a killed writer left behind.

        Returns the bytes that are still free.
        """
        assert self._folder is not None
        # As texts: there are tens of thousands, and a `Path` of each takes longer than to look at it.
        entries: list[tuple[float, int, str]] = []
        newest = 0.0
        for item in os.scandir(self._folder):
            try:
                info = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(info.st_mode):
                entries.append((info.st_mtime, info.st_size, item.path))
                newest = max(newest, info.st_mtime)
        total = sum(size for _, size, _ in entries)
        for mtime, size, path in sorted(entries):
            is_entry = path.endswith(_SUFFIX)
            leftover = not is_entry and mtime < newest - _LEFTOVER_AGE_S
            if leftover or (total > self._limit_nbytes and is_entry and mtime < newest):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                total -= size
        return max(self._limit_nbytes - total, 0)


@lru_cache(maxsize=8)
def code_cache(folder: str, limit_mb: int = 512) -> CodeCache:
    """The process's one cache over a folder ("": memory only)."""
    return CodeCache(folder, limit_mb)


@record
class CacheFile:
    """A file of the cache's folder. `is_entry`: not the remains of a writer that was killed; `kind`: "" for machine
    code.
    """

    path: Path
    nbytes: int
    last_used: float
    is_entry: bool
    kind: str = ""


def list_cache(folder: Path) -> list[CacheFile]:
    """What the cache keeps in a folder, the one used last first; files that are not the cache's do not count.

    Raises: OSError if the folder cannot be read; a folder that is not there is an empty one.
    """
    found = []
    try:
        items = sorted(os.scandir(folder), key=lambda item: item.name)
    except FileNotFoundError:
        return []
    for item in items:
        is_entry = item.name.endswith(_SUFFIX)
        if not is_entry and not item.name.startswith(_ASIDE):
            continue
        try:
            info = item.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # another process evicted it
        if stat.S_ISREG(info.st_mode):
            kind = item.name.removesuffix(_SUFFIX).partition(".")[2] if is_entry else ""
            found.append(CacheFile(Path(item.path), info.st_size, info.st_mtime, is_entry, kind))
    return sorted(found, key=lambda file: -file.last_used)


def _digest(name: str, payload: bytes) -> bytes:
    return hashlib.sha256(b"%s\0%s" % (name.encode(), payload)).digest()


def _unwrap(name: str, data: bytes) -> bytes | None:
    """The payload of what lies under a file's name; None where it was not written under that one, or not so."""
    if len(data) < _HEADER.size:
        return None
    magic, version, digest, length = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION or length != len(payload):
        return None
    return payload if _digest(name, payload) == digest else None


def _check_private(folder: Path) -> None:
    """Refuse a folder that someone else owns or may write to; tighten our own.

    Raises: OSError.
    """
    info = folder.stat()
    if not hasattr(os, "getuid"):
        return
    if info.st_uid != os.getuid():
        raise PermissionError(1, "the folder belongs to another user")
    if info.st_mode & 0o077:
        folder.chmod(0o700)

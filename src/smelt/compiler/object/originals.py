"""Give back the memory of weights that a packed copy has replaced, and have them all the same.

Before a module is captured, its large parameters move into a file that is mapped into memory (`move_parameters`). They
keep their identity, values, dtype, strides and version, and are read and written as ever: the mapping is private, so a
write stays in this process and never reaches the file. Once a program has packed a weight, the pages of the original
are handed back to the system (`release`), which fetches them from the file if anybody touches them again.

Parameters that are mapped from a file already, as a checkpoint's are that was loaded so (safetensors), stay where they
are, whoever else holds their memory.

Invariant: nothing is lost, whoever touches what and when; pages that were written are kept, not dropped. A parameter
whose memory somebody else holds too (a view, a NumPy array) is not moved, for the two would part.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from smelt._torch.storage import is_sole_owner
from smelt.diag import Options
from smelt.diag.idle_memory import give_back_freed_memory
from smelt.diag.records import record

# Smaller parameters are not worth a mapping of their own.
MIN_NBYTES = 1 << 16
# Linux's MADV_PAGEOUT: unchanged pages go, changed ones are kept (in swap, or where they are).
_PAGE_OUT = 21
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


@record
class Moved:
    """How many parameters are in a file now, how many bytes, and why others are not."""

    count: int = 0
    nbytes: int = 0
    why_not: str = ""


# Live mappings by the address of the parameter in them; one goes with the last tensor that uses it.
_mappings: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()
# Addresses of parameters in mappings of others. What is there later loses nothing if it is handed back, either.
_in_other_mappings: set[int] = set()


def move_parameters(module: torch.nn.Module, folder: str) -> Moved:
    """Put a module's large parameters into a nameless file in `folder` ("": the system's folder for temporary files).

    Where that cannot be done (a full disk, a folder that lies in memory itself) nothing changes, and `why_not` says so.
    """
    parameters = list(module.parameters())
    mapped_before = _in_files([p for p in parameters if _is_plain(p)])
    _in_other_mappings.update(p.data_ptr() for p in mapped_before)
    chosen = [p for p in parameters if p.data_ptr() not in _in_other_mappings and _may_move(p)]
    if not chosen and mapped_before:
        return Moved(len(mapped_before), sum(p.nbytes for p in mapped_before))
    if not chosen and any(p.data_ptr() in _mappings for p in parameters):
        return Moved()  # by an earlier capture
    if not chosen:
        return Moved(why_not="no parameter is large, dense and referenced by the module alone")
    if not hasattr(mmap, "MAP_PRIVATE") or not hasattr(mmap.mmap, "madvise"):
        return Moved(why_not="this system cannot take single pages of a mapped file back")
    where = Path(folder or tempfile.gettempdir())
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_in_memory(where):
            return Moved(why_not=f"{where} is itself in memory: choose another cache_dir")
        mapped = _mapped(chosen, where)
    except OSError as error:
        return Moved(why_not=f"the parameters cannot be written to {where}: {error.strerror or error}")
    for parameter, tensor in zip(chosen, mapped, strict=True):
        parameter.data = tensor
    return Moved(len(chosen) + len(mapped_before), sum(t.nbytes for t in (*mapped, *mapped_before)))


def move_originals(target: object, options: Options) -> Moved | None:
    """Move the parameters of what is about to be captured, if it was asked for; None if not."""
    if not options.release_originals:
        return None
    if not isinstance(target, torch.nn.Module):
        return Moved(why_not="only the parameters of a module that is itself compiled or traced can be moved")
    return move_parameters(target, options.cache_dir)


def release(tensors: Iterable[torch.Tensor]) -> int:
    """Hand the pages of moved parameters back to the system; their bytes. Other tensors are left alone."""
    given = 0
    for tensor in tensors:
        mapping = _mappings.get(tensor.data_ptr())
        try:
            if mapping is not None:
                mapping.madvise(_PAGE_OUT)
            elif tensor.data_ptr() in _in_other_mappings:
                _page_out(tensor)
            else:
                continue
        except OSError:
            # An older kernel: the pages stay until memory is short, and go then.
            continue
        given += tensor.nbytes
    if given:
        give_back_freed_memory()  # that of intermediate copies of weights
    return given


def _page_out(tensor: torch.Tensor) -> None:
    """Hand back the pages that are all of this tensor's. Raises: OSError."""
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    nbytes = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    if madvise(ctypes.c_void_p(begin), ctypes.c_size_t(nbytes), _PAGE_OUT) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _is_plain(parameter: torch.nn.Parameter) -> bool:
    return (
        type(parameter) is torch.nn.Parameter
        and parameter.layout is torch.strided
        and parameter.device.type == "cpu"
        and parameter.nbytes >= MIN_NBYTES
        and parameter.is_contiguous()
        and parameter.data_ptr() not in _mappings
    )


def _may_move(parameter: torch.nn.Parameter) -> bool:
    return (
        _is_plain(parameter)
        and not parameter.is_inference()
        and parameter.untyped_storage().nbytes() == parameter.nbytes
        and is_sole_owner(parameter)
    )


def _in_files(parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Those in private mappings of files on a disk that this process may hand back: files of its own, or that it may
    write."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return []
    found: list[tuple[int, int]] = []
    usable: dict[str, bool] = {}
    for begin, end, path in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) r..p \S+ \S+ \S+ +(/.*)$", maps, re.MULTILINE):
        if path not in usable:
            usable[path] = _is_usable(Path(path))
        if usable[path]:
            found.append((int(begin, 16), int(end, 16)))
    return [p for p in parameters if any(b <= p.data_ptr() and p.data_ptr() + p.nbytes <= e for b, e in found)]


def _is_usable(path: Path) -> bool:
    try:
        is_own = path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK)
    except OSError:  # deleted, or not to be seen
        return False
    return is_own and not _is_in_memory(path.parent)


def _mapped(parameters: Sequence[torch.nn.Parameter], folder: Path) -> list[torch.Tensor]:
    """Tensors of equal contents over one file, each with a mapping and a storage of its own.

    Raises: OSError where the file cannot be written or mapped.
    """
    offsets, size = [], 0
    for parameter in parameters:
        offsets.append(size)
        size += -(-parameter.nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
    with tempfile.TemporaryFile(dir=folder, prefix="smelt-originals-") as file:
        for parameter, offset in zip(parameters, offsets, strict=True):
            file.seek(offset)
            file.write(parameter.detach().view(-1).view(torch.uint8).numpy().data)
        file.flush()
        # Only pages that are on the disk can be handed back.
        os.fsync(file.fileno())
        return [_map(p, file.fileno(), offset) for p, offset in zip(parameters, offsets, strict=True)]


def _map(parameter: torch.nn.Parameter, file: int, offset: int) -> torch.Tensor:
    """A tensor like the parameter over a part of a file."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    mapping = mmap.mmap(file, parameter.nbytes, flags=mmap.MAP_PRIVATE, prot=protection, offset=offset)
    # A touch of one element is to fetch one page, not its neighbours.
    mapping.madvise(mmap.MADV_RANDOM)
    tensor = torch.frombuffer(mapping, dtype=parameter.dtype).view(parameter.shape)
    _mappings[tensor.data_ptr()] = mapping
    return tensor


def _is_in_memory(folder: Path) -> bool:
    """Whether the file system of a folder keeps its files in memory; False where the system does not tell."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    path, kind, longest = folder.resolve(), "", -1
    for line in lines:
        _, mount, type_, *_ = line.split(" ")
        if path.is_relative_to(mount) and len(mount) >= longest:
            kind, longest = type_, len(mount)
    return kind in _IN_MEMORY

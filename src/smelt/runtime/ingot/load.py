"""`smelt.load`: a program out of a file that `save` wrote. Needs torch, and nothing of the compiler."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import torch

from smelt.diag.collector import full_collections_later
from smelt.runtime import ingot
from smelt.runtime.ingot.contents import from_bytes, open_file
from smelt.runtime.ingot.program import LoadedProgram
from smelt.runtime.ingot.signature import Secret, Verifies, check, read_signature


def load(
    source: str | os.PathLike[str] | bytes | BinaryIO,
    *,
    map_location: Any = None,
    allow_native: bool = True,
    verify: bool | None = None,
    copy: bool = False,
    classes: Iterable[type] = (),
    signed_by: Secret | Verifies | None = None,
    signature: bytes | None = None,
) -> LoadedProgram:
    """The program that was saved to a file, or to a buffer.

    map_location: the device that its tensors go to. allow_native: run the file's machine code, which takes as much
    trust as running a program of the same origin; without it, the graph's text is read and compiled here. verify: check
    the weights' digest, too (None: where they are small; all else is always checked). copy: read the file instead of
    mapping it, where others may write to it meanwhile. classes: what results may be made of, instead of records.
    signed_by: the key that must have signed the file (`smelt.sign`), checked before anything else is read: bytes, or a
    public key with `verify(signature, data)`; the file is then read, not mapped. signature: instead of the one in the
    file beside it. Raises: PackageError (S0701) for a broken file, naming the entry, and for another
    signature; OSError where it cannot be opened.
    """
    with full_collections_later():
        if signed_by is not None:
            source = _signed(source, signed_by, signature)
        return _loaded(source, map_location, allow_native, verify, copy, classes)


def _signed(
    source: str | os.PathLike[str] | bytes | BinaryIO, key: Secret | Verifies, signature: bytes | None
) -> bytes:  # fmt: skip
    """The file's bytes, in memory that nobody else can write to. Raises: PackageError (S0701)."""
    if isinstance(source, (str, os.PathLike)):
        signature = read_signature(source) if signature is None else signature
        data = Path(source).read_bytes()
    else:
        data = bytes(source) if isinstance(source, (bytes, bytearray)) else source.read()
    check(data, signature or b"", key)
    return data


def _loaded(
    source: str | os.PathLike[str] | bytes | BinaryIO, map_location: Any, allow_native: bool, verify: bool | None,
    copy: bool, classes: Iterable[type],
) -> LoadedProgram:  # fmt: skip
    if isinstance(source, (str, os.PathLike)):
        contents = open_file(source, copy=copy, verify=verify)
    else:
        data = source if isinstance(source, (bytes, bytearray)) else source.read()
        contents = from_bytes(bytes(data), verify=verify)
    by_name = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}
    program = LoadedProgram(contents, allow_native=allow_native, classes=by_name)
    if allow_native and contents.manifest.kernels:
        ingot.prepare()
    if map_location is not None:
        program.to(torch.device(map_location))
    return program

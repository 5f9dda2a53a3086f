"""Detached signatures: who made a file, told before anything of it is read.

    m.ingot.sig = HMAC-SHA512(key, message), or what a private key signs the message with
    message = "smelt ingot 1\n" + SHA-512 of the file

Invariant: the bytes that are compared are those that are used. A digest inside a file tells damage; only a key that the
maker of a changed file does not have tells malice.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Protocol, TypeAlias

from smelt.diag import PackageError

SUFFIX = ".sig"
_HEAD = b"smelt ingot 1\n"
_LEAST_KEY = 16
_MOST = 1 << 16


class Signs(Protocol):
    """A private key, as of the package `cryptography` (`Ed25519PrivateKey`)."""

    def sign(self, data: bytes, /) -> bytes: ...


class Verifies(Protocol):
    """A public key, as of the package `cryptography` (`Ed25519PublicKey`): raises where the signature is another's."""

    def verify(self, signature: bytes, data: bytes, /) -> None: ...


Secret: TypeAlias = bytes
"""A key that maker and reader share."""


def sign(path: str | os.PathLike[str], key: Secret | Signs) -> Path:
    """Write the signature of a saved program beside it, as `<path>.sig`; where that is.

    key: bytes that only makers and readers have (`secrets.token_bytes(32)`), or a private key with `sign(data)`.
    Raises: PackageError (S0701) for a key of fewer than 16 bytes; OSError.
    """
    data = Path(path).read_bytes()
    signature = _mac(key, data) if isinstance(key, bytes) else key.sign(message(data))
    beside = signature_path(path)
    aside = beside.with_name(f".{beside.name}.{os.getpid()}")
    aside.write_bytes(signature)
    os.replace(aside, beside)
    return beside


def signature_path(path: str | os.PathLike[str]) -> Path:
    """Where the signature of a file is."""
    return Path(f"{os.fspath(path)}{SUFFIX}")


def read_signature(path: str | os.PathLike[str]) -> bytes:
    """The signature beside a file. Raises: PackageError (S0701) where there is none."""
    try:
        with open(signature_path(path), "rb") as file:
            return file.read(_MOST)
    except FileNotFoundError:
        raise _refused(f"there is no {signature_path(path)}") from None


def message(data: bytes | memoryview) -> bytes:
    """What is signed of a file."""
    return _HEAD + hashlib.sha512(data).digest()


def check(data: bytes | memoryview, signature: bytes, key: Secret | Verifies) -> None:
    """Raises: PackageError (S0701) where the signature is not that of these bytes by this key."""
    if isinstance(key, bytes):
        if not hmac.compare_digest(_mac(key, data), signature):
            raise _refused("the signature was made with another key, or of another file")
        return
    try:
        key.verify(signature, message(data))
    except Exception as error:  # each library has its own
        raise _refused(f"the key says {type(error).__name__}: the signature is another's, or of another file") from None


def _mac(key: Secret, data: bytes | memoryview) -> bytes:
    if len(key) < _LEAST_KEY:
        raise PackageError(
            f"the key has {len(key)} bytes",
            why=f"one of fewer than {_LEAST_KEY} can be found by trying",
            fix="make one by secrets.token_bytes(32), and store it where neither the file nor its readers' users are",
            code="S0701",
        )
    return hmac.digest(key, message(data), "sha512")


def _refused(why: str) -> PackageError:
    return PackageError(
        "the ingot was not read: its signature does not hold",
        why=why,
        fix="get the file and its signature from their maker again",
        code="S0701",
    )

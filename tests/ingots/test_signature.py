"""A signature is compared before anything of the file is read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

import smelt
from smelt.runtime.ingot.signature import message
from tests.ingots.programs import Mlp

KEY, OTHER = bytes(range(32)), bytes(32)


class Pair:
    """A stand-in for a pair of keys with the interface of the package `cryptography`."""

    def sign(self, data: bytes) -> bytes:
        return hashlib.sha256(b"private" + data).digest()

    def verify(self, signature: bytes, data: bytes) -> None:
        if signature != self.sign(data):
            raise ValueError("another signature")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    smelt.trace(Mlp().eval(), (torch.randn(3, 16),)).save(tmp_path / "m.ingot", targets=[])
    return tmp_path / "m.ingot"


@pytest.mark.parametrize("key", [KEY, Pair()], ids=["shared", "pair"])
def test_what_was_signed_is_loaded(path: Path, key: bytes | Pair) -> None:
    assert smelt.sign(path, key) == Path(f"{path}.sig")
    loaded = smelt.load(path, signed_by=key)
    assert list(loaded.state_dict()) == list(smelt.load(path).state_dict())
    signature = Path(f"{path}.sig").read_bytes()
    assert smelt.load(path.read_bytes(), signed_by=key, signature=signature).methods == ("forward",)


@pytest.mark.parametrize("key", [KEY, Pair()], ids=["shared", "pair"])
def test_nothing_is_read_of_another_file(path: Path, key: bytes | Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    smelt.sign(path, key)
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)

    def read(*args: object) -> None:
        raise AssertionError("the file was read before its signature was compared")

    monkeypatch.setattr("smelt.runtime.ingot.contents.Archive", read)
    with pytest.raises(smelt.PackageError, match="signature does not hold"):
        smelt.load(path, signed_by=key)
    with pytest.raises(smelt.PackageError, match="signature does not hold"):
        smelt.load(bytes(changed), signed_by=key)


def test_another_key_and_no_signature_are_refused(path: Path) -> None:
    with pytest.raises(smelt.PackageError, match=r"there is no .*m\.ingot\.sig"):
        smelt.load(path, signed_by=KEY)
    smelt.sign(path, KEY)
    with pytest.raises(smelt.PackageError, match="another key"):
        smelt.load(path, signed_by=OTHER)
    with pytest.raises(smelt.PackageError, match="fewer than 16"):
        smelt.sign(path, b"short")


def test_the_message_is_of_the_whole_file() -> None:
    assert message(b"abc") == b"smelt ingot 1\n" + hashlib.sha512(b"abc").digest()

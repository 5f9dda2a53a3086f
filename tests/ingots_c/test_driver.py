"""The runtime as a C program has it: under sanitizers, on another machine, linked for an old C library."""

from __future__ import annotations

import importlib.util
import math
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import smelt
from smelt.package.c.export import Exported, export
from tests.ingots_c.client import Library
from tests.ingots_c.conftest import Built, driver
from tests.ingots_c.mutants import mutants
from tests.ingots_c.programs import programs
from tests.ingots_c.test_calls import flat

pytestmark = pytest.mark.nightly

_ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
_THREAD = ("-fsanitize=thread", "-g")
_MUTANTS = 100_000
_QEMUS = ("qemu-aarch64-static", "qemu-aarch64")
_CROSS = "aarch64-linux-gnu-gcc"


def script(built: Built, numbers: dict[str, int], names: Sequence[str]) -> bytes:
    """Calls as the driver reads them."""
    pieces = []
    for name in names:
        for inputs in built.calls[name]:
            pieces.append(struct.pack("<i", numbers[name]))
            for tensor in inputs:
                pieces.append(struct.pack(f"<{tensor.dim()}q", *tensor.shape))
                pieces.append(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()))
    return b"".join(pieces)


def results(content: bytes, wanted: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """What the driver wrote, in the types of what is wanted."""
    at = 0
    found = []
    for outputs in wanted:
        (status,) = struct.unpack_from("<i", content, at)
        assert status == 0
        at += 4
        found.append([])
        for like in outputs:
            (ndim,) = struct.unpack_from("<i", content, at)
            sizes = struct.unpack_from(f"<{ndim}q", content, at + 4)
            at += 4 + 8 * ndim
            nbytes = math.prod(sizes) * like.itemsize
            flat = (
                torch.frombuffer(bytearray(content[at : at + nbytes]), dtype=like.dtype)
                if nbytes
                else like.new_empty(0)
            )
            found[-1].append(flat.view(sizes))
            at += nbytes
    assert at == len(content)
    return found


def run(built: Built, exported: Exported, command: Sequence[str], tmp_path: Path, contexts: int, threads: int,
        names: Sequence[str]) -> list[tuple[torch.Tensor, torch.Tensor]]:  # fmt: skip
    """Pairs of what the driver gives and what Python gives."""
    loaded = smelt.load(built.ingot)
    numbers = {signature.name: i for i, signature in enumerate(exported.signatures)}
    (tmp_path / "script").write_bytes(script(built, numbers, names))
    out = tmp_path / "out"
    arguments = ["calls", exported.weights, tmp_path / "script", out, contexts, threads]
    subprocess.run([*command, *map(str, arguments)], check=True)
    with torch.no_grad():
        calls = [(name, inputs) for name in names for inputs in built.calls[name]]
        # A result may be a view of state that the next call writes to.
        wanted = [[each.clone() for each in flat(loaded.entry(name)(*inputs))] for name, inputs in calls]
    found = results(out.read_bytes(), wanted)
    return [pair for a, b in zip(found, wanted, strict=True) for pair in zip(a, b, strict=True)]


@pytest.mark.parametrize("flags", [_ADDRESS, _THREAD], ids=["address", "thread"])
@pytest.mark.parametrize("contexts, threads", [(1, 1), (3, 2)])
@pytest.mark.parametrize("name", ["built", "ranged"])
def test_sanitizers(
    request: pytest.FixtureRequest, name: str, tmp_path: Path, flags: tuple[str, ...], contexts: int, threads: int
) -> None:
    built: Built = request.getfixturevalue(name)
    exported = export(built.ingot, tmp_path / "build", flags=flags)
    program = driver(exported, ["cc"], flags)
    pairs = run(built, exported, [str(program)], tmp_path, contexts, threads, list(built.calls))
    assert all(torch.equal(a, b) for a, b in pairs)


def test_broken_weights(built: Built, tmp_path: Path) -> None:
    """Each ends with a status and a text, or is a model with other numbers: nothing is read or written elsewhere."""
    exported = export(built.ingot, tmp_path / "build", flags=_ADDRESS)
    program = driver(exported, ["cc"], _ADDRESS)
    content = exported.weights.read_bytes()
    edits = b"".join(edit.packed() for edit in mutants(content, _MUTANTS, seed=3))
    command = [program, "changed", exported.weights, tmp_path / "changed.safetensors"]
    done = subprocess.run(command, input=edits, check=True, capture_output=True)
    lines = done.stdout.decode().splitlines()
    assert len(lines) == _MUTANTS
    assert all(line.startswith("0") or len(line) > 20 for line in lines)
    statuses = {line.split()[0] for line in lines}
    assert statuses == {"0", "2"}


def test_another_machine(built: Built, tmp_path: Path) -> None:
    """Code for 64-bit Arm under qemu. Panels are packed there, as this machine cannot run its kernels."""
    qemu = next(filter(None, map(shutil.which, _QEMUS)), None)
    if qemu is None or shutil.which(_CROSS) is None:
        pytest.fail(f"needs an emulator and {_CROSS} (Debian: qemu-user-static gcc-aarch64-linux-gnu)")
    with torch.no_grad():
        torch.manual_seed(5)
        names = ("mlp", "collatz", "lstm", "block", "counter", "convolved", "branches", "wide")
        made = {name: make() for name, (make, _) in programs().items() if name in names}
        smelt.save(made, tmp_path / "all.ingot", targets=["neon", "avx2"])
    here = Built(tmp_path / "all.ingot", built.exported, {name: built.calls[name] for name in made})
    exported = export(here.ingot, tmp_path / "build", target="neon", compiler=_CROSS)
    program = driver(exported, [_CROSS], ["-static"])
    for contexts, threads in ((1, 1), (2, 3)):
        pairs = run(here, exported, [qemu, str(program)], tmp_path, contexts, threads, list(here.calls))
        for found, wanted in pairs:
            torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


def test_an_old_c_library(built: Built, tmp_path: Path) -> None:
    """What zig links asks for nothing that is younger than glibc 2.17, and runs here."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.fail(f"needs a compiler for old C libraries: {sys.executable} -m pip install ziglang")
    exported = export(built.ingot, tmp_path / "build", compiler="zig")
    versions = subprocess.run(["readelf", "-V", exported.library], check=True, capture_output=True, text=True).stdout
    found = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([\d.]+)", versions)}
    assert found and max(found) <= (2, 17)
    assert exported.library.stat().st_size < 200_000 + sum(
        len(kernel.object) for name in built.calls for kernel in built.loaded().entry(name).native().text.code
    )
    context = Library(exported).open(exported.weights).context()
    with torch.no_grad():
        wanted = built.loaded().entry("block")(*built.calls["block"][0])
    found_here = context.call("block", *built.calls["block"][0])
    assert all(torch.equal(a, b) for a, b in zip(found_here, wanted, strict=True))

"""Ingots that were changed at random, in each of their layers, and what reading them must come to.

    bytes of the file | manifest | header of the weights | plan | text of a graph

A checksum stops nearly all changes of the first kind. So the others change one layer, and make those around it fit.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import torch

import smelt
from smelt.runtime.ingot.archive import Archive, write_archive
from smelt.runtime.ingot.contents import from_bytes
from smelt.runtime.ingot.load import load
from smelt.runtime.ingot.manifest import FORMAT, NAME, PROGRAM, WEIGHTS
from smelt.runtime.ingot.natives import NativeText
from smelt.runtime.ingot.texts.json_text import dumps
from tests.ingots.corpus import FOLDER
from tests.ingots.programs import Mlp, cases

_NUMBERS = (-1, 0, 1, 2, 63, 64, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**40)
_VALUES = (None, True, "", "x", "../x", "a" * 300, [], {}, [[]], {"float": "nan"}, {"float": "0x1p2000"}, 0.5)


def entries_of(data: bytes) -> dict[str, bytes]:
    """What the entries hold, the manifest in one: no entry is packed then, which a reader takes as well."""
    contents = from_bytes(data)
    found = {name: bytes(contents.entry(name)) for name in contents.manifest.entries}
    manifest = json.loads(bytes(Archive(memoryview(data)).content(NAME)))
    if PROGRAM in found:
        manifest["program"] = json.loads(found.pop(PROGRAM))
        manifest["entries"] = {name: listed(found[name]) for name in found}
    return {NAME: dumps(manifest), **found}


def listed(content: bytes) -> list[Any]:
    """How a manifest lists an entry that is not packed."""
    return [len(content), hashlib.sha256(content).hexdigest(), None]


def with_digests(entries: dict[str, bytes]) -> bytes:
    """An archive of these entries whose manifest agrees with them, where it still lists them."""
    manifest = json.loads(entries[NAME])
    known = manifest.get("entries") if isinstance(manifest, dict) else None
    if isinstance(known, dict):
        width = 2 if manifest.get("format") in (1, 2, 3) else 3
        known |= {name: listed(content)[:width] for name, content in entries.items() if name in known}
        entries = entries | {NAME: json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()}
    return archive_of(entries)


def archive_of(entries: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    write_archive(file, [(name, [content]) for name, content in entries.items()])
    return file.getvalue()


# --- changes ----------------------------------------------------------------------------------------------------------


def changed_bytes(data: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, overwritten, cut out, doubled or cut off."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, n = draw.randrange(len(found) or 1), draw.choice((1, 1, 2, 4, 8, 64))
        match draw.randrange(6):
            case 0:
                found[at : at + 1] = bytes([found[at] ^ 1 << draw.randrange(8)]) if found else b""
            case 1:
                found[at : at + n] = draw.randbytes(n)
            case 2:
                del found[at : at + n]
            case 3:
                found[at:at] = found[at : at + n]
            case 4:
                number = draw.choice(_NUMBERS)
                found[at : at + 4] = struct.pack("<Q", number % 2**64)[:4]
            case _ if draw.random() < 0.2:
                del found[at:]
    return bytes(found)


def changed_json(value: Any, draw: random.Random) -> Any:
    """One value somewhere in it is another one, is missing, or stands twice."""
    value = json.loads(json.dumps(value))
    holder, key = None, None
    here = value
    while isinstance(here, (list, dict)) and here and (holder is None or draw.random() < 0.85):
        holder = here
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        here = holder[key]
    if holder is None:
        return draw.choice(_VALUES)
    match draw.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(here, int) and not isinstance(here, bool):
            holder[key] = draw.choice((here + 1, here - 1, *_NUMBERS))
        case 2 if isinstance(holder, list):
            holder.insert(key, here)
        case 2 if isinstance(holder, dict):
            holder[f"{key}x"] = here
        case _:
            holder[key] = draw.choice((*_VALUES, draw.choice(_NUMBERS)))
    return value


# --- layers -----------------------------------------------------------------------------------------------------------


def of_file(data: bytes, draw: random.Random) -> None:
    load(changed_bytes(data, draw))


def of_manifest(data: bytes, draw: random.Random) -> None:
    entries = entries_of(data)
    manifest = changed_json(json.loads(entries[NAME]), draw)
    program = load(archive_of(entries | {NAME: json.dumps(manifest, separators=(",", ":")).encode()}))
    program.reset()
    str(program)
    program.state_dict()


def of_weights(data: bytes, draw: random.Random) -> None:
    entries = entries_of(data)
    (nbytes,) = struct.unpack_from("<Q", entries[WEIGHTS])
    header, rest = entries[WEIGHTS][8 : 8 + nbytes], entries[WEIGHTS][8 + nbytes :]
    if draw.random() < 0.3:
        nbytes = draw.choice(_NUMBERS) % 2**64
    else:
        header = json.dumps(changed_json(json.loads(header), draw)).encode()
        header += b" " * (-(8 + len(header)) % 64)
        nbytes = len(header)
    load(with_digests(entries | {WEIGHTS: struct.pack("<Q", nbytes) + header + rest}))


def of_plan(data: bytes, draw: random.Random) -> None:
    entries = entries_of(data)
    plans = [name for name in entries if name.startswith("code/") and name.endswith(".json")]
    if not plans:
        return of_manifest(data, draw)
    name = draw.choice(plans)
    plan = changed_json(json.loads(entries[name]), draw)
    contents = from_bytes(with_digests(entries | {name: json.dumps(plan).encode()}))
    manifest = contents.manifest
    _, target, method = name.removesuffix(".json").split("/")
    code = contents.entry(manifest.kernels[target])
    text = NativeText.read(contents.json(name), code, manifest.methods[method.split(".")[0]], len(manifest.state))
    if text.table is not None:
        text.table.words(*text.table.least)


def of_text(data: bytes, draw: random.Random) -> None:
    entries = entries_of(data)
    name = draw.choice([name for name in entries if name.startswith("graphs/")])
    program = load(with_digests(entries | {name: changed_bytes(entries[name], draw)}), allow_native=False)
    assert program.graph is not None


def of_packed(data: bytes, draw: random.Random) -> None:
    """A packed entry whose bytes, or whose size, are others."""
    entries = entries_of(data)
    manifest = json.loads(entries[NAME])
    name = draw.choice([name for name in entries if name.startswith("graphs/")])
    content, nbytes = gzip.compress(entries.pop(name), mtime=0), len(entries[NAME])
    nbytes = draw.choice((nbytes, *_NUMBERS)) if draw.random() < 0.2 else manifest["entries"][name][0]
    content = changed_bytes(content, draw) if draw.random() < 0.8 else content
    manifest["entries"][name] = [*listed(content)[:2], nbytes]
    manifest["format"] = FORMAT
    program = load(archive_of(entries | {NAME: dumps(manifest), f"{name}.gz": content}), allow_native=False)
    assert program.graph is not None


LAYERS: tuple[Callable[[bytes, random.Random], None], ...] = (
    of_file, of_manifest, of_weights, of_plan, of_text, of_packed,
)  # fmt: skip


def samples() -> list[bytes]:
    """Small ingots of each kind: weights, ties, state, branches, nested results, training, free sizes and ranges."""
    found = []
    with torch.no_grad():
        for name in ("tied", "branches", "structured", "closed over"):
            make, _, _ = cases()[name]
            buffer = io.BytesIO()
            make().save(buffer, targets=["avx2"], extra_files={"note.txt": b"hello"})
            found.append(buffer.getvalue())
        buffer = io.BytesIO()
        rows = smelt.trace(Mlp().eval(), (torch.randn(3, 16),), dynamic_shapes={"x": {0: smelt.Dim("rows", max=9)}})
        rows.save(buffer, targets=["avx2"], sizes=[{"rows": range(1, 10)}])
        found.append(buffer.getvalue())
    # Free sizes, gradients that a call leaves, an earlier format, weights in panels.
    names = ("2/free.ingot", "2/step.ingot", "1/small.ingot", "3/packed.ingot")
    return found + [(FOLDER / name).read_bytes() for name in names]


def read_changed(times: int, seed: int) -> dict[str, int]:
    """Change and read so many files; how many were refused, by layer. Raises: whatever is no PackageError."""
    data = samples()
    refused = dict.fromkeys((layer.__name__ for layer in LAYERS), 0)
    for i in range(times):
        layer, draw = LAYERS[i % len(LAYERS)], random.Random(f"{seed} {i}")
        try:
            layer(data[i // len(LAYERS) % len(data)], draw)
        except smelt.PackageError as error:
            assert error.code == "S0701" and "ingot" in error.what
            refused[layer.__name__] += 1
        except Exception as error:
            error.add_note(f"file {i} of seed {seed}, {layer.__name__}")
            raise
    return refused

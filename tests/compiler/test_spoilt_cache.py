"""A folder of machine code and plans that is not what it was: the answers stay, and what is wrong is built again."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.forked import smelt_forks

PROGRAM = textwrap.dedent("""
    import sys, warnings
    import torch
    import smelt

    def f(x, w):
        for _ in range(6):
            x = (x @ w).softmax(-1).sin() + x.sum(0)
        return x

    x, w = torch.linspace(0, 1, 48).reshape(6, 8), torch.linspace(-1, 1, 64).reshape(8, 8)
    compiled = smelt.compile(f)
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(compiled(x, w), f(x, w), atol=1e-5)
    assert not compiled.stats().fallbacks, compiled.stats()
    print("native", any(row.native is not None for row in compiled.stats().rows))
""")


def _run(folder: Path) -> str:
    """What a process with this folder writes, on both streams."""
    return smelt_forks().run(PROGRAM, environment={"SMELT_CACHE_DIR": str(folder)})


def _code(names):
    """Machine code; whether a plan is kept, too, depends on how long it took."""
    return {name for name in names if ".plan." not in name}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("filled")
    assert _run(folder) == "native True\n"
    return {path.name: path.read_bytes() for path in folder.glob("*.obj")}


def _rotated(contents):
    """Each entry under the name of the next one."""
    names = list(contents)
    return dict(zip(names, [contents[name] for name in (*names[1:], names[0])], strict=True))


SPOILT = {
    "under other names": _rotated,
    "cut": lambda contents: {name: data[: len(data) // 2] for name, data in contents.items()},
    "a bit flipped": lambda contents: {
        name: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:] for name, data in contents.items()
    },
    "empty": lambda contents: dict.fromkeys(contents, b""),
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("how", SPOILT)
def test_what_is_not_the_entry_asked_for_is_built_again(filled, tmp_path, how):
    for name, data in SPOILT[how](filled).items():
        (tmp_path / name).write_bytes(data)
    assert _run(tmp_path) == "native True\n"
    assert _code(path.name for path in tmp_path.glob("*.obj")) >= _code(filled)
    assert _run(tmp_path) == "native True\n"  # of what was written again


def test_directories_in_the_place_of_entries_are_told_once(filled, tmp_path):
    for name in filled:
        (tmp_path / name).mkdir()
    done = _run(tmp_path)
    assert done.endswith("native True\n") and done.count("is not cached on disk") == 1

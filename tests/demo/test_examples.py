"""Every script in examples/ runs to its end, from another folder, with no warning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import Forks

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    cache = tmp_path_factory.mktemp("cache")
    made = Forks(
        "import torch, smelt; smelt.compile",
        ("-W", "error::UserWarning"),
        {"SMELT_CACHE_DIR": str(cache), "ROUNDS": "1"},
    )
    yield made
    made.close()


def _run(forks: Forks, script: Path, folder: Path, *options: str) -> str:
    """What a script writes, run as `python script options`."""
    argv = [str(script), *options]
    return forks.run(
        f"import runpy, sys; sys.argv = {argv!r}; runpy.run_path({str(script)!r}, run_name='__main__')", folder
    )


@pytest.mark.spread(6)
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(forks: Forks, script: Path, tmp_path: Path) -> None:
    assert _run(forks, script, tmp_path)


def test_a_gpt_trains_alike_eagerly_and_compiled(forks: Forks, tmp_path: Path) -> None:
    script = next(path for path in EXAMPLES if path.stem == "train_gpt")
    small = ["--steps", "24", "--layers", "1", "--width", "16", "--plot", "curves.png"]
    told = _run(forks, script, tmp_path, *small)
    lines = [re.findall(r"loss (\S+) to (\S+),", line) for line in told.splitlines() if "of CPU a step" in line]
    assert len(lines) == 2 and lines[0] == lines[1]
    ((first, last),) = lines[0]
    assert float(last) < float(first)
    (apart,) = re.findall(r"differ by at most (\S+) of", told)
    assert float(apart) < 1e-5
    assert "gradients are needed" not in told
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")

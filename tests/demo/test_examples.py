"""Every script in examples/ runs to its end, from another folder, with no warning."""

from __future__ import annotations

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
    made = Forks("import smelt", ("-W", "error::UserWarning"), {"SMELT_CACHE_DIR": str(cache), "ROUNDS": "1"})
    yield made
    made.close()


@pytest.mark.spread(3)
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(forks: Forks, script: Path, tmp_path: Path) -> None:
    assert forks.run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')", tmp_path)

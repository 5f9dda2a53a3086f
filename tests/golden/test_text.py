"""What programs become, as golden text: graphs, gradients, plans, nests and tables of guards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.stages import outcome
from tests.golden.text import Case, check, read

FOLDER = Path(__file__).parent / "cases"
CASES = [(path, case) for path in sorted(FOLDER.glob("*.txt")) for case in read(path)]


@pytest.mark.parametrize(("path", "case"), CASES, ids=[f"{path.stem}: {case.name}" for path, case in CASES])
def test_text(path: Path, case: Case, request: pytest.FixtureRequest) -> None:
    check(path, case, lambda case: outcome(case.how, case.before), request.config.getoption("--bless"))


def test_cases() -> None:
    assert len(CASES) >= 150
    assert all(case.after for _, case in CASES)

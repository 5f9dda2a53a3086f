"""Programs that once gave another answer than eager, or a defect, each as small as it could be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.judge import judge

HERE = Path(__file__).parent


@pytest.mark.spread(40)
@pytest.mark.parametrize("path", sorted((HERE / "found").glob("*.py")), ids=lambda path: path.stem)
def test_found(path: Path) -> None:
    verdict = judge(path)
    assert not verdict.difference and not verdict.internal, verdict

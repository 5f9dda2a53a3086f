"""Both ways to whole programs: staged where that is possible, and by recorded paths alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import smelt.compiler  # noqa: F401


@pytest.fixture
def paths_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is staged: every way is a recorded path."""

    def not_staged(*args: Any, **kwargs: Any) -> tuple[None, str]:
        return None, "the test wants paths"

    # The package has the modules' functions under the same names.
    monkeypatch.setattr(sys.modules["smelt.compiler.build"], "staged_unit", not_staged)
    monkeypatch.setattr(sys.modules["smelt.compiler.programs.tracing"], "_staged", lambda *args: None)


@pytest.fixture(params=["staged", "paths"])
def both(request: pytest.FixtureRequest) -> str:
    """Which of the two."""
    if request.param == "paths":
        request.getfixturevalue("paths_only")
    return str(request.param)

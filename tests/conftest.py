"""Property tests draw the same examples in each run of the suite; SMELT_RANDOM=1 lets them draw others."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from smelt.compiler import worth

settings.register_profile("suite", derandomize=True)
if not os.environ.get("SMELT_RANDOM"):
    settings.load_profile("suite")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled stays so, however long it takes: no test depends on the time of a run."""
    monkeypatch.setattr(worth, "SETTLING", 10**9)

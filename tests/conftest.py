"""Property tests draw the same examples in each run of the suite; SMELT_RANDOM=1 lets them draw others."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from smelt.compiler import kept_plans, worth

settings.register_profile("suite", derandomize=True)
if not os.environ.get("SMELT_RANDOM"):
    settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--bless` rewrites what golden files expect."""
    parser.addoption("--bless", action="store_true", default=False, help="write what is given into golden files")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled stays so, however long it takes: no test depends on the time of a run."""
    monkeypatch.setattr(worth, "SETTLING", 10**9)


@pytest.fixture(autouse=True)
def plans_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans come of passes and lowering in this process, and not of what an earlier one kept on disk."""
    monkeypatch.setattr(kept_plans, "WORTH_MS", float("inf"))

"""Programs stay in pieces however long they take, but where a test asks for the measurement."""

from __future__ import annotations

import pytest

from smelt.compiler import splitting_worth


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splitting_worth, "SETTLING", 10**9)

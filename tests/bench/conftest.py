"""What tests of measuring share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A measurement first looks through all memory for garbage: here through that of all tests, for a second each."""
    monkeypatch.setattr(gc, "collect", lambda generation=2: 0)

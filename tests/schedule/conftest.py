"""What tests of schedules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smelt.scheduling.comparing import measuring


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: more threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """What steps measure is no part of a test: each way runs, and the later ones are the faster."""
    monkeypatch.setattr(measuring, "seconds", lambda ways: [way() is None or 2.0 - i for i, way in enumerate(ways)])

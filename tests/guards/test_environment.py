"""A variable of the environment that a program reads is a guard, present or not."""

from __future__ import annotations

import os

import pytest
import torch

from tests.guards.double import Builder

NAME = "SMELT_TEST_FACTOR"


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * int(os.environ.get(NAME, "1"))


def direct(x: torch.Tensor) -> torch.Tensor:
    return x * int(os.environ[NAME])


def present(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if NAME in os.environ else x * 3


@pytest.mark.parametrize("f", [scaled, direct, present, lambda x: x * int(os.getenv(NAME, "7"))])
def test_a_changed_variable_is_seen(f, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    builder = Builder()
    c = builder.compile(f)
    x = torch.ones(2)
    with torch.no_grad():
        for value in ("2", "2", "3", None, "4", None, None):
            if value is None:
                monkeypatch.delenv(NAME, raising=False)
                if f is direct:
                    with pytest.raises(KeyError):
                        c(x)
                    continue
            else:
                monkeypatch.setenv(NAME, value)
            assert torch.equal(c(x), f(x)), value
    assert not c.stats().fallbacks


def test_an_unchanged_environment_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "5")
    builder = Builder()
    c = builder.compile(scaled)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(c(torch.ones(2)), torch.full((2,), 5.0))
    assert c.stats().builds == 1

"""Sizes that a compiled program has not seen: a plan for many sizes is filled for them, and nothing is made anew."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

import smelt
from smelt.compiler import SizedUnit
from smelt.compiler.sizes import sized_unit
from smelt.runtime.encoding import encode as encoding
from smelt.runtime.entering import entry


def model() -> torch.nn.Module:
    layers = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    return layers.requires_grad_(False)


def unit_of(compiled: Any) -> SizedUnit:
    return next(row.entry for row in compiled.stats().rows if isinstance(row.entry, SizedUnit))


@contextmanager
def counted() -> Iterator[tuple[mock.Mock, mock.Mock]]:
    """Counts of plans that are encoded, and of guards that are written as words."""
    with (
        mock.patch("smelt.runtime.encoding.sizes.encode", mock.Mock(wraps=encoding.encode)) as shared,
        mock.patch("smelt.runtime.runner.encode", shared),
        mock.patch("smelt.runtime.entering.entry.native_guards", mock.Mock(wraps=entry.native_guards)) as guards,
    ):
        yield shared, guards


def test_fresh_sizes_are_filled_in() -> None:
    layers = model()
    compiled = smelt.compile(layers)
    for rows in (3, 5, 7, 7, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), layers(x))
    with counted() as (encoded, guards):
        for rows in (9, 40, 11, 9, 9, 40, 40, 2):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), layers(x))
    assert (encoded.call_count, guards.call_count) == (0, 0)
    assert compiled.stats().fallbacks == {} and compiled.stats().builds == 2
    unit = unit_of(compiled)
    assert len({id(plan.executable._runner.encoded.starts) for plan in unit.plans.values()}) == 1  # type: ignore[union-attr]


def test_sizes_that_come_back_run_natively() -> None:
    layers = model()
    compiled = smelt.compile(layers)
    for rows in (3, 5, 7, 9, 11, 7, 9, 11):  # each of the last three once more: known from then on
        compiled(torch.randn(rows, 8))
    unit = unit_of(compiled)
    before = unit.plans_used
    for rows in (7, 9, 11, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), layers(x))
    assert unit.plans_used - before <= 1  # 5 came once


def test_weights_written_before_a_fresh_size() -> None:
    layers = model()
    compiled = smelt.compile(layers)
    for rows in (3, 5, 5, 5):
        compiled(torch.randn(rows, 8))
    for rows in (6, 7, 8, 6):
        layers[0].weight.mul_(1.25)  # type: ignore[union-attr, operator]
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), layers(x))
        torch.testing.assert_close(compiled(x), layers(x))
    layers[0].weight.data.view(-1)[3] = 50.0  # type: ignore[union-attr, operator]
    compiled.refresh()
    for rows in (6, 9, 5):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), layers(x))


def test_more_sizes_than_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_unit, "PLAN_LIMIT", 16)
    layers = model()
    compiled = smelt.compile(layers)
    for turn in range(2):
        for rows in range(2, 42):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), layers(x))
            if turn and rows % 3 == 0:
                torch.testing.assert_close(compiled(x), layers(x))
    unit = unit_of(compiled)
    assert len(unit.plans) <= 16 and compiled.stats().builds == 2


def test_sizes_that_come_again_find_their_plans() -> None:
    layers = model()
    compiled = smelt.compile(layers)
    for _ in range(3):
        for rows in range(2, 62):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), layers(x))
    unit = unit_of(compiled)
    assert unit.plans_made == len(unit.plans) and compiled.stats().builds == 2


def test_plans_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = model()
    compiled = smelt.compile(layers)
    for rows in (3, 100, 200):
        compiled(torch.randn(rows, 8))
    unit = unit_of(compiled)
    nbytes = [plan.executable.nbytes for plan in unit.plans.values()]  # type: ignore[union-attr]
    assert all(nbytes) and nbytes == sorted(nbytes)
    monkeypatch.setattr(sized_unit, "PLAN_NBYTES", nbytes[-1])
    for rows in range(201, 211):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), layers(x))
    assert len(unit.plans) == 1 and unit.plans_made == 12
    assert unit._nbytes.keys() == unit.plans.keys()


def test_fresh_sizes_from_several_threads() -> None:
    layers = model()
    compiled = smelt.compile(layers)
    for rows in (3, 5, 5):
        compiled(torch.randn(rows, 8))
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for rows in range(first, first + 30):
                x = torch.randn(rows, 8)
                torch.testing.assert_close(compiled(x), layers(x))
                torch.testing.assert_close(compiled(x), layers(x))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (6, 6, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and compiled.stats().fallbacks == {}

"""The numbers of errors, which docs and searches name them by."""

from __future__ import annotations

from smelt.diag.errors import CATALOGUE


def test_each_number_is_one_cause() -> None:
    numbers = [code.number for code in CATALOGUE]
    assert sorted(set(numbers)) == sorted(numbers)

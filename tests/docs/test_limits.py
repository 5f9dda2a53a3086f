"""The page of limits is printed from the one table that has them."""

from __future__ import annotations

from pathlib import Path

from smelt.capture.staging.flow import paths
from smelt.compiler.object import compiled_table
from smelt.diag import limits

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"


def test_the_page_is_the_table() -> None:
    assert limits.table() in PAGE.read_text(encoding="utf-8")


def test_each_limit_has_a_row_and_is_what_counts() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper() and name != "LIMITS"}
    assert len(values) == len(limits.LIMITS)
    assert sorted(map(float, values.values())) == sorted(float(one.value) for one in limits.LIMITS)
    assert (compiled_table.ENTRY_LIMIT, compiled_table.STORM_LIMIT) == (limits.ENTRIES, limits.BUILDS)
    assert paths.MOST_PATHS == limits.STAGED_PATHS

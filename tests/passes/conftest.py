"""`--bless` rewrites the expected halves of golden files."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", default=False, help="write what passes give into golden files")

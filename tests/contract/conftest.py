"""Own kernels are tested as on a CPU whose library has no tile registers: bf16 products would be the library's."""

from __future__ import annotations

import pytest

from smelt.runtime.machine.cpu import cpu_flags


@pytest.fixture(autouse=True)
def no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    without = frozenset(flag for flag in cpu_flags() if not flag.startswith("amx"))
    monkeypatch.setattr("smelt.codegen.lower.products.linear.cpu_flags", lambda: without)

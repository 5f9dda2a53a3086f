"""Fixtures of the runtime's tests: the executor's object code, built once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt.codegen.llvm.executor import executor_object
from smelt.runtime.cache import CodeCache
from smelt.runtime.executable import Executable
from smelt.runtime.plan import Plan

Runner = Callable[[Plan], Executable]


@pytest.fixture(scope="session")
def machine_code(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return executor_object(CodeCache(str(tmp_path_factory.mktemp("cache") / "code")))


@pytest.fixture(params=["native", "interpreted"])
def runner(request: pytest.FixtureRequest, machine_code: bytes) -> Runner:
    """Makes an executable; every test that takes it runs natively and interpreted."""
    native = request.param == "native"

    def make(plan: Plan) -> Executable:
        executable = Executable(plan, machine_code if native else None)
        assert executable.is_native == native
        return executable

    return make


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)

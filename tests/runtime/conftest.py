"""Fixtures of the runtime's tests: the executor's object code, built once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from smelt.codegen.llvm.walkers.executor import executor_object
from smelt.runtime.executable import Executable
from smelt.runtime.machine.cache import CodeCache
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
def _calm() -> Iterator[None]:
    """A seed, and one thread: with several, a busy machine makes every small product wait for a scheduler slice."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

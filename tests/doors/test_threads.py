"""torch's compiler and exporter in one thread, captures in another: neither sees what the other sets up."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch._higher_order_ops.while_loop import while_loop

import smelt
from smelt._torch.seen.record_patches import eager_stance
from smelt.capture.staging.objects.process import Settings
from tests.doors.programs import Of, assert_alike

_X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.1


@pytest.fixture(autouse=True)
def quiet() -> None:
    for category in (DeprecationWarning, FutureWarning, UserWarning):
        warnings.filterwarnings("ignore", category=category)


def test_torch_exports_while_another_thread_captures() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x.relu() + x.shape[0]

    done, traced = threading.Event(), []

    def trace() -> None:
        while not done.is_set() or not traced:
            traced.append(smelt.trace(program, (_X,), dynamic_shapes={"x": {0: "B"}}))

    def loop(x: torch.Tensor, n: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 1.5 + x), (torch.tensor(0), x))

    call = (_X, torch.tensor(3))
    # What an export switches off for a while.
    enabled = [getattr(torch._C, f"_get_{name}_enabled") for name in ("cudnn", "mkldnn", "nnpack")]
    before = [read() for read in enabled]
    thread = threading.Thread(target=trace)
    thread.start()
    try:
        with torch.no_grad():
            exported = [torch.export.export(Of(loop), call) for _ in range(2)]
    finally:
        done.set()
        thread.join()
    assert [read() for read in enabled] == before
    for program_ in exported:
        modules = list(program_.graph_module.modules())
        held = [v for module in modules for v in (*vars(module).values(), *module.buffers())]
        assert not any(type(value) is torch._subclasses.FakeTensor for value in held)
        assert_alike(program_.module()(*call), loop(*call))
    for out in traced[:2]:
        assert_alike(out(-_X), program(-_X))


def test_other_threads_compile_while_one_is_recorded() -> None:
    compiles: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        compiles.append(threading.get_ident())
        return gm.forward

    compiled = torch.compile(lambda x: x * 2 + 1, backend=backend, fullgraph=True)
    inside, outside, done = threading.Event(), threading.Event(), threading.Event()

    def record() -> None:
        with eager_stance():
            inside.set()
            outside.wait(60)
        done.set()

    thread = threading.Thread(target=record)
    x = torch.rand(3)
    with eager_stance():
        thread.start()
        inside.wait(60)
        assert torch.equal(compiled(x), x * 2 + 1) and not compiles
    # Both overlapped, and the other is still at it.
    assert torch.equal(compiled(x), x * 2 + 1) and compiles == [threading.get_ident()]
    outside.set()
    thread.join()
    assert done.is_set() and torch._dynamo.eval_frame._stance.stance == "default"
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
        compiled(torch.rand(3, 4, 5, dtype=torch.float64))


def test_what_an_export_switches_off_is_left_to_it() -> None:
    inside, seen = threading.Event(), threading.Event()

    class Waiting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            assert seen.wait(60)
            return x + 1

    def enabled() -> list[bool]:
        return [getattr(torch._C, f"_get_{name}_enabled")() for name in ("cudnn", "mkldnn", "nnpack")]

    on, before = enabled(), Settings()
    thread = threading.Thread(target=lambda: torch.export.export(Waiting(), (_X,)))
    thread.start()
    try:
        assert inside.wait(60)
        off, during = enabled(), Settings()
        before.put_back()
        assert enabled() == off == [False] * 3
    finally:
        seen.set()
        thread.join()
    assert enabled() == on
    during.put_back()
    assert enabled() == on
    torch._C._set_mkldnn_enabled(not on[1])
    before.put_back()
    assert enabled() == on

"""Products and attention of a GPU, chosen by times: those of a driver that is not there are as each test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt.codegen.lower.gpu import choices
from smelt.codegen.lower.report import ChoiceReport
from smelt.codegen.triton.contraction import Tile
from smelt.diag import SmeltError
from smelt.inspect.kernels import compiled_units
from smelt.runtime.machine import cache
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver
from tests.triton.test_compile_cuda import drawn, same

_PRODUCTS = ("linear", "addmm", "mm", "matmul", "bmm", "_slow_conv2d_forward", "scaled_dot_product_attention")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    with fake_gpu(measures=True) as driver:
        # Few ways are enough to see what is chosen.
        monkeypatch.setattr("smelt.codegen.lower.gpu.trials.tiles_for", few(Tile(16, 16, 16, 4, 2)))
        monkeypatch.setattr("smelt.codegen.lower.gpu.trials.BLOCKS", ((16, 16, 4, 1),))
        yield driver


def few(*tiles: Tile) -> Callable[..., list[Tile]]:
    return lambda *sizes: list(tiles)


def costs(gpu: FakeDriver, rule: float, tile: float, library: float) -> None:
    """What kernels and products of torch take, in microseconds. A kernel's tile is what its constants say."""

    def cost(name: str) -> float:
        constants = dict(gpu.sources[name].constants) if name in gpu.sources else {}
        if not {"K", "D"} & set(constants):
            return 0.5
        return tile if constants["R"] == constants["B"] == 16 and gpu.sources[name].stages <= 2 else rule

    gpu.cost = cost
    gpu.of_torch = lambda: library * sum(name in _PRODUCTS for name in gpu.device.ran)  # type: ignore[attr-defined]


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def operands() -> tuple[Tensor, ...]:
    return drawn(40, 32), drawn(48, 32, seed=1), drawn(48, seed=2)


def chosen(program: Any) -> list[ChoiceReport]:
    """What the only compiled call chose."""
    (unit,) = compiled_units(program)
    assert unit.lowered is not None
    return list(unit.lowered.report.choices)


@pytest.mark.parametrize(
    ("times", "want"),
    [((10.0, 9.0, 8.0), "16x16x16"), ((10.0, 19.0, 8.0), "rule"), ((30.0, 29.0, 8.0), "library")],
    ids=["a tile", "the rule's", "torch's"],
)
def test_the_fastest_is_taken(gpu: FakeDriver, times: tuple[float, float, float], want: str, tmp_path: Any) -> None:
    costs(gpu, *times)
    program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path)})
    args = operands()
    same(program(*args), layer(*args))
    gpu.device.ran.clear()  # type: ignore[attr-defined]
    before = len(gpu.calls)
    same(program(*args), layer(*args))
    (found,) = chosen(program)
    assert (
        found.chosen.startswith(want)
        and found.reason == "measured"
        and found.shape.startswith("linear, gelu: 40x48x32")
    )
    names = {c.name.split(",")[0]: c.latency_us for c in found.candidates}
    # Torch's operator pays for the kernel behind it, and for standing between two launches.
    assert names == {"rule": times[0], "16x16x16": times[1], "library": times[2] + 0.5 + choices._BOUNDARY_US}
    # What is called now is eager's linear and a launch, or one launch.
    assert gpu.calls[before:].count("launch") == 1
    ran = gpu.device.ran  # type: ignore[attr-defined]
    assert ("linear" in ran or "addmm" in ran) is True
    assert ran.count("linear") + ran.count("addmm") == (2 if want == "library" else 1)
    assert gpu.events == {}
    (row,) = [row for row in smelt.explain(program).kernels if "choice" in row]
    assert row["choice"] == found.shape and row["chosen"] == found.chosen and len(row["us"]) == 3


def test_a_choice_is_kept_on_disk(gpu: FakeDriver, tmp_path: Any) -> None:
    costs(gpu, 10.0, 9.0, 8.0)
    args = operands()
    for times in range(2):
        program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path)})
        before = len(gpu.calls)
        same(program(*args), layer(*args))
        assert chosen(program)[0].chosen.startswith("16x16x16")
        assert ("record" in gpu.calls[before:]) == (times == 0)
        # Another process has nothing but the folder.
        cache.code_cache.cache_clear()
    # Of what another version wrote nothing is believed.
    for file in tmp_path.rglob("*.obj"):
        file.write_bytes(b"broken")
    cache.code_cache.cache_clear()
    program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path)})
    before = len(gpu.calls)
    same(program(*args), layer(*args))
    assert "record" in gpu.calls[before:]


def test_lengths_up_to_the_next_power_of_two_are_measured_once(gpu: FakeDriver, tmp_path: Any) -> None:
    costs(gpu, 10.0, 9.0, 8.0)
    _, w, b = operands()
    program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path)})
    measured = []
    for rows in (33, 37, 39, 65):
        before = len(gpu.calls)
        x = drawn(rows, 32)
        same(program(x, w, b), layer(x, w, b))
        same(program(x, w, b), layer(x, w, b))
        measured.append("record" in gpu.calls[before:])
    assert measured == [True, False, False, True]


def test_without_time_the_rule_decides(gpu: FakeDriver, tmp_path: Any) -> None:
    costs(gpu, 10.0, 9.0, 8.0)
    args = operands()
    for options in ({"measure_seconds": 0.0}, {"measure": False}, {"deterministic": True}):
        program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path), **options})
        same(program(*args), layer(*args))
        assert "record" not in gpu.calls
        found = chosen(program)
        assert [c.chosen for c in found] == (["rule"] if "measure_seconds" in options else [])
        assert all("no time was left" in c.reason for c in found)
    with pytest.raises(SmeltError, match="measure_seconds"):
        smelt.compile(layer, options={"measure_seconds": -1})


def test_eagers_library_is_eagers_operator(gpu: FakeDriver, tmp_path: Any) -> None:
    args = operands()
    options = {"cache_dir": str(tmp_path), "numerics": "eager-library"}
    program = smelt.compile(layer, fullgraph=True, options=options)
    program(*args)
    gpu.device.ran.clear()  # type: ignore[attr-defined]
    found = program(*args)
    assert {"linear", "addmm"} & set(gpu.device.ran)  # type: ignore[attr-defined]
    same(found, layer(*args))
    assert "record" not in gpu.calls


@pytest.mark.parametrize("call", ["instantiate", "elapsed_us"])
def test_a_way_that_fails_is_left_out(gpu: FakeDriver, call: str, tmp_path: Any) -> None:
    costs(gpu, 30.0, 29.0, 8.0)
    gpu.fail = call
    args = operands()
    program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path)})
    same(program(*args), layer(*args))
    (found,) = chosen(program)
    assert found.chosen == "library"
    broken = [c.name for c in found.candidates if c.latency_us is None]
    assert len(broken) == 1 and "out of memory" in broken[0]
    assert gpu.events == {}


def test_where_nothing_runs_the_rule_decides(gpu: FakeDriver, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, *args: Any) -> Any:
        raise SmeltError("no memory is left", code="S0405")

    monkeypatch.setattr("smelt.runtime.cuda.timing.Stopwatch._times_us", broken)
    args = operands()
    program = smelt.compile(layer, fullgraph=True, options={"cache_dir": str(tmp_path)})
    same(program(*args), layer(*args))
    (found,) = chosen(program)
    assert found.chosen == "rule" and "no memory is left" in found.reason


def test_attention_and_convolutions_are_chosen_too(gpu: FakeDriver, tmp_path: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v) * 2.0

    def image(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(F.conv2d(x, w, padding=1))

    q, k, v = (drawn(1, 2, 20, 16, seed=n) for n in range(3))
    x, w = drawn(1, 8, 6, 6), drawn(8, 8, 3, 3, seed=1)
    for library, want in ((100.0, ("16x16, 4 warps, 1 ahead", "16x16x16, 4 warps, 2 ahead")), (1.0, ("library",) * 2)):
        costs(gpu, 30.0, 29.0, library)
        for program, args, name in ((function, (q, k, v), want[0]), (image, (x, w), want[1])):
            made = smelt.compile(program, fullgraph=True, options={"cache_dir": str(tmp_path / str(library))})
            same(made(*args), program(*args))
            same(made(*args), program(*args))
            assert [c.chosen for c in chosen(made)] == [name]


def test_the_largest_product_is_measured_first(gpu: FakeDriver, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    costs(gpu, 10.0, 9.0, 8.0)
    clock = iter(range(0, 10**6, 4))
    monkeypatch.setattr("smelt.codegen.lower.gpu.choices.perf_counter", lambda: next(clock))

    def two(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, w)), u)

    x, w, u = drawn(40, 32), drawn(48, 32, seed=1), drawn(480, 48, seed=2)
    program = smelt.compile(two, fullgraph=True, options={"cache_dir": str(tmp_path)})
    same(program(x, w, u), two(x, w, u), 1e-4)
    by_shape = {c.shape.split(": ")[1].split()[0]: c.reason for c in chosen(program)}
    assert by_shape["40x480x48"] == "measured" and "no time was left" in by_shape["40x48x32"]


def test_inside_of_a_branch_only_kernels_are_compared(gpu: FakeDriver, tmp_path: Any) -> None:
    """An operator of torch's would leave the branch to the host."""
    costs(gpu, 30.0, 29.0, 1.0)

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.relu(x)
        if y.sum() > 0:
            y = F.linear(y, w).sin()
        else:
            y = y.cos()
        return y * 2.0

    x, w = drawn(40, 32), drawn(32, 32, seed=1)
    program = smelt.compile(function, fullgraph=True, options={"cache_dir": str(tmp_path)})
    for _ in range(2):
        same(program(x, w), function(x, w))
    (found,) = chosen(program)
    assert found.chosen.startswith("16x16x16") and not any("library" in c.name for c in found.candidates)
    before = len(gpu.calls)
    same(program(x, w), function(x, w))
    assert gpu.calls[before:].count("launch") == 1

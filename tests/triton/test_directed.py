"""Steps of a schedule on kernels for a GPU: what they change in text and options, and that results stay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt._torch import gpu as gpu_of_torch
from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import Nest
from smelt.codegen.triton.compile import stage_texts
from smelt.codegen.triton.emit import emit_triton
from smelt.codegen.triton.kernel import TritonKernel
from smelt.diag import ScheduleError, SmeltWarning
from smelt.diag.loops import LoopStep, Parallel, Stages, Tile, Unroll, Vectorize, Warps
from smelt.scheduling.comparing import measuring
from smelt.scheduling.tuning.tuning_measure import medians
from tests.kernels.nests import F32, layer_norm, load, op, pointwise, reduce_rows
from tests.triton.fake_cuda import fake_gpu
from tests.triton.fake_driver import FakeDriver
from tests.triton.harness import interpreter
from tests.triton.test_products import drawn, made

NORM, SUM = layer_norm(24, 100), reduce_rows("sum", 40, 300)
POINTS = pointwise([F32] * 2, (30, 40), op("exp", load(0, 1, 30)))


def run(nest: Nest, kernel: TritonKernel) -> Tensor:
    """What a nest's kernel writes for random operands, beside the evaluator's."""
    sizes = [1 + sum((n - 1) * max(0, s) for n, s in zip(nest.sizes, strides, strict=True)) for strides in reach(nest)]
    tensors = [torch.randn(n, generator=torch.Generator().manual_seed(k)) for k, n in enumerate(sizes)]
    want = [t.clone() for t in tensors]
    evaluate_nest(nest, want)
    interpreter().run(kernel, tensors)
    torch.testing.assert_close(tensors, want, rtol=3e-6, atol=3e-6)
    return tensors[nest.writes[0]]


def reach(nest: Nest) -> list[tuple[int, ...]]:
    """For each buffer the strides of a nest's index that reach furthest."""
    whole = tuple(range(len(nest.sizes)))
    found = []
    for _ in nest.buffers:
        strides = []
        for k in whole:
            step = 1
            for later in nest.sizes[k + 1 :]:
                step *= later
            strides.append(step)
        found.append(tuple(strides))
    return found


@pytest.mark.parametrize(
    ("nest", "steps", "want"),
    [
        (POINTS, (Tile(0, "i0", 4), Tile(0, "i1", 8)), {"form": "tile", "R": 4, "B": 8, "programs": 8 * 5}),
        (POINTS, (Tile(0, "i1", 16),), {"form": "tile", "B": 16, "programs": 30 * 3}),
        (POINTS, (Parallel(0, "i0"), Tile(0, "i1", 64), Vectorize(0, "i1", 2)), {"programs": 30, "warps": 1}),
        (POINTS, (Tile(0, "i0", 8), Tile(0, "i1", 32), Warps(0, 8)), {"warps": 8}),
        (NORM, (Tile(0, "i0", 8),), {"form": "rows", "R": 8, "programs": 3}),
        (NORM, (Parallel(0, "i0", 2),), {"form": "rows", "programs": 12}),
        (SUM, (Tile(0, "j0", 32), Unroll(0, "j0", 4), Stages(0, 2)), {"form": "chunk", "B": 32, "stages": 2}),
        (SUM, (Tile(0, "i0", 4), Tile(0, "j0", 64)), {"form": "chunk", "R": 4, "B": 64, "programs": 10}),
        (SUM, (Tile(0, "j0", 512), Warps(0, 8)), {"form": "rows", "B": 512}),
    ],
    ids=lambda p: "-".join(type(s).__name__ for s in p) if isinstance(p, tuple) else None,
)
def test_a_step_changes_the_kernel_and_keeps_the_result(
    nest: Nest, steps: Sequence[LoopStep], want: dict[str, int | str]
) -> None:
    kernel, plain = emit_triton(nest, steps=steps), emit_triton(nest)
    source = kernel.source
    found = {"form": kernel.form, "programs": kernel.programs, "warps": source.warps, "stages": source.stages}
    found |= dict(source.constants)
    assert {name: found[name] for name in want} == want
    assert source.name != plain.source.name
    run(nest, kernel)
    if any(isinstance(step, Unroll) for step in steps):
        assert "loop_unroll_factor=4" in source.text
        once = emit_triton(nest, steps=[s for s in steps if not isinstance(s, Unroll)])
        loads = [stage_texts(one.source, 90)["ptx"].count("ld.global") for one in (kernel, once)]
        assert loads[0] > loads[1]


def test_a_products_tile() -> None:
    x, w = drawn(40, 48, dtype=torch.bfloat16), drawn(48, 40, dtype=torch.bfloat16)
    (one,) = made(torch.mm, x, w).kernels
    assert one.nest is not None
    steps = (Tile(0, "i0", 32), Tile(0, "i1", 16), Tile(0, "j0", 16), Stages(0, 5), Warps(0, 2), Unroll(0, "j0", 2))
    kernel = emit_triton(one.nest, steps=steps)
    assert kernel.source.constants == (("R", 32), ("B", 16), ("K", 16)) and kernel.programs == 6
    assert (kernel.source.stages, kernel.source.warps) == (5, 2)
    assert "mma" in stage_texts(kernel.source, 90)["ptx"]
    out = torch.zeros(40, 40, dtype=torch.bfloat16)
    interpreter().run(kernel, [x, w, out])
    torch.testing.assert_close(out, x @ w, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("nest", "steps", "what"),
    [
        (POINTS, (Tile(0, "i7", 4),), "no loop 'i7'"),
        (POINTS, (Tile(0, "i0", 6),), "power of two"),
        (POINTS, (Tile(0, "i0", 4), Tile(0, "i0", 8)), "tiled already"),
        (POINTS, (Unroll(0, "i0", 2),), "one by one"),
        (POINTS, (Stages(0, 2),), "nothing is loaded ahead"),
        (POINTS, (Warps(0, 3),), "power of two"),
        (POINTS, (Tile(0, "i0", 512), Tile(0, "i1", 512)), "too large"),
        (SUM, (Parallel(0, "j0"),), "combined over"),
        (SUM, (Unroll(0, "j0"),), "one by one"),
        (POINTS, (Warps(0, 2), Vectorize(0, "i1", 2)), "warps are set"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(nest: Nest, steps: Sequence[LoopStep], what: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        emit_triton(nest, steps=steps)
    assert what in f"{caught.value.what} {caught.value.why}" and caught.value.code == "S0614" and caught.value.fix


# --- schedules of models on a GPU


class Model(nn.Module):
    """A product, a norm and what stands behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm = nn.Linear(48, 48), nn.LayerNorm(48)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.norm(self.fc(x))) + x


def tail(y: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(y, (48,), w, b)) + x


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as driver:
        yield driver


def test_steps_of_a_schedule_on_a_gpu(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "seconds", lambda ways: [way() is None or 2.0 - i for i, way in enumerate(ways)])
    model, x = Model().cuda().eval(), torch.randn(12, 48).cuda()
    s = smelt.schedule(model, x)
    s.fuse(s.find(tail), name="tail", keep=True)
    (kernel,) = s.kernels("tail")
    assert kernel.loops == {"i0": 12, "j0": 48} and kernel.triton.form == "rows"
    s.tile("tail", "i0", 4).warps("tail", 2)
    (kernel,) = s.kernels("tail")
    assert kernel.items == 3 and kernel.triton.source.warps == 2
    assert "3 programs" in str(kernel) and "@triton.jit" in kernel.listing
    with pytest.raises(ScheduleError, match="no code for a CPU"):
        _ = kernel.llvm
    with pytest.raises(ScheduleError, match="nothing is loaded ahead"):
        s.stages("tail", 2)
    built = s.build()
    with torch.no_grad():
        torch.testing.assert_close(built(x).cpu(), model(x).cpu(), rtol=1e-5, atol=1e-5)
        built(x)
    names = {code.name for code in gpu.codes.values()}
    assert kernel.triton.source.name in names


def test_steps_that_do_not_fit_another_size_are_left_out(gpu: FakeDriver) -> None:
    program = smelt.compile(lambda x: x.exp(), fullgraph=True, options={"loops": (Tile(0, "i1", 16),)})
    with pytest.warns(SmeltWarning, match="no loop 'i1'"):
        program(torch.ones(5, 7).cuda())


def test_a_cpus_kernel_has_no_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "seconds", lambda ways: [way() is None or 2.0 - i for i, way in enumerate(ways)])
    s = smelt.schedule(Model().eval(), torch.randn(12, 48))
    s.fuse(s.find(tail), name="tail", keep=True)
    for step in (s.warps, s.stages):
        with pytest.raises(ScheduleError, match="no warps"):
            step("tail", 2)


def test_what_is_measured_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A knob's choices are timed with the GPU's work in the time."""
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: order.append("wait"))
    ticks = iter(range(10**6))

    def clock() -> float:
        order.append("clock")
        return float(next(ticks))

    medians([lambda: order.append("call")], 3, clock, 0.0)
    ended = [b for a, b in pairwise(order) if a == "call" and b != "call"]
    assert ended == ["wait"] * order.count("wait")
    assert order.count("wait") == 5
    gpu_of_torch.finish()
    assert order[-1] == "wait"


def test_the_gallerys_page_runs_on_a_gpu(gpu: FakeDriver, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/gallery/slapo_attention.md").read_text()
    code = "\n".join(block.partition("```")[0] for block in page.split("```python")[1:])
    (tmp_path / "page.py").write_text(code)
    exec(compile(code, str(tmp_path / "page.py"), "exec"), {"__name__": "page"})
    assert "8 programs" in capsys.readouterr().out
    assert "launch" in gpu.calls

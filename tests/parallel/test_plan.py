"""`smelt plan`: predictions against what ranks have and send, classes of ranks, errors of meshes, and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import smelt
from smelt.cli.app import app
from smelt.diag import SmeltError
from smelt.inspect.ranks.planned import text_of, to_dict
from smelt.inspect.ranks.ranks_page import proof_page
from smelt.parallel.proving.figures import TYPICAL, Link
from smelt.parallel.proving.forecast import Forecast
from smelt.scheduling.ranks.planning import meta_copy, plan_on


class Layers(nn.Module):
    """Words, two-layer blocks, a tied head, and a loss."""

    def __init__(self, depth: int = 4, width: int = 16, inner: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(30, width)
        self.up = nn.ModuleList(nn.Linear(width, inner) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(inner, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        for up, down in zip(self.up, self.down, strict=True):
            h = h + down(F.gelu(up(h)))
        return F.cross_entropy(h @ self.words.weight.t(), x)


def factory() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Layers(), (torch.randint(30, (8,)),)


def scheduled() -> smelt.Schedule:
    model, args = factory()
    return smelt.schedules.data_parallel(smelt.schedules.tensor_parallel(model, args).schedule).schedule


def _both(mesh: str) -> tuple[Forecast, smelt.Schedule]:
    model, args = factory()
    s = smelt.schedule(model, args)
    for axis in (pair.split("=")[0] for pair in mesh.split(",")):
        if axis == "tp":
            smelt.schedules.tensor_parallel(s, ranks=2)
        elif axis == "dp":
            s.data_parallel("dp")
        else:
            s.pipeline(2, "pp", microbatches=2)
    return plan_on(s._state, mesh, optimizer="momentum"), s


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2", "pp=2", "tp=2,pp=2"])
def test_what_is_predicted_is_what_ranks_have_and_send(mesh: str) -> None:
    found, s = _both(mesh)
    proof = s.verify(mesh=mesh, steps=1)
    for rank, told in enumerate(proof.ranks):
        kin = found.kinds[found.kind_of(rank)]
        assert kin.memory.parameters == told.memory.parameters and kin.memory.gradients == told.memory.gradients
        assert kin.memory.optimizer == told.memory.optimizer and kin.memory.saved == told.memory.saved
        # Plans keep a little besides, and share a little more.
        assert 0.7 < kin.memory.peak / told.memory.peak < 1.3
        sent = {axis: (sum(of.messages.values()), int(of.total)) for axis, of in kin.traffic.items()}
        assert sent.keys() == told.sent.keys()
        for axis, (count, nbytes) in told.sent.items():
            assert sent[axis][0] == count and abs(sent[axis][1] - nbytes) <= count
    assert sum(kin.count for kin in found.kinds) == len(proof.ranks)
    assert found.seconds == pytest.approx(proof.clock.length, rel=0.2)


def test_thousands_of_ranks_are_some_classes() -> None:
    s = smelt.schedule(meta_copy(Layers()), (torch.empty(4096, dtype=torch.int64, device="meta"),))
    smelt.schedules.tensor_parallel(s, ranks=4)  # 30 words: 8, 8, 8 and 6
    s.data_parallel("dp")
    s.pipeline(4, "pp", microbatches=8)
    found = plan_on(s._state, "dp=256,tp=4,pp=4")
    assert found.mesh.size == 4096 and len(found.kinds) == 8 and {kin.count for kin in found.kinds} == {768, 256}
    assert sum(kin.count for kin in found.kinds) == 4096
    small, large = (plan_on(s._state, f"dp={n},tp=4,pp=4") for n in (2, 256))
    # The share of a batch is smaller, the sum over all ranks' gradients as large.
    assert large.worst.memory.saved < small.worst.memory.saved
    assert large.kinds[0].traffic["dp"].total == pytest.approx(small.kinds[0].traffic["dp"].total * 2 * 255 / 256)
    slower = plan_on(s._state, "dp=256,tp=4,pp=4", TYPICAL.with_link("dp", Link(1e5, 1.5)))
    assert slower.seconds > found.seconds and slower.figures.link("tp") == TYPICAL.link("tp")
    assert "more kinds" not in text_of(found) and json.loads(json.dumps(to_dict(found)))["ranks"] == 4096


def test_nothing_of_the_model_runs_or_is_copied() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(1 << 16, 1 << 18, device="meta")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).sum()

    s = smelt.schedule(Large(), (torch.empty(64, 1 << 16, device="meta"),))
    s.data_parallel("dp")
    s.shard_state("dp")
    found = plan_on(s._state, "dp=64")
    assert found.kinds[0].memory.optimizer == 2 * (4 * (1 << 34) + 4 * (1 << 18)) // 64
    assert found.kinds[0].traffic["dp"].messages.keys() == {"all_gather", "reduce_scatter", "all_reduce"}


def test_ranks_of_a_stage_with_other_sizes_end_it_in_the_same_place() -> None:
    torch.manual_seed(0)
    # 30 words and an inner width of 33 on 4 ranks: the last one has less to do, and would end stages elsewhere.
    s = smelt.schedule(Layers(3, inner=33), (torch.randint(30, (8,)),))
    smelt.schedules.tensor_parallel(s, ranks=4)
    s.pipeline(3, "pp", microbatches=4)
    assert s.verify(mesh="tp=4,pp=3", steps=1).error < 2e-5
    assert len(plan_on(s._state, "tp=4,pp=3").kinds) == 6


def _run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *words, "--no-measure"])
    if isinstance(result.exception, SmeltError):
        return 1, str(result.exception)
    return result.exit_code, result.output


_HERE = str(Path(__file__))


@pytest.mark.parametrize(
    ("mesh", "code", "told"),
    [
        ("dp=3", "S0641", "--batch"), ("dp=64", "S0641", "a batch of 8 cannot be divided among 64 ranks"),
        ("tp=64", "S0642", "cannot be divided among 64 ranks along 'tp'"), ("pp=99", "S0642", "99"),
        ("xx=2", "S0642", "no ready schedule for an axis 'xx'"), ("tp", "S0642", "is no mesh"),
    ],
)  # fmt: skip
def test_a_mesh_that_does_not_fit_is_one_error(mesh: str, code: str, told: str) -> None:
    if mesh == "dp=3":  # 8 rows on 3 ranks: uneven shares are fine
        assert _run(f"{_HERE}:factory", "--mesh", mesh)[0] == 0
        return
    status, text = _run(f"{_HERE}:factory", "--mesh", mesh)
    assert status == 1 and code in text and told in text and "cli/plan.py" not in text


def test_the_command_and_its_page(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    status, text = _run(
        f"{_HERE}:factory", "--mesh", "dp=4,tp=2,pp=2", "--batch", "64", "--microbatches", "4", "--html", str(page),
        "--flops", "1T", "--link", "tp=5us,200GB/s",
    )  # fmt: skip
    assert status == 0 and "16 ranks (dp=4,tp=2,pp=2), batch 64" in text and "tp 5 us and 200 GB/s" in text
    status, text = _run(f"{_HERE}:scheduled", "--mesh", "dp=2,tp=2", "--json")
    data = json.loads(text)
    assert status == 0 and data["mesh"] == {"dp": 2, "tp": 2} and data["kinds"][0]["sent"]["tp"]
    _check_page(page.read_text(encoding="utf-8"), 16, 2)
    _, s = _both("dp=2,tp=2")
    _check_page(proof_page(s.verify(mesh="dp=2,tp=2", steps=1)), 4, 4)


def _check_page(text: str, ranks: int, lines: int) -> None:
    mesh, step = re.findall(r"<svg role=img.*?</svg>", text, re.DOTALL)
    assert mesh.count("<rect") == ranks and step.count("idle") == lines and step.count("<rect") > 4 * lines
    assert "<script" not in text and "P(sum)" in text and "class=dist" in text
    # Every operand is a link to where it is made, with how it lies along each axis.
    assert set(re.findall(r"href=#(v-[\w-]+)", text)) <= set(re.findall(r"id=(v-[\w-]+)", text)) | {"v-x"}
    assert re.search(r"words\.weight <span class='chip R'[^>]*>dp R</span> <span class='chip S'[^>]*>tp S\(0", text)
    assert "test_plan.py:" in text and " along tp" in text


def by_data() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """What it does depends on data, so it cannot be captured without."""

    class Asks(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x if x.sum().item() > 0 else -x)

    return Asks(), (torch.ones(4, dtype=torch.int64),)


def test_a_program_that_asks_for_data_is_run() -> None:
    for words in ((), ("--batch", "8")):
        status, text = _run(f"{_HERE}:by_data", "--mesh", "dp=2", *words)
        assert status == 0 and f"batch {8 if words else 4}" in text


class Named(nn.Module):
    """Takes its second argument by a name, and has a third one between."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x: torch.Tensor, scale: float = 2.0, y: torch.Tensor | None = None) -> torch.Tensor:
        h = self.layers(x) * scale
        return h.square().mean() if y is None else (h - y).square().mean()


class OnlyNamed(Named):
    def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return super().forward(x, y=y)


def named() -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return Named(), (torch.ones(8, 8),), {"y": torch.zeros(8, 8)}


def only_named() -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    return OnlyNamed(), (torch.ones(8, 8),), {"y": torch.zeros(8, 8)}


def test_arguments_by_name_and_what_a_pipeline_takes() -> None:
    more = ("--stages", "4", "--schedule", "interleaved", "--microbatches", "4", "--batch", "32", "--json")
    status, text = _run(f"{_HERE}:named", "--mesh", "pp=2", *more)
    assert status == 0, text
    sent = [kind["sent"]["pp"] for kind in json.loads(text)["kinds"]]
    assert all(one for one in sent)
    status, text = _run(f"{_HERE}:only_named", "--mesh", "dp=2")
    assert status and "gives 'y', which forward takes by name only" in text
    _, again = _run(f"{_HERE}:named", "--mesh", "dp=2", "--json")
    assert json.loads(again)["mesh"] == {"dp": 2}

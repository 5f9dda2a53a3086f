"""Processes that talk over gloo: the same results as in one, and one clear error where a rank is not as the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.gloo import run

_MODEL = """

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(24, 8), nn.Linear(8, 24, bias=False)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 15), nn.Linear(15, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, y):
        h = self.table(x)
        h = h + self.drop(self.down(torch.relu(self.up(self.norm(h)))))
        return nn.functional.cross_entropy(self.head(h), y)


def inputs():
    torch.manual_seed(1)
    return torch.randint(24, (8,)), torch.randint(24, (8,))


def model():
    torch.manual_seed(0)
    return Model()


def train(module, args, local=lambda x: x):
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=0.01), []
    for step in range(3):
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = module(*map(local, args))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
"""


def _run(code: str, folder: Path) -> list[object]:
    return run(_MODEL + code, folder)


def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    one, tensor, stages, batch = _run(
        """
def tensor(rank):
    s = smelt.schedules.tensor_parallel(model(), inputs(), ranks=2).schedule
    return train(s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))), inputs())

def stages(rank):
    s = smelt.schedule(model(), inputs())
    s.pipeline(2, "pp", microbatches=4)
    return train(s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))), inputs())

def batch(rank):
    s = smelt.schedule(model(), inputs())
    s.data_parallel("dp")
    s.shard_state("dp")
    module = s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
    return train(module, inputs(), lambda x: x[4 * rank : 4 * rank + 4])

found = [ranks(2, program) for program in (tensor, stages, batch)]
print(json.dumps([train(model(), inputs()), *found]))
""",
        tmp_path,
    )
    for both in (tensor, stages, batch):
        for losses in both:  # type: ignore[attr-defined]
            assert losses == pytest.approx(one, rel=1e-5)


def test_four_ranks_of_two_axes(tmp_path: Path) -> None:
    one, all_four = _run(
        """
def both(rank):
    s = smelt.schedules.tensor_parallel(model(), inputs(), ranks=2).schedule
    s.data_parallel("dp")
    module = s.build(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))
    return train(module, inputs(), lambda x: x[4 * (rank // 2) : 4 * (rank // 2) + 4])

found = ranks(4, both)
print(json.dumps([train(model(), inputs()), found]))
""",
        tmp_path,
    )
    for losses in all_four:  # type: ignore[attr-defined]
        assert losses == pytest.approx(one, rel=1e-5)


def test_a_rank_that_differs_is_named_on_all(tmp_path: Path) -> None:
    code, sizes, gone = _run(
        """
def built():
    s = smelt.schedules.tensor_parallel(model(), inputs(), ranks=2).schedule
    return s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))

def other_code(rank):
    if rank:
        Model.forward = lambda self, x, y: nn.functional.cross_entropy(self.head(self.table(x).tanh()), y)
    built()

def other_sizes(rank):
    module, (x, y) = built(), inputs()
    module(x[: 8 - rank], y[: 8 - rank])

def gone(rank):
    module, (x, y) = built(), inputs()
    module(x, y).backward()
    if rank:
        os._exit(3)
    module(x, y).backward()

print(json.dumps([ranks(2, other_code), ranks(2, other_sizes), ranks(2, gone, timeout=10)]))
""",
        tmp_path,
    )
    for both, words in ((code, "up.weight"), (sizes, "[7]")):
        for kind, number, text in both:  # type: ignore[attr-defined]
            assert (kind, number) == ("RanksError", "S0643") and "rank 1" in text and words in text
    (kind, number, text), nothing = gone  # type: ignore[misc]
    assert nothing is None
    assert (kind, number) == ("RanksError", "S0644") and "rank 1 (tp 1)" in text and "did not come" in text


def test_tokens_go_to_the_rank_of_their_expert(tmp_path: Path) -> None:
    one, experts = run(
        f"ROOT = {str(Path(__file__).parents[2])!r}\n"
        """
sys.path.insert(0, ROOT)
from tests.parallel.test_sorted import Deep

def model():
    torch.manual_seed(0)
    return Deep()

def x():
    torch.manual_seed(1)
    return torch.randn(8, 8)

def train(module, given, share):
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=0.01), []
    for step in range(3):
        optimizer.zero_grad()
        loss = (module(given) ** 2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    if share:
        for loss in losses:
            dist.all_reduce(loss)
    return [loss.item() for loss in losses]

def divided(rank):
    s = smelt.schedule(model(), x())
    s["experts"].shard("up", 0, "ep")
    s["experts"].shard("down", 0, "ep")
    s.data_parallel("ep")
    module = s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("ep",)))
    return train(module, x()[4 * rank : 4 * rank + 4], True)

found = ranks(2, divided)
print(json.dumps([train(model(), x(), False), found]))
""",
        tmp_path,
    )
    for losses in experts:  # type: ignore[attr-defined]
        assert losses == pytest.approx(one, rel=1e-5)


@pytest.mark.nightly
def test_a_slow_rank_is_named_with_what_it_did_not_come_to(tmp_path: Path) -> None:
    (slow,) = _run(
        """
import time

def late(rank):
    s = smelt.schedules.tensor_parallel(model(), inputs(), ranks=3).schedule
    module, (x, y) = s.build(mesh=init_device_mesh("cpu", (3,), mesh_dim_names=("tp",))), inputs()
    module(x, y).backward()
    if rank == 1:
        time.sleep(9)
    module(x, y).backward()

print(json.dumps([ranks(3, late, timeout=4)]))
""",
        tmp_path,
    )
    for rank, (kind, number, text) in enumerate(slow):  # type: ignore[arg-type, misc]
        assert (kind, number) == ("RanksError", "S0644"), text
        if rank != 1:
            # The step that it did not come to, by its number and its kind.
            assert "rank 1 (tp 1) did not come to collective" in text and "rank 0 (tp 0)" not in text


def test_a_mesh_that_does_not_fit_ends_on_every_rank(tmp_path: Path) -> None:
    units, stages = _run(
        """
def units(rank):
    s = smelt.schedule(model(), inputs())
    s["down"].shard("weight", 0, "tp", unit=8)
    s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))

def stages(rank):
    s = smelt.schedule(model(), inputs())
    s.pipeline(3, "pp", microbatches=2)
    s.build(mesh=init_device_mesh("cpu", (2,), mesh_dim_names=("pp",)))

print(json.dumps([ranks(2, units), ranks(2, stages)]))
""",
        tmp_path,
    )
    for both, number, words in ((units, "S0641", "among 2 ranks"), (stages, "S0642", "3 stages do not go on 2 ranks")):
        for kind, code, text in both:  # type: ignore[attr-defined]
            assert (kind, code) == ("SmeltError", number) and words in text


@pytest.mark.nightly
def test_eight_ranks_of_three_axes(tmp_path: Path) -> None:
    one, all_eight = _run(
        """
def three(rank):
    s = smelt.schedules.tensor_parallel(model(), inputs(), ranks=2).schedule
    s.data_parallel("dp")
    s["norm"].cut()
    s.pipeline(2, "pp", microbatches=2)
    module = s.build(mesh=init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "tp", "pp")))
    return train(module, inputs(), lambda x: x[4 * (rank // 4) : 4 * (rank // 4) + 4])

found = ranks(8, three, timeout=120)
print(json.dumps([train(model(), inputs()), found]))
""",
        tmp_path,
    )
    for losses in all_eight:  # type: ignore[attr-defined]
        assert losses == pytest.approx(one, rel=1e-5)

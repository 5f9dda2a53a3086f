"""A step of training on ranks, captured whole: forward, exchanges, backward and update in one native call."""

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


def mesh(axis):
    return init_device_mesh("cpu", (2,), mesh_dim_names=(axis,))


def steps_of(module, args, compiled, clips=False, **options):
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, **options)

    def step(*args):
        loss = module(*args)
        loss.backward()
        if clips:
            smelt.clip_grad_norm_(module, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run, losses = (smelt.compile(step) if compiled else step), []
    for number in range(5):
        torch.manual_seed(number)
        losses.append(run(*args).item())
    state = optimizer.state_dict()["state"]
    sizes = sorted(list(entry["exp_avg"].shape) for entry in state.values())
    if not compiled:
        return losses, sizes
    report = smelt.explain(run)
    return losses, sizes, len(report.to_dict()["graphs"]), report.to_text(everything=True)
"""


def _run(code: str, folder: Path) -> list[object]:
    return run(_MODEL + code, folder)


def _are_whole(found: object, like: list[object], exchanges: tuple[str, ...]) -> None:
    """Each rank computes the losses of one process, in one graph that exchanges by itself."""
    for answer in found:  # type: ignore[attr-defined]
        assert len(answer) == 4, answer
        losses, sizes, graphs, text = answer
        assert losses == pytest.approx(like[0], rel=1e-5) and sizes == like[1]
        assert graphs == 1 and "falls back" not in text, text[:1500]
        assert all(f"{name} runs in Python" in text for name in exchanges), text


def test_a_step_on_divided_weights_is_one_call(tmp_path: Path) -> None:
    one, found = _run(
        """
def tensor(rank):
    s = smelt.schedules.tensor_parallel(model(), inputs(), ranks=2).schedule
    return steps_of(s.build(mesh=mesh("tp")), inputs(), True)

print(json.dumps([steps_of(model(), inputs(), False), ranks(2, tensor)]))
""",
        tmp_path,
    )
    _are_whole(found, one, ("dist.agree", "dist.all_reduce", "dist.start_all_reduce", "dist.wait"))  # type: ignore[arg-type]


def test_a_step_on_a_divided_batch_clips_by_the_norm_of_all_ranks(tmp_path: Path) -> None:
    one, found = _run(
        """
def batch(rank):
    s = smelt.schedule(model(), inputs())
    s.data_parallel("dp")
    s.shard_state("dp")
    own = [x[4 * rank : 4 * rank + 4] for x in inputs()]
    return steps_of(s.build(mesh=mesh("dp")), own, True, clips=True, fused=True)

print(json.dumps([steps_of(model(), inputs(), False, clips=True, fused=True), ranks(2, batch)]))
""",
        tmp_path,
    )
    _are_whole(found, one, ("dist.all_gather", "dist.reduce_scatter", "dist.all_reduce"))  # type: ignore[arg-type]


def test_a_batch_norm_trains_in_a_compiled_step(tmp_path: Path) -> None:
    """Its running mean is saved for backward, and changes."""
    one, found = _run(
        """
def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

def losses(module, compiled):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(x):
        loss = module(x).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run = smelt.compile(step) if compiled else step
    x = torch.arange(24.0).reshape(6, 4).sin()
    return [run(x).item() for _ in range(4)], module[1].running_mean.tolist()

def tensor(rank):
    made = smelt.schedules.tensor_parallel(normed(), (torch.randn(6, 4),), ranks=2).schedule.build(mesh=mesh("tp"))
    return losses(made, True)

print(json.dumps([losses(normed(), False), ranks(2, tensor)]))
""",
        tmp_path,
    )
    for answer in found:  # type: ignore[attr-defined]
        for mine, like in zip(answer, one, strict=True):  # type: ignore[call-overload]
            assert mine == pytest.approx(like, rel=1e-5), answer


def test_a_rank_that_compiles_anew_alone_ends_the_step_on_all(tmp_path: Path) -> None:
    """It would exchange other messages than ranks whose graph stands."""
    (found,) = _run(
        """
def tensor(rank):
    module = smelt.schedules.tensor_parallel(model(), inputs(), ranks=2).schedule.build(mesh=mesh("tp"))
    optimizer, scale = torch.optim.SGD(module.parameters(), lr=0.1), [1.0]

    @smelt.compile
    def step(*args):
        loss = module(*args) * (2.0 if len(scale) > 1 else 1.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _ in range(3):
        step(*inputs())
    if rank == 1:
        scale.append(1.0)
    before = [p.clone() for p in module.parameters()]
    try:
        step(*inputs())
    except smelt.SmeltError as error:
        same = all(map(torch.equal, before, module.parameters()))
        return [type(error).__name__, error.code, str(error), same]

print(json.dumps([ranks(2, tensor)]))
""",
        tmp_path,
    )
    for kind, code, text, same in found:  # type: ignore[attr-defined]
        assert (kind, code, same) == ("RanksError", "S0643", True) and "captured by one graph;" in text, text

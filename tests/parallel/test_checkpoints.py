"""Checkpoints of divided models: written on one mesh and read on another, never half written, never half loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parallel.gloo import run

_MODEL = """
import signal, resource
from torch.nn import functional as F
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_state_dict, set_model_state_dict, set_optimizer_state_dict, set_state_dict,
)


class Model(nn.Module):
    # Heads that two ranks do not divide evenly, three weights in one, a tie, an uneven inner width, a buffer.
    def __init__(self, heads=3, width=12, inner=15, words=26):
        super().__init__()
        self.table, self.head = nn.Embedding(words, width), nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight
        self.norm, self.heads = nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("scale", torch.full((width,), 0.5))

    def forward(self, x, y):
        h = self.table(x)
        b, s, w = h.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, w))
        h = h + self.scale * self.drop(self.down(torch.relu(self.up(h))))
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


def inputs():
    torch.manual_seed(1)
    return torch.randint(26, (4, 6)), torch.randint(26, (4, 6))


def schedule(seed, *axes, **more):
    torch.manual_seed(seed)
    model = Model(**more)
    tensors = dict(axes).get("tp")
    s = smelt.schedules.tensor_parallel(model, inputs(), ranks=tensors).schedule if tensors else None
    s = s or smelt.schedule(model, inputs())
    if "dp" in dict(axes):
        s.data_parallel("dp")
        s.shard_state("dp")
    if "pp" in dict(axes):
        s["out"].cut()  # each stage has parameters of its own
        s.pipeline(2, "pp", microbatches=2)
    return s


def build(rank, seed, *axes, **more):
    # The module of a rank, its optimizer, and what it gets of the batch.
    s = schedule(seed, *axes, **more)
    if axes:
        mesh = init_device_mesh("cpu", tuple(n for _, n in axes), mesh_dim_names=tuple(name for name, _ in axes))
        module, count = s.build(mesh=mesh), dict(axes).get("dp", 1)
        at = mesh.get_local_rank("dp") if count > 1 else 0
        batch = [x.chunk(count)[at] for x in inputs()]
    else:
        module, batch = s.build(), inputs()
    return module, torch.optim.AdamW(module.parameters(), lr=0.01), batch


def train(module, optimizer, batch, steps):
    losses = []
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = module(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def saved(*axes, **more):
    def program(rank):
        module, optimizer, batch = build(rank, 0, *axes, **more)
        losses = train(module, optimizer, batch, range(3))
        smelt.save_checkpoint("ours", module, optimizer, {"step": 3, "more": [1, {"x": torch.ones(2)}]})
        model, state = get_state_dict(module, optimizer, options=FLAT)
        dcp.save({"model": model, "optim": state}, checkpoint_id="torchs")
        return losses
    return program


def loaded(*axes, **more):
    # By torch's functions and by ours, into models with other weights.
    def program(rank):
        module, optimizer, batch = build(rank, 5, *axes, **more)
        extra = smelt.load_checkpoint("ours", module, optimizer)
        assert extra["step"] == 3 and extra["more"][1]["x"].tolist() == [1, 1]
        losses = train(module, optimizer, batch, range(3, 6))
        module, optimizer, batch = build(rank, 6, *axes, **more)
        model, state = get_state_dict(module, optimizer, options=FLAT)
        given = {"model": model, "optim": state}
        dcp.load(given, checkpoint_id="torchs")
        set_state_dict(
            module, optimizer, model_state_dict=given["model"], optim_state_dict=given["optim"], options=FLAT
        )
        return [losses, train(module, optimizer, batch, range(3, 6))]
    return program


def whole(rank, **more):
    module, optimizer, batch = build(rank, 0, **more)
    return train(module, optimizer, batch, range(6))
"""


def _check_resumed(losses: object, found: object) -> None:
    for rank in found:  # type: ignore[attr-defined]
        for run_ in rank:
            assert run_ == pytest.approx(losses, rel=1e-5), found


def test_two_ranks_save_and_load_on_other_meshes(tmp_path: Path) -> None:
    losses, first, stages, batch, alone, second, tensors = run(
        _MODEL
        + """
found = [ranks(1, whole)[0], ranks(2, saved(("tp", 2)))]
found += [ranks(2, loaded(("pp", 2))), ranks(2, loaded(("dp", 2))), ranks(1, loaded())]
found += [ranks(2, saved(("pp", 2))), ranks(2, loaded(("tp", 2)))]
print(json.dumps(found))
""",
        tmp_path,
    )
    for both in (first, second):
        for rank in both:  # type: ignore[attr-defined]
            assert rank == pytest.approx(losses[:3], rel=1e-5)  # type: ignore[index]
    for found in (stages, batch, alone, tensors):
        _check_resumed(losses[3:], found)  # type: ignore[index]


def test_a_checkpoint_is_never_half_written_nor_half_loaded(tmp_path: Path) -> None:
    full, gone, whole, other, optimizer, nothing, changed, again = run(
        _MODEL
        + """
from smelt._torch import checkpoints


def tried(f, *args):
    try:
        f(*args)
    except Exception as error:
        return [type(error).__name__, getattr(error, "code", ""), str(error)]


def full(rank):
    module, optimizer, batch = build(rank, 0, ("tp", 2))
    train(module, optimizer, batch, range(1))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if rank:  # its disk is full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, limit[1]))
    error = tried(smelt.save_checkpoint, "ours", module, optimizer)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    dist.barrier()
    return [error, sorted(os.listdir("ours"))]


def gone(rank):
    module, optimizer, batch = build(rank, 0, ("tp", 2))
    train(module, optimizer, batch, range(1))
    if rank:
        checkpoints.Writer.write_data = lambda *args: os._exit(3)
    error = tried(smelt.save_checkpoint, "ours", module, optimizer)
    raise SystemExit("|".join(error))


def misfit(rank):
    module, optimizer, batch = build(rank, 0, ("tp", 2), inner=16)
    before = [p.detach().clone() for p in module.parameters()]
    other = tried(smelt.load_checkpoint, "ours", module)
    module, _, batch = build(rank, 0, ("tp", 2))
    momentum = torch.optim.SGD(module.parameters(), lr=0.1)
    optimizer = tried(smelt.load_checkpoint, "ours", module, momentum)
    nothing = tried(smelt.load_checkpoint, "theirs", module)
    return [other, optimizer, nothing, not momentum.state]


ranks(2, saved(("tp", 2)))
was = sorted(os.listdir("ours"))
found = [ranks(2, full), ranks(2, gone, 5)[0], ranks(2, loaded(("tp", 2))), *zip(*ranks(2, misfit)), was]
print(json.dumps(found))
""",
        tmp_path,
    )
    for error, files in full:  # type: ignore[attr-defined]
        assert error[:2] == ["SmeltError", "S0645"] and "rank 1" in error[2] and "File too large" in error[2]
        assert files == again
    assert "S0644" in gone[2] and "rank 1 (tp 1)" in gone[2], gone  # type: ignore[index]
    assert len({str(both) for rank in whole for both in rank}) == 1  # type: ignore[attr-defined]
    for errors, words in (
        (other, "model.up.weight is [15, 12] in it, and [16, 12] in the model"),
        (optimizer, "optim.param_groups.table.weight.* is that of another optimizer"),
        (nothing, "there is none"),
    ):
        for kind, number, text in errors:  # type: ignore[attr-defined]
            assert (kind, number) == ("SmeltError", "S0645") and words in text and "nothing was loaded" in text
    assert all(changed)  # type: ignore[call-overload]


def test_what_a_rank_has_is_a_dtensor(tmp_path: Path) -> None:
    found = run(
        _MODEL
        + """
def program(rank):
    module, optimizer, batch = build(rank, 0, ("tp", 2))
    train(module, optimizer, batch, range(1))
    state, entries = module.state_dict(), optimizer.state_dict()["state"]
    names = [name for name, _ in module.named_parameters()]
    kinds = {name: type(value).__name__ for name, value in state.items()}
    assert kinds == {
        "scale": "Tensor", "table.weight": "DTensor", "head.weight": "DTensor", "norm.weight": "Tensor",
        "norm.bias": "Tensor", "qkv.weight": "BlockTensor", "qkv.bias": "BlockTensor", "out.weight": "BlockTensor",
        "out.bias": "Tensor", "up.weight": "DTensor", "up.bias": "DTensor", "down.weight": "DTensor",
        "down.bias": "Tensor",
    }
    for number, name in enumerate(names):
        assert type(entries[number]["exp_avg"]).__name__ == kinds[name]
    whole = {name: x.full_tensor() if "DTensor" in str(type(x).__mro__) else x for name, x in state.items()}
    gathered, moments = get_state_dict(module, optimizer, options=StateDictOptions(full_state_dict=True))
    for name in whole:
        assert torch.equal(gathered[name], whole[name]) and whole[name].shape == Model().state_dict()[name].shape
    try:
        state["qkv.weight"] + 1
    except smelt.SmeltError as error:
        assert error.code == "S0645"
    # Whole tensors on all ranks, or on the first one, and a file a rank.
    def same(other):
        for a, b in zip(module.parameters(), other.parameters()):
            assert torch.equal(a, b)
        for a, b in zip(map(optimizer.state.get, module.parameters()), map(steps.state.get, other.parameters())):
            assert torch.equal(a["exp_avg"], b["exp_avg"])
    other, steps, _ = build(rank, 5, ("tp", 2))
    options = StateDictOptions(full_state_dict=True)
    set_state_dict(other, steps, model_state_dict=gathered, optim_state_dict=moments, options=options)
    train(other, steps, batch, [])
    same(other)
    other, steps, _ = build(rank, 5, ("tp", 2))
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    # torch 2.11 gathers along dimension 1 into strides that its broadcast takes no notice of.
    model = {name: x.contiguous() for name, x in gathered.items()}
    moments["state"] = {n: {k: x.contiguous() for k, x in entry.items()} for n, entry in moments["state"].items()}
    set_model_state_dict(other, {} if rank else model, options=options)
    set_optimizer_state_dict(other, steps, {} if rank else moments, options=options)
    same(other)
    other, steps, _ = build(rank, 5, ("tp", 2))
    torch.save({"model": state, "optim": optimizer.state_dict()}, f"rank{rank}.pt")
    read = torch.load(f"rank{rank}.pt")
    other.load_state_dict(read["model"])
    steps.load_state_dict(read["optim"])
    assert train(other, steps, batch, range(1, 2)) == train(module, optimizer, batch, range(1, 2))
    same(other)
    dcp.async_save({"model": module.state_dict()}, checkpoint_id="later").result()
    dcp.load({"model": other}, checkpoint_id="later")
    same(other)
    return True

print(json.dumps(ranks(2, program)))
""",
        tmp_path,
    )
    assert found == [True, True]


@pytest.mark.nightly
def test_four_and_eight_ranks_save_and_load_on_other_meshes(tmp_path: Path) -> None:
    losses, *found = run(
        _MODEL
        + """
wide = {"heads": 5, "width": 20}
found = [ranks(1, lambda rank: whole(rank, **wide))[0]]
meshes = [(("dp", 2), ("tp", 2)), (("tp", 4),), (("pp", 2), ("dp", 2), ("tp", 2)), (("pp", 2),), ()]
size = lambda axes: __import__("math").prod(n for _, n in axes)
for axes, other in zip(meshes, meshes[1:] + meshes[:1]):
    ranks(size(axes), saved(*axes, **wide), 120)
    found.append(ranks(size(other), loaded(*other, **wide), 120))
print(json.dumps(found))
""",
        tmp_path,
        timeout_s=1500,
    )
    for one in found:
        _check_resumed(losses[3:], one)  # type: ignore[index]

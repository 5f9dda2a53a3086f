"""A step by the clock: who waits for whom, what is alive at once, and that what is simulated is what ranks do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.diag import InternalError, SmeltError
from smelt.ir import Graph, parse
from smelt.parallel.mesh import Mesh
from smelt.parallel.pipelines.order import Action
from smelt.parallel.proving.clock import clocked
from smelt.parallel.proving.events import Event, Exchange, Pieces, Recv, Send, Work, memory_of, of_memory
from smelt.parallel.proving.figures import Figures, Kernels, Link, from_dict, hops_and_bytes, link_of, rate_of, to_dict

_SLOW = Figures(links={"": Link(latency_us=1e6, gbps=1e-9)})
"""A second a hop, a byte a second."""
_PAIR = Mesh.of("tp=2")


def test_a_collective_begins_when_its_last_rank_has_come() -> None:
    one: list[Event] = [Work(3, "forward"), Exchange("all_gather", "tp", 4), Work(1, "update")]
    two: list[Event] = [Work(1, "forward"), Exchange("all_gather", "tp", 4)]
    clock = clocked([one, two], _PAIR.group, {"tp": 2}, _SLOW)
    # Both end the exchange at 3 + one hop + half of 4 bytes; the first one goes on for a second.
    assert clock.length == pytest.approx(7)
    assert [(i.kind, round(i.start, 6), round(i.end, 6)) for i in clock.intervals[1]] == [
        ("forward", 0, 1), ("wait", 1, 3), ("collective", 3, 6),
    ]  # fmt: skip
    assert clock.idle(0) == 0 and clock.idle(1) == pytest.approx(3 / 7) and clock.bubble == pytest.approx(1.5 / 7)
    assert clock.links == {(0, 1): 2, (1, 0): 2}
    picture = clock.picture(7).splitlines()
    assert picture[1].split()[1] == "FFF===U" and picture[2].split()[1] == "F..===."


def test_a_message_is_there_after_latency_and_transfer() -> None:
    one: list[Event] = [Send("tp", 1, "a", 2), Work(5, "forward")]
    two: list[Event] = [Recv("tp", 0, "a", 2), Work(1, "forward", 1)]
    clock = clocked([one, two], _PAIR.group, {"tp": 2}, _SLOW, is_pipe=True)
    assert [(i.kind, round(i.start, 6), round(i.end, 6)) for i in clock.intervals[1]] == [
        ("wait", 0, 1), ("recv", 1, 3), ("forward", 3, 4),
    ]  # fmt: skip
    assert clock.links == {(0, 1): 2} and clock.length == pytest.approx(6)
    assert ">AAAAA" in clock.picture(6) and ".<<B.." in clock.picture(6)
    with pytest.raises(InternalError, match="wait for each other"):
        clocked([two, two], _PAIR.group, {"tp": 2}, _SLOW)


def test_rings() -> None:
    assert hops_and_bytes("all_reduce", 4, 100) == (6, 150)
    assert hops_and_bytes("all_gather", 4, 100) == (3, 75) and hops_and_bytes("broadcast", 1, 100) == (0, 0)


def test_figures_as_people_write_them() -> None:
    assert rate_of("300T", "x") == rate_of("300 TFLOP/s", "x") == rate_of("3e14", "x") == 300e12
    assert rate_of("90GB/s", "x") == 90e9
    assert link_of("tp=5us,200GB/s") == ("tp", Link(5, 200)) and link_of("0.1ms, 1.5GB/s") == ("", Link(100, 1.5))
    for wrong in ("", "fast", "tp=5us", "tp=5,200GB/s", "=5us,2GB/s", "tp=5us,-2GB/s"):
        with pytest.raises(SmeltError) as caught:
            link_of(wrong)
        assert caught.value.code == "S0646"
    known = Figures(Kernels(100.0), {"": Link(1, 2), "tp": Link(3, 4)}, "here")
    assert from_dict(to_dict(known)) == known and known.link("tp").gbps == 4 and known.link("dp").gbps == 2


def _graph(text: str) -> Graph:
    return parse(text)


def test_what_is_alive_at_once() -> None:
    # 400 bytes each: %0 is in memory, %1 and %2 stay in the registers of what makes %3, the output.
    graph = _graph("""graph g(%x: f32[10, 10]) -> f32[10, 10] {
      %0: f32[10, 10] = aten.mm.default(%x, %x)
      %1: f32[10, 10] = aten.mm.default(%0, %x)
      %2: f32[10, 10] = aten.exp.default(%x)
      %3: f32[10, 10] = aten.add.Tensor(%2, %1)
      return %3
    }""")
    assert memory_of(graph) == (400, 400)
    # 1F1B of two microbatches on the first of two stages keeps both; the second backward adds to the first's sums.
    pieces = {0: Pieces(graph, graph, saved=100, arenas=1000, forward_made=150, backward_made=300)}
    order = [Action(0, 0, False), Action(0, 1, False), Action(0, 0, True), Action(0, 1, True)]
    found = of_memory(order, pieces, parameters=50, gradients=[80, 10], optimizer=80, fixed=7)
    assert found.saved == 200 and found.peak == 1000 + 50 + 80 + 7 + 100 + 300 + 90 + 80
    alone = of_memory(order[::2], {0: pieces[0]}, 50, [30, 10], 80, 7)
    assert alone.saved == 100 and alone.peak == 1000 + 50 + 80 + 7 + 100 + 300


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x)
        for layer in self.layers:
            h = h + layer(h)
        return F.cross_entropy(h @ self.words.weight.t(), x)


@pytest.mark.parametrize("kind", ["tp", "dp", "pp", "interleaved"])
def test_what_is_simulated_is_what_ranks_send(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randint(32, (8,))
    s = smelt.schedule(_Tied(), (x,))
    if kind == "tp":
        s["layers.*.0"].shard("weight", 0, "tp")
        s["layers.*.0"].shard("bias", 0, "tp")
        s["layers.*.2"].shard("weight", 1, "tp")
    elif kind == "dp":
        s.data_parallel("dp")
        s.shard_state("dp")
    else:
        s.pipeline(2 if kind == "pp" else 4, "pp", microbatches=4, schedule="1f1b" if kind == "pp" else kind)
    proof = s.verify(mesh="pp=2" if kind == "interleaved" else f"{kind}=2", steps=1)
    assert proof.clock.links == proof.links and all(proof.links.values())
    for number, rank in enumerate(proof.ranks):
        memory = rank.memory
        assert memory.saved > 0 and memory.peak >= memory.parameters + memory.optimizer + memory.gradients
        assert memory.gradients == memory.parameters == memory.optimizer  # SGD with momentum
        assert 0 <= rank.idle < 1 and rank.talking > 0
        assert proof.clock.intervals[number][-1].end <= proof.clock.length
    text = str(proof)
    assert "ms a step" in text and "links, bytes a step: 0 to 1" in text and "bubble" in text
    if kind in ("pp", "interleaved"):
        assert proof.clock.bubble > 0 and "A B C" in text

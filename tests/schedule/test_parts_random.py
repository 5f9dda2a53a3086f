"""Random parts of random programs taken out of their graph: answers stay bit for bit, gradients but for the order in
which they are added up; or it is refused.
"""

import random

import pytest
import torch
from torch import nn

import smelt
from smelt.scheduling.finding.match import make_match
from smelt.scheduling.graphs.editing import Editor
from smelt.scheduling.graphs.regions import CheckpointedRegion, EagerRegion, NativeRegion, graph_of, is_state
from smelt.scheduling.graphs.running import function_of

_UNARY = (torch.sin, torch.tanh, lambda x: x.transpose(0, 1), lambda x: x * 0.5, lambda x: x.clone().mul_(0.25))
_BINARY = (torch.add, torch.mul, lambda x, y: x - y * 0.5, lambda x, y: torch.where(x > y, x, y))


class _Random(nn.Module):
    """A program of some operators over what came before, some of it drawn at random; returns several of its values."""

    def __init__(self, seed):
        super().__init__()
        chance = random.Random(seed)
        self.weight, self.drop = nn.Parameter(torch.rand(4, 4, dtype=torch.float64)), nn.Dropout(0.5)
        self.plan = []
        for i in range(2, 2 + chance.randint(3, 14)):
            kind = chance.random()
            if kind < 0.1:
                self.plan.append((None, (chance.randrange(i),)))
            elif kind < 0.5:
                self.plan.append((chance.choice(_UNARY), (chance.randrange(i),)))
            else:
                self.plan.append((chance.choice(_BINARY), (chance.randrange(i), chance.randrange(i))))
        self.kept = sorted(chance.sample(range(2, 2 + len(self.plan)), chance.randint(1, 3)))

    def forward(self, x):
        values = [x, self.weight]
        for op, places in self.plan:
            given = [values[place] for place in places]
            values.append(self.drop(given[0]) if op is None else op(*given))
        return [values[place] for place in self.kept]


def _run(function, model, x, state):
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(11)
    results = function(x, state)
    sum(result.square().sum() for result in results).backward()
    return [*(result.detach() for result in results), x.grad, model.weight.grad]


def _same(found, expected):
    pairs = zip(found, expected, strict=True)
    return all((a is None and b is None) or torch.equal(a, b) for a, b in pairs)


@pytest.mark.spread(4)
@pytest.mark.parametrize("block", range(4))
def test_a_part_taken_out_keeps_answers_and_gradients_or_is_refused(block):
    taken = refused = 0
    for seed in range(block * 40, block * 40 + 40):
        chance = random.Random(seed)
        model, x = _Random(seed), torch.randn(4, 4, dtype=torch.float64)
        graph = smelt.trace(model, (x,), check=False).graph
        state = {"weight": model.weight}
        expected = _run(lambda x, state, model=model: model(x), model, x, state)
        plain = function_of(graph)
        assert _same(_run(lambda x, state, f=plain: f([x], state, {}), model, x, state), expected), seed
        editor = Editor(graph.clone(), model)
        nodes = [node for node in editor.graph.body if node.results and node.op not in ("param", "const")]
        first = chance.randrange(len(nodes))
        part = [node for node in nodes[first : first + chance.randint(1, 8)] if chance.random() < 0.7] or [nodes[first]]
        outside = {r for n in part for r in n.results if any(u not in part for u in r.users)}
        try:
            found = editor.part([make_match(part, outside, {}, editor.target())])
        except smelt.ScheduleError as error:
            assert error.code == "S0609", seed
            refused += 1
            continue
        if not found.outputs:
            continue  # nobody needs it
        inner, operands = graph_of(found, editor, "part")
        region = chance.choice(
            (
                EagerRegion(inner, {}),
                CheckpointedRegion(inner, {}),
                NativeRegion(inner, {}, sum(map(is_state, operands))),
            )
        )
        values = editor.call("part_0", region, operands, [value.type for value in found.outputs], found)
        editor.put(found, values)
        edited = editor.finish()
        function = function_of(edited.graph)
        again = _run(lambda x, state, f=function, e=edited: f([x], state, e.calls), model, x, state)
        count = len(graph.outputs)
        assert _same(again[:count], expected[:count]), (seed, type(region), str(graph), str(edited.graph))
        torch.testing.assert_close(again[count:], expected[count:])
        taken += 1
    assert taken >= 15 and refused >= 1

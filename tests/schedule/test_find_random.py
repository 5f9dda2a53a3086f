"""Random parts of real models as patterns: each is found where it came from, and not with something changed in it."""

import random
from functools import lru_cache

import pytest
import torch

import smelt
from smelt.ir import Builder, Graph, Node, Value, map_values
from smelt.scheduling.finding.forms import STATE, is_arithmetic, named_arguments

transformers = pytest.importorskip("transformers")

_SMALL = {
    "bert": lambda: transformers.BertModel(
        transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=99
        )
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64, bos_token_id=1, eos_token_id=2
        )
    ),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            vocab_size=99,
        )
    ),
}


@lru_cache(maxsize=3)
def _schedule(name):
    s = smelt.schedule(_SMALL[name]().eval(), torch.randint(0, 99, (1, 8)))
    assert s.nodes
    assert s.notes == ()
    return s


def _computing(node: Node) -> bool:
    return node.op not in STATE and node.op not in ("const", "write") and not is_arithmetic(node) and not node.regions


def _connected(nodes, size, rng):
    """That many nodes, each beside one of those before it."""
    picked = [rng.choice([n for n in nodes if _computing(n) and n.op != "unpack"])]
    while len(picked) < size:
        beside = {value.node for node in picked for value in node.operands()}
        beside |= {user for node in picked for result in node.results for user in result.users}
        left = [n for n in nodes if n in beside and n not in picked and _computing(n)]
        if not left:
            break
        picked.append(rng.choice(left))
    return [node for node in nodes if node in set(picked)]


def _as_pattern(nodes, change=None):
    """A graph of copies of the nodes; what comes from outside is its parameter, what is used outside its output.

    change: what to make of the arguments of a node: (node, args, kwargs) -> (args, kwargs).
    """
    graph, inside = Graph("part"), set(nodes)
    build = Builder(graph)
    known: dict[Value, Value] = {}
    for node in nodes:
        for value in node.operands():
            if value.node not in inside and value not in known:
                known[value] = build.add_param(graph.body, f"in{len(known)}", value.type)
    for node in nodes:
        args = tuple(map_values(arg, known.__getitem__) for arg in node.args)
        kwargs = {key: map_values(arg, known.__getitem__) for key, arg in node.kwargs.items()}
        if change is not None:
            args, kwargs = change(node, args, kwargs)
        made = build.add(node.op, args, [result.type for result in node.results], kwargs)
        known.update(zip(node.results, made.results, strict=True))
    used = [r for n in nodes for r in n.results if not r.users or any(user not in inside for user in r.users)]
    return build.finish([known[value] for value in used])


@pytest.mark.spread(20)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", sorted(_SMALL))
def test_a_part_is_found_where_it_came_from(name, seed):
    s, rng = _schedule(name), random.Random(f"{name} {seed}")
    nodes = _connected(s.nodes, rng.randint(1, 12), rng)
    found = s.find(_as_pattern(nodes))
    assert set(nodes) in [{node for node in match.nodes if not is_arithmetic(node)} for match in found]
    for match in found:
        assert sorted(node.op for node in match.nodes) == sorted(node.op for node in nodes)
        assert match.escaping == ()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", sorted(_SMALL))
def test_a_part_with_another_constant_is_not_found(name, seed):
    s, rng = _schedule(name), random.Random(f"{name} {seed} constant")
    nodes = _connected(s.nodes, rng.randint(2, 10), rng)
    with_floats = [n for n in nodes if any(type(arg) is float for arg in n.args)]
    if not with_floats:
        start = rng.choice([n for n in s.nodes if any(type(arg) is float for arg in n.args)])
        nodes = with_floats = [start]
    chosen = rng.choice(with_floats)

    def change(node, args, kwargs):
        if node is not chosen:
            return args, kwargs
        return tuple(0.123 if type(arg) is float else arg for arg in args), kwargs

    assert s.find(_as_pattern(nodes)) != []
    assert s.find(_as_pattern(nodes, change)) == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", sorted(_SMALL))
def test_swapped_operands_of_a_product_are_not_found(name, seed):
    s, rng = _schedule(name), random.Random(f"{name} {seed} swap")
    # The weight must be there for a swap to tell: a linear of what a part computes.
    linears = [n for n in s.nodes if n.op in ("aten.linear.default", "aten.matmul.default", "aten.addmm.default")]
    chosen = rng.choice([n for n in linears if any(v.node is not None and _computing(v.node) for v in n.operands())])
    maker = rng.choice([v.node for v in chosen.operands() if v.node is not None and _computing(v.node)])
    nodes = [maker, chosen]

    def swap(node, args, kwargs):
        if node is not chosen:
            return args, kwargs
        names = [a for a in args if isinstance(a, Value)]
        first, second = (0, 1) if node.op != "aten.addmm.default" else (1, 2)
        assert len(names) >= 2
        swapped = list(args)
        swapped[first], swapped[second] = swapped[second], swapped[first]
        return tuple(swapped), kwargs

    assert any({maker, chosen} == set(match.nodes) for match in s.find(_as_pattern(nodes), escaping=True))
    assert s.find(_as_pattern(nodes, swap), escaping=True) == []


@pytest.mark.parametrize("seed", range(8))
def test_commuted_operands_are_found(seed):
    s, rng = _schedule("llama"), random.Random(seed)
    nodes = _connected(s.nodes, 8, rng)

    def swap(node, args, kwargs):
        found = named_arguments(node)
        if node.op in ("aten.mul.Tensor", "aten.add.Tensor") and isinstance(found["other"], Value):
            return (args[1], args[0], *args[2:]), kwargs
        return args, kwargs

    assert any(set(nodes) <= set(match.nodes) for match in s.find(_as_pattern(nodes, swap)))

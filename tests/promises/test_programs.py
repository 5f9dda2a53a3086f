"""What `trace` returns: an nn.Module with graphs, code that runs on torch alone, one meaning wherever it is used."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import CaptureError
from smelt.ops.evaluate import evaluate
from tests.forked import smelt_forks, torch_forks
from tests.promises.models import RULE, SIX, Block, assert_agrees, block, entry_of, images, make


def traced_block() -> tuple[Any, Block, torch.Tensor]:
    made = block()
    return smelt.trace(made.model, (made.inputs["x"],), options=RULE), made.model, made.inputs["x"]  # type: ignore[return-value]


# --- the module


def test_a_program_of_a_module_is_a_module_over_the_same_state() -> None:
    program, model, x = traced_block()
    assert isinstance(program, nn.Module) and isinstance(program, smelt.Program)
    assert list(program.state_dict()) == list(model.state_dict())
    assert [id(p) for p in program.parameters()] == [id(p) for p in model.parameters()]
    assert [n for n, _ in program.named_modules()] == [n for n, _ in model.named_modules()]
    text = repr(program)
    assert "Program[Block]" in text and "(qkv): Linear(in_features=32, out_features=96, bias=True)" in text
    program.load_state_dict({k: v * 1.1 for k, v in model.state_dict().items()})
    assert_agrees(program(x), model(x))
    program.double()
    assert model.up.weight.dtype == torch.float64
    assert_agrees(program(x.double()), model(x.double()))
    program.float()
    assert_agrees(program(x), model(x))


def test_train_and_eval_are_captured_apart() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8)).eval(), torch.randn(6, 8)
    program = smelt.trace(model, x, options=RULE)
    for is_training in (True, False, True):
        program.train(is_training)
        assert model.training is is_training and model[1].training is is_training
        for _ in range(2):
            state = copy.deepcopy(model.state_dict())
            torch.manual_seed(3)
            found = program(x)
            after = copy.deepcopy(model.state_dict())
            model.load_state_dict(state)
            torch.manual_seed(3)
            assert_agrees(found, model(x))
            assert_agrees(after, model.state_dict())
    assert len(program.units) == 2


def test_a_program_as_a_submodule() -> None:
    program, model, x = traced_block()
    outer = nn.Sequential(program, nn.LayerNorm(32)).eval()
    assert [k for k in outer.state_dict() if k.startswith("0.")] == [f"0.{k}" for k in model.state_dict()]
    want = outer[1](model(x))
    assert_agrees(outer(x), want)
    compiled = smelt.compile(outer, options=RULE)
    for _ in range(3):
        assert_agrees(compiled(x), want)
    entry_of(compiled)
    model.up.weight.mul_(2)
    assert_agrees(compiled(x), outer[1](model(x)))


def test_a_program_called_in_another_captured_function_is_inlined() -> None:
    program, model, x = traced_block()
    program(x)

    def f(x: torch.Tensor) -> torch.Tensor:
        return program(x * 2) + 1

    outer = smelt.trace(f, x, options=RULE)
    ops = [node.op for node in outer.graph.walk()]
    assert ops.count("aten.linear.default") == 4 and "aten.softmax.int" in ops
    assert_agrees(outer(x), model(x * 2) + 1)
    model.down.weight.add_(0.1)
    assert_agrees(outer(x), model(x * 2) + 1)
    compiled = smelt.compile(f, options=RULE)
    for _ in range(3):
        assert_agrees(compiled(x), model(x * 2) + 1)


def test_programs_of_functions_keep_what_they_close_over() -> None:
    weight = torch.randn(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ weight

    x = torch.randn(2, 4)
    program = smelt.trace(f, x)
    assert 'captured("weight")' in str(program.graph)
    assert_agrees(program(x), f(x))
    weight.mul_(3)
    assert_agrees(program(x), f(x))


@pytest.mark.spread(3)
@pytest.mark.parametrize("way", ["pickle", "deepcopy", "save"])
def test_programs_and_compiled_modules_are_copied(way: str, tmp_path: Path) -> None:
    program, model, x = traced_block()
    compiled = smelt.compile(model, options=RULE)
    for thing in (program, compiled):
        for used in (False, True):
            if used:
                thing(x), thing(x)
            if way == "deepcopy":
                again = copy.deepcopy(thing)
            elif way == "pickle":
                again = pickle.loads(pickle.dumps(thing))
            else:
                torch.save(thing, tmp_path / "thing")
                again = torch.load(tmp_path / "thing", weights_only=False)
            assert list(again.state_dict()) == list(model.state_dict())
            for _ in range(3):
                assert_agrees(again(x), model(x))
            again.up.weight.mul_(2)
            assert not torch.allclose(again(x), model(x))
            assert_agrees(thing(x), model(x))
            assert isinstance(again, type(thing) if thing is program else Block)
    again = copy.deepcopy(program)
    assert again.graph == program.graph


# --- arguments


class Pair(NamedTuple):
    left: torch.Tensor
    scale: float


def nested(data: dict[str, Any], pair: Pair, *, flags: tuple[int, str] = (1, "a")) -> dict[str, Any]:
    return {"sum": data["x"] + data["more"][0] * pair.scale + flags[0], "pair": Pair(pair.left * 2, 3.0), "none": None}


def test_calls_that_do_not_fit_say_what_differs() -> None:
    x = torch.randn(2, 3)
    args: tuple[Any, ...] = ({"x": x, "more": [x]}, Pair(x, 2.0))
    program = smelt.trace(nested, args, {"flags": (1, "a")}, options=RULE)
    found = program(*args, flags=(1, "a"))
    want = nested(*args)
    assert_agrees(found, want)
    assert type(found["pair"]) is Pair and found["pair"].scale == 3.0 and found["none"] is None

    wide = torch.randn(2, 4)
    wrong: dict[str, tuple[Any, Any]] = {
        "sizes": (({"x": wide, "more": [wide]}, Pair(wide, 2.0)), {"flags": (1, "a")}),
        "pair": (({"x": x, "more": [x]}, (x, 2.0)), {"flags": (1, "a")}),
        "args[1]": (({"x": x, "more": [x]}, Pair(x, 2.5)), {"flags": (1, "a")}),
        "flags": (args, {"flags": (2, "a")}),
        "more": (({"x": x, "more": [x, x]}, Pair(x, 2.0)), {"flags": (1, "a")}),
        "'y'": (({"x": x, "y": [x]}, Pair(x, 2.0)), {"flags": (1, "a")}),
        "args": ((args[0],), {"flags": (1, "a")}),
    }
    for what, (positional, named) in wrong.items():
        with pytest.raises(CaptureError) as caught:
            program(*positional, **named)
        assert caught.value.code == "S0107", what
        assert caught.value.why and caught.value.fix
    with pytest.raises(CaptureError) as caught:
        program.graph_for(*wrong["sizes"][0], flags=(1, "a"))
    assert caught.value.code == "S0107" and "[2, 4]" in str(caught.value) and "[2, 3]" in str(caught.value)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.randn(8, 2, 32).transpose(0, 1),
    "every second": lambda: torch.randn(2, 8, 64)[..., ::2],
    "expanded": lambda: torch.randn(1, 8, 32).expand(2, 8, 32),
    "leaf": lambda: torch.randn(2, 8, 32, requires_grad=True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_strides_of_the_same_sizes_are_answered(layout: str) -> None:
    (program, model, _), x = traced_block(), LAYOUTS[layout]()
    for _ in range(2):
        assert_agrees(program(x), model(x))
    with torch.enable_grad():
        found, want = program(x), model(x)
        assert_agrees(found, want)
        assert found.requires_grad and want.requires_grad


def test_gradients_flow_through_a_program_as_in_eager() -> None:
    program, model, x = traced_block()
    with torch.enable_grad():
        program(x).square().sum().backward()
        found = {n: p.grad for n, p in model.named_parameters()}
        model.zero_grad(set_to_none=True)
        model(x).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and found[name] is not None
        torch.testing.assert_close(found[name], parameter.grad)


# --- text and code


@pytest.mark.spread(2)
@pytest.mark.parametrize("sample", [block, images])
def test_code_runs_on_torch_alone(sample: Any, tmp_path: Path) -> None:
    made = sample()
    program = smelt.trace(made.model, (), made.inputs, options=RULE)
    code, x = program.code, made.inputs["x"]
    assert Path(code.path).read_text() == str(code)
    want = made.model(x)
    assert torch.equal(code.run(x)[0], evaluate(program.graph, [x], program.unit.lookup)[0])
    assert_agrees(code.run(x)[0], want)
    imports = {line.split()[1].split(".")[0] for line in str(code).splitlines() if line.startswith(("import", "from"))}
    assert imports <= {"torch", "__future__"}

    state = {name: t.detach() for name, t in (*made.model.named_parameters(), *made.model.named_buffers())}
    torch.save((state, x, code.run(x)[0]), tmp_path / "data")
    child = f"""
import runpy, sys, torch
sys.modules["smelt"] = None  # its import would fail
torch.set_num_threads({torch.get_num_threads()})  # another number sums in another order
forward = runpy.run_path({str(code.path)!r})["forward"]
state, x, want = torch.load({str(tmp_path / "data")!r})
with torch.no_grad():
    assert torch.equal(forward(state, x)[0], want)
assert not any(name.startswith("smelt.") for name in sys.modules)
"""
    torch_forks().run(child)


@pytest.mark.parametrize("name", [n for n in SIX if "width" not in n])
def test_code_of_models_gives_the_graphs_answer(name: str) -> None:
    pytest.importorskip("transformers")
    made = make(name)
    program = smelt.trace(made.model, (), made.inputs, options=RULE)
    inputs = program.unit.signature.flatten((), made.inputs)
    expected = evaluate(program.graph, inputs, program.unit.lookup)
    for found, want in zip(program.code.run(*inputs), expected, strict=True):
        assert torch.equal(found, want)


def test_graphs_are_seen_before_and_after() -> None:
    program, _, x = traced_block()
    graph = program.graph
    assert smelt.parse(str(graph)) == graph
    assert f'"{Path(__file__).with_name("models.py")}":' in str(graph)
    assert "of up" in str(graph) and "f32[2, 8, 32]" in str(graph)
    final = program.graph_for(x)
    assert smelt.parse(str(final)) == final and final != graph
    assert "scaled_dot_product_attention" in str(final) or "attention" in str(final)
    assert program.graph == graph


def test_a_graph_parses_in_a_fresh_process(tmp_path: Path) -> None:
    texts = []
    for made in (block(), images()):
        program = smelt.trace(made.model, (), made.inputs, options=RULE)
        texts += [str(program.graph), str(program.graph_for(**made.inputs))]
    big = torch.randn(40, 40)
    program = smelt.trace(lambda x: x + torch.tensor([float("nan"), float("-inf"), -0.0]) + torch.eye(3), torch.ones(3))
    texts += [str(program.graph), str(smelt.trace(lambda x: x @ big, torch.ones(40)).graph)]
    (tmp_path / "graphs.bin").write_bytes(pickle.dumps(texts))
    child = f"""
import pickle, smelt
for text in pickle.load(open({str(tmp_path / "graphs.bin")!r}, "rb")):
    graph = smelt.parse(text)
    assert str(graph) == text and smelt.parse(str(graph)) == graph
"""
    smelt_forks().run(child)
    assert all(smelt.parse(text) == smelt.parse(str(smelt.parse(text))) for text in texts)

"""Bad input and programs that cannot be compiled: eager's answer and one warning, or one error with file and line."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import CaptureError, SmeltError, SmeltWarning
from tests.promises.models import RULE, Block, assert_agrees, entry_of, how_nodes_run

STRICT = {**RULE, "strict": True}


def line_of(function: Callable[..., Any], text: str) -> str:
    """`file:line` of the line of this file that holds a text, in a function."""
    code = getattr(function, "__wrapped__", function).__code__
    with open(__file__, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if number >= code.co_firstlineno and text in line:
                return f"{__file__}:{number}"
    raise AssertionError(text)


def smelt_warnings(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, SmeltWarning)]


# --- arguments


WRONG: dict[str, tuple[Any, ...]] = {
    "text": ("text",),
    "none": (None,),
    "list": ([1, 2],),
    "nothing": (),
    "sizes": (torch.zeros(3, 7),),
    "dtype": (torch.zeros(2, 4, dtype=torch.int64),),
    "too many": (torch.zeros(2, 4), 1),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_wrong_arguments_raise_what_eager_raises(wrong: tuple[Any, ...]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(Exception) as eager:
        model(*wrong)
    compiled = smelt.compile(model, options=RULE)
    for attempt in range(2):
        for call in (lambda: compiled(*wrong), lambda: smelt.trace(model, wrong)):
            with pytest.raises(type(eager.value)) as ours:
                call()
            assert str(ours.value) == str(eager.value)
        if attempt == 0:
            x = torch.randn(2, 4)
            compiled(x)
            assert torch.equal(compiled(x), model(x))


def test_the_users_own_errors_pass_unchanged() -> None:
    class Refused(Exception):
        pass

    error = Refused("not today")

    def f(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise error
        return x + 1

    compiled = smelt.compile(f, options=RULE)
    compiled(torch.ones(2))
    for call in (lambda: compiled(torch.ones(3)), lambda: smelt.trace(f, torch.ones(3))):
        with pytest.raises(Refused) as caught:
            call()
        assert caught.value is error
        assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "raise error"
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2) + 1)
    assert compiled.stats().fallbacks == {}


# --- operators


@pytest.fixture
def library() -> Iterator[Any]:
    with torch.library._scoped_library("promised", "FRAGMENT") as made:
        yield made


def test_operators_of_torch_library_work(library: Any) -> None:
    library.define("halved(Tensor x, float by=2.0) -> Tensor")
    library.define("both(Tensor x) -> (Tensor, Tensor)")
    for key in ("CPU", "Meta"):
        library.impl("halved", lambda x, by=2.0: x / by, key)
        library.impl("both", lambda x: (x + 1, x - 1), key)

    def f(x: torch.Tensor) -> Any:
        first, second = torch.ops.promised.both(torch.ops.promised.halved(x, by=4.0))
        return first, second.relu()

    _agrees_in_both(f, torch.randn(3, 4))


def test_an_operator_of_torch_library_that_writes(library: Any) -> None:
    library.define("bump_(Tensor(a!) x) -> ()")
    for key in ("CPU", "Meta"):
        library.impl("bump_", _bump, key)

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        torch.ops.promised.bump_(y)
        torch.ops.promised.bump_(x)
        return y.relu()

    x = torch.randn(3, 4)
    compiled = smelt.compile(f, options=RULE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            want, got = x.clone(), x.clone()
            assert_agrees((compiled(got), got), (f(want), want))
    assert len(smelt_warnings(caught)) <= 1


def _bump(x: torch.Tensor) -> None:
    x.add_(1)


def test_an_operator_without_a_meta_kernel(library: Any) -> None:
    library.define("secret(Tensor x) -> Tensor")
    library.impl("secret", lambda x: x.flip(0) * 2, "CPU")
    _agrees_in_both(lambda x: torch.ops.promised.secret(x + 1) - 1, torch.randn(3, 4))


def test_an_operator_of_the_decorator(library: Any) -> None:
    made: Any = torch.library.custom_op("promised::scaled", mutates_args=())(_scaled)
    made.register_fake(lambda x, factor: torch.empty_like(x))
    try:
        _agrees_in_both(lambda x: torch.ops.promised.scaled(x, 3.0) + 1, torch.randn(5))
    finally:
        made._lib._destroy()


def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def _agrees_in_both(f: Callable[..., Any], x: torch.Tensor) -> None:
    """Traced and compiled equal eager, without a fallback; the inputs are as after one eager call."""
    expected = f(x.clone())
    program = smelt.trace(f, x.clone(), options=RULE)
    assert_agrees(program(x.clone()), expected)
    assert smelt.parse(str(program.graph)) == program.graph
    compiled = smelt.compile(f, options=RULE)
    for _ in range(3):
        assert_agrees(compiled(x.clone()), expected)
    assert compiled.stats().fallbacks == {} and entry_of(compiled) and how_nodes_run(compiled)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return grad * 100 * (x.abs() < 1)


def test_an_autograd_function_with_its_own_backward() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return Clipped.apply(x * 2) + 1

    x = torch.randn(6)
    _agrees_in_both(f, x)
    compiled = smelt.compile(f, options=RULE)
    compiled(x)
    leaf, same = (x.clone().requires_grad_() for _ in range(2))
    with torch.enable_grad():
        with pytest.warns(SmeltWarning, match=r"Clipped has a backward in Python"):
            compiled(leaf).sum().backward()
        f(same).sum().backward()
    assert leaf.grad is not None and same.grad is not None and torch.equal(leaf.grad, same.grad)


# --- data that decides


def branching(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


def counting(x: torch.Tensor) -> torch.Tensor:
    n = int(x.max().item())
    return x + n


def sized(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0] * 2


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    return x + int(x.numpy()[0])


WAYS = [torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -5.0]), torch.tensor([3.0, -5.0])]


def test_what_only_a_recorded_way_can_hold_is_named_by_file_and_line() -> None:
    place = line_of(by_numpy, "x.numpy()")
    with pytest.raises(CaptureError) as caught:
        smelt.trace(by_numpy, WAYS[0], options=STRICT)
    assert caught.value.code == "S0101" and place in str(caught.value)
    assert f"{caught.value.where}".startswith(place) and caught.value.why and caught.value.fix

    with pytest.warns(SmeltWarning, match="holds for one path") as told:
        program = smelt.trace(by_numpy, WAYS[0], options=RULE)
    assert {f"{w.filename}:{w.lineno}" for w in told} == {place}
    assert torch.equal(program(WAYS[0]), by_numpy(WAYS[0]))
    with pytest.raises(CaptureError) as caught:
        program(WAYS[1])
    assert caught.value.code == "S0101" and f"{caught.value.where}".startswith(place)


@pytest.mark.spread(6)
@pytest.mark.parametrize("f", [branching, counting, sized, by_numpy])
@pytest.mark.parametrize("given", [{"options": RULE}, {"options": STRICT}, {"options": RULE, "fullgraph": True}])
def test_programs_that_data_decide_are_compiled_whole(f: Any, given: dict[str, Any]) -> None:
    compiled = smelt.compile(f, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in WAYS * 3:
            assert torch.equal(compiled(x), f(x))
    stats = compiled.stats()
    assert not stats.fallbacks and stats.builds == (len(WAYS) if f is by_numpy else 1)


@pytest.mark.parametrize("f", [branching, counting, sized])
def test_a_trace_has_all_ways(f: Any) -> None:
    program = smelt.trace(f, WAYS[0], options=STRICT)
    for x in WAYS:
        assert torch.equal(program(x), f(x))


# --- traces are checked


def test_a_dependence_that_a_trace_does_not_show() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + hidden(x)

    def hidden(x: torch.Tensor) -> int:
        return 1 if x.numpy()[0] > 0 else 2

    with pytest.warns(SmeltWarning, match="the result of numpy was"):  # it is seen
        program = smelt.trace(f, torch.ones(2))
    with pytest.raises(CaptureError, match=r"the result of numpy was .* and is another now"):
        program(-torch.ones(2))

    def g(x: torch.Tensor, flag: list[int]) -> torch.Tensor:
        return x * len(flag)

    smelt.trace(g, (torch.ones(2), [1]), check_inputs=[(torch.zeros(2), [1])])
    state = {"factor": 1.0}

    def h(x: torch.Tensor) -> torch.Tensor:
        state["factor"] += 1.0
        return x * state["factor"]

    with pytest.warns(SmeltWarning, match="does not repeat all that the run did: it changes"):
        program = smelt.trace(h, torch.ones(2))
    assert torch.equal(program(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(CaptureError) as caught, pytest.warns(SmeltWarning, match="it changes"):
        smelt.trace(h, torch.ones(2), check_inputs=[torch.full((2,), 5.0)])
    assert caught.value.code == "S0105" and "check_inputs" in str(caught.value)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.kept: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept[len(x)] = x
        return x * 2


def test_a_trace_tells_each_thing_that_it_does_not_repeat() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        smelt.trace(Remembering(), torch.ones(2))
    told = [str(w.message) for w in caught if "does not repeat all" in str(w.message)]
    assert len(told) == 2 and "it changes self.calls" in told[0] and "it changes self.kept" in told[1]
    assert [w.lineno for w in caught] == [Remembering.forward.__code__.co_firstlineno + i for i in (1, 2)]


class WithState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x.mul_(2)
        return self.drop(self.norm(x)) + torch.rand(4)


def test_checks_leave_state_and_random_numbers_as_one_call_would() -> None:
    x, more = torch.randn(8, 4), [torch.randn(8, 4), torch.randn(8, 4)]
    models = [WithState().train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    inputs, kept = [x.clone(), x.clone()], [m.clone() for m in more]
    torch.manual_seed(7)
    answer = models[0](inputs[0])
    after = torch.get_rng_state()
    torch.manual_seed(7)
    program = smelt.trace(models[1], inputs[1], check=True, check_inputs=more)
    assert torch.equal(torch.get_rng_state(), after)
    assert_agrees(models[1].state_dict(), models[0].state_dict())
    assert models[1].norm.num_batches_tracked.item() == 1 and models[1].calls.item() == 1
    assert torch.equal(inputs[0], inputs[1])
    assert all(torch.equal(a, b) for a, b in zip(more, kept, strict=True))

    for _ in range(2):
        torch.manual_seed(8)
        answer = models[0](inputs[0])
        torch.manual_seed(8)
        assert_agrees(program(inputs[1]), answer)
        assert_agrees(models[1].state_dict(), models[0].state_dict())
        assert torch.equal(inputs[0], inputs[1])


def test_a_compiled_program_draws_and_updates_as_eager() -> None:
    models = [WithState().train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    compiled = smelt.compile(models[1], options=RULE)
    x = torch.randn(8, 4)
    inputs = [x.clone(), x.clone()]
    for step in range(4):
        torch.manual_seed(step)
        answer = models[0](inputs[0])
        state = torch.get_rng_state()
        torch.manual_seed(step)
        assert_agrees(compiled(inputs[1]), answer)
        assert torch.equal(torch.get_rng_state(), state)
        assert_agrees(models[1].state_dict(), models[0].state_dict())
        assert torch.equal(inputs[0], inputs[1])


# --- modules that change


def test_a_module_that_changes_while_it_is_compiled() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.factor = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.factor

    model = Model().eval()
    compiled = smelt.compile(model, options=RULE)
    x, stop = torch.randn(3, 4), threading.Event()
    allowed = [model.linear(x) * factor for factor in (1.0, 2.0)]

    def disturb() -> None:
        while not stop.is_set():
            model.factor = 3.0 - model.factor

    thread = threading.Thread(target=disturb)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        thread.start()
        try:
            for _ in range(200):
                found = compiled(x)
                assert any(torch.allclose(found, a, atol=1e-6) for a in allowed)
        finally:
            stop.set()
            thread.join()
        for factor in (1.0, 5.0):
            model.factor = factor
            for _ in range(2):
                assert_agrees(compiled(x), model.linear(x) * factor)


def test_a_hook_that_changes_the_module_in_the_recorded_call() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    compiled, x = smelt.compile(model, options=RULE), torch.randn(2, 4)

    def replace(module: nn.Module, args: Any, output: Any) -> None:
        model[1].weight = nn.Parameter(model[1].weight * 2)

    handle = model[0].register_forward_hook(replace)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        for _ in range(4):
            before = model[1].weight.clone()
            hidden = model[0].weight
            found = compiled(x)
            assert torch.equal(model[1].weight, before * 2)
            want = nn.functional.linear(nn.functional.linear(x, hidden, model[0].bias), before * 2, model[1].bias)
            assert_agrees(found, want)
        handle.remove()
        for _ in range(3):
            assert_agrees(compiled(x), model(x))


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "replaced parameter": lambda m: setattr(m.up, "weight", nn.Parameter(torch.randn(128, 32))),
    "in place": lambda m: m.up.weight.mul_(1.5),
    "data": lambda m: setattr(m.up.weight, "data", torch.randn(128, 32)),
    "load": lambda m: m.load_state_dict({k: v + 0.1 for k, v in m.state_dict().items()}),
    "child": lambda m: setattr(m, "up", nn.Linear(32, 128)),
    "dtype there and back": lambda m: m.double().float(),
    "no bias": lambda m: setattr(m.down, "bias", None),
    "attribute": lambda m: setattr(m.second, "eps", 0.5),
    "another forward": lambda m: setattr(m, "forward", lambda x: x * 2),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("what", CHANGES)
def test_a_module_that_changes_between_calls(what: str) -> None:
    torch.manual_seed(4)
    model, x = Block().eval(), torch.randn(2, 4, 32)
    compiled = smelt.compile(model, options=RULE)
    program = smelt.trace(model, x, options=RULE)
    for _ in range(2):
        assert_agrees(compiled(x), model(x))
        assert_agrees(program(x), model(x))
    CHANGES[what](model)
    for _ in range(3):
        assert_agrees(compiled(x), model(x))
    assert compiled.stats().fallbacks == {}
    if what in ("replaced parameter", "in place", "data", "load", "dtype there and back"):
        assert_agrees(program(x), model(x))


# --- options


@pytest.mark.parametrize(
    ("options", "listed"),
    [
        ({"speed": 11}, ["strict", "numerics", "cache_dir", "measure"]),
        ({"strict": "yes"}, ["bool"]),
        ({"numerics": "best"}, ["default", "fast", "eager-library"]),
        ({"cache_limit_mb": "big"}, ["number of megabytes"]),
        ({"cache_limit_mb": True}, ["number of megabytes"]),
        ({"skip": "cse"}, ["list of names"]),
        ({"stop_after": 1.5}, ["number of passes"]),
    ],
)
def test_wrong_options_list_what_is_allowed(options: dict[str, Any], listed: list[str]) -> None:
    for use in (
        lambda: smelt.compile(nn.Linear(2, 2), options=options),
        lambda: smelt.compile(options=options)(branching),
        lambda: smelt.trace(nn.Linear(2, 2), torch.ones(1, 2), options=options),
    ):
        with pytest.raises(SmeltError) as caught:
            use()
        assert caught.value.code == "S0301"
        assert all(word in str(caught.value) for word in listed)


@pytest.mark.parametrize(
    ("name", "value"),
    [("dynamic", "yes"), ("dynamic", 1), ("fullgraph", None), ("fullgraph", "no"), ("background", torch.ones(2))],
)
def test_flags_take_what_they_are_documented_to_take(name: str, value: Any) -> None:
    given: Any = {name: value}
    for use in (lambda: smelt.compile(branching, **given), lambda: smelt.compile(**given)):
        with pytest.raises(SmeltError, match=rf"{name} cannot be .*\s.*True.* or False") as caught:
            use()
        assert caught.value.code == "S0301"


def test_unknown_passes_are_named() -> None:
    with pytest.raises(SmeltError, match="cse") as caught:
        smelt.trace(nn.Linear(2, 2), torch.ones(1, 2), options={"skip": ["cce"]})
    assert caught.value.code == "S0301"


def test_arguments_beside_each_other_are_told_to_stand_in_a_tuple() -> None:
    with pytest.raises(CaptureError, match="kwargs is a Tensor") as caught:
        smelt.trace(torch.add, torch.ones(3), torch.ones(3))  # type: ignore[arg-type]
    assert caught.value.code == "S0106" and "smelt.trace(f, (x, y))" in (caught.value.fix or "")


@pytest.mark.parametrize("sizes", [None, {"x": {0: "B"}, "n": None}])
def test_a_graphs_code_names_the_input_that_is_not_right(sizes: Any) -> None:
    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        return x**n

    code = smelt.trace(power, (torch.ones(3), 2), dynamic_shapes=sizes).code
    for inputs, told in [
        ((torch.ones(3), 2), r"2 inputs are passed, and the graph takes 1: x \(f32"),
        ((), r"0 inputs are passed, and the graph takes 1: x \(f32"),
        ((None,), r"args\[0\] is None, the program was captured for f32"),
    ]:
        with pytest.raises(CaptureError, match=told) as caught:
            code.run(*inputs)  # type: ignore[arg-type]
        assert caught.value.code == "S0107"


def test_explain_tells_what_to_do_to_the_end() -> None:
    def shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    shared = torch.zeros(6)
    compiled = smelt.compile(shift)
    with pytest.warns(SmeltWarning, match=r"write to a \.clone\(\)"):
        compiled(shared[:4], shared[2:])
    report = smelt.explain(compiled)
    assert report.breaks[0]["why"].endswith("write to a .clone()")
    verdict, breaks = str(report).split("\n\nBreaks\n")
    for part in (verdict, breaks.split("\n\n\n")[0]):
        assert " ".join(part.split()).count("write to a .clone()") == 1
    assert str(report).count(".clone()") == 2


def test_what_cannot_be_compiled_at_all() -> None:
    for thing in (3, "text", torch.ones(2)):
        with pytest.raises(SmeltError) as caught:
            smelt.compile(thing)
        assert caught.value.code == "S0106"
    with pytest.raises(SmeltError) as nothing:
        smelt.explain(nn.Linear(2, 2))
    assert nothing.value.code == "S0106"

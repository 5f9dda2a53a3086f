"""What scripting reports before any run, and that it leaves everything as it was."""

import contextlib
import copy
import enum
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple

import pytest
import torch
from torch import nn

import smelt
from smelt import CaptureError
from smelt.capture.scripting.domain import Open
from tests.script.checking import agrees

HERE = __file__


def line_of(fn, offset):
    return fn.__code__.co_firstlineno + offset


def mismatch(x: smelt.f32[8, 4], y: smelt.f32[3, 2]):
    z = x + 1
    return z @ y


def test_sizes_that_never_fit_are_reported_with_both_lines():
    with pytest.raises(CaptureError) as caught:
        smelt.script(mismatch)
    error = caught.value
    assert error.where.file == HERE and error.where.line == line_of(mismatch, 2)
    assert f"{HERE}:{line_of(mismatch, 1)}" in str(error) and f"{HERE}:{line_of(mismatch, 0)}" in str(error)
    assert "f32[8, 4]" in str(error) and "f32[3, 2]" in str(error)


def unlike(x, c):
    if c.sum() > 0:
        y = x
    else:
        y = "text"
    return y


def test_arms_that_cannot_merge_are_named():
    with pytest.raises(CaptureError) as caught:
        smelt.script(unlike)
    text = str(caught.value)
    assert caught.value.where.line == line_of(unlike, 1)
    assert f":{line_of(unlike, 2)}" in text and f":{line_of(unlike, 4)}" in text


def test_a_branch_that_fails_on_one_path_only_is_no_error():
    def f(x: smelt.f32[8, 4], y: smelt.f32[3, 2], n: int):
        if n > 0:
            return x @ y
        return x

    program = smelt.script(f)
    assert "py.raise" in str(program.graph)
    x, y = torch.ones(8, 4), torch.ones(3, 2)
    assert torch.equal(program(x, y, 0), x)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        program(x, y, 1)


def test_no_source():
    space = {"torch": torch}
    exec("def f(x):\n    return x + 1", space)
    with pytest.raises(CaptureError, match="source"):
        smelt.script(space["f"])


def test_source_of_a_notebook_cell():
    import linecache

    text = "def f(x):\n    if x.sum() > 0:\n        return x + 1\n    return x - 1\n"
    name = "<ipython-input-7-smelt>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {"torch": torch}
    exec(compile(text, name, "exec"), space)
    program = smelt.script(space["f"])
    assert f'@ "{name}":2 in f' in str(program.graph)
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(program(x), space["f"](x))


def test_what_is_not_callable():
    with pytest.raises(CaptureError):
        smelt.script(3)
    with pytest.raises(CaptureError):
        smelt.script(len)


def test_parameters_that_no_graph_has():
    def f(x, mode: nn.Module):
        return mode(x)

    with pytest.raises(CaptureError, match="mode"):
        smelt.script(f)


def test_a_write_that_may_be_caught_needs_types():
    def f(x, y):
        z = x.clone()
        try:
            z.add_(y)
        except RuntimeError:
            return x
        return z

    with pytest.raises(CaptureError, match="caught"):
        smelt.script(f)


def test_a_generator_is_not_set():
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(2)

    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match="generator"):
        smelt.script(f)
    assert torch.equal(torch.get_rng_state(), before)


class Kind(enum.Enum):
    SUM, MEAN = 1, 2


def test_members_of_an_enum_are_ways_of_their_own():
    def f(x):
        kind = Kind.SUM if x.sum() > 0 else Kind.MEAN
        return kind, x.sum() if kind is Kind.SUM else x.mean()

    assert 'py.call("enum.member"' in str(smelt.script(f).graph)
    compiled = smelt.compile(f)
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2), -torch.ones(2)):
        kind, found = compiled(x)
        assert kind is f(x)[0] and torch.equal(found, f(x)[1])


def test_a_value_that_is_none_of_the_choices():
    def f(x, mode: Literal["sum", "mean"]):
        return x.sum() if mode == "sum" else x.mean()

    program = smelt.script(f)
    assert str(program.graph).startswith("graph f(%x: tensor[?], %mode: int)")
    assert torch.equal(program(torch.ones(2), "neither"), torch.tensor(1.0))
    with pytest.raises(CaptureError, match="mode"):
        program.inputs_for(torch.ones(2), "neither")


def test_defaults_are_kept_where_no_graph_is_of_all():
    def f(x, weights: bool = False, n: int = 2):
        return (x, x * n) if weights else x + n

    program = smelt.script(f)
    assert str(program.graph).startswith("graph f(%x: tensor[?], %n: int)")
    for args in ((torch.ones(2),), (torch.ones(2), True), (torch.ones(2), False, 5)):
        found, expected = program(*args), f(*args)
        assert type(found) is type(expected)
        assert all(map(torch.equal, found, expected))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = []
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.shape[0])
        return self.bn(x)


def test_scripting_leaves_everything_as_it_was():
    model = Counting()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    code = Counting.forward.__code__
    random, shape, hooks = torch.get_rng_state(), torch.Tensor.shape, sys.gettrace()
    with contextlib.suppress(CaptureError):
        smelt.script(model)
    assert model.calls == 0 and model.seen == []
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert Counting.forward.__code__ is code
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.Tensor.shape is shape and sys.gettrace() is hooks
    assert torch.Tensor.dim(torch.ones(2, 3)) == 2 and torch.ones(2).requires_grad is False


def test_copies_are_scripted_anew():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    program = smelt.script(model)
    copied = copy.deepcopy(program)
    x = torch.randn(2, 4)
    assert type(copied) is type(program)
    assert [n.op for n in copied.graph.walk()] == [n.op for n in program.graph.walk()]
    with torch.no_grad():
        model[0].weight.zero_()
        assert not torch.equal(copied(x), program(x))


def test_example_inputs_give_types():
    def f(x, n, mode):
        return x.sum(n) if mode == "sum" else x.mean(n)

    program = smelt.script(f, example_inputs=[(torch.ones(2, 3), 0, "sum"), (torch.ones(4, 3), 1, "mean")])
    assert str(program.graph).startswith("graph f(%x: f32[_, 3], %n: int, %mode: str)")
    for args in ((torch.ones(5, 3), 1, "sum"), (torch.ones(2, 3), 0, "mean")):
        assert torch.equal(program(*args), f(*args))


def refused(fn, *words):
    """Scripting says no at a line of the function, with these words."""
    with pytest.raises(CaptureError) as caught:
        smelt.script(fn)
    error = caught.value
    code = fn.__code__
    assert error.where.file == HERE and error.where.line in {line for *_, line in code.co_lines()}
    for word in words:
        assert word in str(error), str(error)


def test_a_list_in_a_list_is_not_changed_where_only_a_run_knows_which():
    def f(x, n: int):
        rows = [[], []]
        for i in range(n):
            rows[i % 2].append(i)
        return x, rows

    refused(f, "stands in another container", "assign the changed one")


def test_a_list_that_a_staged_list_holds_is_not_changed():
    def f(x, n: int):
        row, rows = [0], []
        for _ in range(n):
            rows.append(row)
        row.append(1)
        return x, rows

    refused(f, "stands in another container")


def test_a_list_of_a_dictionary_parameter_is_not_changed():
    def f(x, d: dict[str, list[int]], k: str):
        d[k].append(3)
        return x, d

    refused(f, "stands in another container")


def test_results_that_are_of_two_kinds():
    def f(x, pair: bool):
        return (x, x.sum()) if pair else x

    refused(f, "a tuple meets a tensor")


def test_functions_as_arguments_need_an_example():
    def f(x, act: Callable[[torch.Tensor], torch.Tensor]):
        return act(x) + 1

    refused(f, "act", "example_inputs")
    program = smelt.script(f, example_inputs=(torch.ones(2), torch.sin))
    assert "aten.sin.default" in str(program.graph)
    for act in (torch.sin, torch.cos):
        assert torch.equal(program(torch.ones(2), act), f(torch.ones(2), act))


def test_elements_of_a_tensor_of_unknown_type():
    def f(x, lengths):
        return [x[:n].sum() for n in lengths.tolist()]

    refused(f, "tolist", "annotate")


def test_calls_that_a_graph_is_not_of():
    program = smelt.script(lambda x, y: y.add_(x), example_inputs=(torch.ones(4), torch.ones(4)))
    whole = torch.ones(2, 4)
    for args in ((whole[0], whole[0]), (torch.ones(4), None), ([1.0], torch.ones(4))):
        with pytest.raises(CaptureError, match="the graph is of other arguments"):
            program.inputs_for(*args)
    assert len(program.inputs_for(whole[0], whole[1])) == 2


def test_a_graph_is_of_its_types_only():
    def f(x, n, flag=True):
        return x.sum() * n / x.shape[0], torch.full((2,), flag)

    x = torch.arange(4.0)
    program = smelt.script(f, example_inputs=(x, 2.0, True))
    for args in ((x[:2], 2.0, True), (x.double(), 2.0, True), (torch.arange(8.0)[::2], 2.0, True), (x, 2, True),
                 (x, 2.0, 3), (3.0, 2.0, True)):  # fmt: skip
        with pytest.raises(CaptureError, match="the graph is of other arguments"):
            program.inputs_for(*args)
    assert len(program.inputs_for(x + 1, 3.0, False)) == 3

    def g(x: smelt.f32["B", 2], y: smelt.f32["B"], rows: list[smelt.f32[2]]):  # noqa: F821
        return x.sum() + y.sum() + rows[0].sum()

    program = smelt.script(g)
    assert len(program.inputs_for(torch.ones(3, 2), torch.ones(3), [torch.ones(2)])) == 3
    for args in ((torch.ones(3, 2), torch.ones(4), []), (torch.ones(3, 3), torch.ones(3), []),
                 (torch.ones(3, 2), torch.ones(3), [torch.ones(3)])):  # fmt: skip
        with pytest.raises(CaptureError, match="the graph is of other arguments"):
            program.inputs_for(*args)


def test_runs_that_all_end_are_those_without_more_arguments():
    def f(x, *rest):
        for y in rest:
            z = x + y
        return z

    with pytest.warns(smelt.SmeltWarning, match=r"every run of .*f without \*rest ends here"):
        smelt.script(f)


def many_ways(x: torch.Tensor, n: int):
    for i in range(8):
        s = x if n > i else "text"
        n = n + len(s)
    return x + n


@pytest.mark.parametrize("limit", ["smelt.capture.scripting.run._STEPS", f"{Open.__module__}.Open.most_explored"])
def test_ways_that_multiply_come_to_an_end_at_a_line(limit, monkeypatch):
    monkeypatch.setattr(limit, 40)
    with pytest.raises(CaptureError, match=r"took too long|too many paths") as caught:
        smelt.script(many_ways)
    where = caught.value.where
    assert where.file == HERE and 0 <= where.line - line_of(many_ways, 0) < 5


_KEPT = []


def keeps(x):
    y = x.sin()
    _KEPT.append(y.sum().item())
    return y


def yields(x):
    yield x


@pytest.mark.parametrize(
    ("program", "offset", "fix"),
    [(keeps, 2, "smelt.compile, after whose calls it is there"), (yields, 0, "collect what it yields in a list")],
)
def test_the_way_out_is_one_for_the_reason(program, offset, fix):
    with pytest.raises(CaptureError, match=fix) as caught:
        smelt.script(program)
    assert caught.value.code == "S0109" and caught.value.where.line == line_of(program, offset)


def sizes_in_a_set(x):
    return x * len({size * 2 for size in x.shape})


def values_as_keys(x, n: int):
    return x + {n: 1.0, n + 1: 2.0}[n]


@pytest.mark.parametrize(("program", "what"), [(sizes_in_a_set, "a value int"), (values_as_keys, "n")])
def test_members_of_sets_that_only_a_run_knows_are_named(program, what):
    with pytest.raises(CaptureError) as caught:
        smelt.script(program)
    assert caught.value.what == f"{what} is put in a set, or is a key of a dict"
    assert caught.value.where.line == line_of(program, 1)
    assert "a data-dependent size" in caught.value.why and "keep them in a list" in caught.value.fix


def test_sets_of_what_the_source_tells_are_scripted():
    def f(x: smelt.f32[2, 3], names=("a", "b", "a")):
        sizes, kinds = {size * 2 for size in x.shape}, {name for name in names if name != "c"}
        return x * len(sizes) + len(kinds) + sum({n % 2 for n in range(5)}), "a" in kinds

    x = torch.ones(2, 3)
    assert str(smelt.script(f)(x)) == str(f(x))
    assert str(smelt.script(sizes_in_a_set, example_inputs=x)(x)) == str(sizes_in_a_set(x))


def _per_row(x):
    return torch.func.vmap(lambda row: row.sum() * 2)(x)


def _gradient(x):
    return torch.func.grad(lambda v: (v * v).sum())(x)


@pytest.mark.parametrize(
    ("program", "name", "offset", "why", "fix"),
    [
        (_per_row, "vmap", 1, "it reads the sizes of its arguments", "give the parameters their sizes"),
        (_gradient, "grad", 1, "grad takes gradients of its arguments", "use smelt.compile or smelt.trace"),
    ],
)
def test_transforms_of_functions_are_named(program, name, offset, why, fix):
    with pytest.raises(CaptureError) as caught:
        smelt.script(program)
    assert caught.value.what.startswith(f"torch.func.{name} runs a function")
    assert caught.value.where.line == program.__code__.co_firstlineno + offset
    assert caught.value.why.startswith(why)
    assert caught.value.fix.startswith(fix)


def test_transforms_of_functions_of_known_sizes_are_scripted():
    def f(x: smelt.f32[6, 3]):
        return torch.func.vmap(lambda row: row.sum() * 2)(x)

    x = torch.arange(18.0).reshape(6, 3)
    assert torch.equal(smelt.script(f)(x), f(x))


@pytest.mark.filterwarnings("ignore:.*(torch.ao.quantization|TypedStorage|quantize_|quantized).*")
def test_packed_weights_are_named():
    """An error of torch's on a proxy of a tensor would be no error of the program's."""
    layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(4, 6)), {nn.LSTM})
    for module in (layer, layer[0]):
        with pytest.raises(CaptureError) as caught:
            smelt.script(module)
        assert caught.value.what == "aten.quantized_lstm.input was called with a ScriptObject"
        assert "packed weights of a quantized module" in caught.value.why
        assert caught.value.fix.startswith("capture the model before")


def test_a_recursion_without_end_in_the_source_is_no_defect():
    def tree(t):
        if isinstance(t, int):
            return torch.ones(2) * t
        left, right = tree(t[0]), tree(t[1])
        return left.tanh() + right

    with pytest.raises(CaptureError, match="deep") as caught:
        smelt.script(tree)
    assert caught.value.code == "S0109" and caught.value.where.file == HERE


def test_a_recursion_that_doubles_at_each_level_is_told_at_once():
    def quicksort(x):
        if len(x) <= 1:
            return x
        rest = x[1:]
        return torch.cat([quicksort(rest[rest < x[0]]), x[:1], quicksort(rest[rest >= x[0]])])

    with pytest.raises(CaptureError, match="quicksort calls itself more than once") as caught:
        smelt.script(quicksort)
    assert caught.value.code == "S0109" and "depends on data" in caught.value.why


def of_one_kind(x, *, ratio: float | int = 0.5):
    found = torch.full([4, 3], ratio)
    return torch.max(found, 0, out=(torch.empty(3), torch.empty(3).long()))[0] + x


def test_what_one_kind_of_argument_refuses_ends_runs_of_that_kind_only():
    scripted = smelt.script(of_one_kind)
    x = torch.ones(3)
    assert torch.equal(scripted(x, ratio=1.5), of_one_kind(x, ratio=1.5))
    with pytest.raises(RuntimeError, match="dtype long int"):
        scripted(x, ratio=2)


def unbound(x, y):
    def inner(p):
        if 5 < 2:
            return p
        y *= 2  # noqa: F823, F841
        return p

    return inner(x)


def test_a_variable_without_a_value_behind_a_branch_is_the_programs_own_error():
    with pytest.warns(smelt.SmeltWarning, match="every run of unbound ends here: UnboundLocalError"):
        smelt.script(unbound)


def of_the_last_row(x):
    for row in x:
        last = x.amax() * 3 + row
    return torch.stack([last, last]), torch.cat((last, last))


def test_a_variable_without_a_value_in_a_list_of_arguments():
    scripted = smelt.script(of_the_last_row)
    for x in (torch.randn(3, 2), torch.randn(1, 2)):
        for got, want in zip(scripted(x), of_the_last_row(x), strict=True):
            assert torch.equal(got, want)
    with pytest.raises(UnboundLocalError, match="last"):
        scripted(torch.ones(0, 2))


def ordered(x, n: int | bool = 2, *, flip=False):
    return x.sort(descending=flip).values * n


def test_a_kept_default_is_of_its_own_type():
    scripted = smelt.script(ordered)
    x = torch.tensor([2.0, 1.0, 3.0])
    assert torch.equal(scripted(x, 2, flip=False), ordered(x))
    with pytest.raises(TypeError, match="descending=int"):
        scripted(x, 2, flip=0)


class Opens:
    tries = 0


def test_an_end_that_later_runs_get_past_is_said_of_the_state_as_it_stands() -> None:
    def knocks(x: torch.Tensor, kind: str = "?") -> torch.Tensor:
        Opens.tries += 1
        if Opens.tries < 3:
            raise ValueError(f"closed {kind}")
        return x + 1

    def mistakes(x: smelt.f32[2, 3], y: smelt.f32[2, 3]) -> torch.Tensor:
        Opens.tries += 1
        return x @ y if Opens.tries < 3 else x + y

    Opens.tries = 0
    for program, inputs in (knocks, (torch.ones(2),)), (mistakes, (torch.ones(2, 3), torch.ones(2, 3))):
        with pytest.warns(smelt.SmeltWarning, match="ends here, with its current state: "):
            scripted = smelt.script(program)
        for _ in range(2):
            with pytest.raises((ValueError, RuntimeError)):
                scripted(*inputs)
        assert torch.equal(scripted(*inputs), program(*inputs))
        Opens.tries = 0


def test_a_call_gives_what_the_parameters_are():
    class Pair(NamedTuple):
        x: torch.Tensor
        n: int = 2

    def of_a_pair(p: Pair):
        return p.x * p.n

    def of_a_tensor(x):
        return x if isinstance(x, int) else x + 1

    program = smelt.script(of_a_pair)
    assert program.inputs_for(Pair(torch.ones(2)))[1] == 2
    for other in (torch.ones(2), 3, [torch.ones(2), 2]):
        with pytest.raises(CaptureError, match="takes a Pair"):
            program.inputs_for(other)
    for other in (3, 2.5, None, program, "a"):
        with pytest.raises(CaptureError, match="takes a tensor"):
            smelt.script(of_a_tensor).inputs_for(other)


@pytest.mark.parametrize("mode", [torch.set_grad_enabled, lambda on: torch.autocast("cpu", enabled=on)])
def test_modes_that_a_run_chooses(mode):
    def under(x: smelt.f32[4, 4], on: bool):
        with mode(on):
            return x @ x

    agrees(under, (torch.ones(4, 4), True), (torch.ones(4, 4), False))


CALLS = 0


def counts(x, n: int):
    y = x * 2
    global CALLS
    CALLS += n
    return y + CALLS


def counts_elsewhere(x, n: int):
    counts(x, n)
    return x


def counter():
    total = 0

    def add(x, n: int):
        nonlocal total

        total += n
        return x

    return add


@pytest.mark.parametrize(
    ("program", "name", "line"),
    [
        (counts, "global variable CALLS", line_of(counts, 3)),
        (counts_elsewhere, "global variable CALLS", line_of(counts, 3)),
        (counter(), "nonlocal variable total", line_of(counter, 6)),
    ],
)
def test_a_variable_outside_that_keeps_data_is_named_where_it_is_bound(program, name, line):
    with pytest.raises(CaptureError, match=f"{name} keeps what depends on data") as caught:
        smelt.script(program)
    assert (caught.value.where.file, caught.value.where.line) == (HERE, line)


def test_what_to_do_is_said_of_typed_parameters():
    """Where all have types, it does not help to annotate them."""

    def f(x: smelt.f32[2, 4]):
        if x.sum() > 0:
            r = x
        else:
            r = "text"
        return r

    def g(x):
        if x.sum() > 0:
            r = x
        else:
            r = "text"
        return r

    for program, starts in ((f, "keep structure"), (g, "annotate the parameters")):
        with pytest.raises(CaptureError) as caught:
            smelt.script(program)
        assert caught.value.fix.startswith(starts)
    with pytest.raises(CaptureError) as caught:
        smelt.script(g, example_inputs=(torch.ones(2, 4),))
    assert caught.value.fix.startswith("keep structure")


def test_what_an_argument_that_does_not_fit_is_called():
    def f(x, steps: int = 5, pair: tuple[int, smelt.f32[2]] = (1, torch.ones(2))):
        return x * steps + pair[0]

    by_example = smelt.script(f, example_inputs=(torch.ones(3),))
    for args, what, fix in (
        ((torch.ones(3), 7), "steps is 7, and the graph is of 5", "give steps in example_inputs"),
        ((torch.ones(4),), "x is f32[4], and the graph takes f32[3]", "add an example with such a value"),
    ):
        with pytest.raises(CaptureError) as caught:
            by_example.inputs_for(*args)
        assert what in str(caught.value) and fix in caught.value.fix
    with pytest.raises(CaptureError) as caught:
        smelt.script(f).inputs_for(torch.ones(3), 5, (1, torch.ones(3)))
    assert "pair_1 is f32[3], and the graph takes f32[2]" in str(caught.value)
    assert "widen the annotation of pair" in caught.value.fix


def test_what_to_do_beside_a_default_that_is_a_tensor():
    """A tensor is not read when the parameters are inspected."""

    ones = torch.ones(3)

    def f(x: smelt.f32[3], y=ones):
        if x.sum() > 0:
            r = x
        else:
            r = "text"
        return r

    with pytest.raises(CaptureError) as caught:
        smelt.script(f)
    assert caught.value.fix.startswith("keep structure")

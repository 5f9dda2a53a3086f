"""A trace of a program whose way depends on data: it says so, holds for the recorded way, and raises for others."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt import CaptureError, SmeltWarning

from .judge import is_same, outcome, state_of
from .programs import PROGRAMS, Counted, branch, masked

pytestmark = pytest.mark.usefixtures("paths_only")


def traced(program: Any, *args: Any, **given: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        return smelt.trace(program, args, **given)


NAMES = [n for n in PROGRAMS if n not in ("asserting", "raising", "draws_decide", "formatted")]


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", NAMES)
def test_it_holds_for_the_recorded_way_and_raises_for_others(name: str) -> None:
    torch.manual_seed(0)
    factory, inputs = PROGRAMS[name]
    source = factory()
    eager = copy.deepcopy(source)
    with torch.no_grad():
        first, *others = inputs
        given = copy.deepcopy(first)
        program = traced(source, *given)
        eager(*copy.deepcopy(first))
        fits = 0
        for n, args in enumerate((first, *others, first)):
            before, kept, generator = copy.deepcopy(eager), copy.deepcopy(state_of(program)), torch.get_rng_state()
            found, expected = outcome(program, args, n), outcome(eager, args, n)
            if isinstance(found[0], tuple) and found[0][0] is CaptureError:
                # Nothing has happened.
                assert is_same(list(found[1]), list(args)) and is_same(state_of(program), kept)
                torch.manual_seed(n)
                assert torch.equal(found[2], torch.get_rng_state())
                eager = before
            else:
                fits += 1
                assert is_same(found, expected) and is_same(state_of(program), state_of(eager)), (n, args)
            torch.set_rng_state(generator)
    assert fits >= 1 or name == "nested"


def test_other_ways_name_the_line_and_both_values() -> None:
    program = traced(branch, torch.ones(3))
    line = branch.__code__.co_firstlineno + 1
    with pytest.raises(CaptureError, match=r"the truth value of a tensor was True when .*, and is False now") as caught:
        program(-torch.ones(3))
    assert caught.value.code == "S0101" and caught.value.where.line == line
    program = traced(masked, torch.ones(3))
    with pytest.raises(CaptureError, match=r"the size of the result of aten.index.Tensor was \(3,\)") as caught:
        program(-torch.ones(3))
    assert caught.value.code == "S0102"
    for other in (copy.deepcopy(program), pickle.loads(pickle.dumps(program))):
        assert torch.equal(other(torch.ones(3)), masked(torch.ones(3)))
        with pytest.raises(CaptureError):
            other(-torch.ones(3))


def test_each_line_that_is_baked_is_told_once_with_what_it_read() -> None:
    def f(x: Tensor) -> Tensor:
        for row in x:
            if row > 0:
                x = x + 1
        return x * x[0].item() + x[2].item()

    line = f.__code__.co_firstlineno
    with pytest.warns(SmeltWarning, match="holds for one path") as told:
        smelt.trace(f, torch.tensor([1.0, -1.0, 1.0]))
    assert [w.lineno - line for w in told] == [2, 4] and {w.filename for w in told} == {__file__}
    assert "the truth value of a tensor was True, then False, then True at" in str(told[0].message)
    assert "the value of a tensor was 3.0, then " not in str(told[1].message)
    assert "the value of a tensor was 3.0 at" in str(told[1].message)
    with pytest.raises(CaptureError, match="was read by Python"):
        smelt.trace(f, torch.ones(3), options={"strict": True})


def test_a_flag_that_decides_is_told_at_its_line() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if x.requires_grad else x * 3

    with pytest.warns(SmeltWarning, match="holds for one path: requires_grad of a tensor was False") as told:
        program = smelt.trace(f, torch.ones(3))
    assert [w.lineno for w in told] == [f.__code__.co_firstlineno + 1] and told[0].filename == __file__
    assert program(torch.ones(3)).tolist() == [3.0] * 3
    compiled = smelt.compile(f)
    with torch.no_grad():
        for needs in (False, True, False):
            x = torch.ones(3, requires_grad=needs)
            assert torch.equal(compiled(x), f(x))


def test_with_gradients_other_ways_raise_before_anything_is_written() -> None:
    model = Counted()
    program = traced(model, torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    program(x).sum().backward()
    assert x.grad is not None and model.hits.tolist() == [2.0, 2.0]
    with pytest.raises(CaptureError):
        program(torch.tensor([1.0, -1.0, 1.0], requires_grad=True))
    assert model.hits.tolist() == [2.0, 2.0]


def test_check_inputs_of_another_way() -> None:
    with pytest.raises(CaptureError, match=re.escape("was True when the program was captured, and is False now")):
        traced(branch, torch.ones(3), check_inputs=[torch.full((3,), 2.0), -torch.ones(3)])


def test_the_turn_of_a_loop_that_came_out_otherwise_is_the_one_told() -> None:
    def halve(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        kept = {}
        while x.sum() > 1:
            kept[str(len(kept))] = x
            x = x / 2
        return x, kept

    program = traced(halve, torch.ones(3))
    with pytest.raises(CaptureError, match="was False when the program was captured, and is True now"):
        program(torch.ones(3) * 4)
    with pytest.raises(CaptureError, match="was True when the program was captured, and is False now"):
        program(torch.ones(3) / 4)


def test_a_program_inside_a_compiled_function() -> None:
    program = traced(branch, torch.ones(3))
    compiled = smelt.compile(lambda x: program(x) + 1)
    for n in (1.0, 2.0, 3.0):
        x = torch.full((3,), n)
        assert torch.equal(compiled(x), branch(x) + 1)
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks
    with pytest.raises(CaptureError, match="the truth value"):
        compiled(-torch.ones(3))
    assert torch.equal(compiled(torch.ones(3)), branch(torch.ones(3)) + 1)


def test_the_graph_is_text_and_code_that_hold_for_the_same() -> None:
    program = traced(branch, torch.ones(3))
    text = str(program.graph)
    assert "expect(%" in text and str(smelt.parse(text)) == text
    assert torch.equal(program.code.run(torch.ones(3))[0], branch(torch.ones(3)))
    with pytest.raises(AssertionError):
        program.code.run(-torch.ones(3))
    assert [row["value"] for row in smelt.explain(program).guards] == ["True"]


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_what_is_drawn_into_a_tensor_of_the_run_does_not_keep_it_from_being_a_path() -> None:
    def noisy(x: Tensor) -> Tensor:
        noise = torch.empty(3).normal_()
        return x * noise if (x + noise).sum() > 0 else x - noise

    program = traced(noisy, torch.full((3,), 9.0))
    for x in (torch.full((3,), 9.0), torch.full((3,), 8.0)):
        torch.manual_seed(3)
        wanted, after = noisy(x), torch.rand(1)
        torch.manual_seed(3)
        assert torch.equal(program(x), wanted)
        assert torch.equal(torch.rand(1), after)
    state = torch.get_rng_state()
    with pytest.raises(CaptureError, match="when the program was captured"):
        program(torch.full((3,), -9.0))
    assert torch.equal(torch.get_rng_state(), state)


def test_an_argument_of_another_dtype_that_the_program_refuses_is_named() -> None:
    program = traced(torch.nn.Linear(4, 2), torch.ones(3, 4))
    for dtype in (torch.float64, torch.int64):
        told = rf"args\[0\] is of {dtype}, the program was captured for torch.float32"
        with pytest.raises(CaptureError, match=told) as e:
            program(torch.ones(3, 4, dtype=dtype))
        assert "args[0].to(torch.float32)" in e.value.fix
        assert "same dtype" in e.value.why

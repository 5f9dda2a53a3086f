"""Modules scripted with open types against eager, and with known types against a recorded run."""

import re

import pytest
import torch

import smelt
from smelt.passes.base import PassContext
from smelt.passes.dce import dce
from smelt.passes.manager import run_passes
from tests.script.checking import agrees
from tests.script.modules import MODULES


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", list(MODULES))
def test_as_in_eager(name):
    module, calls = MODULES[name]
    with torch.no_grad():
        agrees(module, *calls)


# The kernel gives nothing in the place of weights that nobody asked for; types alone promise an empty tensor.
GIVES_LESS = ("heads",)


def cleaned(graph):
    found = graph.clone()
    run_passes(found, (dce,), PassContext())
    return found


def lines(graph):
    """A graph's text without the places in source files (those of a caller are others), values numbered anew."""
    numbers: dict[str, str] = {}
    text = "\n".join(line.partition("  @ ")[0] for line in str(graph).splitlines()[1:])
    return re.sub(r"%\d+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text).splitlines()


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", [n for n in MODULES if n not in GIVES_LESS])
def test_known_types_give_the_graph_of_a_recorded_run(name):
    module, calls = MODULES[name]
    for args in calls:
        with torch.no_grad():
            scripted = smelt.script(module, example_inputs=args)
            traced = smelt.trace(module, args, check=False)
        shown, wanted = (lines(cleaned(program.graph)) for program in (scripted, traced))
        assert shown == wanted


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", list(MODULES))
def test_the_graph_that_runs_is_that_of_a_recorded_run(name):
    module, calls = MODULES[name]
    with torch.no_grad():
        program = smelt.script(module)
        for args in calls:
            expected = smelt.trace(module, args, check=False).graph_for(*args)
            assert lines(program.graph_for(*args)) == lines(expected)


class Holder:
    def __init__(self, value):
        self.weight = torch.full((3,), value)


def weighed(held, x):
    return held.weight * x if x.sum() > 0 else held.weight - x


def test_an_example_may_be_an_object_that_holds_tensors():
    held, x = Holder(2.0), torch.arange(3.0)
    program = smelt.script(weighed, example_inputs=(held, x))
    assert "held.weight" in str(program.graph)
    for other in (held, Holder(5.0), held):
        for sign in (1, -1):
            assert torch.equal(program(other, x * sign), weighed(other, x * sign))
    held.weight = torch.full((3,), 7.0)
    assert torch.equal(program(held, x), weighed(held, x))

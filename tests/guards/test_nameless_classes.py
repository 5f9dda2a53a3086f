"""Classes of a namespace without a name say that they are of `builtins`, or of no module: they are the program's."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

import smelt

SOURCE = """
class Plain:
    scale = 1
class Slots:
    __slots__ = ("n",)
class Base:
    def __init_subclass__(cls): cls.q = 1
p = Plain(); p.n = 1
s = Slots(); s.n = 1
held = [p]

def counts(x):
    p.n += 1
    return x * p.n
def counts_in_slots(x):
    s.n += 1
    return x * s.n
def reads(x):
    return x * held[0].n
def reads_class(x):
    return x * p.scale
def grows(x):
    if x.sum() > 0:
        p.n += 2
    return x * p.n
def makes_class(x):
    return x * type("Made", (Base,), {}).q
def makes_object(x):
    made = Plain()
    made.n = x.sum()
    if made.n > 0:
        made.n = made.n + 1
    return x * made.n
"""


def world() -> dict[str, Any]:
    file = "<nameless classes>"
    linecache.cache[file] = len(SOURCE), None, SOURCE.splitlines(keepends=True), file
    space: dict[str, Any] = {}
    exec(compile(SOURCE, file, "exec"), space)
    return space


@pytest.mark.parametrize("name", ["counts", "counts_in_slots", "reads", "reads_class", "grows", "makes_object"])
def test_their_state_is_read_and_changed_as_anyones(name: str) -> None:
    ours, theirs = world(), world()
    assert ours["Plain"].__module__ == "builtins"
    c = smelt.compile(ours[name])
    for i in range(6):
        if i == 4:
            for space in (ours, theirs):
                space["p"].n, space["s"].n, space["Plain"].scale = 9, 9, 9
        x = torch.full((2,), float(-1) ** i)
        assert torch.equal(c(x), theirs[name](x))
        assert (ours["p"].n, ours["s"].n) == (theirs["p"].n, theirs["s"].n)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_class_that_the_program_makes() -> None:
    c, x = smelt.compile(world()["makes_class"]), torch.ones(2)
    for _ in range(3):
        assert torch.equal(c(x), x)


def test_a_class_without_any_module_is_followed_like_others() -> None:
    space = world()
    space["held"][0] = eval("type('Made', (Base,), {'n': 1})", space)()
    assert "__module__" not in vars(type(space["held"][0]))
    c, x = smelt.compile(space["reads"]), torch.ones(2)
    assert torch.equal(c(x), x) and torch.equal(c(x), x)
    type(space["held"][0]).n = 3
    assert torch.equal(c(x), x * 3)

"""Kinds of guards, facts and arguments are records: each stands once, and what capture notes has its record."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from smelt.capture.reads import reads_facts
from smelt.runtime.guarding.argument_kinds import ARGUMENT_KINDS, kind_of
from smelt.runtime.guarding.fact_kinds import FACT_KINDS, KINDS_BY_NAME
from smelt.runtime.guarding.guard_kinds import NATIVE_ORDER, ORDER, PYTHON_ORDER, SETTINGS
from smelt.runtime.guarding.guard_sizes import NumberForm
from smelt.runtime.guarding.guards import GuardSet


@dataclass
class Pair:
    a: int
    b: int


def test_each_form_has_each_kind_once() -> None:
    names = sorted(kind.name for kind in ORDER)
    assert len({*names}) == len(names)
    assert sorted(kind.name for kind in PYTHON_ORDER) == names
    assert sorted(kind.name for kind in NATIVE_ORDER) == names
    assert NATIVE_ORDER[-1].name == "argument"  # nothing that may run Python comes after


def test_each_fact_has_one_record() -> None:
    assert len(KINDS_BY_NAME) == len(FACT_KINDS)
    assert all(kind.means for kind in FACT_KINDS)
    assert reads_facts._NOTED.keys() <= KINDS_BY_NAME.keys()


@pytest.mark.parametrize(
    ("value", "form", "is_opened", "name"),
    [
        (torch.ones(2), None, False, "tensor"),
        (torch.nn.Parameter(torch.ones(2)), None, False, "tensor"),
        (3, NumberForm("n"), False, "free number"),
        (True, None, False, "constant"),
        (3, None, False, "int or text"),
        ("a", None, False, "int or text"),
        (0.5, None, False, "float"),
        ({1}, None, False, "set"),
        (frozenset({1}), None, False, "value"),
        (slice(1), None, False, "value"),
        (OrderedDict(a=1), None, True, "opened object"),
        (OrderedDict(a=1), None, False, "container"),
        (deque([1]), None, False, "container"),
        (Pair(1, 2), None, False, "container"),
        (Pair, None, False, "object"),
        (print, None, False, "object"),
    ],
)
def test_a_value_is_of_the_first_kind_that_has_it(value: Any, form: Any, is_opened: bool, name: str) -> None:
    assert kind_of(value, form, is_opened).name == name
    assert len({kind.name for kind in ARGUMENT_KINDS}) == len(ARGUMENT_KINDS)


def test_indices_count_the_guards_of_all_kinds_in_order() -> None:
    x, constant = torch.ones(2), torch.ones(3)
    guards = GuardSet((), (x, {"k": 1}), {}, constants=[constant])
    counts = [kind.count(guards) for kind in ORDER]
    assert sum(counts) == len(guards.guards)
    assert counts[1] == len(SETTINGS)
    assert guards.check((x, {"k": 1}), {}) is None
    constant.add_(1)
    failed = guards.check((x, {"k": 1}), {})
    assert failed is not None and failed == len(guards.guards) - 1 and guards.is_of_constant(failed)
    assert guards.explain(failed, (x, {"k": 1}), {}) == "the contents of constant 0 were changed"


def test_the_generated_lines() -> None:
    guards = GuardSet((), (torch.ones(2, 3), 2.5), {"flag": None}, free=None, writes=False)
    assert guards.source.splitlines()[1:-3] == [
        "    try:",
        "        if not (len(args) == 2 and tuple(kwargs) == ('flag',)): return failed(args, kwargs)",
        "        a1 = args[0]",
        "        if not (type(a1) is T2 and a1.dtype is D3 and a1.layout is L4 and not a1.is_nested"
        " and a1.shape == (2, 3) and a1.stride() == (3, 1) and a1.is_cpu and a1.requires_grad is False"
        " and a1.is_neg() is False and not Z5(a1)): return failed(args, kwargs)",
        "        a6 = args[1]",
        "        if not (type(a6) is float and a6 == 2.5 and kwargs['flag'] is None): return failed(args, kwargs)",
        "        if not (read_grad() is seen_grad and read_inference() is seen_inference and not any_autocast()"
        " and read_default_dtype() is seen_default_dtype and read_deterministic() is seen_deterministic"
        " and read_precision() == seen_precision and not any(hooks)): return failed(args, kwargs)",
    ]

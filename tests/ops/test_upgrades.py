"""Graphs that were saved for operators as torch had them once are written by those that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt._torch.library.schemas import is_taken_by
from smelt._torch.versions import release_of
from smelt.ir import Graph, parse, verify
from smelt.ops import upgrades
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Call, Emitter
from smelt.ops.registry import overload
from smelt.ops.upgrades import UPGRADES, Upgrade, upgrade
from smelt.runtime.ingot.texts.held_json import ARITHMETIC, VIEWS

HERE = release_of(torch.__version__)
assert HERE is not None
BEFORE, LATER = f"{HERE[0]}.{HERE[1] - 1}.0", f"{HERE[0]}.{HERE[1] + 1}.0"


# --- what torch has changed -------------------------------------------------------------------------------------------

MATRIX = torch.tensor([[4.0, 1.0, 0.5], [1.0, 3.0, 0.25], [0.5, 0.25, 2.0]])
WIDE = MATRIX[:2].contiguous()
CHANGED: dict[str, tuple[str, tuple[Tensor, ...], Callable[[], Any]]] = {
    "aten.cholesky.default": (
        """graph f(%x: f32[3, 3]) -> f32[3, 3]{1, 3} {
          %r: f32[3, 3]{1, 3} = aten.cholesky.default(%x, True)
          return %r
        }""",
        (MATRIX,), lambda: torch.linalg.cholesky(MATRIX, upper=True),
    ),
    "aten.cholesky.out": (
        """graph f(%x: f32[3, 3], %y: f32[3, 3]) -> f32[3, 3] {
          %r: f32[3, 3] = aten.cholesky.out(%x, out=%y)
          return %r
        }""",
        (MATRIX, torch.empty(3, 3)), lambda: torch.linalg.cholesky(MATRIX),
    ),
    "aten.qr.default": (
        """graph f(%x: f32[2, 3]) -> f32[2, 2]{1, 2}, f32[2, 3]{1, 2} {
          %q: f32[2, 2]{1, 2}, %r: f32[2, 3]{1, 2} = aten.qr.default(%x, False)
          return %q, %r
        }""",
        (WIDE,), lambda: torch.linalg.qr(WIDE, "complete"),
    ),
    "aten.qr.Q": (
        """graph f(%x: f32[2, 3], %y: f32[2, 2], %z: f32[2, 3]) -> f32[2, 2], f32[2, 3] {
          %q: f32[2, 2], %r: f32[2, 3] = aten.qr.Q(%x, Q=%y, R=%z)
          return %q, %r
        }""",
        (WIDE, torch.empty(2, 2), torch.empty(2, 3)), lambda: torch.linalg.qr(WIDE),
    ),
}  # fmt: skip
"""By operator, a saved graph, what it is run with, and what it gives."""


def test_each_change_is_among_those_that_are_tried() -> None:
    assert {one.op for one in UPGRADES} == set(CHANGED)
    assert all(is_taken_by(text, text) for one in UPGRADES for text in (one.was, *one.makes))


@pytest.mark.parametrize("one", UPGRADES, ids=lambda one: f"{one.op} {one.since}")
def test_a_graph_of_before_gives_what_it_gave(one: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a torch reads it that has the operator no more, which this one may have yet."""
    monkeypatch.setattr(upgrades, "overload", lambda name: None if name == one.op else overload(name))
    text, given, wanted = CHANGED[one.op]
    graph = upgrades.read_graph(text, {}, {one.op: one.was}, "2.11.0")
    verify(graph)
    assert [node.op for node in graph.walk()] == [upgrades._name_of(schema) for schema in one.makes]
    found = evaluate(graph, [t.clone() for t in given], lambda kind, path: given[0], as_written=True)
    for ours, theirs in zip(found, torch.utils._pytree.tree_leaves(wanted()), strict=True):
        assert torch.equal(ours, theirs)


def test_none_is_of_what_weights_in_files_follow_by() -> None:
    """Such are computed without graphs: whoever upgrades one raises the number of `runtime.ingot.abi`, too."""
    assert not {one.op for one in UPGRADES} & (VIEWS | ARITHMETIC)


# --- schemas that take calls of earlier ones --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("earlier", "later", "is_taken"),
    [
        ("a::f(Tensor x) -> Tensor", "a::f(Tensor x, int n=1) -> Tensor", True),
        ("a::f(Tensor x, int n=1) -> Tensor", "a::f(Tensor x) -> Tensor", False),
        ("a::f(Tensor x, int n=1) -> Tensor", "a::f(Tensor x, int n=2) -> Tensor", False),
        # As `_cdist_backward` of torch 2.14: graphs have no names of what is passed by position.
        ("a::f(Tensor grad, Tensor x) -> Tensor", "a::f(Tensor grad_output, Tensor x) -> Tensor", True),
        ("a::f(Tensor x) -> Tensor", "a::f(Tensor y, *, int n=1) -> Tensor", True),
        ("a::f(Tensor x) -> Tensor", "a::f(Tensor y, *, int n) -> Tensor", False),
        ("a::f(Tensor x, *, int n) -> Tensor", "a::f(Tensor y, *, int m) -> Tensor", False),
        ("a::f(Tensor x, *, int n) -> Tensor", "a::f(Tensor y, int n) -> Tensor", False),
        ("a::f(Tensor x, int n) -> Tensor", "a::f(Tensor y, Tensor n) -> Tensor", False),
        ("a::f(Tensor x) -> Tensor", "a::f(Tensor(a!) y) -> Tensor(a!)", False),
        ("a::f(Tensor x) -> Tensor", "a::f(Tensor y) -> (Tensor, Tensor)", False),
        ("a::f(", "a::f(Tensor x) -> Tensor", False),
    ],
)
def test_what_takes_calls_of_what(earlier: str, later: str, is_taken: bool) -> None:
    assert is_taken_by(earlier, later) is is_taken


# --- a library's operator that changes twice --------------------------------------------------------------------------

FIRST = "smelt_upgraded::scale(Tensor x, int by, bool up) -> Tensor"
SECOND = "smelt_upgraded::scale(Tensor x, float by) -> Tensor"
THIRD = "smelt_upgraded::scale(Tensor x, float[] by, *, int more=0) -> Tensor"
NAME = "smelt_upgraded.scale.default"


def _by_float(b: Emitter, call: Call) -> Any:
    by = float(call["by"])
    return b.call(NAME, call["x"], (by if call["up"] else 1 / by,))


def _by_list(b: Emitter, call: Call) -> Any:
    return b.call(NAME, call["x"], (call["by"], 1.0))


KNOWN = (Upgrade(FIRST, (2, 1), _by_float, (THIRD,)),)


@pytest.fixture
def scale() -> Iterator[None]:
    """The operator as it is after its last change."""
    with torch.library._scoped_library("smelt_upgraded", "FRAGMENT") as library:
        library.define(THIRD.removeprefix("smelt_upgraded::"))

        def run(x: Tensor, by: list[float], *, more: int = 0) -> Tensor:
            for one in by:
                x = x * one
            return x + more

        library.impl("scale", run, "CompositeExplicitAutograd")
        yield


def read(text: str, schemas: Mapping[str, str], version: str, known: tuple[Upgrade, ...]) -> Graph:
    graph = parse(text)
    upgrade(graph, schemas, version, known)
    verify(graph)
    return graph


TEXT = """graph f(%x: f32[2], %c: bool[]) -> f32[2] {
  %0: f32[2] = if %c {
    %1: f32[2] = smelt_upgraded.scale.default(%x, 4, True)
    yield %1
  } else {
    %2: f32[2] = smelt_upgraded.scale.default(%x, 4, False)
    yield %2
  }
  return %0
}"""


@pytest.mark.usefixtures("scale")
class TestALibrarysOperator:
    def test_calls_in_branches_are_rewritten(self) -> None:
        graph = read(TEXT, {NAME: FIRST}, BEFORE, KNOWN)
        x = torch.tensor([1.0, 2.0])
        for flag, by in ((True, 4.0), (False, 0.25)):
            (found,) = evaluate(graph, [x, torch.tensor(flag)], lambda kind, path: x)
            assert torch.equal(found, x * by)

    def test_upgrades_follow_one_another(self) -> None:
        """The first writes calls for the schema of its day, which the second rewrites."""

        def to_second(b: Emitter, call: Call) -> Any:
            by = float(call["by"])
            return b.call(NAME, call["x"], by if call["up"] else 1 / by)

        known = (Upgrade(FIRST, (2, 1), to_second, (SECOND,)), Upgrade(SECOND, (2, 2), _by_list, (THIRD,)))
        graph = read(TEXT, {NAME: FIRST}, BEFORE, known)
        assert [node.args[1] for node in graph.walk() if node.op == NAME] == [(4.0, 1.0), (0.25, 1.0)]

    def test_calls_that_are_right_stay(self) -> None:
        text = TEXT.replace("4, True", "[4.0]").replace("4, False", "[0.25]")
        for schema in (THIRD, THIRD.replace(", *, int more=0", "")):
            assert str(read(text, {NAME: schema}, BEFORE, KNOWN)) == str(parse(text))

    def test_what_nothing_rewrites_is_named(self) -> None:
        with pytest.raises(smelt.PackageError, match=r"smelt_upgraded\.scale\.default is another operator") as found:
            read(TEXT, {NAME: FIRST}, BEFORE, ())
        assert found.value.code == "S0701" and FIRST in str(found.value) and THIRD in str(found.value)

    @pytest.mark.parametrize(
        ("old", "new"),
        [("4, True", "4"), ("4, True", "4, True, 5"), ("4, True", "%x, True"), ("%1: f32[2]", "%1: f32[3]")],
    )
    def test_a_call_that_does_not_fit_is_named(self, old: str, new: str) -> None:
        with pytest.raises(smelt.PackageError, match="scale"):
            read(TEXT.replace(old, new), {NAME: FIRST}, BEFORE, KNOWN)

    def test_another_meaning_of_the_same_call_follows_the_release(self) -> None:
        """A change that no schema shows."""

        def was_less(b: Emitter, call: Call) -> Any:
            return b.call(NAME, call["x"], call["by"], more=-1)

        assert HERE is not None
        text = "graph f(%x: f32[2]) -> f32[2] { %1: f32[2] = smelt_upgraded.scale.default(%x, [2.0])  return %1 }"
        known = (Upgrade(THIRD, HERE, was_less, (THIRD,)),)
        x = torch.tensor([1.0, 2.0])
        for version, less in ((BEFORE, 1), (torch.__version__, 0), ("unknown", 0)):
            (found,) = evaluate(read(text, {NAME: THIRD}, version, known), [x], lambda kind, path: x)
            assert torch.equal(found, x * 2 - less)
        later = (Upgrade(THIRD, (HERE[0], HERE[1] + 1), was_less, (THIRD,)),)
        with pytest.raises(smelt.PackageError, match="changed what it computes"):
            read(text, {NAME: THIRD}, LATER, later)
        assert read(text, {NAME: THIRD}, torch.__version__, later) is not None

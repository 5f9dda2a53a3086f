"""What a program changes in the objects of its arguments: put there at each call as eager does, with no pieces."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


class Box:
    """An object with nothing in it."""


class Slotted:
    __slots__ = ("count", "h")

    def __init__(self) -> None:
        self.h, self.count = torch.zeros(3), 0


class Layer:
    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None


class Cache:
    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def update(self, number: int, keys: torch.Tensor) -> torch.Tensor:
        while len(self.layers) <= number:
            self.layers.append(Layer())
        layer = self.layers[number]
        layer.keys = keys if layer.keys is None else torch.cat([layer.keys, keys])
        return layer.keys


@dataclasses.dataclass
class State:
    h: torch.Tensor
    steps: int = 2


def assigned(x: torch.Tensor, box: Any) -> torch.Tensor:
    box.first = x.sin().cos().tanh()
    return box.first + 1


def dataclass(x: torch.Tensor, state: State) -> torch.Tensor:
    state.h = (state.h * 0.5 + x).tanh().sin()
    state.steps += 3
    return state.h * state.steps


def slots(x: torch.Tensor, held: Slotted) -> torch.Tensor:
    held.h = (held.h + x).sin().cos()
    held.count += 1
    return held.h


def cached(x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
    row = x.reshape(1, 3)
    for number in range(2):
        row = cache.update(number, row.sin()).sum(0, keepdim=True) * 1.5
    return row, cache


def item(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held[0] = x.sin().cos().tanh()
    return held[0]


def entry(x: torch.Tensor, held: dict[str, Any]) -> torch.Tensor:
    held["k"] = x.sin().cos()
    held["given"] = x
    held.pop("old", None)
    return held["k"].tanh()


def ordered(x: torch.Tensor, held: collections.OrderedDict[str, Any]) -> torch.Tensor:
    held["z"] = x.sin().cos()
    held.move_to_end("a")
    return held["z"].tanh()


def appended(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held.append(x.sin().cos().tanh())
    return held[-1] * 2


def rearranged(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held.pop(0)
    held.insert(1, x.sin().cos())
    held.reverse()
    return held[0] + 1


def deleted(x: torch.Tensor, box: Any) -> torch.Tensor:
    y = box.t.sin().cos() + x
    del box.t
    box.u = y
    return y


def branched(x: torch.Tensor, box: Any) -> torch.Tensor:
    if x.sum() > 0:
        box.r = x.sin().cos()
    else:
        box.r = x.cos().tanh() * 2
    return box.r * 2


def raising(x: torch.Tensor, box: Any) -> torch.Tensor:
    box.a = x.sin().cos()
    if x.sum() < 0:
        raise ValueError("below zero")
    box.b = x.cos().tanh()
    return box.b


def swapped(x: torch.Tensor, pair: list[Slotted]) -> torch.Tensor:
    a, b = pair
    a.h, b.h = b.h, (a.h + 1) * x.sin().cos()
    return a.h + b.h


def counted(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
    held[0] += 1
    return x.sin().cos() * held[0]


def held_tensor() -> Box:
    box = Box()
    box.t = torch.ones(3)  # type: ignore[attr-defined]
    return box


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any], int, int]] = {
    # the program, its argument, after how many calls that is another one, builds at most
    "assigned": (assigned, Box, 4, 2),
    "dataclass": (dataclass, lambda: State(torch.randn(3)), 4, 3),
    "slots": (slots, Slotted, 5, 5),
    "cached": (cached, Cache, 5, 3),
    "item": (item, lambda: [torch.zeros(3), 2], 9, 1),
    "entry": (entry, lambda: {"k": 1, "old": 2}, 4, 2),
    "ordered": (ordered, lambda: collections.OrderedDict(a=torch.ones(3), b=2), 1, 1),
    "appended": (appended, list, 3, 3),
    "rearranged": (rearranged, lambda: [torch.ones(3), torch.zeros(3), 5], 1, 1),
    "deleted": (deleted, held_tensor, 1, 1),
    "branched": (branched, Box, 9, 2),
    "raising": (raising, Box, 9, 6),
    "swapped": (swapped, lambda: [Slotted(), Slotted()], 9, 1),
    "counted": (counted, lambda: [0], 9, 3),
}


def shape_of(value: Any, met: dict[int, int], tensors: list[torch.Tensor]) -> Any:
    """All that a program can see of a value but the contents of its tensors, with what is one object."""
    plain = (int, float, str, bool, type(None))
    if id(value) in met and not isinstance(value, plain):
        return "again", met[id(value)]
    met[id(value)] = len(met)
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return type(value), [shape_of(inner, met, tensors) for inner in value]
    if isinstance(value, dict):
        return type(value), [(key, shape_of(inner, met, tensors)) for key, inner in value.items()]
    if isinstance(value, plain):
        return type(value), value
    names = vars(value) if hasattr(value, "__dict__") else type(value).__slots__
    return type(value), [(name, shape_of(getattr(value, name), met, tensors)) for name in names]


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", CASES)
def test_it_is_as_eager_leaves_it(name: str) -> None:
    program, make, renewed, builds = CASES[name]
    compiled = smelt.compile(program)
    for call in range(9):
        if call % renewed == 0:
            torch.manual_seed(call)
            expected_held = make()
            torch.manual_seed(call)
            held = make()
        torch.manual_seed(100 + call)
        x = torch.randn(3)
        found: list[Any] = []
        tensors: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for run, argument, given in ((program, expected_held, x), (compiled, held, x.clone())):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("error", smelt.SmeltWarning)
                try:
                    result = run(given, argument)
                except ValueError as error:
                    result = str(error)
            found.append(shape_of((result, argument, given), {}, tensors[len(found)]))
        assert found[0] == found[1], call
        assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*tensors, strict=True))
    stats = compiled.stats()
    assert stats.builds <= builds
    assert not stats.fallbacks


def test_it_is_told_by_what_it_was_before_the_call() -> None:
    """What was read is guarded; what was only written is not."""

    def program(x: torch.Tensor, box: Any) -> torch.Tensor:
        box.last = x.shape[0]
        return x.sin().cos() * box.scale

    compiled, box = smelt.compile(program), Box()
    box.scale, box.last = 2, 5  # type: ignore[attr-defined]
    x = torch.randn(5)
    with torch.no_grad():
        for _ in range(3):
            assert torch.allclose(compiled(x, box), program(x, box))
        assert compiled.stats().builds == 1
        box.scale = 3  # type: ignore[attr-defined]
        assert torch.allclose(compiled(x, box), x.sin().cos() * 3, atol=1e-6)


OUTER = [torch.ones(3)]
OTHER = State(torch.ones(3))


def reads_outer(x: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
    held[0] = x.sin().cos().tanh()
    return held[0] + OUTER[0]


def reads_other(x: torch.Tensor, state: State) -> torch.Tensor:
    state.h = x.sin().cos().tanh()
    return state.h + OTHER.h


@pytest.mark.parametrize("name", ["list", "object"])
def test_an_argument_that_the_program_reads_by_itself_too(name: str) -> None:
    """The entry for an argument of its own does not serve a call with the program's own object."""
    program, own, outer = {
        "list": (reads_outer, [torch.ones(3)], OUTER),
        "object": (reads_other, State(torch.ones(3)), OTHER),
    }[name]
    compiled = smelt.compile(program)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for held in (own, own, outer, own, outer, outer, own):
            x = torch.randn(3)
            found = compiled(x, held)
            inner = outer[0] if isinstance(outer, list) else outer.h
            assert torch.allclose(found, x.sin().cos().tanh() + inner, atol=1e-6)


def test_two_arguments_that_are_one_object() -> None:
    def program(x: torch.Tensor, a: list[Any], b: list[Any]) -> torch.Tensor:
        a.append(x.sin().cos())
        b.append(x.cos().tanh())
        return a[0] + b[-1] + len(a)

    compiled = smelt.compile(program)
    x = torch.randn(3)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for is_one in (False, False, True, True, False, True):
            pairs = [([], []) for _ in range(2)] if not is_one else [(one, one) for one in ([], [])]
            expected, found = program(x, *pairs[0]), compiled(x, *pairs[1])
            assert torch.allclose(expected, found, atol=1e-6)
            assert [len(held) for held in pairs[0]] == [len(held) for held in pairs[1]]


def test_what_is_made_is_made_at_each_call() -> None:
    def program(x: torch.Tensor, box: Any) -> list[Any]:
        y = x.sin().cos()
        box.kept = [y, {"again": y}]
        return box.kept

    compiled, boxes = smelt.compile(program), [Box() for _ in range(4)]
    with torch.no_grad():
        results = [compiled(torch.randn(3), box) for box in boxes]
    assert len({id(result) for result in results}) == len(boxes)
    for result, box in zip(results, boxes, strict=True):
        assert result is box.kept and result[1]["again"] is result[0]  # type: ignore[attr-defined]
    assert compiled.stats().builds == 1


def test_what_cannot_be_made_again_stays_python() -> None:
    def program(x: torch.Tensor, box: Any) -> torch.Tensor:
        y = x.sin().cos().tanh()
        box.ask = lambda: y
        return y * 2

    compiled, box = smelt.compile(program), Box()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for _ in range(4):
            x = torch.randn(3)
            assert torch.equal(compiled(x, box), box.ask() * 2)  # type: ignore[attr-defined]
            assert torch.allclose(box.ask(), x.sin().cos().tanh(), atol=1e-6)  # type: ignore[attr-defined]


def test_a_number_that_grows_is_a_number_of_the_graph() -> None:
    compiled, held = smelt.compile(counted), [0]
    x = torch.randn(3)
    with torch.no_grad():
        for count in range(1, 40):
            assert torch.allclose(compiled(x, held), x.sin().cos() * count, atol=1e-4)
            assert held == [count] and type(held[0]) is int
    assert compiled.stats().builds <= 3


def test_objects_with_tensors_are_known_by_their_parts() -> None:
    def program(batch: Any) -> torch.Tensor:
        return (batch.x * batch.scale).sin().cos()

    compiled = smelt.compile(program)
    with torch.no_grad():
        for scale in (2.0, 2.0, 2.0, 3.5, 4.5):
            batch = Box()
            batch.x, batch.scale = torch.randn(3), scale  # type: ignore[attr-defined]
            assert torch.allclose(compiled(batch), program(batch), atol=1e-6)
    assert compiled.stats().builds <= 2


def test_fullgraph_takes_it() -> None:
    compiled, box = smelt.compile(assigned, fullgraph=True), Box()
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3)
            assert compiled(x, box) is not box.first  # type: ignore[attr-defined]
            assert torch.allclose(box.first, x.sin().cos().tanh(), atol=1e-6)  # type: ignore[attr-defined]


class Keeps(torch.nn.Module):
    """A module that keeps what it computed, as those do that show attention, or have a loss of their own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x).relu()
        self.last, self.rows, self.given = h, x.shape[0], x
        self.kept = [h.mean(), {"h": h}]
        return self.b(h)


class KeepsOneOfTwo(Keeps):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        if h.sum() > 0:
            self.last = h.sin()
        else:
            self.last = h.cos()
        return self.b(h) + self.last


def both(model: type[Keeps], *, given: list[torch.Tensor]) -> tuple[Any, Keeps, Any]:
    """A model, its twin, and the twin compiled, after calls of both whose answers were compared."""
    eager, twin = model(), model()
    compiled = smelt.compile(twin)
    for x in given:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", smelt.SmeltWarning)
            assert torch.allclose(eager(x), compiled(x), atol=1e-5)
        assert torch.allclose(eager.last, twin.last, atol=1e-5)
    return eager, twin, compiled


def test_what_a_module_keeps_of_a_call() -> None:
    given = [torch.randn(rows, 4) for rows in (3, 3, 5, 7, 3)]
    eager, twin, compiled = both(Keeps, given=given)
    assert twin.kept[1]["h"] is twin.last and twin.given is given[-1]
    assert twin.rows == eager.rows == 3 and torch.allclose(eager.kept[0], twin.kept[0], atol=1e-5)
    assert compiled.stats().builds == 2 and not compiled.stats().fallbacks


def test_what_a_module_keeps_on_either_way() -> None:
    torch.manual_seed(3)
    _, _, compiled = both(KeepsOneOfTwo, given=[torch.randn(3, 4) for _ in range(8)])
    assert compiled.stats().builds <= 2 and not compiled.stats().fallbacks


def test_what_a_module_reads_before_it_writes_stays_python() -> None:
    class Counts(Keeps):
        count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            self.last = self.a(x).relu()
            return self.b(self.last)

    eager, twin = Counts(), Counts()
    compiled = smelt.compile(twin)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for call in range(6):
            x = torch.randn(2, 4)
            assert torch.allclose(eager(x), compiled(x), atol=1e-5)
            assert twin.count == eager.count == call + 1
            assert torch.allclose(eager.last, twin.last, atol=1e-5)


def test_an_attribute_that_becomes_a_buffer() -> None:
    """An assignment then goes elsewhere."""
    twin = Keeps()
    compiled, x = smelt.compile(twin), torch.randn(2, 4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        compiled(x), compiled(x)
        del twin.last
        twin.register_buffer("last", torch.zeros(1))
        for _ in range(4):
            compiled(x)
            assert "last" not in vars(twin) and torch.allclose(twin._buffers["last"], twin.a(x).relu(), atol=1e-6)


NOTES = State(torch.ones(3))


def keeps_and_reads(x: torch.Tensor, state: Any) -> torch.Tensor:
    NOTES.h = x.sin().cos().tanh()
    return state.h + 1


def test_an_argument_that_is_what_the_program_writes_to() -> None:
    compiled, own = smelt.compile(keeps_and_reads), State(torch.ones(3))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for state in (own, own, NOTES, own, NOTES):
            x = torch.randn(3)
            kept = x.sin().cos().tanh()
            expected = (kept if state is NOTES else own.h) + 1
            assert torch.allclose(compiled(x, state), expected, atol=1e-6)
            assert torch.allclose(NOTES.h, kept, atol=1e-6)


def test_a_call_that_fails_leaves_what_eager_leaves() -> None:
    class Fails(Keeps):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.a(x).relu()
            self.rows = x.shape[0]
            table = self.b.weight[x[:, 0].long()]
            self.kept = [table]
            return table + self.last

    eager, twin = Fails(), Fails()
    compiled = smelt.compile(twin)
    good, bad = torch.ones(2, 4), torch.full((2, 4), 77.0)
    with torch.no_grad():
        for x in (good, good, bad, good, bad):
            for model in (eager, compiled):
                if x is bad:
                    with pytest.raises(IndexError):
                        model(x)
                else:
                    model(x)
            assert torch.allclose(eager.last, twin.last, atol=1e-5)
            assert torch.allclose(eager.kept[0], twin.kept[0], atol=1e-5)

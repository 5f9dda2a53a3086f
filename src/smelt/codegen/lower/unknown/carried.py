"""Loops: what they carry as padded tensors, and lists that grow in them as rows of a buffer.

    %o: i64[_] = while with (%p = %0: i64[12]) {...}   ==>   %o: i64[12], %n: int = while with (%p = %0, %c = 12) {...}

A turn must not need more than the loop began with. A list has a buffer where the number of turns has a bound: each one
takes away of something padded, or counts up to where the loop ends, or is the last one (`break`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.codegen.lower.unknown.facts import Facts, comparisons, lower_bounds, truth
from smelt.codegen.lower.unknown.values import (
    Buffer,
    Count,
    Held,
    Padded,
    Parts,
    Refused,
    as_row,
    row_of,
    type_of,
)
from smelt.diag import SmeltError
from smelt.ir import INT, Arg, ListType, Node, Region, TensorType, Type, Value
from smelt.ir.sizes import size_max

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

_MOST_ROWS_NBYTES = 1 << 16


@dataclass(slots=True)
class _Place:
    """One thing that a loop carries. type: of the padded tensor or the rows, None where it goes as it is; counted: its
    dimensions that have a count. list_start: the node that began the list whose rows these are.
    """

    old: Type
    first: list[Arg]
    type: TensorType | None = None
    counted: tuple[bool, ...] = ()
    list_start: Node | None = None

    def types(self) -> list[Type]:
        """Of the values that stand for it."""
        return [self.old] if self.type is None else [self.type, *([INT] * sum(self.counted))]

    def held(self, values: Sequence[Value]) -> Held:
        """What stands for it, of these values."""
        if self.type is None:
            return values[0]
        if self.list_start is not None:
            return Buffer(values[0], values[1], self.list_start)
        rest = iter(values[1:])
        return Padded(values[0], tuple(next(rest) if c else None for c in self.counted))


class Carried:
    """One loop being rewritten."""

    def __init__(self, rewriting: Rewriting, node: Node) -> None:
        self.rewriting, self.node = rewriting, node
        self.fixed = 3 if node.op == "for" else 0
        self.places: list[_Place] = []
        self.bound: tuple[str, int] | None = None

    def rewrite(self) -> None:
        """Add the loop. Raises: Exact."""
        rewriting, node = self.rewriting, self.node
        self.bound = self._bound()
        self.places = [self._place(k) for k in range(len(node.results))]
        head = [rewriting.exactly(arg) for arg in node.args[: self.fixed]]
        made = rewriting.builder.add(node.op, (*head, *(a for p in self.places for a in p.first)), [])
        tests: list[Arg] = []
        for number, old in enumerate(node.regions):
            region = rewriting.builder.add_region(made)
            is_body = number == len(node.regions) - 1
            facts = rewriting.facts
            saved = dict(facts.least)
            with rewriting.builder.inside(region), rewriting.emit.scope():
                self._enter(region, old)
                if tests and is_body:
                    # The test's facts are of its own parameters; the body's stand in the same places.
                    self._learn(tests[0], made.regions[0], region)
                rewriting.visit(old)
                if is_body:
                    region.set_yields(tuple(self._yields(old, region, made.regions[0])))
                else:
                    tests = [rewriting.exactly(arg) for arg in old.yields]
                    region.set_yields(tuple(tests))
            facts.least = saved
        self._results(made, tests[0] if tests else None)

    # --- before it

    def _place(self, k: int) -> _Place:
        rewriting, node = self.rewriting, self.node
        arg, old = node.args[self.fixed + k], node.results[k].type
        held = rewriting.held[arg] if isinstance(arg, Value) else arg
        if isinstance(held, Parts) and isinstance(arg, Value):
            return self._list(held, arg, old)
        exact = _Place(old, [])
        if (node, k) not in rewriting.exact and isinstance(old, TensorType) and not old.is_static:
            type_ = held.type if isinstance(held, Padded) else _static(held)
            is_row_major = type_ is not None and type_.strides is None and old.strides is None
            if (
                type_ is not None
                and old.shape is not None
                and is_row_major
                and not rewriting.sharing.is_told_apart(node.results[k])
            ):
                counted = tuple(not isinstance(dim, int) for dim in old.shape)
                return _Place(old, rewriting.flat(held, type_, counted), type_, counted)
        exact.first = [rewriting.exactly(arg)]
        return exact

    def _list(self, held: Parts, arg: Value, old: Type) -> _Place:
        rewriting, start = self.rewriting, arg.node
        assert start is not None and isinstance(old, ListType)
        element = as_row(old.element)
        appended = sum(n.op == "py.append" for n in self.node.regions[-1].walk())
        if (
            self.bound is None
            or not isinstance(element, TensorType)
            or not element.is_static
            or element.strides is not None
        ):
            raise rewriting.refusal(start)
        rows = len(held.held) + self.bound[1] * appended
        if not 0 < rows * element.nbytes <= _MOST_ROWS_NBYTES or any(
            not isinstance(h, Value) or h.type != old.element for h in held.held
        ):
            raise rewriting.refusal(start)
        type_ = TensorType.of(element.dtype, (rows, *element.sizes))
        emit = rewriting.emit
        try:
            if held.held:
                first = emit("aten.stack.default", tuple(row_of(emit, h, element) for h in held.held), 0)
                pads = (0, 0) * len(element.sizes) + (0, rows - len(held.held))
                buffer = emit("aten.constant_pad_nd.default", first, pads, 0)
            else:
                buffer = emit("aten.zeros.default", type_.sizes, dtype=type_.dtype)
        except (Refused, SmeltError) as error:
            raise rewriting.refusal(start) from error
        return _Place(old, [buffer, len(held.held)], type_, (True,), start)

    def _bound(self) -> tuple[str, int] | None:
        """Why there is a last turn, and how many there are at most; that each turn is as this wants is known behind it.

        tested: it takes away of what the loop goes on for. counted: it counts up to where the loop ends. taken: it
        takes away of anything that is carried, where a last turn may find nothing left.
        """
        if self.node.op != "while":
            return None
        sizes = [self._most(k) for k in range(len(self.node.results))]
        found = {
            "tested": [size for k in self._tested() if (size := sizes[k]) is not None],
            "counted": [stop - start for start, stop in self._counted_up().values()],
            "taken": [size + 1 for size in sizes if size is not None],
        }
        for why, most in found.items():
            if most and (self.node, why) not in self.rewriting.exact:
                return why, functools.reduce(size_max, most)
        return None

    def _most(self, k: int) -> int | None:
        """The most that there can be in the first dimension of what is carried, where that may be padded."""
        arg, old = self.node.args[k], self.node.results[k].type
        held = self.rewriting.held[arg] if isinstance(arg, Value) else None
        type_ = held.type if isinstance(held, Padded) else _static(held)
        if type_ is None or not type_.sizes or not isinstance(old, TensorType) or old.is_static:
            return None
        return type_.sizes[0]

    def _tested(self) -> list[int]:
        """The places of tensors that are not empty where the loop goes on; their first dimension is counted."""
        test = self.node.regions[0]
        found = []
        for count, least in lower_bounds(test.yields[0], True):
            node = count.node
            if least < 1 or node is None:
                continue
            source = node.args[0] if node.args else None
            is_size = node.op in ("aten.sym_numel.default", "py.len") or (
                node.op == "aten.sym_size.int" and node.args[1] == 0
            )
            if is_size and isinstance(source, Value) and source in test.params:
                found.append(test.params.index(source))
        return found

    def _counted_up(self) -> dict[int, tuple[int, int]]:
        """With what numbers begin and end that are less than a known one where the loop goes on, by their place."""
        test, found = self.node.regions[0], dict[int, tuple[int, int]]()
        for number, relation, stop in comparisons(test.yields[0], True):
            k = test.params.index(number) if number in test.params else None
            start = None if k is None else self.node.args[k]
            if k is not None and relation == "lt" and isinstance(start, int) and isinstance(stop, int):
                found[k] = start, stop
        return found

    # --- inside

    def _enter(self, region: Region, old: Region) -> None:
        """The region's parameters, and what stands for what is carried."""
        rewriting = self.rewriting
        params = list(old.params)
        if self.fixed:
            index = params.pop(0)
            rewriting.held[index] = rewriting.builder.add_param(region, index.name, index.type)
        for place, param in zip(self.places, params, strict=True):
            names = [param.name, *([""] * (len(place.types()) - 1))]
            values = [
                rewriting.builder.add_param(region, name, type_)
                for name, type_ in zip(names, place.types(), strict=True)
            ]
            held = place.held(values)
            rewriting.note_bounds(held)
            rewriting.held[param] = held

    def _learn(self, test: Arg, tested: Region, body: Region) -> None:
        for count, least in lower_bounds(test, True):
            if count in tested.params:
                self.rewriting.facts.least[body.params[tested.params.index(count)]] = least

    def _yields(self, old: Region, region: Region, test: Region) -> list[Arg]:
        rewriting, outs = self.rewriting, list[Arg]()
        for k, (place, arg) in enumerate(zip(self.places, old.yields, strict=True)):
            form = rewriting.held[arg] if isinstance(arg, Value) else arg
            if place.type is None:
                outs.append(rewriting.exactly(arg))
                continue
            if place.list_start is not None:
                if not isinstance(form, Buffer) or form.start is not place.list_start:
                    raise rewriting.refusal(place.list_start)
                outs.extend(rewriting.flat(form, place.type, place.counted))
                continue
            found = form.type if isinstance(form, Padded) else _static(form)
            if found is None or not _fits(form, found, place):
                raise rewriting.refusal((self.node, k))
            outs.extend(rewriting.flat(form, place.type, place.counted))
        if self.bound is not None and any(place.list_start is not None for place in self.places):
            why, _ = self.bound
            if not self._comes_to_an_end(why, outs, region, test):
                raise rewriting.refusal((self.node, why))
        return outs

    def _comes_to_an_end(self, why: str, outs: Sequence[Arg], body: Region, test: Region) -> bool:
        """Whether there are no more turns than was thought."""
        facts, at = self.rewriting.facts, 0
        wanted = {"tested": self._tested(), "counted": self._counted_up(), "taken": range(len(self.places))}[why]

        def is_less(out: Arg) -> bool:
            return isinstance(out, Value) and facts.at_least(first[1]) > 0 and facts.shrinks(out, first[1])

        for k, place in enumerate(self.places):
            first = body.params[at : at + len(place.types())]
            is_padded = place.list_start is None and place.type is not None and place.counted[0]
            if k in wanted and why == "counted":
                if _moves(facts, outs, at, test, lambda out, old=first[0]: _is_more(out, old)):  # type: ignore[misc]
                    return True
            elif k in wanted and is_padded and _moves(facts, outs, at + 1, test, is_less):
                return True
            at += len(first)
        return False

    # --- behind it

    def _results(self, made: Node, test: Arg | None) -> None:
        rewriting = self.rewriting
        begins = test is not None and self._has_a_turn(made, test)
        for place, result in zip(self.places, self.node.results, strict=True):
            names = [result.name, *([""] * (len(place.types()) - 1))]
            values = [rewriting.result(made, name, type_) for name, type_ in zip(names, place.types(), strict=True)]
            held = place.held(values)
            rewriting.note_bounds(held)
            if isinstance(held, Buffer) and begins and self._always_appends(place):
                assert isinstance(held.count, Value)
                rewriting.facts.least[held.count] = 1
            rewriting.held[result] = held

    def _has_a_turn(self, made: Node, test: Arg) -> bool:
        """Whether the condition holds for what the loop starts with."""
        return truth(test, dict(zip(made.regions[0].params, made.args, strict=True))) is True

    def _always_appends(self, place: _Place) -> bool:
        """Whether each turn makes a list longer: an append stands in the body itself, on the way to what it yields."""
        body = self.node.regions[-1]
        k = self.places.index(place)
        current: Arg = body.yields[k]
        while isinstance(current, Value) and current.node is not None and current.node.op == "py.append":
            if current.node.parent is body:
                return True
            current = current.node.args[0]
        return False


def _moves(facts: Facts, outs: Sequence[Arg], at: int, test: Region, moves: Callable[[Arg], bool]) -> bool:
    """Whether on each way through a turn the value at a place moves on, or the loop ends. outs: what a turn leaves."""
    if moves(outs[at]) or truth(test.yields[0], dict(zip(test.params, outs, strict=True))) is False:
        return True
    value = outs[at]
    node = value.node if isinstance(value, Value) else None
    if node is None or node.op != "if":
        return False
    places = {result: k for k, result in enumerate(node.results)}
    for answer, arm in zip((True, False), node.regions, strict=True):
        left = [arm.yields[places[v]] if isinstance(v, Value) and v in places else v for v in outs]
        with facts.under(node.args[0], answer):
            if not _moves(facts, left, at, test, moves):
                return False
    return True


def _is_more(out: Arg, old: Value) -> bool:
    """Whether a number is another one and at least 1."""
    node = out.node if isinstance(out, Value) else None
    if node is None or node.op != "py.add" or len(node.args) != 2:
        return False
    (left, right) = node.args
    return left is old and type(right) is int and right > 0


def _static(held: Held) -> TensorType | None:
    if not isinstance(held, Value):
        return None
    try:
        return type_of(held)
    except Refused:
        return None


def _fits(form: Held, found: TensorType, place: _Place) -> bool:
    """Whether what a turn gives fits where the loop keeps it."""
    assert place.type is not None
    if found.dtype is not place.type.dtype or len(found.sizes) != len(place.type.sizes):
        return False
    for dim, (size, most) in enumerate(zip(found.sizes, place.type.sizes, strict=True)):
        count: Count | None = form.counts[dim] if isinstance(form, Padded) else None
        if not place.counted[dim] and (size != most or count is not None):
            return False
        if size > most:
            return False
    return True

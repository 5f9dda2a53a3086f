"""Loops: what they carry as padded tensors, and lists that grow in them as rows of a buffer.

    %o: i64[_] = while with (%p = %0: i64[12]) {...}   ==>   %o: i64[12], %n: int = while with (%p = %0, %c = 12) {...}

A turn must not need more than the loop began with. A list has a buffer where the loop goes on while something padded is
not empty, and each turn takes away of that: then there are no more turns than it had at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smelt.codegen.lower.unknown.facts import lower_bound
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

    def rewrite(self) -> None:
        """Add the loop. Raises: Exact."""
        rewriting, node = self.rewriting, self.node
        most = self._most_turns()
        self.places = [self._place(k, most) for k in range(len(node.results))]
        head = [rewriting.exactly(arg) for arg in node.args[: self.fixed]]
        made = rewriting.builder.add(node.op, (*head, *(a for p in self.places for a in p.first)), [])
        tests: list[Arg] = []
        for number, old in enumerate(node.regions):
            region = rewriting.builder.add_region(made)
            is_body = number == len(node.regions) - 1
            facts = rewriting.facts
            saved = dict(facts.least)
            with rewriting.builder.inside(region), rewriting.emit.scope():
                counts = self._enter(region, old)
                if tests and is_body:
                    # The test's facts are of its own parameters; the body's stand in the same places.
                    self._learn(tests[0], made.regions[0], region)
                rewriting.visit(old)
                if is_body:
                    region.set_yields(tuple(self._yields(old, counts)))
                else:
                    tests = [rewriting.exactly(arg) for arg in old.yields]
                    region.set_yields(tuple(tests))
            facts.least = saved
        self._results(made, tests[0] if tests else None)

    # --- before it

    def _place(self, k: int, most: int | None) -> _Place:
        rewriting, node = self.rewriting, self.node
        arg, old = node.args[self.fixed + k], node.results[k].type
        held = rewriting.held[arg] if isinstance(arg, Value) else arg
        if isinstance(held, Parts) and isinstance(arg, Value):
            return self._list(held, arg, old, most)
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

    def _list(self, held: Parts, arg: Value, old: Type, most: int | None) -> _Place:
        rewriting, start = self.rewriting, arg.node
        assert start is not None and isinstance(old, ListType)
        element = as_row(old.element)
        appended = sum(n.op == "py.append" for n in self.node.regions[-1].walk())
        if most is None or not isinstance(element, TensorType) or not element.is_static or element.strides is not None:
            raise rewriting.refusal(start)
        rows = len(held.held) + most * appended
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

    def _most_turns(self) -> int | None:
        """How many turns there can be at most, if each takes away of what the loop goes on for."""
        found = self._tested()
        if found is None:
            return None
        arg = self.node.args[found]
        held = self.rewriting.held[arg] if isinstance(arg, Value) else None
        type_ = held.type if isinstance(held, Padded) else _static(held)
        return None if type_ is None or not type_.sizes else type_.sizes[0]

    def _tested(self) -> int | None:
        """The place of the tensor that the loop goes on for while it is not empty; its first dimension is counted."""
        if self.node.op != "while":
            return None
        test = self.node.regions[0]
        bound = lower_bound(test.yields[0], True)
        node = None if bound is None else bound[0].node
        if bound is None or bound[1] < 1 or node is None:
            return None
        source = node.args[0] if node.args else None
        is_size = node.op in ("aten.sym_numel.default", "py.len") or (
            node.op == "aten.sym_size.int" and node.args[1] == 0
        )
        if not is_size or not isinstance(source, Value) or source not in test.params:
            return None
        return test.params.index(source)

    # --- inside

    def _enter(self, region: Region, old: Region) -> list[Held]:
        """The region's parameters; what stands for what is carried."""
        rewriting = self.rewriting
        params = list(old.params)
        if self.fixed:
            index = params.pop(0)
            rewriting.held[index] = rewriting.builder.add_param(region, index.name, index.type)
        found: list[Held] = []
        for place, param in zip(self.places, params, strict=True):
            names = [param.name, *([""] * (len(place.types()) - 1))]
            values = [
                rewriting.builder.add_param(region, name, type_)
                for name, type_ in zip(names, place.types(), strict=True)
            ]
            held = place.held(values)
            rewriting.note_bounds(held)
            rewriting.held[param] = held
            found.append(held)
        return found

    def _learn(self, test: Arg, tested: Region, body: Region) -> None:
        bound = lower_bound(test, True)
        if bound is None:
            return
        count, least = bound
        if count in tested.params:
            self.rewriting.facts.least[body.params[tested.params.index(count)]] = least

    def _yields(self, old: Region, before: Sequence[Held]) -> list[Arg]:
        rewriting, outs = self.rewriting, list[Arg]()
        tested = self._tested()
        for k, (place, arg) in enumerate(zip(self.places, old.yields, strict=True)):
            form = rewriting.held[arg] if isinstance(arg, Value) else arg
            if place.type is None:
                outs.append(rewriting.exactly(arg))
                continue
            if place.list_start is not None:
                if not isinstance(form, Buffer) or form.start is not place.list_start or tested is None:
                    raise rewriting.refusal(place.list_start)
                if not self._takes_away(tested, old, before):
                    raise rewriting.refusal(place.list_start)
                outs.extend(rewriting.flat(form, place.type, place.counted))
                continue
            found = form.type if isinstance(form, Padded) else _static(form)
            if found is None or not _fits(form, found, place):
                raise rewriting.refusal((self.node, k))
            outs.extend(rewriting.flat(form, place.type, place.counted))
        return outs

    def _takes_away(self, tested: int, old: Region, before: Sequence[Held]) -> bool:
        """Whether a turn leaves less than there was of what the loop goes on for."""
        arg, start = old.yields[tested], before[tested]
        form = self.rewriting.held[arg] if isinstance(arg, Value) else None
        if not isinstance(form, Padded) or not isinstance(start, Padded):
            return False
        count, first = form.counts[0], start.counts[0]
        return isinstance(count, Value) and isinstance(first, Value) and self.rewriting.facts.shrinks(count, first)

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
        bound = lower_bound(test, True)
        params = made.regions[0].params
        if bound is None or bound[0] not in params:
            return False
        first = made.args[params.index(bound[0])]
        return isinstance(first, int) and first >= bound[1] and _is_only(test)

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


def _is_only(test: Arg) -> bool:
    """Whether a condition is a comparison with a number and nothing else, so that its bound is all it says."""
    return isinstance(test, Value) and test.node is not None and test.node.op in ("py.gt", "py.ge", "py.lt", "py.le")


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

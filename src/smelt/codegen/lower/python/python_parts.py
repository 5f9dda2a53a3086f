"""Nodes, branches and loops that Python goes through, with what can be compiled between them.

    parts = parts_of(nodes, graph, lookup, compiler); for part in parts: part.take(values)

Neighbours whose sizes are known once those of their operands are become one `SizedBlock`; the others (what follows
data, lists, strings, random numbers) are called one by one. Invariant: the order of what acts outside is the graph's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.codegen.lower.python.plain import has_memory, is_number
from smelt.codegen.lower.python.python_steps import Bound, Step, Values, is_true, step_of, steps_of
from smelt.codegen.lower.python.sized_block import SIZE_READS, Compile, SizedBlock
from smelt.diag import Miss
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph, Node, Region, TensorType, TupleType, Type, Value, values_in
from smelt.ops.catalogue.packed import OF_PACKED
from smelt.ops.convert import strided_copy
from smelt.ops.effects import effects
from smelt.ops.evaluate import constant, same_number
from smelt.ops.registry import tags_of

# Measured on small tensors: a compiled block that is called, an operator that is dispatched.
BLOCK_US, STEP_US = 8.0, 2.0

Lookup = Callable[[str, str], Any]


@record
class Arm:
    """The parts of a region, and what it yields."""

    params: tuple[Value, ...]
    parts: tuple[Part, ...]
    yields: tuple[Bound, ...]

    def run(self, values: Values, given: Sequence[Any] = ()) -> list[Any]:
        """What it yields for these parameters."""
        values.update(zip(self.params, given, strict=True))
        for part in self.parts:
            part.take(values)
        return [arg.get(values) for arg in self.yields]


@record
class If:
    """A branch."""

    test: Bound
    arms: tuple[Arm, Arm]
    results: tuple[Value, ...]

    def take(self, values: Values) -> None:
        """Run one arm."""
        arm = self.arms[0 if is_true(self.test.get(values)) else 1]
        values.update(zip(self.results, arm.run(values), strict=True))


@record
class For:
    """A counted loop."""

    bounds: tuple[Bound, Bound, Bound]
    first: tuple[Bound, ...]
    body: Arm
    results: tuple[Value, ...]

    def take(self, values: Values) -> None:
        """Run all turns."""
        carried = [arg.get(values) for arg in self.first]
        for index in range(*(operator.index(bound.get(values)) for bound in self.bounds)):
            carried = self.body.run(values, [index, *carried])
        values.update(zip(self.results, carried, strict=True))


@record
class While:
    """A loop with a test before each turn."""

    first: tuple[Bound, ...]
    test: Arm
    body: Arm
    results: tuple[Value, ...]

    def take(self, values: Values) -> None:
        """Run until the test fails."""
        carried = [arg.get(values) for arg in self.first]
        while is_true(self.test.run(values, carried)[0]):
            carried = self.body.run(values, carried)
        values.update(zip(self.results, carried, strict=True))


Part = Step | SizedBlock | If | For | While


def parts_of(nodes: Iterable[Node], graph: Graph, lookup: Lookup, compiler: Compile) -> tuple[Part, ...]:
    """The parts of nodes in their order. Raises: InternalError (S0202) for an operator that there is none of."""
    parts: list[Part] = []
    for together in _segments(nodes):
        uses, gives = around(together)
        if len(together) > 1:
            parts.append(SizedBlock(together[-1].op, together, uses, gives, compiler))
        else:
            parts.append(_part(together[0], gives, graph, lookup, compiler))
    return tuple(parts)


def _part(node: Node, gives: Sequence[Value], graph: Graph, lookup: Lookup, compiler: Compile) -> Part:
    def arm(region: Region) -> Arm:
        return Arm(tuple(region.params), parts_of(region, graph, lookup, compiler), tuple(map(Bound.of, region.yields)))

    args, results = tuple(map(Bound.of, node.args)), tuple(node.results)
    match node.op:
        case "if":
            then, other = node.regions
            return If(args[0], (arm(then), arm(other)), results)
        case "for":
            return For((args[0], args[1], args[2]), args[3:], arm(node.regions[0]), results)
        case "while":
            test, body = node.regions
            return While(args, arm(test), arm(body), results)
        case "const":
            data = constant(graph, node)
            # A copy each time: what becomes of it may be written to by the caller.
            return Step(lambda: strided_copy(data), (), {}, "", results, ())
        case "expect":
            return Step(_expecting(node), args[:1], {}, "", (), ())
        case op if op in STATE_OPS:
            path = str(node.args[0])
            return Step(lambda: lookup(op, path), (), {}, "", results, ())
    return steps_of([node], gives)[0] if node.results else step_of(node)


def _expecting(node: Node) -> Callable[[Any], None]:
    wanted = node.args[1]

    def check(found: Any) -> None:
        number = found.item() if isinstance(found, torch.Tensor) else found
        if not same_number(number, wanted):
            raise Miss(wanted, number, node.span)

    return check


def _segments(nodes: Iterable[Node]) -> list[list[Node]]:
    """Neighbours that can be compiled together, and the others one by one."""
    found: list[list[Node]] = []
    made: set[Value] = set()
    for node in nodes:
        if _is_compiled(node, made):
            if not made:
                found.append([])
            found[-1].append(node)
            made.update(node.results)
        else:
            found.append([node])
            made = set()
    return found


def python_us(nodes: Iterable[Node]) -> float:
    """What it takes in Python to go through nodes once, apart from what they compute; inner regions not counted."""
    return sum(BLOCK_US if len(together) > 1 else STEP_US for together in _segments(nodes))


def around(nodes: Sequence[Node]) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """What nodes use from outside, and what of theirs is used outside."""
    members = set(nodes)
    made = {value for node in nodes for value in node.results}
    uses = tuple(dict.fromkeys(v for node in nodes for v in node.operands() if v not in made))
    return uses, tuple(v for node in nodes for v in node.results if any(user not in members for user in v.users))


_PYTHON = ("py.raise", "py.assert", "py.print", "py.warn", "py.call")


def _is_compiled(node: Node, made: set[Value]) -> bool:
    """Whether the sizes of operands and integers at hand tell those of the results, so that it can be compiled."""
    if node.regions or not node.results or not effects(node).is_pure:
        return False
    operands = list(node.operands())
    types = [v.type for v in (*operands, *node.results)]
    if node.op.startswith("py."):
        return all(map(is_number, types)) and any(v in made for v in operands) and node.op not in _PYTHON
    if any(is_number(r.type) for r in node.results):
        return node.op in SIZE_READS
    if node.op == "unpack":
        return operands[0] in made
    return (
        "." in node.op
        and all(is_number(v.type) or _is_tensor(v.type) for v in operands)
        and all(_is_tensor(r.type) or _are_tensors(r.type) for r in node.results)
        and not _follows_data(node)
    )


def _is_tensor(type_: Type) -> bool:
    return isinstance(type_, TensorType) and has_memory(type_.device) and type_.layout == "strided"


def _are_tensors(type_: Type) -> bool:
    return isinstance(type_, TupleType) and all(map(_is_tensor, type_.elements))


def _follows_data(node: Node) -> bool:
    """Whether even with the sizes of its operands known, those of the results are not, or never compiled for them."""
    if node.op in OF_PACKED:
        return True
    if "dynamic_output_shape" not in tags_of(node.op):
        return False
    if node.op != "aten.index.Tensor":
        return True
    return any(
        isinstance(v.type, TensorType) and v.type.dtype.kind in ("bool", "uint") for v in values_in(node.args[1])
    )

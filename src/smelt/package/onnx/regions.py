"""Branches and loops: `if` becomes If, `for` and `while` become Loop, a list that a loop fills a scan output.

for %i in (0, %n, 1) with (%h = %x, %out = [])        v2, v3 = Loop(n, , x)
  %5 = tanh %h; %6 = append %out %5; yield %5, %6       v5 = Tanh(h); h' = v5, scan output v5
%7 = stack %3                                         v7 = v3
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.ir import (
    BOOL,
    INT,
    Arg,
    DType,
    Graph,
    ListType,
    Node,
    Region,
    TensorType,
    Type,
    UnknownDim,
    Value,
    values_in,
)
from smelt.ops.catalogue.onnx.base import NUMBER_TYPES, cast, operand, reshape, unsqueeze
from smelt.ops.record import NoOnnxForm, OnnxValue
from smelt.package.onnx.protobuf import Protobuf
from smelt.package.onnx.writer import Gathered, Nested, Writer

Output = tuple[OnnxValue, Type]


class RegionWriter(Writer):
    """The writer of a graph whose operators have regions. needless: nodes that are not written."""

    def __init__(self, protobuf: Protobuf, graph: Graph, needless: frozenset[Node] = frozenset()) -> None:
        super().__init__(protobuf, graph)
        self.needless = needless

    def body(self, region: Region, skipped: frozenset[Node]) -> None:
        """Write all nodes of a region but some."""
        for node in region:
            if node not in skipped and node not in self.needless:
                self.write(node)

    def _results(self, node: Node) -> Sequence[Any]:
        match node.op:
            case "if":
                return self._branch(node)
            case "for":
                return self._loop(node, node.args[3:])
            case "while":
                return self._loop(node, node.args)
        return super()._results(node)

    # --- branches

    def _branch(self, node: Node) -> Sequence[Any]:
        test = operand(self, node.args[0], DType.BOOL)
        if isinstance(node.args[0], Value) and isinstance(node.args[0].type, TensorType) and node.args[0].type.shape:
            test = reshape(self, test, [])
        types = [result.type for result in node.results]
        arms = []
        for number, region in enumerate(node.regions):
            runs = test if number == 0 else self.op("Not", test)
            arms.append(self.nested(runs, lambda region=region: self._arm(region, types)))  # type: ignore[misc]
        is_checked = any(arm.scope.checks for arm in arms)
        graphs = [self.graph_of(arm, f"{name}_branch", [], is_checked) for arm, name in zip(arms, _ARMS, strict=True)]
        outputs = [OnnxValue(self.name(f"{self.wish(node)}.t"), x.dtype, x.is_sequence) for x, _ in arms[0].outputs]
        check = [OnnxValue(self.name("check"), DType.I64)] if is_checked else []
        if not (outputs or check):
            return []
        names = [x.name for x in (*outputs, *check)]
        self.add("If", [test.name], names, **{f"{n}_branch": g for n, g in zip(_ARMS, graphs, strict=True)})
        self.scope.checks += check
        return [self.unflat(type_, outputs) for type_ in types]

    def _arm(self, region: Region, types: Sequence[Type]) -> list[Output]:
        self.body(region, frozenset())
        return [x for arg, type_ in zip(region.yields, types, strict=True) for x in self.flat(arg, type_)]

    def wish(self, node: Node) -> str:
        """What the results of a node with regions are called after."""
        return node.results[0].name if node.results else node.op

    def graph_of(self, nested: Nested, name: str, inputs: list[Any], is_checked: bool) -> Any:
        """The message of a nested graph."""
        self.scopes.append(nested.scope)
        try:
            outputs = [*nested.outputs]
            if is_checked:
                check = self.checked(nested.scope)
                outputs.append((self.constant([0], DType.I64) if check is None else reshape(self, check, [1]), _CHECK))
            declared = []
            taken: set[str] = set()
            for x, type_ in outputs:
                if x.name not in nested.scope.made or x.name in taken:
                    x = self.own(x, f"{x.name}.out")
                taken.add(x.name)
                declared.append(self.protobuf.declared(x.name, type_))
        finally:
            self.scopes.pop()
        return self.protobuf.helper.make_graph(nested.scope.nodes, self.name(name), inputs, declared)

    # --- loops

    def _loop(self, node: Node, given: Sequence[Arg]) -> Sequence[Any]:
        return _Loop(self, node, given).results()


_ARMS = ("then", "else")
_CHECK = TensorType.of(DType.I64, (1,))


class _Loop:
    """One loop. carried: numbers of the loop-carried values that are not gathered."""

    def __init__(self, writer: RegionWriter, node: Node, given: Sequence[Arg]) -> None:
        self.writer, self.node, self.given = writer, node, given
        self.is_for = node.op == "for"
        self.region = node.regions[-1]
        self.params = self.region.params[1:] if self.is_for else self.region.params
        self.appends = {i: found for i in range(len(given)) if (found := self._append(i)) is not None}
        self.carried = [i for i in range(len(given)) if i not in self.appends]

    def _append(self, number: int) -> Node | None:
        """The node that adds an element to a list, if all that each iteration does with the list is that."""
        param, result = self.params[number], self.region.yields[number]
        node = result.node if isinstance(result, Value) else None
        if node is None or node.op != "py.append" or node.args[0] is not param or node.parent is not self.region:
            return None
        users = {**param.users, **result.users} if isinstance(result, Value) else {}
        if set(users) != {node, self.region} or sum(users.values()) != 2:
            return None
        if not self.is_for and self.node.regions[0].params[number].users:
            return None
        initial = self.given[number]
        before = self.writer.values.get(initial) if isinstance(initial, Value) else initial
        is_known = isinstance(before, (tuple, Gathered))
        return node if is_known and _has_equal_elements(param.type) else None

    def results(self) -> Sequence[Any]:
        """The loop's results, its nodes written."""
        writer, node = self.writer, self.node
        types = [self.params[i].type for i in self.carried]
        initial = [x for i in self.carried for x in writer.flat(self.given[i], self.params[i].type)]
        count = self._count() if self.is_for else None
        start = None if self.is_for else self._test([writer.unflat(t, v) for t, v in _each(types, initial)])
        number, runs = (OnnxValue(writer.name(n), d) for n, d in (("iteration", DType.I64), ("runs", DType.BOOL)))
        params = [(OnnxValue(writer.name(f"{writer.wish(node)}.t"), x.dtype, x.is_sequence), t) for x, t in initial]
        body = writer.nested(runs, lambda: self._body(number, types, params))
        again, *outputs = body.outputs
        is_checked = bool(body.scope.checks)
        declared = [(number, INT), (runs, BOOL), *params]
        total = OnnxValue(writer.name("check"), DType.I64)
        if is_checked:
            # What was checked before goes on with the loop.
            declared.append((total, _CHECK))
            body.scope.checks.append(total)
        graph = self._graph(body, declared, again, outputs, is_checked, len(initial))
        ends = [OnnxValue(writer.name(f"{writer.wish(node)}.t"), x.dtype, x.is_sequence) for x, _ in initial]
        check = [OnnxValue(writer.name("check"), DType.I64)] if is_checked else []
        scans = [OnnxValue(writer.name("gathered"), x.dtype) for x, _ in outputs[len(initial) :]]
        operands = ["" if count is None else count.name, "" if start is None else start.name]
        operands += [x.name for x, _ in initial]
        if is_checked:
            operands.append(writer.constant([0], DType.I64).name)
        names = [x.name for x in (*ends, *check, *scans)]
        if not names:
            return []
        writer.add("Loop", operands, names, body=graph)
        writer.scope.checks += check
        return self._found(types, ends, scans)

    def _graph(
        self, body: Nested, declared: list[Output], again: Output, outputs: list[Output], is_checked: bool, carried: int
    ) -> Any:  # fmt: skip
        writer = self.writer
        inputs = [writer.protobuf.declared(x.name, type_) for x, type_ in declared]
        ordered = outputs[:carried]
        writer.scopes.append(body.scope)
        try:
            if is_checked:
                check = writer.checked(body.scope)
                assert check is not None
                ordered.append((reshape(writer, check, [1]), _CHECK))
        finally:
            writer.scopes.pop()
        nested = Nested(body.scope, [again, *ordered, *outputs[carried:]])
        return writer.graph_of(nested, "body", inputs, False)

    def _count(self) -> OnnxValue:
        """How many iterations there are."""
        writer, (start, stop, step) = self.writer, self.node.args[:3]
        if not isinstance(step, int) or step == 0:
            raise NoOnnxForm("a loop's step is not known before the run")
        if isinstance(start, int) and isinstance(stop, int):
            return writer.constant(len(range(start, stop, step)), DType.I64)
        first, last = operand(writer, start, DType.I64), operand(writer, stop, DType.I64)
        apart = writer.op("Sub", *((last, first) if step > 0 else (first, last)))
        if abs(step) != 1:
            size = writer.constant(abs(step), DType.I64)
            apart = writer.op("Div", writer.op("Add", apart, writer.constant(abs(step) - 1, DType.I64)), size)
        return writer.op("Max", apart, writer.constant(0, DType.I64))

    def _test(self, values: list[Any]) -> OnnxValue:
        """Whether there is an iteration after these loop-carried values."""
        writer, test = self.writer, self.node.regions[0]
        for i, value in zip(self.carried, values, strict=True):
            writer.values[test.params[i]] = value
        writer.body(test, frozenset())
        found = test.yields[0]
        holds = operand(writer, found, DType.BOOL)
        is_tensor = isinstance(found, Value) and isinstance(found.type, TensorType) and found.type.shape != ()
        return reshape(writer, holds, []) if is_tensor else holds

    def _body(self, number: OnnxValue, types: Sequence[Type], params: Sequence[Output]) -> list[Output]:
        """Whether there is another iteration, the loop-carried values, what is gathered."""
        writer, region = self.writer, self.region
        if self.is_for:
            writer.values[region.params[0]] = self._index(number)
        given = [x for x, _ in params]
        for i, type_ in zip(self.carried, types, strict=True):
            writer.values[self.params[i]] = writer.unflat(type_, given)
        writer.body(region, frozenset(self.appends.values()))
        ends = [x for i, t in zip(self.carried, types, strict=True) for x in writer.flat(region.yields[i], t)]
        added = [self._added(append) for append in self.appends.values()]
        again = writer.constant(True, DType.BOOL)
        if not self.is_for:
            again = self._test([writer.unflat(t, v) for t, v in _each(types, ends)])
        return [(again, BOOL), *ends, *added]

    def _added(self, append: Node) -> Output:
        kind = append.results[0].type
        assert isinstance(kind, ListType)
        (found,) = self.writer.flat(append.args[1], kind.element)
        return found

    def _index(self, number: OnnxValue) -> OnnxValue:
        writer, (start, _, step) = self.writer, self.node.args[:3]
        if step != 1:
            number = writer.op("Mul", number, operand(writer, step, DType.I64))
        return number if start == 0 else writer.op("Add", number, operand(writer, start, DType.I64))

    def _found(self, types: Sequence[Type], ends: list[OnnxValue], scans: list[OnnxValue]) -> Sequence[Any]:
        found: dict[int, Any] = {}
        for i, type_ in zip(self.carried, types, strict=True):
            found[i] = self.writer.unflat(type_, ends)
        for i, scan in zip(self.appends, scans, strict=True):
            found[i] = Gathered(self._with_first(i, scan))
        return [found[i] for i in range(len(self.given))]

    def _with_first(self, number: int, scan: OnnxValue) -> OnnxValue:
        """What was in the list before the loop goes first."""
        writer, initial = self.writer, self.given[number]
        before = writer.values.get(initial) if isinstance(initial, Value) else writer.items(initial)
        if isinstance(before, Gathered):
            return writer.op("Concat", before.stacked, scan, axis=0)
        if not before:
            return scan
        assert isinstance(before, tuple)
        return writer.op("Concat", *(unsqueeze(writer, cast(writer, x, scan.dtype), 0) for x in before), scan, axis=0)


def _has_equal_elements(kind: Type) -> bool:
    """Whether all elements of a list have the same sizes, so that they can be one tensor."""
    element = kind.element if isinstance(kind, ListType) else None
    if isinstance(element, TensorType):
        return element.shape is not None and not any(isinstance(dim, UnknownDim) for dim in element.shape)
    return element in NUMBER_TYPES


def _each(types: Sequence[Type], values: Sequence[Output]) -> list[tuple[Type, list[OnnxValue]]]:
    """Of each type the values that are left to be taken."""
    left = [x for x, _ in values]
    return [(type_, left) for type_ in types]


def needless(graph_region: Region) -> frozenset[Node]:
    """Nodes whose results only say what an error says.   %3 = py.format(%2); py.raise("builtins.ValueError", %3)"""
    found: set[Node] = set()
    for region in _regions(graph_region):
        for node in reversed(region):
            users = [user for value in node.results for user in value.users]
            if users and not node.regions and all(_says(user, node, found) for user in users):
                found.add(node)
    return frozenset(found)


def _says(user: Any, node: Node, found: set[Node]) -> bool:
    if not isinstance(user, Node):
        return False
    if user.op == "py.assert":
        return all(v not in node.results for v in values_in(user.args[0]))
    return user.op == "py.raise" or user in found


def _regions(region: Region) -> list[Region]:
    """All regions, inner ones first."""
    found: list[Region] = []
    for node in region:
        for inner in node.regions:
            found += _regions(inner)
    return [*found, region]

"""Products of a loop's iterations as one: of what it goes over before it, and sums of products behind it.

    for %i in (0, 32, 1) ... {                                  %y = linear %x, %w, %b
        %a = select %x, 0, %i                                   for %i in (0, 32, 1) ... {
        %1 = linear %a, %w, %b                        ==>           %1 = select %y, 0, %i

    for %k in (0, 32, 1) with (%g = zeros) {                    for %k in (0, 32, 1) with (%s = empty) {
        %j = 31 - %k; %h = select %all, 0, %j         ==>           %j = 31 - %k; yield select_scatter(%s, %d, 0, %j)
        yield %g + mm(transpose(%d), %h)                        }
    }                                                           mm(transpose(reshape(%s)), reshape(%all))

A product of few rows reads a weight, or writes its gradient, for little work; all iterations at once do it once. Sums
are rounded in another order, within the bound of products. Weights' gradients of recurrent layers are such sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from smelt.ir import Arg, Graph, Node, Region, TensorType, Value
from smelt.passes.base import Pass, PassContext, call_of, can_erase, emitter
from smelt.passes.matching import FLOATS, is_autocast, static_tensor
from smelt.rewrite import Rewriter, add_carried, add_result, drop_results, first_carried, known_range

_LINEAR, _MM, _SUM, _ADD = "aten.linear.default", "aten.mm.default", "aten.sum.dim_IntList", "aten.add.Tensor"
_TRANSPOSES = ("aten.transpose.int", "aten.t.default")
_SELECT = "aten.select.int"
_ZEROS = ("aten.zeros_like.default", "aten.zeros.default")

_MOST_ROWS = 64
"""Rows of an iteration's product: one of more is worth as much by itself."""
_MOST_NUMEL = 1 << 24
"""Elements that are put aside for one sum at most."""
_LEAST_SHARE = 0.75
"""How much of a whole the iterations must go over: the rest is computed for nobody."""


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in list(graph.walk()):
        numbers = known_range(node)
        if node.parent is not None and numbers is not None and len(numbers) > 1 and numbers == range(len(numbers)):
            _hoist(rewriter, node, len(numbers))
            _Sums(rewriter, node, len(numbers)).run()
    return rewriter.edits > 0


# --- before the loop


def _hoist(rewriter: Rewriter, loop: Node, trips: int) -> None:
    """Multiply all of what a loop goes over at once."""
    (body,) = loop.regions
    for node in list(body):
        if node.op != _LINEAR or node.parent is None or is_autocast(node):
            continue
        call = call_of(node)
        piece = _piece(rewriter, call["input"], loop, trips)
        result = static_tensor(node.result)
        outside = all(_is_outside(rewriter, call[name], loop) for name in ("weight", "bias"))
        if piece is None or result is None or result.dtype not in FLOATS or not outside:
            continue
        view = piece.node
        assert view is not None
        of = call_of(view)
        rows, whole = static_tensor(piece), static_tensor(of["self"])
        assert rows is not None and whole is not None
        if rows.numel // rows.sizes[-1] > _MOST_ROWS or trips < _LEAST_SHARE * whole.sizes[0]:
            continue
        with rewriter.builder.at(loop):
            made = emitter(rewriter).call(_LINEAR, of["self"], call["weight"], call["bias"])
        with rewriter.builder.at(node):
            part: Value = emitter(rewriter).call(_SELECT, made, 0, of["index"])
        if part.type == node.result.type:
            rewriter.replace_node(node, [part])
            _erase(rewriter, loop, trips)


def _is_outside(rewriter: Rewriter, arg: Arg, loop: Node) -> bool:
    return not isinstance(arg, Value) or rewriter.is_visible(arg, loop)


def _piece(rewriter: Rewriter, x: Arg, loop: Node, trips: int) -> Value | None:
    """A row of a tensor from outside, one for each iteration."""
    (body,) = loop.regions
    view = x.node if isinstance(x, Value) else None
    if view is None or view.op != _SELECT or view.parent is not body or not isinstance(x, Value):
        return None
    of = call_of(view)
    whole, row = static_tensor(of["self"]), static_tensor(x)
    if whole is None or row is None or of["dim"] != 0 or not row.sizes or 0 in whole.sizes or whole.sizes[0] < trips:
        return None
    return x if _is_outside(rewriter, of["self"], loop) and _goes_over_all(of["index"], body, trips) else None


def _goes_over_all(index: Arg, body: Region, trips: int) -> bool:
    """Whether a number is another one in each iteration, from 0 to the last, upwards or downwards."""
    if index is body.params[0]:
        return True
    node = index.node if isinstance(index, Value) else None
    return node is not None and node.op == "py.sub" and node.args[0] == trips - 1 and node.args[1] is body.params[0]


# --- behind the loop


@dataclass
class _Sums:
    """What a loop adds up, taken behind it where it is products or sums of rows."""

    rewriter: Rewriter
    loop: Node
    trips: int
    _stacks: dict[tuple[Value, Value], Value] = field(default_factory=dict)

    @property
    def _body(self) -> Region:
        return self.loop.regions[0]

    def run(self) -> None:
        """Take out all sums that can be."""
        loop, gone = self.loop, list[int]()
        for i in range(len(loop.results)):
            param = self._body.params[1 + i]
            terms = self._terms(self._body.yields[i], param)
            rows = [found for term in terms if (found := self._rows(term)) is not None]
            if terms and len(rows) == len(terms) and self._numel(rows) <= _MOST_NUMEL:
                self._take(i, terms[0], rows)
                _erase(self.rewriter, self.loop, self.trips)
                gone.append(i)
        if gone:
            drop_results(self.rewriter, loop, gone)

    def _terms(self, total: Arg, param: Value) -> list[Node]:
        """What an iteration adds to a carried value; nothing where that is not all that it does with it."""
        terms, pending, seen = list[Node](), [total], 0
        if sum(param.users.values()) != 1:
            return []
        while pending:
            arg = pending.pop()
            if arg is param:
                seen += 1
                continue
            node = arg.node if isinstance(arg, Value) else None
            if node is None or not isinstance(arg, Value) or arg.type != param.type or sum(arg.users.values()) != 1:
                return []
            if node.op == _ADD and node.parent is self._body and call_of(node)["alpha"] == 1:
                pending += [call_of(node)["self"], call_of(node)["other"]]
            else:
                terms.append(node)
        return terms if seen == 1 else []

    def _rows(self, node: Node) -> tuple[Value, ...] | None:
        """The rows that a term is computed from: (a, b) of a^T b, or (a,) of a sum over rows; None for another."""
        if node.parent is not self._body or is_autocast(node) or node.op not in (_MM, _SUM):
            return None
        call = call_of(node)
        found: list[Arg] = []
        if node.op == _MM:
            left = call["self"]
            turned = left.node if isinstance(left, Value) else None
            if turned is not None and turned.op in _TRANSPOSES:
                found = [next(turned.operands()), call["mat2"]]
        elif call["dim"] in ((0,), (-2,)) and not call["keepdim"] and call["dtype"] is None:
            found = [call["self"]]
        result = static_tensor(node.result)
        for row in found:
            type_ = static_tensor(row)
            if type_ is None or result is None or type_.dtype not in FLOATS or type_.dtype is not result.dtype:
                return None
            if len(type_.sizes) != 2 or 0 in type_.sizes or type_.sizes[0] > _MOST_ROWS:
                return None
        rows = tuple(row for row in found if isinstance(row, Value))
        return rows or None

    def _numel(self, terms: Sequence[Sequence[Value]]) -> int:
        rows = dict.fromkeys(v for rows in terms for v in rows)
        return sum(self.trips * v.type.numel for v in rows if isinstance(v.type, TensorType))

    def _take(self, i: int, term: Node, terms: Sequence[Sequence[Value]]) -> None:
        rewriter, loop = self.rewriter, self.loop
        stacks = [[self._stack(row, self._place(rows)) for row in rows] for rows in terms]
        yields = list(self._body.yields)
        yields[i] = self._body.params[1 + i]
        rewriter.set_yields(self._body, tuple(yields))
        first = loop.args[first_carried(loop) + i]
        with self._behind(term):
            b = emitter(rewriter)
            total: Value | None = None if _is_zero(first) else first if isinstance(first, Value) else None
            for rows in stacks:
                flat = [b.call("aten.flatten.using_ints", one, 0, 1) for one in rows]
                more = b.call(_SUM, flat[0], (0,))
                if len(flat) == 2:
                    more = b.call(_MM, b.call("aten.transpose.int", flat[0], 0, 1), flat[1])
                total = more if total is None else b.call(_ADD, total, more)
        assert total is not None
        rewriter.replace_all_uses(loop.results[i], total)

    @contextmanager
    def _behind(self, term: Node) -> Iterator[None]:
        """Insert behind the loop, as of the line of what it adds."""
        builder, after = self.rewriter.builder, self.loop.next
        assert self.loop.parent is not None
        with builder.at(self.loop), builder.inside(self.loop.parent):
            builder.before, builder.span, builder.scope = after, term.span, term.scope
            yield

    def _place(self, rows: Sequence[Value]) -> Value:
        """The number of an iteration among rows: that by which one of them stands in a stack already."""
        found = next((place for row in rows if (place := self._place_of(row)) is not None), None)
        return self._body.params[0] if found is None else found

    def _place_of(self, row: Value) -> Value | None:
        if _piece(self.rewriter, row, self.loop, self.trips) is None or row.node is None:
            return None
        of = call_of(row.node)
        whole = static_tensor(of["self"])
        index = of["index"]
        return index if whole is not None and whole.sizes[0] == self.trips and isinstance(index, Value) else None

    def _stack(self, row: Value, place: Value) -> Value:
        """All iterations' rows in one tensor, each at its place."""
        if self._place_of(row) is place:
            assert row.node is not None
            found = call_of(row.node)["self"]
            assert isinstance(found, Value)
            return found
        known = self._stacks.get((row, place))
        return known if known is not None else self._put_aside(row, place)

    def _put_aside(self, row: Value, place: Value) -> Value:
        rewriter, loop, type_ = self.rewriter, self.loop, static_tensor(row)
        assert type_ is not None
        with rewriter.builder.at(loop):
            first: Value = emitter(rewriter).call(
                "aten.empty.memory_format", (self.trips, *type_.sizes), dtype=type_.dtype
            )
        (param,) = add_carried(rewriter, loop, first, first.type)
        made = add_result(rewriter, loop, first.type)
        with rewriter.builder.inside(self._body):
            after = emitter(rewriter).call("aten.select_scatter.default", param, row, 0, place)
        rewriter.set_yields(self._body, (*self._body.yields, after))
        self._stacks[(row, place)] = made
        return made


def _erase(rewriter: Rewriter, loop: Node, trips: int) -> None:
    """Take out what nobody needs any more."""
    for node in reversed(list(loop.regions[0])):
        if not node.results or any(r.users for r in node.results):
            continue
        if can_erase(node) or (node.op == _SELECT and _piece(rewriter, node.result, loop, trips) is not None):
            rewriter.erase(node)


def _is_zero(first: Arg) -> bool:
    return isinstance(first, Value) and first.node is not None and first.node.op in _ZEROS


loop_products = Pass(
    "loop-products",
    "for ... { yield %g + mm(transpose(%d), %h) }   ==>   mm(transpose(all %d), all %h) behind it",
    _run,
)

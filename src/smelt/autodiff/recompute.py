"""Values that are computed again behind the place where most is kept, in place of being kept over it.

    %1 = gelu(%0); %2 = mm(%1, %w)                         %1 = gelu(%0); %2 = mm(%1, %w)
    ...                                            ==>     ...
    %8 = mm(%7, %1)                                        %3 = gelu(%0); %8 = mm(%7, %3)

A program that goes back through what it computed keeps most where it turns round. What is kept over that place is the
smallest cut (`cut`); the rest is computed again right before the first node behind it that asks for it.

Invariant: what acts, draws random numbers, loops or may raise is never done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from smelt.analysis import Aliases, is_static, nbytes, used_by, used_values
from smelt.analysis.dependence import Dependence
from smelt.autodiff.cut import is_view, saving_cost, smallest_cut, within
from smelt.autodiff.flow import INFINITE
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, Node, TensorType, Value, clone_node, map_values, values_in
from smelt.ops.effects import effects
from smelt.rewrite import Rewriter

Price = Callable[[Node], int]

LEAST_NBYTES: Final = 1 << 20
"""Less is not worth the work, unless a budget asks for it."""
_LEAST_PART: Final = 8
_SMALL_NBYTES: Final = 1 << 16
_FAR: Final = 32
"""Nodes from the one that makes a value to the last one that uses it: below, it is no value that is kept."""


@record
class _Lives:
    """Memory that the body makes: each piece with the numbers of the first and the last node that touch it."""

    spans: dict[Value, tuple[int, int]]

    def turn(self) -> tuple[int, int]:
        """The number of the first node behind the last place where most is kept, and how many bytes that is."""
        change: dict[int, int] = {}
        for root, (first, last) in self.spans.items():
            if last - first >= _FAR:
                change[first + 1] = change.get(first + 1, 0) + nbytes(root)
                change[last + 1] = change.get(last + 1, 0) - nbytes(root)
        kept = most = at = 0
        for place in sorted(change):
            if kept == most:
                at = place - 1
            kept += change[place]
            most = max(most, kept)
        return at, most


def recompute(rewriter: Rewriter, aliases: Aliases, found: dict[Value, Dependence], budget: float = 1.0) -> bool:
    """Compute again what the smallest cut does not keep; whether there was anything.

    budget: how much may be kept, as a part of what would be if nothing were computed again.
    """
    body = list(rewriter.graph.body)
    turn, most = _lives(body, aliases, found).turn()
    if most < LEAST_NBYTES and budget >= 1:
        return False

    def is_there(value: Value) -> bool:
        """Whether a value costs nothing to keep."""
        if value.node is None or value.node.op in STATE_OPS or is_static(value, found):
            return True
        return not isinstance(value.type, TensorType) or (nbytes(value) < _SMALL_NBYTES and not is_view(value.node))

    def cost_of(value: Value) -> int:
        if is_there(value):
            return 0
        cost = saving_cost(value)
        return cost if cost < INFINITE or (value.node is not None and is_view(value.node)) else 1

    behind = frozenset(body[turn:])
    wanted = [v for arg in rewriter.graph.outputs for v in values_in(arg)]

    def kept(price: Price) -> dict[Value, None]:
        return smallest_cut(body, (), behind, wanted, cost_of, lambda node: _allowed(node, price))

    def total(values: Iterable[Value]) -> int:
        return sum(nbytes(value) for value in values if not is_there(value))

    chosen = within(budget, body, kept, total)
    if budget >= 1 and most - total(chosen) < max(LEAST_NBYTES, most // _LEAST_PART):
        return False
    before = frozenset(r for node in body[:turn] for r in node.results)
    return _Again(rewriter, before, lambda v: v in chosen or is_there(v)).run(body[turn:])


def _allowed(node: Node, price: Price) -> int:
    effect = effects(node)
    return INFINITE if node.regions or not effect.is_pure or effect.may_throw else price(node)


def _lives(body: Sequence[Node], aliases: Aliases, found: dict[Value, Dependence]) -> _Lives:
    """The lives of what is made in a body and neither goes out of it nor is written into what was there."""
    spans: dict[Value, tuple[int, int]] = {}
    elsewhere = aliases.outputs | aliases.of_all(v for n in body if n.op == "write" for v in values_in(n.args[1]))
    for place, node in enumerate(body):
        for root in aliases.of_all((*used_by(node), *node.results)) - elsewhere:
            made = root.node
            if made is None or made.op in STATE_OPS or made.parent is not node.parent or is_static(root, found):
                continue
            spans[root] = spans.get(root, (place, place))[0], place
    return _Lives(spans)


class _Again:
    """Copies of nodes in front of those that use what they make. before: values of which copies are made.
    is_kept: of these the ones that need none.
    """

    def __init__(self, rewriter: Rewriter, before: frozenset[Value], is_kept: Callable[[Value], bool]) -> None:
        self._rewriter, self._before, self._is_kept = rewriter, before, is_kept
        self._copies: dict[Value, Arg] = {}

    def run(self, behind: Iterable[Node]) -> bool:
        """Let these nodes use copies; whether there are any."""
        for node in behind:
            needed = [value for value in dict.fromkeys(node.operands()) if self._is_needed(value)]
            if not needed:
                continue
            for value in needed:
                self._copy(value, node)
            args = tuple(map_values(arg, self._copied) for arg in node.args)
            kwargs = {name: map_values(arg, self._copied) for name, arg in node.kwargs.items()}
            self._rewriter.set_arguments(node, args, kwargs)
        return bool(self._copies)

    def _is_needed(self, value: Value) -> bool:
        return value in self._before and not self._is_kept(value)

    def _copied(self, value: Value) -> Arg:
        return self._copies.get(value, value) if self._is_needed(value) else value

    def _copy(self, value: Value, user: Node) -> None:
        """Put what makes a value once more in front of a node, and before it what that needs in turn."""
        pending = [value]
        while pending:
            node = pending[-1].node
            assert node is not None
            if pending[-1] in self._copies:
                pending.pop()
                continue
            missing = [v for v in used_values(node) if self._is_needed(v) and v not in self._copies]
            if missing:
                pending += missing
                continue
            builder = self._rewriter.builder
            with builder.at(user):
                copy = clone_node(node, {v: self._copied(v) for v in used_values(node)})
                for old, new in zip(node.results, copy.results, strict=True):
                    new.name = builder.fresh_name()
                    self._copies[old] = new
                builder.region.insert(copy, builder.before)
                self._rewriter.adopt(copy)
            pending.pop()

"""What to keep from one part of a graph for another: the smallest cut between what is there and what the other uses.

Of each value either the bytes are kept, or what makes it is done again: for nothing where that is cheap, for a price
where it goes over its operands once. Products are done twice only where a budget of memory asks for it; what draws
random numbers, acts or loops never is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from smelt.analysis import cost, used_values
from smelt.autodiff.flow import INFINITE, Network
from smelt.diag import SmeltError, Span
from smelt.ir import BOOL, FLOAT, INT, Node, TensorType, Type, Value
from smelt.ops.catalogue import record_of
from smelt.ops.effects import effects
from smelt.ops.ranks.collectives import COLLECTIVES
from smelt.ops.record import Trait
from smelt.ops.registry import tags_of
from smelt.ops.sets import where
from smelt.ops.torch_gradients import NAME

_CHEAP_TRAITS = (Trait.BY_ELEMENTS, Trait.SAME_VALUES, Trait.RESHAPES, Trait.TYPE_ONLY, Trait.CONSTANT_FILL)
_CHEAP_KINDS = frozenset().union(*map(where, _CHEAP_TRAITS))
_PASSES = where(Trait.KEPT_IN_F32)


def smallest_cut(
    nodes: Iterable[Node],
    sources: Sequence[Value],
    behind: Collection[Node],
    wanted: Iterable[Value],
    cost_of: Callable[[Value], int],
    price: Callable[[Node], int],
) -> dict[Value, None]:
    """The values to keep for the nodes `behind`, in order. Raises: SmeltError (S0303) where there is no cut.

    nodes: all, in order. sources: what is there before them. wanted: kept values that nobody behind need use.
    cost_of: what it takes to keep a value. price: of doing a node again. What cannot be kept, since its size follows
    from data, is computed again where there is no other cut, products too.
    """
    ordered, needed = list(nodes), list(wanted)
    found = _cut(ordered, sources, behind, needed, cost_of, price)
    if found is None:
        found = _cut(ordered, sources, behind, needed, cost_of, lambda node: min(price(node), _price_of_unsaved(node)))
    if found is None:
        raise SmeltError("what the gradient needs cannot be put aside", why="it is no tensor", code="S0303")
    return found


def _cut(
    nodes: Iterable[Node],
    sources: Sequence[Value],
    behind: Collection[Node],
    wanted: Iterable[Value],
    cost_of: Callable[[Value], int],
    price: Callable[[Node], int],
) -> dict[Value, None] | None:
    """The same for one choice of prices, None where there is no cut."""
    net = Network()
    source, sink = net.vertex(), net.vertex()
    entry: dict[Value, tuple[int, int]] = {}

    def ends(value: Value) -> tuple[int, int]:
        if value not in entry:
            entry[value] = net.vertex(), net.vertex()
            net.edge(*entry[value], cost_of(value))
        return entry[value]

    for value in sources:
        net.edge(source, ends(value)[0], INFINITE)
    for node in nodes:
        if node in behind:
            for value in dict.fromkeys(used_values(node)):
                if value in entry:
                    net.edge(ends(value)[1], sink, INFINITE)
            continue
        again = net.vertex()
        if paid := price(node):
            net.edge(source, again, paid)
        for operand in dict.fromkeys(used_values(node)):
            net.edge(ends(operand)[1], again, INFINITE)
        for result in node.results:
            net.edge(again, ends(result)[0], INFINITE)
    for value in wanted:
        if value in entry:
            net.edge(ends(value)[1], sink, INFINITE)
    total, side = net.cut(source, sink)
    if total >= INFINITE:
        return None
    return {value: None for value, (a, b) in entry.items() if a in side and b not in side}


def within(
    budget: float,
    nodes: Sequence[Node],
    saved: Callable[[Callable[[Node], int]], dict[Value, None]],
    total: Callable[[Iterable[Value]], int],
) -> dict[Value, None]:
    """What is saved if it may be so much of what would be saved if nothing were computed again. total: in bytes.

    Products are done again as far as it takes: the price of their operations is lowered until the rest fits, the last
    step for as many nodes as need it (equal layers have equal prices). Where nothing fits, the least is saved.
    """
    chosen = saved(_price)
    if budget >= 1:
        return chosen
    most = budget * total(saved(_no_price))
    if total(chosen) <= most:
        return chosen
    chosen, low, high = saved(_price_by_work(0.0)), _LEAST_RATE, _LARGEST_RATE
    if total(chosen) > most:
        return chosen
    for _ in range(_TRIES):
        middle = (low + high) / 2
        found = saved(_price_by_work(2.0**middle))
        if total(found) <= most:
            chosen, low = found, middle
        else:
            high = middle
    fits, spares = _price_by_work(2.0**low), _price_by_work(2.0**high)
    number = {node: i for i, node in enumerate(nodes)}
    few, many = 0, len(nodes)
    for _ in range(_TRIES):
        part = (few + many) // 2
        found = saved(_by_place(number, part, fits, spares))
        if total(found) <= most:
            chosen, many = found, part
        else:
            few = part
    return chosen


def _by_place(
    number: Mapping[Node, int], part: int, first: Callable[[Node], int], rest: Callable[[Node], int]
) -> Callable[[Node], int]:
    return lambda node: first(node) if number[node] < part else rest(node)


_LEAST_RATE, _LARGEST_RATE, _TRIES = -24.0, 0.0, 8
"""Powers of two between which the bytes lie that are saved for an operation, and how many are tried."""


def _price(node: Node) -> int:
    """Of computing a node again: nothing where it is cheap, a part of what it moves where it goes over its operands."""
    if is_cheap(node):
        return 0
    return cost(node).nbytes // _MOVED if _is_pass(node) else INFINITE


def _price_of_unsaved(node: Node) -> int:
    """Of computing a node again whose results cannot be saved."""
    is_unsaved = not all(can_be_saved(r.type) for r in node.results)
    if not is_unsaved or node.regions or not _is_repeatable(node) or not node.op.startswith("aten."):
        return INFINITE
    return _MOVED * max(1, cost(node).nbytes)


_MOVED = 8
"""Bytes that are moved once more for one byte that is saved: written, kept while all of forward runs, and read."""


def _price_by_work(rate: float) -> Callable[[Node], int]:
    """The same where products may be done again. rate: bytes to save for one of their operations."""

    def price(node: Node) -> int:
        found = _price(node)
        if found < INFINITE or node.regions or not _is_repeatable(node) or not node.op.startswith("aten."):
            return found
        work = cost(node)
        return int(rate * work.flops) + int(rate > 0) * work.nbytes // _MOVED + 1

    return price


def free_at(lines: Collection[Span], price: Callable[[Node], int]) -> Callable[[Node], int]:
    """The same price, but next to none for what these lines compute, as far as it can be computed again."""
    if not lines:
        return price

    def least(node: Node) -> int:
        if node.span not in lines or node.regions or not _is_repeatable(node) or not node.op.startswith("aten."):
            return price(node)
        return min(price(node), 1)

    return least


def _no_price(node: Node) -> int:
    """Nothing is computed again but what takes no time or cannot be saved."""
    is_free = is_cheap(node) and (is_view(node) or not all(can_be_saved(r.type) for r in node.results))
    return 0 if is_free else INFINITE


def _is_pass(node: Node) -> bool:
    """Whether a node goes over its operands once, and each run gives the same."""
    is_one = "reduction" in tags_of(node.op) or node.op in _PASSES
    return is_one and not node.regions and _is_repeatable(node)


def saving_cost(value: Value) -> int:
    """What it takes to save a value: bytes, and one more: of equal cuts the one of fewer tensors is taken."""
    if not can_be_saved(value.type):
        return INFINITE
    if not isinstance(value.type, TensorType):
        return 1
    if value.node is not None and is_view(value.node):
        return INFINITE
    return saved_nbytes(value) + 1


def can_be_saved(type_: Type) -> bool:
    """Whether a plan takes it."""
    return type_ in (INT, FLOAT, BOOL) or (isinstance(type_, TensorType) and type_.is_static)


def saved_nbytes(value: Value) -> int:
    type_ = value.type
    return type_.numel * type_.dtype.itemsize if isinstance(type_, TensorType) and type_.is_static else 0


def is_cheap(node: Node) -> bool:
    """Whether a node may be computed again in place of saving what it gives."""
    if not _is_repeatable(node) or node.op in ("expect", NAME):
        return False
    if node.regions:
        # What a loop of an unknown number of iterations leaves cannot be put aside: the loop runs again.
        return not all(can_be_saved(result.type) for result in node.results)
    if (
        effects(node).arbitrary
        or node.op in ("unpack", "const")
        or node.op.startswith("py.")
        or node.op.startswith("aten.sym_")
    ):
        return True
    return is_view(node) or "pointwise" in tags_of(node.op) or node.op in _CHEAP_KINDS


def _is_repeatable(node: Node) -> bool:
    """Whether a second run gives the same: that of a `while`, too, which has ended once."""
    if node.regions:
        # What ranks exchange in a loop they exchange once more, each at the same point of it.
        nodes = (inner for region in node.regions for inner in region)
        return all(inner.op in COLLECTIVES or _is_repeatable(inner) for inner in nodes)
    return effects(node).is_pure  # of `empty` nothing is read before it is written


def is_view(node: Node) -> bool:
    """Whether a node gives its operand's memory."""
    source = node.args[0] if node.op == "unpack" else None
    if isinstance(source, Value) and source.node is not None:
        return is_view(source.node)
    record = record_of(node.op)
    return record is not None and record.alias == "view"

"""How a nest's loops run: which one the lanes go along, how many vectors at once, and what one work item is.

Along an inner loop the lanes of a vector are elements of one row, combined at its end; along an outer loop each lane is
a point of its own. The choice is the cheaper by the places that a vector's lanes touch: one line, or one each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from smelt.codegen.kernels.graph import Graph, StoreValue, Value, op_cost, operand_dtype
from smelt.codegen.kernels.nest import Index, Load, Nest, Op, Reduce
from smelt.codegen.kernels.operations import OPS
from smelt.codegen.kernels.sizes import at_most, is_short_step, unit_loop
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ELEMENTARY
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import Size, equals, is_one, is_symbolic, late

# Loads of one vector whose lanes have places of their own, against 1 for neighbours: this much for each lane.
_SCATTERED = 0.75
_SCATTERED_STORE = 1.25
_ROW_END = 12.0  # combining the lanes of a row's reduction
_LONG_CHAIN = 400.0  # elementary functions of a chain that are called, in additions: some 18 of them
_CHAIN_SHARE = 0.75  # of all elementary functions of the nest
ITEM_NS = 1500.0  # work of one item
_LARGE = 1024  # what a size may be that is known at run time only
SHORT_CHAIN = 64  # additions in one chain that need no blocks
_BLOCK_SHARE = 32  # additions in one chain of a sum, about


@record
class OuterLevel:
    """One of the nested loops of the outer points: a loop's own turns, or its blocks of `tile` turns."""

    loop: int
    tile: int | None = None


@record
class Schedule:
    """The decisions. `order` is the nesting of outer loops; `lane` the loop the vectors go along (None: scalars).

    `block` is the position in `levels` of the loop that items cut into blocks of `block_size`; loops before it are
    spread over items, loops after it run whole in each. `tile`: the outer loop along which some loads are contiguous
    where the lanes are not (a transpose), run in squares.

    What a person asked for: `tiled`, loops (outer and inner) with the turns of their blocks, which go around all other
    loops; `unrolled`, loops but for the lanes' with how often the body stands in a row; `nesting`, the outer loops and
    blocks from the outside where that is not just `order`.
    """

    lane: int | None
    lanes: int
    copies: int
    order: tuple[int, ...]
    block: int
    block_size: int
    items: int
    item_ns: float
    masked: bool
    tile: int | None = None
    long: bool = True
    tiled: tuple[tuple[int, int], ...] = ()
    unrolled: tuple[tuple[int, int], ...] = ()
    nesting: tuple[OuterLevel, ...] = ()

    @property
    def levels(self) -> tuple[OuterLevel, ...]:
        """The outer loops as they are nested, from the outside."""
        return self.nesting or tuple(map(OuterLevel, self.order))

    def times(self, loop: int) -> int:
        """How often the body of a loop stands in a row."""
        return dict(self.unrolled).get(loop, 1)


def accesses(graph: Graph) -> Iterator[tuple[Index, DType, Value | StoreValue]]:
    """Index and dtype of every load and store."""
    for value in graph.values:
        if isinstance(value.source, Load):
            yield value.source.index, value.source.dtype, value
    for store in graph.stores:
        yield store.source.index, graph.nest.buffers[store.source.buffer].dtype, store


def woven(stores: Sequence[StoreValue], loop: int) -> list[tuple[StoreValue, ...]]:
    """Stores one by one, but those together that put one value side by side, of which lanes along a loop go on behind
    each other.
    """
    found: list[tuple[StoreValue, ...]] = []
    for store in stores:
        group = found[-1] if found else ()
        if group and _goes_on(group, store, loop):
            found[-1] = (*group, store)
        else:
            found.append((store,))
    return [
        part
        for group in found
        for part in ([group] if equals(group[0].source.index.strides[loop], len(group)) else [(s,) for s in group])
    ]


def _goes_on(group: tuple[StoreValue, ...], store: StoreValue, loop: int) -> bool:
    first, source = group[0].source, store.source
    plain = all(s.source.mode == "set" and s.where is None and not s.positions for s in (group[0], store))
    return (
        plain
        and (source.buffer, source.index.strides) == (first.buffer, first.index.strides)
        and store.value is group[0].value
        and equals(source.index.offset, first.index.offset + len(group))
        and is_short_step(source.index.strides[loop])
    )


def lane_count(graph: Graph, isa: Isa) -> int:
    """Lanes of a vector: a register full of the widest type, but of 4 bytes where there are floats of 4."""
    nbytes = 4 * isa.f32_lanes
    widths = {max(v.dtype.itemsize, 4 if v.dtype.is_half else 1) for v in graph.values}
    widths |= {graph.nest.buffers[s.source.buffer].dtype.itemsize for s in graph.stores}
    if DType.F64 in {v.dtype for v in graph.values} or 4 not in widths:
        return max(nbytes // max(widths), 1)
    return nbytes // 4


@record
class Traits:
    """What a schedule is chosen from, but for the sizes.

    lane_costs: the loops that vectors may go along, what `lanes` points side by side cost. ends: what combining the
    lanes of its rows costs a row. scalar: what as many points cost one by one. tiles: pairs of a loop of lanes and the
    one along which a load is contiguous instead.
    """

    nouter: int
    lanes: int
    lane_costs: tuple[tuple[int, float], ...]
    ends: float
    scalar: float
    tiles: tuple[tuple[int, int], ...]
    copies: int
    sums: bool

    def unit(self, way: Way) -> int:
        """Elements that one chain of additions does not see, as they go to other lanes and copies."""
        return self.lanes * way.copies if way.lane is not None and way.lane >= self.nouter else 1

    def is_long(self, way: Way, sizes: Sequence[int]) -> bool:
        """Whether sums are done in blocks."""
        total = 1
        for size in sizes[self.nouter :]:
            total *= size
        return self.sums and total // self.unit(way) > SHORT_CHAIN


@record
class Way:
    """Which text a nest has: see `Schedule`; `long`: whether its sums are done in blocks."""

    lane: int | None
    tile: int | None
    copies: int
    long: bool


def traits(graph: Graph, isa: Isa) -> Traits:
    """The traits of a nest for an instruction set."""
    nest = graph.nest
    lanes = lane_count(graph, isa)
    n = len(nest.outer)
    candidates = [n - 1] if nest.ordered and n else list(range(n))
    if nest.inner and not graph.scans:
        candidates.append(len(nest.sizes) - 1)
    costs = tuple((loop, cost) for loop in candidates if (cost := lane_cost(graph, loop, lanes)) is not None)
    sums = any(isinstance(r.source, Reduce) and r.source.kind == "sum" and r.dtype.is_floating for r in graph.reduces)
    scalar = 1.5 * lanes * _point_cost(graph)
    ends = _ROW_END * len(graph.reduces) * lanes
    return Traits(n, lanes, costs, ends, scalar, _tiles(graph, costs, lanes), _copies(graph, isa), sums)


def best_way(found: Traits, sizes: Sequence[int]) -> Way:
    """The cheapest way at sizes."""
    lane = _lane_loop(found, sizes)
    tile = _tile_loop(found, lane, sizes)
    copies = 1
    if lane is not None and tile is None:
        copies = found.copies
        while copies > 1 and sizes[lane] < copies * found.lanes:
            copies //= 2
    way = Way(lane, tile, copies, False)
    return replace(way, long=found.is_long(way, sizes))


def plan(graph: Graph, isa: Isa) -> Schedule:
    """The schedule of a nest of known sizes for an instruction set."""
    found = traits(graph, isa)
    return scheduled(graph, isa, found, best_way(found, graph.nest.sizes))


def scheduled(graph: Graph, isa: Isa, found: Traits, way: Way) -> Schedule:
    """The schedule of a nest that runs in a way."""
    nest, lane = graph.nest, way.lane
    lanes = 1 if lane is None else found.lanes
    order = outer_order(nest, lane)
    if way.tile is not None and lane is not None:
        order = (*(k for k in order if k not in (way.tile, lane)), way.tile, lane)
    element_ns = element_ns_of(graph, lane, lanes)
    loops = Nesting(nest.outer, nest.inner, nest.ordered, order, lane, way.tile)
    block = _blocked_loop(loops, element_ns)
    block_size, items, item_ns = _amounts(loops, lanes * way.copies, element_ns, block)
    masked = is_masked(graph, isa, lane)
    return Schedule(lane, lanes, way.copies, order, block, block_size, items, item_ns, masked, way.tile, way.long)


def is_masked(graph: Graph, isa: Isa, lane: int | None) -> bool:
    """Whether what is left of the lanes' loop is one vector with a mask, rather than single elements."""
    return isa.name == "avx512" or (isa.name == "avx2" and _has_masks(graph, lane))


def _has_masks(graph: Graph, lane: int | None) -> bool:
    """Whether every access along the lanes is one that AVX2 has a masked instruction for."""
    for index, dtype, _ in accesses(graph):
        step = 0 if lane is None else index.strides[lane]
        if index.gathers or not _is_level(step) or (is_one(step) and dtype.itemsize < 4):
            return False
    return True


# --- lanes


def _lane_loop(found: Traits, sizes: Sequence[int]) -> int | None:
    best: tuple[float, int] | None = None
    for loop, cost in found.lane_costs:
        size = sizes[loop]
        used = size / (-(-size // found.lanes) * found.lanes)
        whole = (cost + 1.0) / used + (found.ends / size if loop >= found.nouter else 0.0)
        if best is None or whole <= best[0]:
            best = (whole, loop)
    return best[1] if best is not None and best[0] < found.scalar else None


def _point_cost(graph: Graph) -> float:
    """Operations and accesses of one point."""
    return float(sum(1 for _ in accesses(graph))) + _work(graph)


def _work(graph: Graph) -> float:
    """The operations of one point, in additions."""
    return sum(op_cost(v.source.op, operand_dtype(v)) for v in graph.values if isinstance(v.source, Op))


def calls_functions(graph: Graph) -> bool:
    """Whether a nest's elementary functions are called rather than written out at each use.

    So they are in long chains, where each waits for the one before it: what a call costs is little there, and most of
    the text is theirs. Side by side, functions that are written out overlap, and take up to twice less time.
    """
    total = 0.0
    chains: dict[int, float] = {}
    for value in graph.values:
        chain = max((chains[a.number] for a in value.args), default=0.0)
        if isinstance(value.source, Op) and OPS[value.source.op].family in ELEMENTARY:
            cost = op_cost(value.source.op, operand_dtype(value))
            total, chain = total + cost, chain + cost
        chains[value.number] = chain
    longest = max(chains.values(), default=0.0)
    return longest > _LONG_CHAIN and longest > _CHAIN_SHARE * total


def lane_cost(graph: Graph, loop: int, lanes: int) -> float | None:
    """Cost of `lanes` points side by side along a loop; None where they may not be."""
    nest = graph.nest
    bit = 1 << loop
    inner = loop >= len(nest.outer)
    cost = 0.0
    side_by_side = {id(s) for group in woven(graph.stores, loop) if len(group) > 1 for s in group}
    for index, _, owner in accesses(graph):
        step = index.strides[loop]
        positions = owner.positions if isinstance(owner, StoreValue) else owner.args[: len(index.gathers)]
        moves = any(p.loops & bit for p in positions)
        if isinstance(owner, StoreValue):
            if moves or (owner.source.mode == "add" and nest.ordered and equals(step, 0)):
                return None
            if equals(step, 0) and (not inner or owner.loops & bit):
                return None
            cost += 1.0 if _is_level(step) or id(owner) in side_by_side else _SCATTERED_STORE * lanes
        elif equals(step, 0) and not moves:
            cost += 0.2
        elif is_short_step(step) and not moves:
            cost += 1.5 * step  # picked from vectors of neighbours
        else:
            cost += 1.0 if is_one(step) and not moves else _SCATTERED * lanes
    return cost


def _is_level(step: int) -> bool:
    """Whether lanes are neighbours, or at one place."""
    return is_one(step) or equals(step, 0)


def outer_order(nest: Nest, lane: int | None) -> tuple[int, ...]:
    """The outer loops, the lanes' innermost."""
    outer = list(range(len(nest.outer)))
    if lane is not None and lane < len(nest.outer):
        outer.remove(lane)
        outer.append(lane)
    return tuple(outer)


def _tiles(graph: Graph, lane_costs: Sequence[tuple[int, float]], lanes: int) -> tuple[tuple[int, int], ...]:
    """The loops of a pointwise nest along which a load is contiguous that is not along the lanes."""
    if graph.nest.inner or graph.nest.ordered or lanes < 4:
        return ()
    found = []
    for index, dtype, owner in accesses(graph):
        across = unit_loop(index.strides)
        if isinstance(owner, Value) and across is not None and dtype is not DType.BOOL:
            found += [(lane, across) for lane, _ in lane_costs if is_transposed(owner, lane)]
    return tuple(found)


def _tile_loop(found: Traits, lane: int | None, sizes: Sequence[int]) -> int | None:
    if lane is None or sizes[lane] < found.lanes:
        return None
    return next((across for along, across in found.tiles if along == lane and sizes[across] >= found.lanes), None)


def is_transposed(value: Value, lane: int, along: int | None = None) -> bool:
    """Whether a load is contiguous along another loop (`along`, if given) than the lanes, and moves with both."""
    source = value.source
    if not isinstance(source, Load) or source.index.gathers or source.where is not None:
        return False
    strides = source.index.strides
    unit = unit_loop(strides)
    if unit is None or is_short_step(strides[lane]) or equals(strides[lane], 0) or is_one(strides[lane]):
        return False
    return along is None or unit == along


def _copies(graph: Graph, isa: Isa) -> int:
    """Vectors in flight: several where operations are few, so that a sum's latency hides and loops cost little."""
    work = _work(graph)
    copies = 4 if work <= 8 else (2 if work <= 40 else 1)
    if any(isinstance(r.source, Reduce) and r.source.kind.startswith("arg") for r in graph.reduces):
        copies = min(copies, 2)
    if len(graph.reduces) > 2 or isa.vector_registers < 32:
        copies = min(copies, 2)
    return copies


# --- items


def element_ns_of(graph: Graph, lane: int | None, lanes: int) -> float:
    """Estimated time of one innermost point, from its operations and bytes."""
    work = _work(graph)
    touched = 0.0
    for index, dtype, _ in accesses(graph):
        step = index.strides[lane] if lane is not None else 1
        touched += dtype.itemsize * (1.0 if _is_level(step) else 4.0)
    return 0.01 + 0.22 * work / lanes + touched / 80.0


@record
class Nesting:
    """What the items of a nest are cut from: its loops, and how they are nested (see `Schedule`)."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    ordered: bool
    order: tuple[int, ...]
    lane: int | None
    tile: int | None

    def points(self, block: int) -> float:
        """The innermost points of one turn of the loop at a position of the order."""
        points = 1.0
        for size in self.inner:
            points *= size
        for loop in reversed(self.order[block + 1 :]):
            points *= self.outer[loop]
        return points


def large(size: int) -> int:
    """A large number that a size may be: itself if it is known."""
    if type(size) is not Size:
        return size
    low, high = size.trace.bounds(size.poly)
    return int(min(max(_LARGE, low), high))


def _blocked_loop(loops: Nesting, element_ns: float) -> int:
    """The position of the loop that is cut: the last one of which all turns are enough for an item.

    Sizes that are known at run time only are taken as large, so that large ones have items for many threads.
    """
    loops = replace(loops, outer=tuple(map(large, loops.outer)), inner=tuple(map(large, loops.inner)))
    if not loops.order or loops.ordered:
        return 0
    at = len(loops.order) - (1 if loops.tile is None else 2)  # a square is cut along neither side
    while at and loops.points(at) * loops.outer[loops.order[at]] * element_ns < ITEM_NS:
        at -= 1
    return at


@late
def _amounts(loops: Nesting, step: int, element_ns: float, block: int) -> tuple[int, int, float]:
    """(turns of the blocked loop in an item, items, time of one)."""
    points = loops.points(block)
    if not loops.order:
        return 1, 1, points * element_ns
    loop = loops.order[block]
    size = loops.outer[loop]
    if loops.ordered:
        return size, 1, points * size * element_ns
    wanted = max(1, round(ITEM_NS / (points * element_ns)))
    unit = step if loop == loops.lane else (16 if loop == loops.tile else 1)
    length = min(-(-wanted // unit) * unit, size)
    items = -(-size // length)
    for before in loops.order[:block]:
        items *= loops.outer[before]
    return length, items, points * length * element_ns


def sum_blocks(chain: int) -> tuple[int, ...]:
    """Lengths of the blocks in which a sum of `chain` additions is done, the longest first; none for a short one.

    Two levels up to 1024, three beyond: eager's own cascade is as good.
    """
    if chain <= SHORT_CHAIN:
        return ()
    if chain <= _BLOCK_SHARE**2:
        return (_power_of_two(chain**0.5),)
    third = chain ** (1 / 3)
    return (_power_of_two(third * third), _power_of_two(third))


def block_lengths(size: int, width: int) -> tuple[int, ...]:
    """Turns of a loop of `size` in the blocks of a sum that takes `width` at once, the longest first.

    Where the size is known at run time only, there are as many levels as it may need: those that it does not need are
    as long as the loop, so that the additions are those of a size that is known.
    """
    if not is_symbolic(size):
        return tuple(length * width for length in sum_blocks(size // width))
    if at_most(size // width, SHORT_CHAIN):
        return ()
    whole, part = _two_lengths(size, width)
    return (part,) if at_most(size // width, _BLOCK_SHARE**2) else (whole, part)


@late(low=1)
def _two_lengths(size: int, width: int) -> tuple[int, int]:
    lengths = [size, size, *block_lengths(size, width)]
    return lengths[-2], lengths[-1]


def _power_of_two(value: float) -> int:
    power = 8
    while power * 1.5 < value:
        power *= 2
    return power

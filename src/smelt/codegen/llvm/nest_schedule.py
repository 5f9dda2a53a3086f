"""How a nest's loops run: which one the lanes go along, how many vectors at once, and what one work item is.

Along an inner loop the lanes of a vector are elements of one row, combined at its end; along an outer loop each lane is
a point of its own. The choice is the cheaper by the places that a vector's lanes touch: one line, or one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from smelt.codegen.kernels.nest import Index, Load, Nest, Op, Reduce
from smelt.codegen.kernels.sizes import at_most, is_short_step, unit_loop
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nest_graph import Graph, StoreValue, Value, op_cost, operand_dtype
from smelt.ir import DType
from smelt.ir.sizes import chosen, current_trace, equals, is_one, is_symbolic, late

# Loads of one vector whose lanes have places of their own, against 1 for neighbours: this much for each lane.
_SCATTERED = 0.75
_SCATTERED_STORE = 1.25
_ROW_END = 12.0  # combining the lanes of a row's reduction
_ITEM_NS = 1500.0  # work of one item
_BLOCK_SHARE = 32  # additions in one chain of a sum, about


@dataclass(frozen=True, slots=True)
class Schedule:
    """The decisions. `order` is the nesting of outer loops; `lane` the loop the vectors go along (None: scalars).

    `block` is the position in `order` of the loop that items cut into blocks of `block_size`; loops before it are
    spread over items, loops after it run whole in each. `tile`: the outer loop along which some loads are contiguous
    where the lanes are not (a transpose), run in squares.
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


def accesses(graph: Graph) -> Iterator[tuple[Index, DType, Value | StoreValue]]:
    """Index and dtype of every load and store."""
    for value in graph.values:
        if isinstance(value.source, Load):
            yield value.source.index, value.source.dtype, value
    for store in graph.stores:
        yield store.source.index, graph.nest.buffers[store.source.buffer].dtype, store


def lane_count(graph: Graph, isa: Isa) -> int:
    """Lanes of a vector: a register full of the widest type, but of 4 bytes where there are floats of 4."""
    nbytes = 4 * isa.f32_lanes
    widths = {max(v.dtype.itemsize, 4 if v.dtype in (DType.F16, DType.BF16) else 1) for v in graph.values}
    widths |= {graph.nest.buffers[s.source.buffer].dtype.itemsize for s in graph.stores}
    if DType.F64 in {v.dtype for v in graph.values} or 4 not in widths:
        return max(nbytes // max(widths), 1)
    return nbytes // 4


def plan(graph: Graph, isa: Isa) -> Schedule:
    """The schedule of a nest for an instruction set.

    Where sizes are known at run time only, the sizes at hand say how the loops run, and each tuple of sizes how much of
    them is an item.
    """
    nest = graph.nest
    if current_trace() is None or not is_symbolic(nest):
        return _plan(graph, isa)
    at_hand, element_ns = _chosen_plan(nest, isa)
    loops = Nesting(nest.outer, nest.inner, nest.ordered, at_hand.order, at_hand.lane, at_hand.tile)
    step = at_hand.lanes * at_hand.copies
    block_size, items, item_ns = _amounts(loops, step, element_ns, at_hand.block)
    return replace(at_hand, block_size=block_size, items=items, item_ns=item_ns)


@chosen
def _chosen_plan(nest: Nest, isa: Isa) -> tuple[Schedule, float]:
    graph = Graph(nest)
    made = _plan(graph, isa)
    return made, _element_ns(graph, made.lane, made.lanes)


def _plan(graph: Graph, isa: Isa) -> Schedule:
    nest = graph.nest
    lanes = lane_count(graph, isa)
    lane = _lane_loop(graph, lanes)
    if lane is None:
        lanes = 1
    order = _outer_order(nest, lane)
    tile = _tile_loop(graph, lane, lanes)
    if tile is not None and lane is not None:
        order = (*(k for k in order if k not in (tile, lane)), tile, lane)
    copies = 1 if tile is not None else _copies(graph, lane, lanes, isa)
    element_ns = _element_ns(graph, lane, lanes)
    loops = Nesting(nest.outer, nest.inner, nest.ordered, order, lane, tile)
    block = _blocked_loop(loops, element_ns)
    block_size, items, item_ns = _amounts(loops, lanes * copies, element_ns, block)
    masked = isa.name == "avx512" or (isa.name == "avx2" and _has_masks(graph, lane))
    return Schedule(lane, lanes, copies, order, block, block_size, items, item_ns, masked, tile)


def _has_masks(graph: Graph, lane: int | None) -> bool:
    """Whether every access along the lanes is one that AVX2 has a masked instruction for."""
    for index, dtype, _ in accesses(graph):
        step = 0 if lane is None else index.strides[lane]
        if index.gathers or step not in (0, 1) or (step and dtype.itemsize < 4):
            return False
    return True


# --- lanes


def _lane_loop(graph: Graph, lanes: int) -> int | None:
    nest = graph.nest
    n = len(nest.outer)
    candidates = [n - 1] if nest.ordered and n else list(range(n))
    if nest.inner and not graph.scans:
        candidates.append(len(nest.sizes) - 1)
    best: tuple[float, int] | None = None
    for loop in candidates:
        cost = _lane_cost(graph, loop, lanes)
        if cost is not None and (best is None or cost <= best[0]):
            best = (cost, loop)
    scalar = 1.5 * lanes * _point_cost(graph)
    return best[1] if best is not None and best[0] < scalar else None


def _point_cost(graph: Graph) -> float:
    """Operations and accesses of one point."""
    return float(sum(1 for _ in accesses(graph))) + _work(graph)


def _work(graph: Graph) -> float:
    """The operations of one point, in additions."""
    return sum(op_cost(v.source.op, operand_dtype(v)) for v in graph.values if isinstance(v.source, Op))


def _lane_cost(graph: Graph, loop: int, lanes: int) -> float | None:
    """Cost of `lanes` points side by side along a loop; None where they may not be."""
    nest = graph.nest
    bit = 1 << loop
    inner = loop >= len(nest.outer)
    cost = 0.0
    for index, _, owner in accesses(graph):
        step = index.strides[loop]
        positions = owner.positions if isinstance(owner, StoreValue) else owner.args[: len(index.gathers)]
        moves = any(p.loops & bit for p in positions)
        if isinstance(owner, StoreValue):
            if moves or (owner.source.mode == "add" and nest.ordered and step == 0):
                return None
            if step == 0 and (not inner or owner.loops & bit):
                return None
            cost += 1.0 if step in (0, 1) else _SCATTERED_STORE * lanes
        elif step == 0 and not moves:
            cost += 0.2
        elif is_short_step(step) and not moves:
            cost += 1.5 * step  # picked from vectors of neighbours
        else:
            cost += 1.0 if step == 1 and not moves else _SCATTERED * lanes
    size = nest.sizes[loop]
    used = size / (-(-size // lanes) * lanes)
    ends = _ROW_END * len(graph.reduces) * lanes / size if inner else 0.0
    return (cost + 1.0) / used + ends


def _outer_order(nest: Nest, lane: int | None) -> tuple[int, ...]:
    outer = list(range(len(nest.outer)))
    if lane is not None and lane < len(nest.outer):
        outer.remove(lane)
        outer.append(lane)
    return tuple(outer)


def _tile_loop(graph: Graph, lane: int | None, lanes: int) -> int | None:
    """The loop of a pointwise nest along which a load is contiguous that is not along the lanes."""
    nest = graph.nest
    if lane is None or nest.inner or nest.ordered or lanes < 4 or nest.outer[lane] < lanes:
        return None
    for index, dtype, owner in accesses(graph):
        if isinstance(owner, Value) and is_transposed(owner, lane) and dtype is not DType.BOOL:
            loop = unit_loop(index.strides)
            if loop is not None and nest.outer[loop] >= lanes:
                return loop
    return None


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


def _copies(graph: Graph, lane: int | None, lanes: int, isa: Isa) -> int:
    """Vectors in flight: several where operations are few, so that a sum's latency hides and loops cost little."""
    if lane is None:
        return 1
    work = _work(graph)
    copies = 4 if work <= 8 else (2 if work <= 40 else 1)
    if any(isinstance(r.source, Reduce) and r.source.kind.startswith("arg") for r in graph.reduces):
        copies = min(copies, 2)
    if len(graph.reduces) > 2 or isa.vector_registers < 32:
        copies = min(copies, 2)
    size = graph.nest.sizes[lane]
    while copies > 1 and size < copies * lanes:
        copies //= 2
    return copies


# --- items


def _element_ns(graph: Graph, lane: int | None, lanes: int) -> float:
    """Time of one innermost point, from its operations and bytes."""
    work = _work(graph)
    touched = 0.0
    for index, dtype, _ in accesses(graph):
        step = index.strides[lane] if lane is not None else 1
        touched += dtype.itemsize * (1.0 if step in (0, 1) else 4.0)
    return 0.01 + 0.22 * work / lanes + touched / 80.0


@dataclass(frozen=True, slots=True)
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


def _blocked_loop(loops: Nesting, element_ns: float) -> int:
    """The position of the loop that is cut: the last one of which all turns are enough for an item."""
    if not loops.order or loops.ordered:
        return 0
    at = len(loops.order) - (1 if loops.tile is None else 2)  # a square is cut along neither side
    while at and loops.points(at) * loops.outer[loops.order[at]] * element_ns < _ITEM_NS:
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
    wanted = max(1, round(_ITEM_NS / (points * element_ns)))
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
    if chain <= 2 * _BLOCK_SHARE:
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
    if at_most(size // width, 2 * _BLOCK_SHARE):
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

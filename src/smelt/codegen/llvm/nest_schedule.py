"""How a nest's loops run: which one the lanes go along, how many vectors at once, and what one work item is.

Along an inner loop the lanes of a vector are elements of one row, combined at its end; along an outer loop each lane is
a point of its own. The choice is the cheaper by the places that a vector's lanes touch: one line, or one each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from smelt.codegen.kernels.nest import Index, Load, Nest, Op, Reduce
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nest_graph import Graph, StoreValue, Value, op_cost, operand_dtype
from smelt.ir import DType

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
    """The schedule of a nest for an instruction set."""
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
    block, block_size, items, per_item = _blocks(nest, order, lane, lanes * copies, element_ns, tile)
    masked = isa.name == "avx512" or (isa.name == "avx2" and _has_masks(graph, lane))
    return Schedule(lane, lanes, copies, order, block, block_size, items, per_item * element_ns, masked, tile)


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
        elif 2 <= step <= 4 and not moves:
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
            loop = index.strides.index(1)
            if nest.outer[loop] >= lanes:
                return loop
    return None


def is_transposed(value: Value, lane: int, along: int | None = None) -> bool:
    """Whether a load is contiguous along another loop (`along`, if given) than the lanes, and moves with both."""
    source = value.source
    if not isinstance(source, Load) or source.index.gathers or source.where is not None:
        return False
    strides = source.index.strides
    if 0 <= strides[lane] <= 4 or 1 not in strides:
        return False
    return along is None or strides.index(1) == along


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


def _blocks(
    nest: Nest, order: tuple[int, ...], lane: int | None, step: int, element_ns: float, tile: int | None
) -> tuple[int, int, int, float]:
    """(position of the blocked loop, its block, items, points in an item)."""
    points = 1.0
    for size in nest.inner:
        points *= size
    if not order:
        return 0, 1, 1, points
    if nest.ordered:
        for size in nest.outer:
            points *= size
        return 0, nest.outer[order[0]], 1, points
    at, block = len(order) - 1, 1
    if tile is not None:  # a square is cut along neither side
        points *= nest.outer[order[at]]
        at -= 1
    while True:
        size = nest.outer[order[at]]
        if points * size * element_ns >= _ITEM_NS or at == 0:
            wanted = max(1, round(_ITEM_NS / (points * element_ns)))
            unit = step if order[at] == lane else (16 if order[at] == tile else 1)
            block = min(-(-wanted // unit) * unit, size)
            break
        points *= size
        at -= 1
    items = -(-nest.outer[order[at]] // block)
    for loop in order[:at]:
        items *= nest.outer[loop]
    return at, block, items, points * block


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


def _power_of_two(value: float) -> int:
    power = 8
    while power * 1.5 < value:
        power *= 2
    return power

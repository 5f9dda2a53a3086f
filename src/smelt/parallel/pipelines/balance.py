"""Where the stages of a pipeline end: the longest takes as little time as can be, and then the largest least memory.

    work    3  3  3  3  9        two stages: [3 3 3 3] [9], and not [3 3 3] [3 9]

A stage takes the time of its operations, forward and backward, of what it sends, and of its share of the optimizer's
step. It needs the memory of its parameters, their gradients and the optimizer's two numbers each, and of what it keeps
of the microbatches that are between forward and backward; early stages keep more of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate
from math import inf

from smelt.analysis import used_by
from smelt.analysis.cost import cost
from smelt.analysis.liveness import nbytes as nbytes_of
from smelt.diag import SmeltError, Span
from smelt.diag.records import record
from smelt.ir import Node, Region, TensorType, Value
from smelt.ops.effects import alias_of
from smelt.ops.ranks import collectives as dist

_PER_BYTE = 130.0
"""Operations that take as long as a byte that is sent, there and its gradient back: 100 GFLOP/s beside 1.5 GB/s."""
_PER_PARAMETER = 300.0
"""Operations that take as long as one parameter's update by AdamW, once a step."""
_COPIES = 4
"""Of a parameter: itself, its gradient, two numbers of the optimizer."""
_AS_LONG = 1.03
"""How much longer than in the shortest plan the longest stage may take for the sake of memory."""


@record
class Loads:
    """What nodes cost, in order. work: time of one microbatch, in operations. kept: bytes that one microbatch keeps for
    backward. state: bytes of parameters with what belongs to them, at each use: the node, the one before that uses the
    same, and how many.
    """

    work: list[float]
    kept: list[int]
    state: list[tuple[int, int, int]]

    def memory(self, begin: int, end: int, flying: int) -> int:
        """Bytes that a stage needs. flying: its microbatches between forward and backward."""
        state = sum(nbytes for i, before, nbytes in self.state if begin <= i < end and before < begin)
        return state + flying * sum(self.kept[begin:end])


def loads_of(nodes: Sequence[Node], microbatches: int) -> Loads:
    """What the nodes cost that stages are made of."""
    last: dict[str, int] = {}
    made = Loads([], [], [])
    for i, node in enumerate(nodes):
        work = 3 * work_of(node)
        for value in _needed_state(node):
            path, type_ = str(value.node.args[0]) if value.node is not None else "", value.type
            if last.get(path) == i or not isinstance(type_, TensorType):
                continue
            if path not in last:
                work += _PER_PARAMETER * type_.numel / microbatches
            made.state.append((i, last.get(path, -1), _COPIES * type_.nbytes))
            last[path] = i
        made.work.append(work)
        is_view = node.op == dist.ENTER or (not node.regions and len(node.results) == 1 and alias_of(node) is not None)
        kept = 0 if is_view else sum(map(nbytes_of, node.results))
        made.kept.append(kept)
    return made


def work_of(node: Node) -> float:
    """What a node costs, in operations: products by theirs, others by the bytes that they move; of a branch its longest
    arm, of a loop's body one run."""
    if node.regions:
        return max(sum(map(work_of, region)) for region in node.regions)
    found = cost(node)
    return max(float(found.flops), 4.0 * found.nbytes)


def balanced(
    nodes: Sequence[Node], loads: Loads, free: Collection[Value], flying: Sequence[int], where: Span | None = None
) -> list[int]:
    """Where stages end. free: values that are never sent. flying: of each stage, how many microbatches are between
    forward and backward at once.

    Raises: SmeltError (S0641) where there are too few points at which a stage can end.
    """
    count, sent = len(flying), sent_at(nodes, free)
    least = sorted(sent[1:-1])[: max(4 * count, len(sent) // 8)]
    limit = 2 * least[-1] if least else 0
    spots = [0, *(i for i in range(1, len(nodes)) if sent[i] <= limit), len(nodes)]
    work, kept = [0.0, *accumulate(loads.work)], [0, *accumulate(loads.kept)]
    first = [0, *accumulate(_at_first_use(loads, len(nodes)))]
    again = [one for one in loads.state if one[1] >= 0]

    def time(stage: int, begin: int, end: int) -> float:
        return work[end] - work[begin] + _PER_BYTE * sent[end]

    def memory(stage: int, begin: int, end: int) -> float:
        more = sum(nbytes for i, before, nbytes in again if before < begin <= i < end)
        return first[end] - first[begin] + more + flying[stage] * (kept[end] - kept[begin])

    shortest, ends = _cut(spots, count, time)
    if ends is None:
        raise SmeltError(
            f"the program does not fall into {count} stages", where, code="S0641",
            why=f"there are {len(spots) - 2} points between which little is sent", fix="use fewer stages",
        )  # fmt: skip

    def small(stage: int, begin: int, end: int) -> float:
        return memory(stage, begin, end) if time(stage, begin, end) <= _AS_LONG * shortest else inf

    return _cut(spots, count, small)[1] or ends


def _at_first_use(loads: Loads, count: int) -> list[int]:
    found = [0] * count
    for i, before, nbytes in loads.state:
        if before < 0:
            found[i] += nbytes
    return found


def _cut(spots: Sequence[int], count: int, price: Callable[[int, int, int], float]) -> tuple[float, list[int] | None]:
    """The ends of `count` stages of which the dearest costs least; None where there are too few spots, or all cost inf.

    price: of a stage by its number, from one spot to another.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {spots[0]: (0.0, ())}  # by end: the dearest so far, all ends
    for stage in range(count):
        following: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in spots[1:] if stage < count - 1 else spots[-1:]:
            for begin, (dearest, ends) in best.items():
                if begin >= end:
                    continue
                now = max(dearest, price(stage, begin, end))
                if now < inf and (end not in following or now < following[end][0]):
                    following[end] = (now, (*ends, end))
        best = following
    dearest, found = best.get(spots[-1], (inf, None))
    return dearest, list(found[:-1]) if found is not None else None


def _needed_state(node: Node) -> Iterator[Value]:
    """The parameters that a node uses, through views of them."""
    pending = list(used_by(node))
    while pending:
        value = pending.pop()
        if value.node is not None and value.node.op == "param":
            yield value
        elif value.node is not None and (value.node.op == dist.ENTER or alias_of(value.node) is not None):
            pending += value.node.operands()


def sent_at(nodes: Sequence[Node], free: Collection[Value]) -> list[int]:
    """Bytes that a stage that ends before each node would send."""
    change = [0] * (len(nodes) + 2)
    place = {node: i for i, node in enumerate(nodes)}
    for i, node in enumerate(nodes):
        for value in node.results:
            last = max((place[u] for u in users_of(value) if u in place), default=i)
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                nbytes = 1 << 50  # a tuple is unpacked where it is made, and another stage has room for known sizes
            else:
                nbytes = 0 if value in free else value.type.nbytes
            change[i + 1] += nbytes
            change[last + 1] -= nbytes
    return list(accumulate(change))[: len(nodes) + 1]


def users_of(value: Value) -> list[Node]:
    """The nodes of the graph's body that use a value, from inside of their regions, too."""
    found = []
    for user in value.users:
        node = user if isinstance(user, Node) else user.owner if isinstance(user.owner, Node) else None
        while node is not None and isinstance(node.parent, Region) and isinstance(node.parent.owner, Node):
            node = node.parent.owner
        if node is not None:
            found.append(node)
    return found

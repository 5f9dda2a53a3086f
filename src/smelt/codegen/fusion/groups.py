"""The units of a graph that fusion works with: which nodes a nest may hold, what each needs, who needs it.

    %1 = exp %x; %2 = view %1; %3 = add %2, %y        ==>        %3 needs %1 through the view, and %y

Invariant: nodes of one group lie in one *segment*, between two writes; a group never waits for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from smelt.codegen.fusion.build import Built, eager_memory, pulled
from smelt.codegen.fusion.cost import NestCost, cost
from smelt.codegen.fusion.group_keys import Forms
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.regions import user_in
from smelt.codegen.fusion.rules.creation import NUMBERS
from smelt.codegen.fusion.rules.indexed_writes import part_of, writes_parts
from smelt.codegen.fusion.rules.promote import NUMBER_TYPES, memory_type
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.rules.views import VIEW_LISTS
from smelt.codegen.fusion.tidy import without_idle
from smelt.codegen.kernels.operations import DTYPES
from smelt.codegen.lower.memory.sharing import view_source
from smelt.diag.records import record
from smelt.ir import Graph, Node, Region, TensorType, Value, may_hold_tensor
from smelt.ir.sizes import blind, is_one
from smelt.ops import sets
from smelt.ops.effects import effects
from smelt.ops.raises import raises_by_data
from smelt.ops.record import Trait
from smelt.ops.registry import overload

# The second part: overloads that become others of the catalogue before they are fused.
TAKES_NUMBERS = sets.where(Trait.TAKES_RUN_NUMBERS) | {
    "aten.where.Scalar", "aten.floor_divide.Scalar", "aten.div.Scalar_mode", "aten.fmod.Scalar",
    *(f"aten.bitwise_{name}.Scalar" for name in ("and", "or", "xor")),
}  # fmt: skip
"""Operators whose rules take numbers of the run."""
Accepts = Callable[[Built], "str | None"]
"""Why a nest, which need not be canonical, cannot be emitted; None where it can."""


@dataclass(eq=False, slots=True)
class Group:
    """Nodes that one nest computes, in program order."""

    nodes: list[Node]
    segment: int
    nest_cost: NestCost
    roots: tuple[Value, ...] = ()

    @property
    @blind
    def numel(self) -> int:
        """Elements of its largest result, or of the part that it writes."""
        return max(map(_numel, self.nodes))


def _numel(node: Node) -> int:
    part = part_of(node)
    if part is not None:
        return part.numel
    return max(r.type.numel for r in node.results if isinstance(r.type, TensorType))


@record
class Trial:
    """What building a nest for some nodes told: its cost, or why there is none."""

    cost: NestCost | None
    why: str = ""


@dataclass(slots=True)
class Facts:
    """What fusion knows of a graph's values.

    order: each node's place. through: for a view, the value it is a view of, where a nest can follow. segment: how many
    writes, to parts of tensors too, stand before a node. kept: for nodes with effects, those that may raise, and those
    that write parts, which earlier ones they stay behind. raising: those that elements of tensors may make raise.
    """

    graph: Graph
    order: dict[Node, int] = field(default_factory=dict)
    segment: dict[Node, int] = field(default_factory=dict)
    kept: dict[Node, list[Node]] = field(default_factory=dict)
    raising: frozenset[Node] = frozenset()
    through: dict[Value, Value] = field(default_factory=dict)
    numbers: frozenset[Value] = frozenset()
    _users: dict[Value, tuple[frozenset[Node], bool]] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> Facts:
        """The facts of a graph's body; a node with regions needs what these need."""
        facts = Facts(graph)
        segment = 0
        numbers: set[Value] = set()
        for i, node in enumerate(graph.body):
            facts.order[node] = i
            if node.op == "write":
                segment += 1
            facts.segment[node] = segment
            if writes_parts(node):
                # What makes the part may be one with it; what stands behind it sees the memory written.
                segment += 1
            if node.op in NUMBERS and is_number(node):
                numbers.update(node.results)
            source = view_source(node) if node.op != "write" and not has_numbers(node) else None
            if source is None or (node.op not in RULES and node.op not in VIEW_LISTS):
                continue
            for result in node.results:
                if _keeps_dtype(result, source):
                    facts.through[result] = source
        facts.numbers = frozenset(numbers)
        facts._keep_order()
        facts.raising = frozenset(filter(_may_raise, facts.order))
        return facts

    def _keep_order(self) -> None:
        last: Node | None = None  # with an effect
        acting: Node | None = None  # outside
        raising: list[Node] = []  # since then
        computing: list[Node] = []  # in the segment so far, views left out
        for node in self.order:
            found = effects(node)
            earlier = [] if last is None or found.is_pure else [last]
            if writes_parts(node):
                earlier += computing
            if node.op == "write" or writes_parts(node):
                computing = []
            elif any(result not in self.through for result in node.results):
                computing.append(node)
            if found.may_throw and acting is not None:
                earlier.append(acting)
            if found.io:
                earlier += raising
                acting, raising = node, []
            if found.may_throw:
                raising.append(node)
            if not found.is_pure:
                last = node
            if earlier:
                self.kept[node] = earlier

    def source(self, value: Value) -> Value:
        """What a value is a view of, views of views followed."""
        while value in self.through:
            value = self.through[value]
        return value

    def path(self, value: Value) -> list[Value]:
        """The views from a value down to what it is a view of, the last not counted."""
        found = []
        while value in self.through:
            found.append(value)
            value = self.through[value]
        return found

    def users(self, value: Value) -> tuple[frozenset[Node], bool]:
        """The nodes that need a value, views looked through, and whether something else does (an output, a write)."""
        if value not in self._users:
            self._users[value] = self._find_users(value)
        return self._users[value]

    def _find_users(self, value: Value) -> tuple[frozenset[Node], bool]:
        nodes: set[Node] = set()
        others = False
        pending = [value]
        while pending:
            current = pending.pop()
            for where in current.users:
                user = user_in(self.graph.body, where)
                if user is None or user.op == "write":
                    others = True
                    continue
                seen = [r for r in user.results if r in self.through and self.through[r] is current]
                if seen:
                    pending.extend(seen)
                    if len(seen) < len(user.results):
                        nodes.add(user)
                else:
                    nodes.add(user)
        return frozenset(nodes), others

    def inside(self, nodes: Iterable[Node]) -> frozenset[Value]:
        """All values that a nest of these nodes computes: their results, views between them, numbers."""
        made = {r for node in nodes for r in node.results}
        found = set(made)
        for node in nodes:
            for operand in node.operands():
                if self.source(operand) in made or self.source(operand) in self.numbers:
                    found.update(self.path(operand))
        return frozenset(found | self.numbers)

    def roots(self, nodes: Sequence[Node]) -> tuple[Value, ...]:
        """The results that somebody besides these nodes needs."""
        members = set(nodes)
        found = []
        for node in nodes:
            for result in node.results:
                users, others = self.users(result)
                if others or not users <= members:
                    found.append(result)
        return tuple(found)


def _may_raise(node: Node) -> bool:
    found = None if node.regions else overload(node.op)
    return found is not None and raises_by_data(node, found)


def is_number(node: Node) -> bool:
    """Whether a node's elements are one number that stands in the graph."""
    if node.op != "const":
        sized = node.op != "aten.scalar_tensor.default"  # the first argument is a size, or a tensor of that size
        return not any(isinstance(v, Value) for v in node.args[sized:])
    type_ = node.result.type
    return isinstance(type_, TensorType) and is_one(type_.numel) and not isinstance(node.args[0], str)


def _keeps_dtype(result: Value, source: Value) -> bool:
    if isinstance(result.type, TensorType) and isinstance(source.type, TensorType):
        return result.type.dtype is source.type.dtype
    return True


def is_fusible(node: Node) -> bool:
    """Whether there is a rule for a node and it only computes."""
    if part_of(node) is not None:
        return "autocast" not in node.mode
    if node.op not in RULES or node.op == "const" or node.regions or "autocast" in node.mode or not node.results:
        return False
    types = [r.type for r in node.results]
    if not all(isinstance(t, TensorType) and _is_plain(t) for t in types):
        return False
    if has_numbers(node):
        if view_source(node) is not None and is_returned(node.result):
            return False
        return node.op in TAKES_NUMBERS and all(_is_plain(t) for v in node.operands() if (t := memory_type(v.type)))
    operands = [v.type for v in node.operands()]
    if not all(isinstance(t, TensorType) and _is_plain(t) for t in operands):
        return False
    return effects(node).is_pure and view_source(node) is None


def has_numbers(node: Node) -> bool:
    """Whether an operand is a Python number of the run; all others are tensors."""
    types = [v.type for v in node.operands()]
    return any(t in NUMBER_TYPES for t in types) and all(memory_type(t) is not None for t in types)


def is_returned(value: Value) -> bool:
    """Whether a value, or a view of it, is a result of the program or in one: it then has to lie where eager's does."""
    pending, seen = [value], {value}
    while pending:
        current = pending.pop()
        for user in current.users:
            if isinstance(user, Region) and isinstance(user.owner, Graph):
                return True
            new = [v for v in _holders(current, user) if v not in seen]
            pending.extend(new)
            seen.update(new)
    return False


def _holders(value: Value, user: Node | Region) -> Sequence[Value]:
    """What shares a tensor's memory, or holds it, behind one use; what regions yield of tensors is a copy."""
    if isinstance(value.type, TensorType):
        if isinstance(user, Region) or user.regions:
            return ()
        if view_source(user) is value:
            return user.results
        return [r for r in user.results if not isinstance(r.type, TensorType) and may_hold_tensor(r.type)]
    if isinstance(user, Node) and not user.regions:
        # Torch's operators join what is in a container; they give nothing of it.
        return [r for r in user.results if may_hold_tensor(r.type)] if not user.op.startswith("aten.") else ()
    if isinstance(user, Node):
        # The first of what a loop carries: its bounds, which no container is, stand in front.
        shift = 3 if user.op == "for" else 0
        places = [i - shift for i, arg in enumerate(user.args) if arg is value]
        return [v for k in places for v in (*_carried(user, k), user.results[k])]
    owner = user.owner
    assert isinstance(owner, Node)
    is_test = owner.op == "while" and user is owner.regions[0]
    places = [] if is_test else [k for k, arg in enumerate(user.yields) if arg is value]
    return [v for k in places for v in (*_carried(owner, k), owner.results[k])]


def _carried(loop: Node, place: int) -> list[Value]:
    return [region.params[place + (loop.op == "for")] for region in loop.regions if loop.op in ("for", "while")]


def _is_plain(type_: TensorType) -> bool:
    return type_.is_static and type_.device == "cpu" and type_.layout == "strided" and type_.dtype in DTYPES


class Trials:
    """Nests built to see whether, and at what cost; equal groups of equal types are built once."""

    def __init__(self, facts: Facts, accepts: Accepts) -> None:
        self.facts = facts
        self.forms = Forms(facts)
        self._accepts = accepts
        self._known: dict[Hashable, Trial] = {}

    def of(self, nodes: Sequence[Node], roots: Sequence[Value]) -> Trial:
        """What a nest of these nodes (in program order) that stores these values would cost."""
        key = self.forms.of(nodes, roots).key
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._build(nodes, roots)
        return found

    def _build(self, nodes: Sequence[Node], roots: Sequence[Value]) -> Trial:
        try:
            found = pulled(roots, self.facts.inside(nodes), RULES, eager_memory, eager_memory)
        except Unfusible as why:
            return Trial(None, str(why))
        built = replace(found, nest=without_idle(found.nest))
        refusal = self._accepts(built)
        return Trial(None, refusal) if refusal is not None else Trial(cost(built.nest))

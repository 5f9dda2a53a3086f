"""Which memory values lie in where there are regions and containers, and whether writes may be taken apart there.

What an `if` or a loop yields, and what is in a container, may be one of several tensors. Such a value (a *junction*)
is a root of its own here, fed by its sources. That is the truth only if no write to one of several roots that may be
the same memory is seen through another of them: `conflicts` finds the roots for which that cannot be said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from smelt.analysis.aliases import Aliases, is_external
from smelt.ir import Arg, Graph, Node, Region, Value, may_hold_tensor, values_in
from smelt.ops.effects import aliases as node_aliases

_LOOPS = ("for", "while")
_CONTROL = ("if", *_LOOPS)

Instance = tuple[Value, frozenset[Node]]
"""A root, and the loops whose earlier iteration it was made in."""


@dataclass(slots=True)
class RegionAliases:
    """local: the root of each value. sources: what feeds each junction, with the loop whose next iteration it feeds."""

    local: dict[Value, Value] = field(default_factory=dict)
    sources: dict[Value, list[tuple[Value, Node | None]]] = field(default_factory=dict)

    def as_aliases(self) -> Aliases:
        """The roots alone."""
        return Aliases({v: frozenset((r,)) for v, r in self.local.items()}, frozenset(), frozenset())

    def reach(self, roots: Iterable[Value], goes_on: Callable[[Value], bool] = lambda _: True) -> set[Value]:
        """Roots and all that feeds them, as far as it goes on."""
        found = set(roots)
        pending = list(found)
        while pending:
            value = pending.pop()
            if goes_on(value):
                new = {source for source, _ in self.sources.get(value, ())} - found
                found |= new
                pending.extend(new)
        return found

    def component(self, roots: Iterable[Value]) -> set[Value]:
        """The roots that are joined with any of some by junctions."""
        found = set(roots)
        if not found:
            return found
        edges: dict[Value, list[Value]] = {}
        for junction, feeding in self.sources.items():
            for source, _ in feeding:
                edges.setdefault(junction, []).append(source)
                edges.setdefault(source, []).append(junction)
        pending = list(found)
        while pending:
            for other in edges.get(pending.pop(), ()):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        return found


def region_aliases(graph: Graph) -> RegionAliases:
    """The roots and junctions of a whole graph."""
    found = RegionAliases()
    _region(graph.body, found)
    return found


def _region(region: Region, found: RegionAliases) -> None:
    for param in region.params:
        found.local.setdefault(param, param)
    for node in region:
        if node.op in _CONTROL:
            _control(node, found)
            continue
        for result, shared in zip(node.results, node_aliases(node), strict=True):
            if not shared:
                found.local[result] = result
            elif len(shared) == 1 and _is_view(node, shared[0]):
                found.local[result] = found.local[shared[0]]
            else:
                _junction(result, ((v, None) for v in shared), found)


def _is_view(node: Node, base: Value) -> bool:
    """Whether a node's result is a view of one tensor, or one of the views that an operator gave as a list."""
    if node.op == "unpack":
        return base.node is not None and base.node.op not in _CONTROL and not base.node.op.startswith("py.")
    return not node.op.startswith("py.")


def _always_turns(node: Node) -> bool:
    """Whether a loop is known to run its body: it then gives what that yields, not what it began with."""
    if node.op != "for":
        return False
    start, stop, step = node.args[:3]
    known = type(start) is int and type(stop) is int and type(step) is int and step != 0
    return known and len(range(start, stop, step)) > 0  # type: ignore[arg-type]


def _junction(value: Value, feeding: Iterable[tuple[Value, Node | None]], found: RegionAliases) -> None:
    found.local[value] = value
    found.sources[value] = [(found.local[v], loop) for v, loop in feeding if may_hold_tensor(v.type)]


def _control(node: Node, found: RegionAliases) -> None:
    skip = 1 if node.op == "for" else 0
    inits: Sequence[Arg] = () if node.op == "if" else node.args[3 * skip :]
    for region in node.regions:
        _region(region, found)
    body = node.regions[-1]
    for i, result in enumerate(node.results):
        if not may_hold_tensor(result.type):
            found.local[result] = result
            continue
        if node.op == "if":
            _junction(result, ((v, None) for r in node.regions for v in values_in(r.yields[i])), found)
            continue
        yielded, first = list(values_in(body.yields[i])), list(values_in(inits[i]))
        for region in node.regions:
            param = region.params[i + (skip if region is body else 0)]
            _junction(param, [*((v, None) for v in first), *((v, node) for v in yielded)], found)
        feeding = yielded if _always_turns(node) else [*first, *yielded]
        _junction(result, ((v, None) for v in feeding), found)


def conflicts(graph: Graph, found: RegionAliases, writes: Iterable[tuple[Node, Value]]) -> set[Value]:
    """The roots whose memory is written, by one of these nodes to this value, while another root may be the same.

    All that such roots are joined with by junctions comes along.
    """
    judge = _Judge(graph, found)
    bad: set[Value] = set()
    outputs = {found.local[v] for arg in graph.outputs for v in values_in(arg) if may_hold_tensor(v.type)}
    for node, value in writes:
        root = found.local[value]
        if root in bad:
            continue
        for other in judge.sharing(root):
            is_returned = is_external(root) and other in outputs
            if is_returned or judge.is_seen_after(other, node):
                bad |= {root, other}
    return found.component(bad)


class _Judge:
    """Order and lifetime of uses, and which instances of roots share memory."""

    def __init__(self, graph: Graph, found: RegionAliases) -> None:
        self.graph = graph
        self.found = found
        self.place: dict[Node, int] = {}
        self.users: dict[Value, set[Node | Region]] = {}
        for region in _regions(graph.body):
            for i, node in enumerate(region):
                self.place[node] = i
        for value, root in found.local.items():
            self.users.setdefault(root, set()).update(value.users)
        self._instances: dict[Value, frozenset[Instance]] = {}
        self._by_instance: dict[Instance, set[Value]] = {}
        fed = {source for feeding in found.sources.values() for source, _ in feeding}
        for root in fed | found.sources.keys():
            for instance in self.instances(root):
                self._by_instance.setdefault(instance, set()).add(root)

    def instances(self, root: Value) -> frozenset[Instance]:
        """Everything that a root may be: itself and what feeds it, each as made now or in an earlier iteration."""
        known = self._instances.get(root)
        if known is None:
            seen: set[Instance] = set()
            pending: list[Instance] = [(root, frozenset())]
            while pending:
                one = pending.pop()
                if one in seen:
                    continue
                seen.add(one)
                for source, loop in self.found.sources.get(one[0], ()):
                    loops = one[1] | {loop} if loop is not None else one[1]
                    # What is made outside a loop is the same in all of its iterations.
                    pending.append((source, frozenset(n for n in loops if is_inside(source, n))))
            known = self._instances[root] = frozenset(seen)
        return known

    def sharing(self, root: Value) -> set[Value]:
        """The other roots that may be the same memory."""
        found: set[Value] = set()
        for instance in self.instances(root):
            found |= self._by_instance.get(instance, set())
        return found - {root}

    def is_seen_after(self, root: Value, write: Node) -> bool:
        """Whether a root that is bound before a write may be used after it."""
        home = root.owner if isinstance(root.owner, Region) else root.owner.parent
        path = self.path(write)
        if home not in path or home is None:
            return False
        if isinstance(root.owner, Node) and self.place[root.owner] >= path[home]:
            # Bound by what holds the write, or behind it.
            return False
        if is_external(root):
            return True
        return any(self.is_after(user, write, home) for user in self.users.get(root, ()))

    def path(self, node: Node) -> dict[Region, int]:
        """The place of a node, or of what holds it, in each region around it."""
        found: dict[Region, int] = {}
        at: Node | None = node
        while at is not None and at.parent is not None:
            found[at.parent] = self.place[at]
            owner = at.parent.owner
            at = owner if isinstance(owner, Node) else None
        return found

    def is_after(self, user: Node | Region, write: Node, home: Region) -> bool:
        """Whether a use may come after a write, both somewhere inside a region."""
        written = list(reversed(self.path(write).items()))
        used = self._path_of_use(user)
        for region, place in written[next(i for i, (r, _) in enumerate(written) if r is home) :]:
            at = used.get(region)
            if at is None:
                # In the other arm.
                return False
            if at != place:
                return at > place
            holder = next(n for n in region if self.place[n] == place)
            if user is write:
                return True
            if user is holder:
                # It reads its operands before anything inside it runs.
                return False
            if holder.op in _LOOPS:
                return True
        return False

    def _path_of_use(self, user: Node | Region) -> dict[Region, int]:
        if isinstance(user, Node):
            return self.path(user)
        found = self.path(user.owner) if isinstance(user.owner, Node) else {}
        return {user: 1 << 60, **found}


def _regions(region: Region) -> Iterator[Region]:
    yield region
    for node in region:
        for inner in node.regions:
            yield from _regions(inner)


def is_inside(value: Value, loop: Node) -> bool:
    """Whether a value is bound inside a loop: made there, or a parameter of its regions."""
    region = value.owner if isinstance(value.owner, Region) else value.owner.parent
    while region is not None:
        owner = region.owner
        if owner is loop:
            return True
        region = owner.parent if isinstance(owner, Node) else None
    return False

"""Outputs that are a new tensor on one way and a tensor from outside on another.

    return x if c else x + 1        eager gives back x itself where c holds

What a branch or a loop gives lies in the plan's own memory, so one more number comes out of it that says which it was:

    %4, %w = if %c { yield %x, 1 } else { %5 = add %x, 1; yield %5, 0 }     # 0: new; n: the n-th of `options`

Invariant: an output that may be memory from outside in a way that cannot be told so is refused, never copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from smelt.analysis.aliases import is_external
from smelt.analysis.region_aliases import RegionAliases, region_aliases
from smelt.analysis.turns import takes_a_turn
from smelt.codegen.lower.context import cannot_lower
from smelt.codegen.lower.memory.sharing import view_source
from smelt.codegen.lower.unknown.outside_memory import handed_on, reached
from smelt.diag.records import record
from smelt.ir import Arg, Graph, Node, Region, TensorType, Value, may_hold_tensor, values_in
from smelt.ir.types import BOOL, INT
from smelt.rewrite import Rewriter
from smelt.rewrite.regions import add_carried, add_result, first_carried

_CONTROL = ("if", "for", "while")


@record
class Choice:
    """Which tensor an output is: the number that says so, and what stands for 1, 2, ... (0 is the output as made)."""

    which: Value
    options: tuple[Value, ...]


@dataclass(slots=True)
class _Picker:
    """One output's way back through branches and loops."""

    rewriter: Rewriter
    output: Value
    options: list[Value] = field(default_factory=list)
    known: dict[Value, Arg] = field(default_factory=dict)

    def of(self, value: Arg) -> Arg:
        """A number in the value's region: where the tensor comes from."""
        if not isinstance(value, Value):
            return 0
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._made(value)
        return found

    def _made(self, value: Value) -> Arg:
        root = _root(value)
        if is_external(root):
            self.options.append(value)
            return len(self.options)
        node = root.node
        if not any(map(is_external, reached([root]))):
            return 0
        if root is not value and (node is None or node.op in _CONTROL):
            # A view of what may be from outside: the number alone does not tell which view of it.
            self.refuse(root)
        if node is None:
            self._of_parameter(root)
            return self.known[root]
        if node.op == "if":
            return self._of_branch(node, node.results.index(root))
        if node.op in _CONTROL:
            index = node.results.index(root)
            if takes_a_turn(node) and not any(map(is_external, reached(values_in(node.regions[-1].yields[index])))):
                return 0  # what it begins with does not come out of it
            return self._of_loop(node, index)
        return self._of_element(node, root) if node.op in ("py.getitem", "py.pop") else 0

    def _of_element(self, node: Node, root: Value) -> Arg:
        """Of a list that begins with one given tensor and then grows by new ones, its length tells.

        %5 = py.getitem(%l, -1)
            ==>   %5, %w = if %is_first { yield %x, 1 } else { %6 = py.getitem(%l, -1); yield %6, 0 }
        """
        container, place = node.args
        first = _given(container) if isinstance(container, Value) else None
        if first is None or type(place) is not int or place >= 0:
            self.refuse(root)
        numbers = [self.of(value) for value in first]
        if -place <= _least_added(container, None):
            return 0
        if node.op != "py.getitem" or [type(number) for number in numbers] != [int]:
            self.refuse(root)
        builder = self.rewriter.builder
        with builder.at(node):
            behind = builder.add("py.add", [builder.add("py.len", [container], [INT]).result, place], [INT]).result
            made = builder.add("if", [builder.add("py.eq", [behind, 0], [BOOL]).result], [root.type, INT])
        builder.add_region(made).set_yields((first[0], numbers[0]))
        with builder.inside(builder.add_region(made)) as region:
            region.set_yields((builder.add(node.op, node.args, [root.type]).result, 0))
        self.rewriter.adopt(made)
        self.rewriter.replace_node(node, made.results[:1])
        return made.results[1]

    def _of_branch(self, node: Node, index: int) -> Arg:
        arms = [self.of(region.yields[index]) for region in node.regions]
        if arms == [0, 0]:
            return 0
        which = add_result(self.rewriter, node, INT)
        for region, arm in zip(node.regions, arms, strict=True):
            self.rewriter.set_yields(region, (*region.yields, arm))
        return which

    def _of_parameter(self, param: Value) -> None:
        """Make the numbers of another value that the loop carries, where they change places."""
        region = param.owner
        assert isinstance(region, Region) and isinstance(region.owner, Node)
        loop = region.owner
        skip = 1 if loop.op == "for" and region is loop.regions[-1] else 0
        self._of_loop(loop, region.params.index(param) - skip)

    def _of_loop(self, node: Node, index: int) -> Arg:
        first = self.of(node.args[first_carried(node) + index])
        params = add_carried(self.rewriter, node, first, INT)
        skip = 1 if node.op == "for" else 0
        for region, number in zip(node.regions, params, strict=True):
            self.known[region.params[index + (skip if region is node.regions[-1] else 0)]] = number
        which = add_result(self.rewriter, node, INT)
        self.known[node.results[index]] = which
        body = node.regions[-1]
        # Its place is taken first: on the way back numbers of other carried values may be added.
        place = len(body.yields)
        self.rewriter.set_yields(body, (*body.yields, 0))
        told = self.of(body.yields[index])
        self.rewriter.set_yields(body, (*body.yields[:place], told, *body.yields[place + 1 :]))
        return which

    def refuse(self, root: Value) -> NoReturn:
        node = self.output.node
        assert node is not None
        raise cannot_lower(node, f"it may be a view of %{root.name}, which may be memory from outside")


def _given(container: Value) -> tuple[Arg, ...] | None:
    """What a list begins with on every way, where all that is added to it later is new; else None."""
    given: set[Node] = set()
    seen, pending = set[Value](), [container]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.node
        if node is None or node.op in _CONTROL:
            pending.extend(handed_on(value))
        elif node.op == "py.append" and isinstance(node.args[0], Value):
            if any(map(is_external, reached(values_in(node.args[1])))):
                return None
            pending.append(node.args[0])
        elif node.op == "py.list":
            given.add(node)
        else:
            return None
    return next(iter(given)).args if len(given) == 1 else None


def _least_added(container: Arg, since: Value | None) -> int:
    """How many elements are added to a list at least, from what it begins with or from a value on."""
    added, value = 0, container
    while isinstance(value, Value) and value is not since and value.node is not None:
        node = value.node
        if node.op == "py.append":
            added, value = added + 1, node.args[0]
        elif node.op == "for":
            index, (body,) = node.results.index(value), node.regions
            start, stop, step = node.args[:3]
            if type(start) is int and type(stop) is int and type(step) is int:
                added += len(range(start, stop, step)) * _least_added(body.yields[index], body.params[1 + index])
            value = node.args[3 + index]
        else:
            break
    return added


def with_choices(graph: Graph) -> tuple[Graph, dict[int, Choice]]:
    """A graph with the numbers that tell, and the choice of each output that needs one; the graph itself without any.

    Raises: SmeltError (S0303) where one output may lie in another's memory, or be a view of memory from outside, on
        some ways only.
    """
    if not any(node.op in _CONTROL for node in graph.body):
        return graph, {}
    found = region_aliases(graph)
    wanted = [i for i, arg in enumerate(graph.outputs) if _may_be_outside(found, arg)]
    refuse_shared(graph, found)
    if not wanted:
        return graph, {}
    copy = graph.clone()
    rewriter = Rewriter(copy)
    made: dict[int, Choice] = {}
    for i in wanted:
        output = copy.outputs[i]
        assert isinstance(output, Value)
        if not isinstance(output.type, TensorType):
            assert output.node is not None
            raise cannot_lower(output.node, "it may hold a tensor from outside")
        picker = _Picker(rewriter, output)
        which = picker.of(output)
        if isinstance(which, Value):
            made[i] = Choice(which, tuple(picker.options))
    return copy, made


def _may_be_outside(found: RegionAliases, arg: Arg) -> bool:
    if not isinstance(arg, Value) or not may_hold_tensor(arg.type):
        return False
    root = found.local[arg]
    sources = set() if is_external(root) else _sources(found, root)
    return any(is_external(r) for r in sources) and any(map(_is_junction, sources))


def _is_junction(root: Value) -> bool:
    """Whether a root is what a branch or a loop gives, or carries."""
    owner = root.owner.owner if isinstance(root.owner, Region) else root.owner
    return isinstance(owner, Node) and owner.op in _CONTROL


def refuse_shared(graph: Graph, found: RegionAliases | None = None) -> None:
    """Raises: SmeltError (S0303) where two outputs share memory on some ways only."""
    found = region_aliases(graph) if found is None else found
    seen: dict[Value, Value] = {}
    for value in dict.fromkeys(v for arg in graph.outputs for v in values_in(arg) if may_hold_tensor(v.type)):
        root = found.local[value]
        for source in (s for s in _sources(found, root) if not is_external(s)):
            other = seen.setdefault(source, root)
            if other is not root:
                node = value.node or root.node or other.node
                assert node is not None
                raise cannot_lower(node, "two results may share memory, on some paths only")


def _sources(found: RegionAliases, root: Value) -> set[Value]:
    """The roots that a root may be: itself, or where a branch or a loop gives it, what feeds it."""
    reached, pending = {root}, [root]
    while pending:
        for source, _ in found.sources.get(pending.pop(), ()):
            if source not in reached:
                reached.add(source)
                pending.append(source)
    return reached


def _root(value: Value) -> Value:
    current = value
    while current.node is not None:
        source = view_source(current.node) if current.node.op not in _CONTROL else None
        if source is None:
            return current
        current = source
    return current

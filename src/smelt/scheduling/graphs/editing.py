"""Editing the graph of one module's forward: regions of matched nodes, and what is put in their place.

    region = editor.region(matches)                      legal, or ScheduleError, before anything changes
    values = editor.inline(f, operands, region)          a function's operators, or
    values = editor.call("Identity_0", f, operands, ...) a call of a module, function or kernel as one node
    editor.put(region, values)

Invariant: the graph is edited through one `Rewriter`; values that take others' places have their dtypes and sizes, and
where their strides differ, the types of all that follows from them are told anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.diag import InternalError, ScheduleError, SmeltError, Span
from smelt.diag.records import distinct_record
from smelt.ir import (
    Arg,
    Graph,
    Node,
    Region,
    TensorType,
    TupleType,
    Type,
    Value,
    clone_node,
    map_values,
    values_in,
)
from smelt.ir import verify as verify_graph
from smelt.ops.check import check
from smelt.ops.convert import type_of
from smelt.ops.effects import effects
from smelt.ops.modes import entered
from smelt.ops.typing import infer
from smelt.rewrite import Rewriter
from smelt.scheduling.finding.finding import reader
from smelt.scheduling.finding.forms import STATE, is_arithmetic
from smelt.scheduling.finding.match import Match
from smelt.scheduling.finding.selector import Selector
from smelt.scheduling.finding.target import Target, join
from smelt.scheduling.graphs.running import CALL
from smelt.scheduling.modules.copying import has_hooks
from smelt.scheduling.modules.functions import Inlined, inlined

Calls = dict[str, Callable[..., Any]]
RegionCall = tuple[str, Callable[..., Any], tuple[Type, ...]]
"""A region that a step made: the name of its call, what it calls, and the types of its operands."""


@distinct_record
class GraphStep:
    """A step on the graph of a module's forward, to be taken on each capture of it.

    edit: what changes the editor's graph for the matches, with the arguments. selector: None where it is about calls
    that earlier steps put there, which the arguments name.
    """

    name: str
    edit: Callable[..., None]
    selector: Selector | None
    arguments: Mapping[str, Any]
    keeps_meaning: bool
    where: Span | None = None

    def __str__(self) -> str:
        return self.name if self.selector is None else f"{self.name} of {self.selector}"


@distinct_record
class Edited:
    """A graph with all steps taken, what it calls, the tensors that steps brought along, by name, what they read, and
    the regions that they made.
    """

    graph: Graph
    calls: Calls
    state: dict[str, torch.Tensor]
    reads: tuple[Any, ...] = ()
    regions: tuple[RegionCall, ...] = ()


@distinct_record
class PartOfGraph:
    """Nodes that can be replaced as one: in order, with what they use and give.

    writes: those of the nodes that write to buffers. anchor: what stands behind the last node; None at the end.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    matches: tuple[Match, ...]
    followers: tuple[Node, ...] = ()

    @property
    def where(self) -> Span | None:
        """The user's first line."""
        return next((node.span for node in self.nodes if node.span is not None), None)

    @property
    def mode(self) -> str:
        """What is switched on around the part, as of a node. Raises: ScheduleError (S0609) where that is not one."""
        computing = [node for node in self.nodes if node.op not in STATE and not is_arithmetic(node)]
        modes = dict.fromkeys(node.mode for node in computing)
        if len(modes) > 1:
            told = " and ".join(mode or "without" for mode in modes)
            raise _illegal(
                f"they run under different modes: {told}", next(n for n in computing if n.mode),
                "match what runs under one mode", "what is put there runs under one",
            )  # fmt: skip
        return next(iter(modes), "")


@dataclass
class Editor:
    """One graph being edited.

    path: of its module. is_concrete: all types are known, as of a captured call. tensors: what stands behind the
    graph's parameters and buffers, where that is known. reads: what functions read while they became operators.
    """

    graph: Graph
    module: torch.nn.Module
    path: str = ""
    is_concrete: bool = True
    calls: Calls = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    reads: list[Any] = field(default_factory=list)
    regions: list[RegionCall] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rewriter = Rewriter(self.graph)
        # What nobody needed before is the program's own affair: it may be all that can be seen of one that cannot run.
        self._idle = {node for node in self.graph.body if not any(result.users for result in node.results)}

    def target(self) -> Target:
        """The graph as it is now, prepared for a search."""
        modules = {join(self.path, name): module for name, module in self.module.named_modules()}
        return Target(self.graph, self.path, modules)

    # --- what may be replaced

    def part(self, matches: Sequence[Match], *, hooks_allowed: bool = False) -> PartOfGraph:
        """The nodes of matches as one part.

        Raises: ScheduleError: S0609 where they overlap, an inner value is used outside, something outside depends on
            one and is needed by another, or effects would change their order; S0610 where a hook lies inside.
        """
        nodes = _disjoint(matches)
        taken = next((node for node in nodes if node.parent is None), None)
        if taken is not None:
            raise _overlap(taken)  # another match of the step has replaced it
        home = nodes[0].parent
        stray = next((node for node in nodes if node.parent is not home), None)
        if stray is not None or home is None:
            raise _illegal("they are in different branches or loops", stray, "select a match in one of them")
        if not hooks_allowed:
            self._check_hooks(matches, nodes)
        position = {node: i for i, node in enumerate(home)}
        ordered = tuple(sorted(nodes, key=position.__getitem__))
        inside = set(ordered)
        outputs = list(dict.fromkeys(value for match in matches for value in _outputs(match)))
        for node in ordered:
            for result in node.results:
                if result not in outputs and any(_user_node(user) not in inside for user in result.users):
                    raise _illegal(
                        f"%{result.name} is used outside", node,
                        "let the pattern return it, or match what uses it, too", f"it comes from {node.op}",
                    )  # fmt: skip
        followers = _followers(home, ordered, inside)
        inputs = dict.fromkeys(
            value for node in ordered for value in node.operands() if value.node is None or value.node not in inside
        )
        return PartOfGraph(ordered, tuple(inputs), tuple(outputs), tuple(matches), followers)

    def _check_hooks(self, matches: Sequence[Match], nodes: Sequence[Node]) -> None:
        scopes = {scope for node in nodes for scope in _ancestors(node.scope)}
        for scope in sorted(scopes):
            module = _submodule(self.module, scope)
            if scope and module is not None and has_hooks(module):
                raise hooked(module, join(self.path, scope), nodes[0].span)

    # --- what is put there

    def anchor(self, part: PartOfGraph) -> Node | None:
        """Where new nodes go: behind the last of the part that computes; what depends on the part follows them."""
        last = [node for node in part.nodes if node.op != "write"][-1]
        anchor = last.next
        # From the last one on, so that each stands before what uses it.
        for node in reversed(part.followers):
            self.rewriter.move(node, anchor)
            anchor = node
        return anchor

    def inline(
        self, function: Callable[..., Any], operands: Sequence[Arg], part: PartOfGraph, *, reads_nothing: bool = False
    ) -> list[Value] | None:
        """A function's operators on these operands, put behind the part; None where it is none of operators only.

        reads_nothing: known to read nothing besides its operands.
        Raises: ScheduleError (S0608) where it cannot run on such operands.
        """
        if not self.is_concrete:
            return None
        with entered(part.mode):
            found = inlined(function, operands, part.where, reads_nothing=reads_nothing)
        if found is None:
            return None
        return self._splice(found, part)

    def _splice(self, found: Inlined, part: PartOfGraph) -> list[Value]:
        anchor = self.anchor(part)
        scope = _common_scope(part)
        mapping: dict[Value, Arg] = dict(zip(found.graph.inputs, found.operands, strict=True))
        renamed = self._bring(found.state)
        self.reads += found.reads
        builder = self.rewriter.builder
        home = part.nodes[0].parent
        assert home is not None
        for node in found.graph.body:
            copy = clone_node(node, mapping)
            if node.op in STATE:
                copy.set_arguments((renamed[str(node.args[0])],))
            for value in copy.results:
                value.name = builder.fresh_name(value.name if not value.name.isdigit() else "")
            copy.scope, copy.mode = scope, f"{part.mode} {copy.mode}".strip()
            home.insert(copy, anchor)
            self.rewriter.adopt(copy)
        self.graph.constants.update(found.graph.constants)
        given = [map_values(arg, lambda v: mapping.get(v, v)) for arg in found.graph.outputs]
        return [value for arg in given for value in values_in(arg)]

    def _bring(self, state: Mapping[str, torch.Tensor]) -> dict[str, str]:
        renamed: dict[str, str] = {}
        for name, tensor in state.items():
            wish, n = f"step.{name}", 1
            while wish in self.state:
                wish, n = f"step{n}.{name}", n + 1
            self.state[wish] = tensor
            renamed[name] = wish
        return renamed

    def call(
        self, name: str, function: Callable[..., Any], operands: Sequence[Arg], types: Sequence[Type],
        part: PartOfGraph, scope: str | None = None, mode: str = "",
    ) -> list[Value]:  # fmt: skip
        """One node behind the part that calls a function with these operands; the function gives a list of results.

        mode: what is switched on around the call, beside what the function's own operators have around them.
        """
        self.calls[name] = function
        anchor = self.anchor(part)
        home = part.nodes[0].parent
        assert home is not None
        builder = self.rewriter.builder
        with builder.inside(home):
            builder.before = anchor
            builder.span, builder.scope = part.where, _common_scope(part) if scope is None else scope
            builder.mode = mode
            node = builder.add(CALL, (name, tuple(operands)), [TupleType(tuple(types))])
            results = builder.add("unpack", (node.result,), list(types))
            builder.span, builder.scope, builder.mode = None, "", ""
        self.rewriter.adopt(node)
        self.rewriter.adopt(results)
        return list(results.results)

    def free_name(self, wish: str) -> str:
        """A name for a call that there is not yet: the wish, `wish_0`, ..."""
        n = 0
        while f"{wish}_{n}" in self.calls:
            n += 1
        return f"{wish}_{n}"

    def put(self, part: PartOfGraph, values: Sequence[Value]) -> None:
        """Put values in the places of the part's outputs, and take its nodes out.

        Raises: ScheduleError (S0608) where their number, dtypes or sizes differ.
        """
        outputs = part.outputs
        if len(values) != len(outputs):
            raise _unfit(
                f"the replacement gives {len(values)} result{'s' * (len(values) != 1)}, "
                f"what it replaces {len(outputs)}", part,
                "give as many, in the order of the pattern's (for several matches: of the matches)",
                "each result replaces one",
            )  # fmt: skip
        for new, old in zip(values, outputs, strict=True):
            _check_type(new.type, old.type, part)
        changed = {new: old.type for new, old in zip(values, outputs, strict=True) if new.type != old.type}
        for new, old in zip(values, outputs, strict=True):
            self._replace_outside(old, new, part.nodes)
        for node in reversed(part.nodes):
            self.rewriter.erase(node)
        self._retype(changed)

    def pass_through(self, values: Sequence[Value], shown: Sequence[Value]) -> None:
        """Have all that uses some values use those that a call made of them instead, but for that call."""
        (unpack,) = {value.node for value in shown}
        assert unpack is not None
        (call,) = {value.node for value in unpack.operands()}
        for old, new in zip(values, shown, strict=True):
            self._replace_outside(old, new, (call,))

    def _replace_outside(self, old: Value, new: Value, but: Sequence[Node | None]) -> None:
        """Use another value wherever `old` is used, but by some nodes."""

        def swap(value: Value) -> Arg:
            return new if value is old else value

        for user in list(old.users):
            if isinstance(user, Region):
                self.rewriter.set_yields(user, tuple(map_values(arg, swap) for arg in user.yields))
            elif user not in but:
                args = tuple(map_values(arg, swap) for arg in user.args)
                self.rewriter.set_arguments(user, args, {k: map_values(arg, swap) for k, arg in user.kwargs.items()})

    def _retype(self, changed: Mapping[Value, Type]) -> None:
        """Tell the types of what follows from values of other strides anew. changed: what their types were.

        Random numbers are drawn in the order of memory: what draws them gets its tensors as they lay.
        """
        touched = dict(changed)
        if not touched:
            return
        for node in list(self.graph.body):
            if touched.keys().isdisjoint(node.operands()) or node.op in ("write", CALL):
                continue
            if effects(node).rng:
                self._lay_out(node, touched)
                continue
            try:
                types = self._types_of(node)
            except (SmeltError, RuntimeError) as error:
                raise ScheduleError(
                    f"{node.op} cannot take what the replacement gives", node.span,
                    why=f"its strides differ: {error}", fix="give results of the strides that were there", code="S0608",
                ) from error  # fmt: skip
            if list(types) == [result.type for result in node.results]:
                continue
            again = self.rewriter.insert(
                node.op, node.args, types, node.kwargs, before=node, names=[result.name for result in node.results]
            )
            touched.update(zip(again.results, [result.type for result in node.results], strict=True))
            self.rewriter.replace_node(node, again.results)

    def _lay_out(self, node: Node, touched: Mapping[Value, Type]) -> None:
        """Give a node the operands that have other strides as they lay before."""
        copies: dict[Value, Value] = {}
        for value in dict.fromkeys(value for value in node.operands() if value in touched):
            before = touched[value]
            if not isinstance(before, TensorType) or not before.is_static or before.strides is not None:
                raise ScheduleError(
                    f"{node.op} draws random numbers for what the replacement gives", node.span,
                    why="they are drawn in the order of memory, and the replacement's result has another memory layout",
                    fix="give results of the strides that were there", code="S0608",
                )  # fmt: skip
            copies[value] = self.rewriter.insert("aten.contiguous.default", (value,), [before], before=node).result

        def swap(value: Value) -> Arg:
            return copies.get(value, value)

        args = tuple(map_values(arg, swap) for arg in node.args)
        self.rewriter.set_arguments(node, args, {name: map_values(arg, swap) for name, arg in node.kwargs.items()})

    @staticmethod
    def _types_of(node: Node) -> Sequence[Type]:
        if node.op == "unpack":
            (given,) = node.operands()
            return given.type.elements if isinstance(given.type, TupleType) else [r.type for r in node.results]
        return infer(node.op, node.args, node.kwargs)

    def finish(self) -> Edited:
        """Drop what nobody needs any more and check the graph. Raises: ScheduleError (S0609) for one that is broken."""
        for node in reversed(list(self.graph.body)):
            unused = node not in self._idle and not any(result.users for result in node.results)
            if unused and node.results and (node.op in STATE or effects(node).is_pure):
                self.rewriter.erase(node)
        try:
            verify_graph(self.graph, check)
        except SmeltError as error:
            raise ScheduleError(
                f"the step breaks the graph: {error.what}", error.where, why=error.why,
                fix="this is a defect of the primitive; report it", code="S0609",
            ) from error  # fmt: skip
        return Edited(self.graph, self.calls, self.state, tuple(self.reads), tuple(self.regions))


def edit(
    graph: Graph,
    module: torch.nn.Module,
    steps: Sequence[GraphStep],
    path: str = "",
    *,
    is_concrete: bool = True,
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> Edited:
    """A copy of a module's graph with steps taken on it; without any, the graph.

    Raises: ScheduleError: S0613 where a step finds nothing to be taken on, and whatever the steps raise.
    """
    if not steps:
        return Edited(graph, {}, {})
    editor = Editor(graph.clone(), module, path, is_concrete, tensors=tensors or {})
    for step in steps:
        take_on(editor, step)
    return editor.finish()


def take_on(editor: Editor, step: GraphStep) -> None:
    """Take one step on an editor's graph."""
    matches = [] if step.selector is None else selected(step.selector, editor.target())
    try:
        step.edit(editor, matches, **step.arguments)
    except InternalError as error:
        raise ScheduleError(
            f"{step} cannot be applied: {error.what}", error.where or step.where, why=error.why, code="S0609"
        ) from error


def selected(selector: Selector, target: Target) -> list[Match]:
    """The matches that a selector means in a graph. Raises: ScheduleError (S0613) where they are not there."""
    found = reader(selector.pattern, selector.escaping)(target)
    if selector.ordinals is None:
        if found:
            return found
    elif all(i < len(found) for i in selector.ordinals):
        return [found[i] for i in selector.ordinals]
    why, fix = f"its graph has {len(found)} match{'es' * (len(found) != 1)} of it", "see s.find(...)"
    if not target.graph.inputs:
        why += "; it has no tensor to start from, and what is computed from Python's numbers is a constant of it"
        fix = "call it with tensors: torch.tensor(4), not 4"
    where = target.prefix or "the whole"
    raise ScheduleError(f"{selector} is not found in {where}", why=why, fix=fix, code="S0613")


def _disjoint(matches: Sequence[Match]) -> list[Node]:
    taken: dict[Node, Match] = {}
    for match in matches:
        if match.escaping:
            names = ", ".join(f"%{value.name}" for value in match.escaping)
            raise _illegal(
                f"{names} of the match {'is' if len(match.escaping) == 1 else 'are'} used outside", match.nodes[0],
                "let the pattern return it, or match what uses it, too", "an inner value would be gone",
            )  # fmt: skip
        for node in match.nodes:
            if node in taken:
                raise _overlap(node)
            taken[node] = match
    if not taken:
        raise _illegal("there is no match", None, "see s.find(...)")
    return list(taken)


def _followers(home: Region, ordered: Sequence[Node], inside: set[Node]) -> tuple[Node, ...]:
    """Nodes between the first and the last of a part that depend on it, which must come behind what replaces it."""
    computing = [node for node in ordered if node.op != "write"]
    if not computing:
        raise _illegal("it only writes", ordered[0], "match what computes it, too")
    tainted: set[Value] = set()
    followers: list[Node] = []
    outer_effects: list[Node] = []
    inner_effects = [node for node in computing if _has_effect(node)]
    is_within = False
    for node in home:
        is_within = is_within or node is computing[0]
        if not is_within:
            continue
        uses = set(_all_operands(node))
        if node in inside:
            if not tainted.isdisjoint(uses):
                raise _illegal(
                    "something outside is between its nodes", node,
                    "match the nodes between, too", f"{node.op} needs a value that is computed from the match",
                )  # fmt: skip
        else:
            if not tainted.isdisjoint(uses) or any(v.node in inside for v in uses if v.node is not None):
                followers.append(node)
                tainted.update(node.results)
            if _has_effect(node):
                outer_effects.append(node)
        if node is computing[-1]:
            break
    if outer_effects and (inner_effects or any(_has_effect(node) for node in followers)):
        raise _illegal(
            f"{outer_effects[0].op} is between its nodes", outer_effects[0],
            "match it, too, or select a smaller part", "both have effects (random numbers, writes), whose order counts",
        )  # fmt: skip
    return tuple(followers)


def _has_effect(node: Node) -> bool:
    found = effects(node)
    return bool(found.rng or found.io or found.writes or found.stops)


def _all_operands(node: Node) -> list[Value]:
    found = list(node.operands())
    for region in node.regions:
        found += [value for inner in region.walk() for value in inner.operands()]
        found += [value for arg in region.yields for value in values_in(arg)]
    return found


def _user_node(user: Node | Region) -> Node | None:
    """The node of the graph's body that a use belongs to; None for what the graph returns."""
    while isinstance(user, Region):
        if not isinstance(user.owner, Node):
            return None
        user = user.owner
    return user


def _outputs(match: Match) -> list[Value]:
    """The outputs of a match in the order in which its pattern returns them."""
    first = [value for value in match.results if value in match.outputs]
    return list(dict.fromkeys([*first, *match.outputs]))


def _check_type(new: Type, old: Type, part: PartOfGraph) -> None:
    if not isinstance(new, TensorType) or not isinstance(old, TensorType):
        if isinstance(old, TensorType):
            raise _unfit(f"the replacement gives {new}, what it replaces a tensor", part, "give a tensor")
        return
    differs = []
    if None not in (new.dtype, old.dtype) and new.dtype != old.dtype:
        differs.append("dtype")
    if None not in (new.shape, old.shape) and (
        len(new.shape or ()) != len(old.shape or ())
        or any(
            type(a) is int and type(b) is int and a != b for a, b in zip(new.shape or (), old.shape or (), strict=True)
        )
    ):
        differs.append("sizes")
    if new.device != old.device:
        differs.append("device")
    if differs:
        raise _unfit(
            f"the replacement gives {new}, what it replaces {old}", part,
            "give a result of the same dtype and sizes", f"{' and '.join(differs)} differ",
        )  # fmt: skip


def types_of(tensors: Sequence[torch.Tensor]) -> list[Type]:
    """The types of tensors."""
    return [type_of(tensor) for tensor in tensors]


def _common_scope(part: PartOfGraph) -> str:
    scopes = [node.scope.split(".") if node.scope else [] for node in part.nodes if node.op != "write"]
    common = scopes[0]
    for scope in scopes[1:]:
        same = 0
        while same < min(len(common), len(scope)) and common[same] == scope[same]:
            same += 1
        common = common[:same]
    return ".".join(common)


def _ancestors(scope: str) -> list[str]:
    parts = scope.split(".") if scope else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _submodule(module: torch.nn.Module, path: str) -> torch.nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def hooked(module: torch.nn.Module, path: str, where: Span | None) -> ScheduleError:
    """The error of a step on nodes inside a module that has a hook."""
    return ScheduleError(
        f"{path} ({type(module).__name__}) has a hook, and is inside the replaced region",
        where, why="nobody would call the hook any more",
        fix="remove the hook, or replace the whole module: the new module gets its hooks", code="S0610",
    )  # fmt: skip


def _overlap(node: Node) -> ScheduleError:
    return _illegal(
        f"two matches overlap at {node.op}", node, "take find(...).disjoint(), or one of them",
        "a node cannot be replaced twice",
    )  # fmt: skip


def _illegal(what: str, node: Node | None, fix: str, why: str = "") -> ScheduleError:
    return ScheduleError(
        f"the matches overlap or cannot be moved past side effects: {what}",
        node.span if node is not None else None,
        why,
        fix,
        "S0609",
    )


def _unfit(what: str, part: PartOfGraph, fix: str, why: str = "") -> ScheduleError:
    return ScheduleError(what, part.where, why=why, fix=fix, code="S0608")

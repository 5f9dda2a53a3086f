"""Own kernels for everything but products: groups of nodes as loop nests, launched where their last node stands.

    %1 = sub %x, %m; %2 = exp %1; %3 = mul %2, %w        ==>        Launch(nest of %1 %2 %3, buffers x m w out)

Operands are read where and as they lie; results are written in eager's strides, or in those that torch would give for
operands that lie otherwise. Invariant: what a nest cannot do, or not here, runs as it did before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import replace

import torch

from smelt.codegen.fusion.build import Built, build, eager_memory
from smelt.codegen.fusion.chunks import Stage, are_pieces, stages
from smelt.codegen.fusion.cost import cost
from smelt.codegen.fusion.decisions import Decision
from smelt.codegen.fusion.groups import Group, is_fusible
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.partition import Partition, partition
from smelt.codegen.fusion.pull import Memory, Where
from smelt.codegen.fusion.repeats import without_repeats
from smelt.codegen.fusion.replay import Blank, Loaded, Number, Replay, Source, replay_of
from smelt.codegen.fusion.rules.far_rows import far_stages
from smelt.codegen.fusion.rules.indexed_writes import part_of
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.schedule import NO_DELAYS, schedule
from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import Nest, Op, expressions, walk
from smelt.codegen.kernels.operations import OPS
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.lanes.lanes import is_supported
from smelt.codegen.llvm.nests.nest_ir import EmittedKernel, emit_nests
from smelt.codegen.lower.builder import Place, Storage
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.generic import ANY_LAYOUT
from smelt.codegen.lower.known_nests import KnownNests, Made
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.geometry import Geometry, is_dense, same_layout
from smelt.codegen.lower.memory.in_place import InPlace, Target, reads_first, why_not
from smelt.codegen.lower.memory.sharing import view_source
from smelt.diag import InternalError, ScheduleError, SmeltWarning, user_level
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Type, Value
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.convert import dtype_to_torch
from smelt.ops.meta import CannotRun, meta_outcome
from smelt.ops.record import Trait
from smelt.ops.sets import where

_LIES_AS_OPERAND = where(Trait.LIES_AS_OPERAND)


class Nests:
    """The nests of one lowering, and the order of nodes in which each stands in one piece.

    units: nodes that others lower together (a product with its epilogue).
    """

    def __init__(self, ctx: Context, units: Sequence[Sequence[Node]]) -> None:
        self.ctx = ctx
        self.order: list[Node] = list(ctx.graph.body)
        self.decisions: tuple[Decision, ...] = ()
        self._at: dict[Node, Group] = {}
        self._waiting: set[Node] = set()
        self._gone: set[Value] = set()
        self._units = units
        self._in_place: InPlace | None = None
        wanted = ctx.options.own_kernels and ctx.options.numerics != "eager-library"
        self._isa = host_isa() if wanted else None
        if self._isa is None:
            return
        with ctx.timed("fusion"):
            self._plan(self._isa, units)

    def _plan(self, isa: Isa, units: Sequence[Sequence[Node]]) -> None:
        others = {node: unit for unit in units for node in unit}

        def taken(node: Node) -> bool:
            return node in others or all(self.ctx.statics.is_static(r) for r in node.results)

        found = partition(self.ctx.graph, lambda built: refusal(built.nest, isa), taken, others)
        if self.ctx.has_writes and not self.ctx.builder.in_block:
            self._in_place = InPlace(self.ctx)
        delays = NO_DELAYS if self._in_place is None else self._in_place.delays(found.groups, found.facts)
        try:
            self.order = schedule(self.ctx.graph, found.facts, [*units, *(g.nodes for g in found.groups)], delays)
        except InternalError as error:
            self.decisions = (Decision((), False, str(error)),)
            return
        self._accept(found)

    def _accept(self, found: Partition) -> None:
        self.facts = found.facts
        self._known = KnownNests(found.forms)
        self.decisions = found.decisions
        for group in found.groups:
            self._at[group.nodes[-1]] = group
            self._waiting.update(group.nodes)

    def settle(self, passed: Set[Node]) -> None:
        """The order is final, but for these nodes, which are lowered somewhere behind their place."""
        if self._in_place is not None:
            self._in_place.settle(self.order, [*self._units, *(group.nodes for group in self._at.values())], passed)

    # --- in the main loop

    def lower(self, node: Node, single: Callable[[Context, Node], None]) -> bool:
        """Lower the group that ends here; whether the node is done, now or by a later one."""
        group = self._at.get(node)
        if group is None:
            return node in self._waiting or self._is_gone(node)
        self.ctx.enter(node)
        if not self._lower_group(group):
            self._one_by_one(group, single)
        return True

    def single(self, node: Node) -> bool:
        """Lower one node as a nest of its own, if it may be one."""
        if self._isa is None or not hasattr(self, "facts") or not is_fusible(node):
            return False
        roots = tuple(r for r in node.results if r.users)
        if not roots:
            return False
        try:
            built = build(roots, self.facts.inside([node]), RULES, self._eager, self._eager)
        except Unfusible:
            return False
        if refusal(built.nest, self._isa) is not None:
            return False
        return self._lower_group(Group([node], 0, cost(built.nest), roots))

    def _eager(self, value: Value) -> Memory:
        return eager_memory(value)

    def _is_gone(self, node: Node) -> bool:
        """Whether a node is a view of a value that only exists inside a kernel."""
        source = next((v for v in node.operands() if v in self._gone), None)
        if source is None:
            return False
        self._gone.update(node.results)
        self.ctx.note(node, "fused", f"%{source.name}")
        return True

    def _one_by_one(self, group: Group, single: Callable[[Context, Node], None]) -> None:
        for node in group.nodes:
            for operand in node.operands():
                for view in reversed(self.facts.path(operand)):
                    if view.node is not None and not self.ctx.is_bound(view) and view not in self.ctx.lists:
                        self.ctx.enter(view.node)
                        single(self.ctx, view.node)
            self.ctx.enter(node)
            single(self.ctx, node)

    def target(self, node: Node) -> Place | None:
        """Where a node that no nest computes may write its part of a tensor, which need not be copied then."""
        found = {} if self._in_place is None else self._in_place.targets([node], node.results)
        target = found.get(node.results[0])
        if target is None:
            return None
        self.ctx.in_place[target.write] = False
        return target.whole

    # --- one group

    def _lower_group(self, group: Group) -> bool:
        """Launch a group's nest; False, with nothing done, where it cannot be."""
        layouts = self._layouts(group)
        if layouts is None:
            return False
        targets = {} if self._in_place is None else self._in_place.targets(group.nodes, group.roots)
        try:
            while (ready := self._ready(group, layouts, targets)).made.refused:
                for root, why in ready.made.refused.items():
                    self.ctx.why_copied[targets.pop(root).write] = why
        except (Unfusible, InternalError) as error:
            self.decisions += (Decision(_names(group.nodes), False, str(error)),)
            return False
        self._launch(group, ready)
        return True

    def _ready(self, group: Group, layouts: Mapping[Value, tuple[int, ...]], targets: Mapping[Value, Target]) -> _Ready:
        """A group's kernels, which write to these targets; or why some of those are refused. Raises: Unfusible."""
        ctx = self.ctx
        places: dict[Hashable, Storage] = {}

        def where(value: Value) -> Memory:
            place = ctx.place(value)
            key = place.storage
            places[key] = place.storage
            return Memory(key, f"%{value.name}", place.geometry)

        rest = [root for root in group.roots if root not in targets]
        parts_in = {root: place for root in rest if (place := self._place_to_write(root)) is not None}
        written = parts_in | {root: target.whole for root, target in targets.items()}
        new: dict[Value, Hashable] = {root: ("new", root) for root in group.roots}
        new |= {root: place.storage for root, place in written.items()}
        strides = {**layouts, **{root: place.geometry.strides for root, place in written.items()}}

        def into(value: Value) -> Memory:
            at = Geometry(tensor_type(value).sizes, strides[value])
            return Memory(new[value], f"%{value.name}", targets[value].place.geometry if value in targets else at)

        def make(where: Where, into: Where) -> Made:
            try:
                return self._made(group, targets, bool(parts_in), where, into)
            except Unfusible as why:
                if not targets:
                    raise
                return Made(dict.fromkeys(targets, str(why)))

        sources = {root: target.source for root, target in targets.items()}
        if self.ctx.options.loops or current_trace() is not None:
            made = make(where, into)  # by the kernel's number; of sizes that are known by name
        else:
            made = self._known.made(group, sources, bool(parts_in), where, into, make)
        return _Ready(made, targets, written, new, strides, places)

    def _made(self, group: Group, targets: Mapping[Value, Target], is_part: bool, where: Where, into: Where) -> Made:
        """A group's nest with its kernels, which writes to these targets; or why some of those are refused.

        is_part: part of a tensor is written. Raises: Unfusible.
        """
        sources = {root: target.source for root, target in targets.items()}
        built = build(group.roots, self.facts.inside(group.nodes), RULES, where, into, sources)
        if targets:
            built = replace(built, nest=reads_first(built.nest))
        parts = far_stages(built.nest) or stages(built.nest)
        if not targets:
            parts = tuple(replace(stage, nest=without_repeats(stage.nest)) for stage in parts)
        if is_part and len(parts) > 1:
            raise Unfusible("what it writes to is read in a part of its own")
        aimed = {root: target.place.storage for root, target in targets.items()}
        refused = why_not(built, aimed, len(parts) > 1) if targets else {}
        if refused:
            return Made(refused)
        return Made.of(
            built, parts, [(s, k) for n, s in enumerate(parts, len(self.ctx.nests)) for k in self._emitted(s.nest, n)]
        )

    def _launch(self, group: Group, ready: _Ready) -> None:
        ctx, built, parts = self.ctx, ready.made.built, ready.made.parts
        assert built is not None and ready.made.cost is not None
        ctx.nests += [None if current_trace() is not None else stage.nest for stage in parts]
        places, new = dict(ready.places), ready.new
        for root in group.roots:
            if root in ready.targets:
                ctx.overwritten(ready.written[root].storage)
                ctx.in_place[ready.targets[root].write] = True
            if root in ready.written:
                ctx.bind(root, ready.written[root])
                places[new[root]] = ready.written[root].storage
            elif self._is_part(root):
                places[new[root]] = self._copied(root, ready.strides[root])
            else:
                places[new[root]] = self._result(root, ready.strides[root])
        slots = [places[key].slot for key in built.keys]
        replay = self._replay(group, built, new, ready.strides)
        spare: dict[int, int] = {}
        piece_of = 0
        if are_pieces(parts):
            piece_of = len(ctx.kernels) + 1
            pieces = f"in {len(parts)} launches, one for each part of a join: one would load all for each element"
            nbytes = ready.made.cost.nbytes
            self.decisions += (Decision(_names(group.nodes), True, pieces, nbytes, nbytes),)
        for piece in ready.made.pieces:
            stage, kernel = piece.stage, piece.kernel
            buffers = [self._slot(stage, n, slots, spare) for n in range(len(stage.nest.buffers))]
            launch(
                ctx,
                kernel.source,
                buffers,
                kernel.words,
                items=kernel.items,
                eager=replay if stage.buffers == tuple(range(len(slots))) else Evaluated(stage.nest),
                writes=stage.nest.writes,
                item_ns=kernel.item_ns,
                scratch_nbytes=kernel.scratch_nbytes,
                piece_of=piece_of,
                may_refuse=piece.may_refuse,
                label=" ".join(dict.fromkeys(n.op.split(".")[1] for n in group.nodes)),
                about=About(str(stage.nest), group.nodes, piece.cost.nbytes, piece.cost.operations),
            )
        self._note(group, ready.made.pieces[-1].kernel.source.symbol)

    def _emitted(self, nest: Nest, number: int) -> tuple[EmittedKernel, ...]:
        """The kernels of a nest, with the steps that a schedule took on it, where they fit."""
        assert self._isa is not None
        steps = tuple(step for step in self.ctx.options.loops if step.kernel == number)
        try:
            return emit_nests(nest, self._isa, steps)
        except ScheduleError as error:
            text = f"a kernel runs without the steps on its loops: {error.what}, since {error.why}"
            warnings.warn(text, SmeltWarning, stacklevel=user_level())
            return emit_nests(nest, self._isa)

    def _slot(self, stage: Stage, n: int, slots: Sequence[int], spare: dict[int, int]) -> int:
        """The slot of a stage's buffer: an operand's, a result's, or memory for partial results."""
        number = stage.buffers[n]
        if number >= 0:
            return slots[number]
        if number not in spare:
            size, dtype = stage.partials[-1 - number]
            spare[number] = self.ctx.builder.arena(Geometry((size,), (1,)), dtype_to_torch(dtype)).slot
        return spare[number]

    def _result(self, root: Value, strides: tuple[int, ...]) -> Storage:
        """Memory for a result: the caller's own where it leaves the program, else the arena's."""
        geometry = Geometry(tensor_type(root).sizes, strides)
        storage = self.ctx.memory_for(root, geometry)
        self.ctx.bind(root, Place(storage, geometry))
        return storage

    def _is_part(self, root: Value) -> bool:
        return root.node is not None and part_of(root.node) is not None

    def _place_to_write(self, root: Value) -> Place | None:
        """Where a part of a tensor is written, if that may be where the tensor lies."""
        part = None if root.node is None else part_of(root.node)
        return None if part is None or root.node is None else self.ctx.place_to_write(part.base, root.node, root)

    def _copied(self, root: Value, strides: tuple[int, ...]) -> Storage:
        """Memory for a tensor of which a part is written, with the rest in it."""
        part = None if root.node is None else part_of(root.node)
        assert part is not None
        storage = self._result(root, strides)
        copy_into(self.ctx.builder, Place(storage, storage.base), self.ctx.place(part.base))
        return storage

    def _replay(
        self, group: Group, built: Built, new: Mapping[Value, Hashable], layouts: Mapping[Value, tuple[int, ...]]
    ) -> Replay:
        position = {key: i for i, key in enumerate(built.keys)}

        def loaded(value: Value) -> Source:
            if self.ctx.statics.is_static(value) and value in self.facts.numbers:
                return self.ctx.statics.tensor(value).detach()
            place = self.ctx.place(value)
            is_number = place.storage.kind == "number"
            if place.storage not in position:
                blank = Blank(place.geometry, place.storage.dtype)
                return blank.number if is_number else blank
            if is_number:
                return Number(position[place.storage])
            return Loaded(position[place.storage], place.geometry)

        stored = {
            root: Loaded(position[new[root]], Geometry(tensor_type(root).sizes, layouts[root])) for root in group.roots
        }
        return replay_of(group, self.facts, loaded, stored)

    def _layouts(self, group: Group) -> dict[Value, tuple[int, ...]] | None:
        """Strides of what is stored; None where torch would give strides that overlap or leave gaps.

        What leaves the program has eager's. Other results lie as torch would lay them for operands that lie as they do,
        those of norms over channels, joins and resamplings as their largest operand does.
        """
        ctx = self.ctx
        lies: dict[Value, tuple[int, ...]] = {}

        def as_it_lies(value: Value) -> Type:
            if not isinstance(value.type, TensorType):
                return value.type
            if value in lies:
                return replace(value.type, strides=lies[value])
            if ctx.is_bound(value):
                return replace(value.type, strides=ctx.place(value).geometry.strides)
            return value.type

        for node in group.nodes:
            types = [as_it_lies(v) for v in node.operands()]
            moved = any(
                isinstance(t, TensorType) and isinstance(v.type, TensorType)
                and not same_layout(v.type.sizes, t.steps, v.type.steps)
                for t, v in zip(types, node.operands(), strict=True)
            )  # fmt: skip
            if moved and node.op in _LIES_AS_OPERAND and (steps := _as_operand(node, types)) is not None:
                lies[node.results[0]] = steps
                continue
            if not moved or node.op not in ANY_LAYOUT:
                continue
            try:
                found = meta_outcome(node.op, node.args, node.kwargs, as_it_lies)[0].types
            except CannotRun:
                continue
            for result, type_ in zip(node.results, found, strict=True):
                if isinstance(type_, TensorType):
                    lies[result] = type_.steps
        chosen: dict[Value, tuple[int, ...]] = {}
        for root in group.roots:
            type_ = tensor_type(root)
            chosen[root] = type_.steps if ctx.is_in_eager_layout(root) else lies.get(root, type_.steps)
            if root.node is not None and view_source(root.node) is not None and not ctx.escapes(root):
                # A cut at a number of the run, computed as a copy: in the order of what it is cut from, without gaps.
                chosen[root] = _without_gaps(type_.sizes, chosen[root])
            if not is_dense(type_.sizes, chosen[root]):
                return None
        return chosen

    def _note(self, group: Group, symbol: str) -> None:
        stored = {root.node for root in group.roots}
        last = group.roots[-1].name
        for node in group.nodes:
            if node in stored:
                self.ctx.note(node, "kernel", symbol)
            elif node not in self.ctx.nodes:
                self.ctx.note(node, "fused", f"%{last}")
            self._gone.update(r for r in node.results if not self.ctx.is_bound(r))


@record
class _Ready:
    """What a group's launch is made of.

    written: where roots lie that are written to what is there. new: the key of each root's memory. places: the memory
    of what is loaded, by key.
    """

    made: Made
    targets: Mapping[Value, Target]
    written: Mapping[Value, Place]
    new: Mapping[Value, Hashable]
    strides: Mapping[Value, tuple[int, ...]]
    places: Mapping[Hashable, Storage]


@record
class Evaluated:
    """One of several stages, in torch."""

    nest: Nest

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Compute from the buffers' tensors and write the results."""
        if evaluate_nest(self.nest, tensors):
            raise IndexError("index out of range in self")


def _as_operand(node: Node, types: Sequence[Type]) -> tuple[int, ...] | None:
    """Strides of a node's result in the order of its largest operand's dimensions; None where that tells none.

    types: of all operands, memory layouts included.
    """
    tensors = [t for t in types if isinstance(t, TensorType) and not is_symbolic((*t.sizes, *t.steps))]
    result = node.results[0].type
    if len(tensors) < len(types) or not isinstance(result, TensorType) or is_symbolic(result.sizes):
        return None
    largest = max(tensors, key=lambda t: t.numel)
    if len(largest.sizes) != len(result.sizes) or not is_dense(largest.sizes, largest.steps):
        return None
    return _without_gaps(result.sizes, largest.steps)


def _without_gaps(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The strides of elements in the same order, one beside the other; as given where sizes are known later."""
    if any(map(is_symbolic, (*sizes, *strides))):
        return tuple(strides)
    found, step = [0] * len(sizes), 1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        found[dim], step = step, step * max(sizes[dim], 1)
    return tuple(found)


def _names(nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(f"%{node.results[0].name} = {node.op}" for node in nodes)


def refusal(nest: Nest, isa: Isa) -> str | None:
    """Why a nest cannot be emitted for an instruction set: the first operation that it lacks; None where it can."""
    seen: set[tuple[str, DType]] = set()
    for statement in nest.body:
        for expr in expressions(statement):
            for part in walk(expr):
                if isinstance(part, Op) and (key := (part.op, _deciding(part))) not in seen:
                    seen.add(key)
                    if not is_supported(*key, isa):
                        return f"{part.op} of {key[1]} has no kernel"
    return None


def _deciding(part: Op) -> DType:
    """The dtype by which an operation is known: what it compares, casts from or chooses."""
    if OPS[part.op].gives_bool or part.op == "cast":
        return part.args[0].dtype
    return part.dtype

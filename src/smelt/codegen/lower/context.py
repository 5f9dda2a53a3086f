"""Where every value of the graph lies while its plan is made, and how a lowering rule asks for operands and results.

Invariant: a value is bound to its place before any node that uses it is lowered; static values are bound when first
asked for. A place may differ from eager's layout (channels-last between convolutions); `slot(value)` then copies unless
the rule says that it takes any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias

import torch

from smelt._torch.storage import same_storage
from smelt.analysis import used_values
from smelt.analysis.aliases import Aliases, alias_analysis, is_external
from smelt.codegen.fusion.decisions import Decision
from smelt.codegen.kernels.nest import Nest
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place, PlanBuilder, Storage
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.elements import Elements, maker
from smelt.codegen.lower.memory.geometry import Geometry, same_layout, view_geometry
from smelt.codegen.lower.memory.geometry import row_major as row_major
from smelt.codegen.lower.memory.overwriting import Overwriting
from smelt.codegen.lower.memory.sharing import feared_sources, sources_of, very_tensor, view_source
from smelt.codegen.lower.memory.value_storage import Places
from smelt.codegen.lower.products.weight_packing import Fills
from smelt.codegen.lower.python.growing import Lists
from smelt.codegen.lower.python.plain import is_number, is_plain, kind_of
from smelt.codegen.lower.python.sized_block import Compile, not_compiled
from smelt.codegen.lower.report import ChoiceReport, How, KernelReport, NodeReport
from smelt.codegen.lower.result import Lookup, StateName
from smelt.codegen.lower.static.plan_tensors import HowMade, Live, computed
from smelt.codegen.lower.static.static_program import Read
from smelt.codegen.lower.static.statics import Statics, state_name
from smelt.codegen.lower.unknown.returned_slices import cuts_of, is_copy
from smelt.diag import Options, SmeltError
from smelt.ir import STATE_OPS, Arg, Graph, Node, Region, TensorType, Value, values_in
from smelt.ops.convert import dtype_to_torch
from smelt.ops.registry import arguments_of, schema_of
from smelt.runtime.plan import Dispatch, Use


def cannot_lower(node: Node, why: str) -> SmeltError:
    """The error for a node that has no place in a plan; the caller runs eager instead."""
    names = ", ".join(f"%{r.name}" for r in node.results)
    return SmeltError(
        f"{names + ' = ' if names else ''}{node.op} cannot be lowered",
        where=node.span,
        why=why,
        fix="nothing needs to be done: the program runs eagerly",
        code="S0303",
    )


def read_values(node: Node) -> Iterator[Value]:
    """What a node reads: of a write, not its target."""
    read = node.args[1:] if node.op == "write" else used_values(node)
    return (value for value in read if isinstance(value, Value))


def tensor_type(value: Value) -> TensorType:
    """The type of a value that is known to be a tensor. Raises: TypeError."""
    if not isinstance(value.type, TensorType):
        raise TypeError(f"%{value.name} is {value.type}, not a tensor")
    return value.type


def torch_dtype(value: Value) -> torch.dtype:
    """torch's dtype of a tensor value."""
    return dtype_to_torch(tensor_type(value).dtype)


_OFFSET = "aten.sym_storage_offset.default"
Copier: TypeAlias = Callable[[Place, Place], None]
"""Copies into one place what lies in another."""


class Context:
    """The state of one lowering."""

    def __init__(self, graph: Graph, lookup: Lookup, options: Options) -> None:
        self.graph = graph  # inside a block, its region as a graph
        self._whole = graph
        self.options = options
        self.lookup = lookup
        self.statics = Statics(graph, lookup)
        self.builder = PlanBuilder(profile=options.profile)
        self.lists: dict[Value, list[Place]] = {}
        self.packed: dict[tuple[Any, ...], Storage] = {}
        # Which way the packed weight in a slot was walked last: the next product of few rows begins with what is near.
        self.walked_forward: dict[int, bool] = {}
        self.packed_nbytes = 0
        self.rows_in_bytes: dict[Value, tuple[Region | None, int]] = {}
        self.compiler: Compile = not_compiled  # for what is compiled for the sizes that come
        self.copier: Copier = partial(copy_into, self.builder)  # into memory that has a tensor in another order
        self.spent_ms: dict[str, float] = {}
        self.choices: dict[str, ChoiceReport] = {}
        self.nodes: dict[Node, NodeReport] = {}
        self.sources: dict[str, KernelSource] = {}
        self.kernels: list[KernelReport] = []
        self.nests: list[Nest | None] = []  # of own kernels that are nests, in order; None where sizes are free
        self.decisions: list[Decision] = []
        self.inputs = frozenset(graph.inputs)
        # Writes of values that lie where they are written to, and whether that is still to be counted.
        self.in_place: dict[Node, bool] = {}
        self.why_copied: dict[Node, str] = {}
        self._places = Places()
        self._last_reads: dict[Region, dict[Value, int]] = {}
        self._order: dict[Node, int] = {}
        self._origins: dict[Value, Place] = {}
        self.fills = Fills()
        self.told: set[Value] = set()  # numbers that tell what an output is, which nothing in the graph uses
        self.made: dict[int, HowMade] = {}
        # Decisions that follow from the contents of the state, as sentences: such a plan is for these contents alone.
        self.decided_by_contents: list[str] = []
        self._held: dict[int, tuple[torch.Tensor, Storage]] = {}
        self._states: dict[StateName, Storage] = {}
        self._copies: dict[tuple[Storage, Geometry, tuple[int, ...]], Place] = {}
        self._roots: dict[Value, Value] = {}
        self._shared: set[Value] = set()
        self._overwriting = Overwriting()
        self.growing = Lists.of(graph)
        # Where a value is best written, because it is copied there otherwise.
        self._targets: dict[Value, Storage] = {}
        self.cuts = cuts_of(graph)
        self.cut_slots: dict[Value, int] = {}
        for node in graph.walk():
            self._note_roots(node)
            if node.op == _OFFSET and not all(is_external(self.root(v)) for v in node.operands()):
                raise cannot_lower(node, "it reads where in its memory a tensor begins, which is another offset here")
        self.writes_to_come = sum(node.op == "write" for node in graph.body)
        self.has_writes = self.writes_to_come > 0
        self._aliases: Aliases | None = None
        self._escaping = {self.root(s) for arg in graph.outputs for v in values_in(arg) for s in sources_of(v)}
        # Outputs, by number, that only another plan reads: they may lie in any layout.
        self.free: dict[int, Value] = {}
        self._free: frozenset[Value] = frozenset()
        elements = Elements.of(graph)
        torn = elements.torn(self.statics.is_static)
        if torn is not None:
            raise cannot_lower(maker(torn), "a result may contain it twice, as one tensor, on some paths only")
        self._escaping |= {self.root(v) for v in elements.roots}

    # --- what is known about values

    def _note_roots(self, node: Node) -> None:
        if node in self.cuts and not is_copy(node):
            self._roots[node.result] = self.root(self.cuts[node])
        if not is_plain(node):
            # Evaluated in Python, or computed of numbers: who knows what the results share.
            self._shared.update(node.results)
            return
        source = view_source(node)
        if any(v in self._shared for v in node.operands() if node.op == "unpack") or feared_sources(node):
            self._shared.update(node.results)
        if source is None or (node.op == "unpack" and source not in self._roots):
            return
        for result in node.results:
            self._roots[result] = self.root(source)

    def root(self, value: Value) -> Value:
        """The value whose memory this one shares: itself, or what it is a view of."""
        return self._roots.get(value, value)

    def is_fresh(self, value: Value) -> bool:
        """Whether a run makes this value in memory of its own (no input, state, constant or view)."""
        if value.node is None or value in self._shared or self.root(value) is not value:
            return False
        return not self.statics.is_static(value)

    def is_apart(self, value: Value) -> bool:
        """Whether a value lies in memory that a run makes, which no write to an input or to state changes."""
        return self.is_fresh(self.root(value))

    def escapes(self, value: Value) -> bool:
        """Whether the value, or a view of it, is an output, so that it must not lie in the arena."""
        return self.root(value) in self._escaping

    def set_free(self, numbers: Iterable[int]) -> None:
        """Let these outputs lie in any layout, where they are made here and nothing else of their memory goes out."""
        given = [self.root(v) for arg in self.graph.outputs for v in values_in(arg)]
        for number in numbers:
            value = self.graph.outputs[number]
            if isinstance(value, Value) and self.is_fresh(value) and given.count(value) == 1:
                self.free[number] = value
        self._free = frozenset(self.free.values())

    def is_in_eager_layout(self, value: Value) -> bool:
        """Whether a value has to lie as in eager: an output that is not free, or a part of one."""
        return self.escapes(value) and self.root(value) not in self._free

    def place_to_write(self, value: Value, node: Node, result: Value) -> Place | None:
        """Where a tensor lies, if a node may write over it, or over a part of it, and let its result lie there.

        What is fused into the node's own nest lies nowhere.
        """
        if self.statics.is_static(value) or value not in self._places:
            return None
        place = self.place(value)
        storage, kind = place.storage, place.storage.kind
        if kind not in ("arena", "owned") or (kind == "arena" and self.escapes(result)):
            return None
        if place.geometry != Geometry.of(tensor_type(result)) or storage.base != place.geometry:
            return None
        if not (storage.planned or self.is_fresh(self.root(value))):
            return None
        if not self._overwriting.is_last(value, node):
            return None
        self.overwritten(storage)
        return place

    def is_overwritten(self, value: Value) -> bool:
        """Whether the memory of a value may get other content: the arena, and what may be written."""
        return self.place(value).storage.kind == "arena" or self.may_be_written(value)

    def may_be_written(self, value: Value) -> bool:
        """Whether a write of the graph may change what a value, or a tensor in it, holds."""
        if not self.has_writes:
            return False
        if self._aliases is None:
            self._aliases = alias_analysis(self._whole)
        return self._aliases.is_written(value)

    def call_arguments(self, node: Node) -> dict[str, Arg]:
        """All arguments of an operator's call by name, defaults filled in."""
        schema = schema_of(node.op)
        if schema is None:
            raise cannot_lower(node, "torch's registry has no operator of that name")
        return arguments_of(schema, node.args, node.kwargs)

    def share(self, values: Iterable[Value]) -> None:
        """These may share memory with something unknown: they are never written over."""
        self._shared.update(values)

    # --- blocks

    @contextmanager
    def block(self, region: Region) -> Iterator[None]:
        """Lower a region: a part of the plan that may not run, or run again. What it binds is forgotten behind it."""
        outer, places, copies = self.graph, self._places.copy(), dict(self._copies)
        self.graph = Graph(outer.name)
        self.graph.body, self.graph.constants = region, outer.constants
        try:
            with self.builder.block():
                yield
        finally:
            self.graph, self._places, self._copies = outer, places, copies

    def aim(self, value: Value, storage: Storage) -> None:
        """Let a value be written into this memory, if it can be."""
        self._targets[value] = storage

    def is_aimed(self, value: Value) -> bool:
        """Whether there is memory that a value is best written into, as it is a part of something larger there."""
        return value in self._targets

    def memory_for(self, value: Value, geometry: Geometry) -> Storage:
        """Memory for a new tensor: where it is wanted, the caller's own where it leaves the program, else the arena."""
        wanted = self._targets.get(value)
        if wanted is not None and wanted.base == geometry:
            return wanted
        make = self.builder.empty if self.escapes(value) else self.builder.arena
        return make(geometry, torch_dtype(value))

    # --- numbers and objects

    def number(self, value: Value) -> Storage:
        """The slot of a value that is a number, or any object of Python; made when first asked for."""
        found = self._places.get(value)
        if found is None:
            storage = self.builder.number(kind_of(value.type))
            found = self._places[value] = Place(storage, storage.base)
        return found.storage

    # --- places

    def add_input(self, value: Value, strides: tuple[int, ...] | None = None) -> None:
        """The next input of the plan; strides: how it lies, if not as its type says.

        Raises: SmeltError (S0303) for what is neither a tensor nor a number.
        """
        type_ = value.type
        if is_number(type_):
            number = self.builder.input_number(kind_of(type_))
            self._places[value] = Place(number, number.base)
            return
        if not isinstance(type_, TensorType):
            raise SmeltError(
                f"input %{value.name} is {type_}, neither a tensor nor a number of 64 bits",
                why="a plan takes tensors, ints, floats and bools",
                fix="nothing needs to be done: the program runs eagerly",
                code="S0303",
            )
        lies = Geometry.of(type_) if strides is None else Geometry(type_.sizes, strides)
        storage = self.builder.input(lies, dtype_to_torch(type_.dtype))
        self._bind_origin(value, storage)

    def add_state(self, value: Value) -> None:
        """The live tensor behind a `param`, `buffer` or `captured` node."""
        assert value.node is not None
        name = state_name(value.node)
        storage = self._states.get(name)
        if storage is None:
            storage = self._states[name] = self.builder.held(self.statics.tensor(value), name)
            self.made[storage.slot] = partial(Live, Read(name, tensor_type(value)))
        self._bind_origin(value, storage)

    def _bind_origin(self, value: Value, storage: Storage) -> None:
        self._origins[value] = self._places[value] = Place(storage, storage.base)

    def place(self, value: Value) -> Place:
        """Where a tensor value lies."""
        found = self._places.get(value)
        if found is None:
            if not self.statics.is_static(value):
                raise SmeltError(f"%{value.name} is used before it is made", code="S0902")
            found = self._place_static(value)
        return found

    def _place_static(self, value: Value) -> Place:
        root = self.root(value)
        if root.node is not None and root.node.op in STATE_OPS:
            if root not in self._places:
                self.add_state(root)
            seen = self.view_from_root(value, self._places[root])
            if seen is not None:
                self._places[value] = seen
                return seen
        storage = self.constant(self.statics.bake(value), partial(computed, self.statics, value))
        self._places[value] = Place(storage, storage.base)
        return self._places[value]

    def view_from_root(self, value: Value, base: Place) -> Place | None:
        """Where a view lies if its root lies at `base`; None where strides cannot tell."""
        chain: list[tuple[Node, Value]] = []
        current, root = value, self.root(value)
        while current is not root:
            node = current.node
            assert node is not None
            chain.append((node, current))
            source = view_source(node)
            assert source is not None
            current = source
        geometry = base.geometry
        pending: list[Geometry] = []
        for node, result in reversed(chain):
            if node.op == "write":
                continue
            if node.op == "unpack":
                geometry = pending[node.results.index(result)]
                continue
            source = view_source(node)
            assert source is not None
            found = view_geometry(node, source, geometry)
            if found is None:
                return None
            pending, geometry = found, found[0]
        return Place(base.storage, geometry)

    def origin(self, value: Value) -> Place | None:
        """Where an input, state or a view of them lies, whatever copies were made of it since; None for the rest."""
        root = self.root(value)
        base = self._origins.get(root)
        if base is None and root.node is not None and root.node.op in STATE_OPS:
            self.add_state(root)
            base = self._origins[root]
        return None if base is None else self.view_from_root(value, base)

    def lies_in_state(self, value: Value, tensor: torch.Tensor) -> bool:
        """Whether a static value's tensor is memory of the program's own parameters or buffers."""
        root = self.root(value)
        if root.node is None or root.node.op not in STATE_OPS:
            return False
        return same_storage(self.statics.tensor(root), tensor)

    def constant(self, tensor: torch.Tensor, how: HowMade | None = None) -> Storage:
        """A baked tensor as a held slot, the same one for the same tensor. how: it is made again."""
        known = self._held.get(id(tensor))
        if known is None:
            known = self._held[id(tensor)] = (tensor, self.held(tensor.detach(), how))
        return known[1]

    def held(self, tensor: torch.Tensor, how: HowMade | None = None) -> Storage:
        """A tensor that the plan keeps. how: it is made again in another process; None where it cannot be."""
        storage = self.builder.held(tensor)
        if how is not None:
            self.made[storage.slot] = how
        return storage

    @property
    def handles(self) -> tuple[StateName, ...]:
        """State that the plan reads or writes through the live tensors, sorted."""
        return tuple(sorted(self._states, key=lambda s: (s.kind, s.path)))

    def bind(self, value: Value, place: Place) -> None:
        """Say where a value lies."""
        self._places[value] = place

    def is_bound(self, value: Value) -> bool:
        """Whether the value has a place already."""
        return value in self._places

    def lying_in(self, storage: Storage, node: Node) -> list[Value]:
        """The values in this memory that a node or one behind it reads, apart from targets of writes."""
        region = node.parent
        assert region is not None
        if region not in self._last_reads:
            self._last_reads[region] = self._reads_in(region)
        last, at = self._last_reads[region], self._order[node]
        return [value for value in self._places.lying_in(storage) if last.get(value, -1) >= at]

    def _reads_in(self, region: Region) -> dict[Value, int]:
        """The number of the last node of a region that reads each value."""
        last: dict[Value, int] = {}
        for number, node in enumerate(region):
            self._order[node] = number
            last.update((value, number) for value in read_values(node))
        return last

    # --- operands

    def is_eager_layout(self, value: Value) -> bool:
        """Whether a value lies as in eager, dimensions of size 1 aside."""
        type_ = tensor_type(value)
        return same_layout(type_.sizes, self.place(value).geometry.strides, type_.steps)

    def slot(self, value: Value, *, any_layout: bool = False) -> int:
        """A slot with the value's tensor, in eager's layout unless the caller takes any."""
        return self.builder.handle(self.place(value) if any_layout else self._eager_place(value))

    def object_slot(self, value: Value) -> int:
        """The same for who may keep the tensor: the slot of a view is no other tensor's, wherever that one lies."""
        very = very_tensor(value)
        if very is self.root(value):
            return self.slot(value)
        return self.builder.own_handle(self._eager_place(value), very)

    def _eager_place(self, value: Value) -> Place:
        if not self.is_eager_layout(value):
            return self.with_strides(self.place(value), tensor_type(value).steps)
        place = self.place(value)
        if place.geometry.strides == tensor_type(value).steps:
            return place
        # The same memory: operators take a memory format for their results from strides of size 1, too.
        return Place(place.storage, Geometry(place.geometry.sizes, tensor_type(value).steps, place.geometry.offset))

    def with_strides(self, place: Place, strides: tuple[int, ...]) -> Place:
        """A copy of a place with other strides, the same copy each time."""
        key = (place.storage, place.geometry, strides)
        if key not in self._copies:
            self.builder.check(place.storage)
            storage = self.builder.empty(Geometry(place.geometry.sizes, strides), place.storage.dtype)
            self._copies[key] = Place(storage, storage.base)
            self.copier(self._copies[key], place)
        return self._copies[key]

    def overwritten(self, storage: Storage) -> None:
        """Forget copies of memory that has just been given new content."""
        self._copies = {key: place for key, place in self._copies.items() if key[0] is not storage}

    def to_eager(self, value: Value) -> Place:
        """The place of a value in eager's layout, copied there if it lies otherwise."""
        if not self.is_eager_layout(value):
            self._places[value] = self.with_strides(self.place(value), tensor_type(value).steps)
        return self._places[value]

    def cloned(self, place: Place) -> Place:
        """A copy in new memory with the same geometry where that is dense, made at this point of the plan."""
        source = self.builder.handle(place)
        geometry = Geometry(place.geometry.sizes, place.geometry.strides)
        storage = self.builder.made(geometry, place.storage.dtype)
        self.builder.emit(Dispatch(torch.ops.aten.clone.default, (Use(source),), (storage.slot,)))
        return Place(storage, storage.base)

    # --- results

    def result(self, value: Value, strides: tuple[int, ...] | None = None) -> int:
        """The slot that the next instruction fills with a new tensor for this value."""
        type_ = tensor_type(value)
        storage = self.builder.made(Geometry(type_.sizes, strides or type_.steps), dtype_to_torch(type_.dtype))
        self._places[value] = Place(storage, storage.base)
        return storage.slot

    def buffer(self, value: Value, sizes: Sequence[int]) -> int:
        """A slot with row-major memory of `sizes` for an out-variant to write this (row-major) value into."""
        type_ = tensor_type(value)
        whole = Geometry.of(type_)
        storage = self.memory_for(value, whole)
        self._places[value] = Place(storage, whole)
        return self.builder.handle(Place(storage, row_major(sizes)))

    # --- report

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the block's wall time to a stage of the report."""
        start = perf_counter()
        try:
            yield
        finally:
            self.spent_ms[name] = self.spent_ms.get(name, 0.0) + (perf_counter() - start) * 1000

    def enter(self, node: Node) -> None:
        """The instructions from here on come from this node."""
        where = f" at {node.span}" if node.span is not None else ""
        names = ", ".join(f"%{r.name}" for r in node.results)
        self.builder.origin = f"{names} = {node.op}{where}" if names else f"{node.op}{where}"

    def note(self, node: Node, how: How, target: str = "") -> None:
        """Record how a node runs."""
        where = f"{node.span.file}:{node.span.line}" if node.span is not None else ""
        name = node.results[0].name if node.results else ""
        self.nodes[node] = NodeReport(name, node.op, how, target, where, node.scope)

"""`save`: captured programs as an ingot.

    programs by name -- checked --> graphs' text, structures, state -- lowered for each target --> entries of the file

Invariant: what is saved gives in another process what the program gives here, or is refused, by name of what is in the
way.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, BinaryIO

import torch

from smelt._torch.autocast import no_autocast
from smelt._torch.library.schemas import schema_text
from smelt.capture.structure.tree import ConstantLeaf, TensorLeaf
from smelt.codegen.llvm.isa import Isa, compiling_for
from smelt.codegen.llvm.walkers.executor import executor_for
from smelt.codegen.lower import lower
from smelt.codegen.lower.result import Lowered, StateName
from smelt.codegen.lower.symbolic import specialize
from smelt.compiler.object.compiled import Compiled, dispatcher_of
from smelt.compiler.pipeline import optimized_graph
from smelt.compiler.programs.narrow_layers import NARROW
from smelt.compiler.sizes.saved_ranges import Ranged, plans_for
from smelt.compiler.sizes.sized_unit import SizedUnit
from smelt.compiler.unit import Unit, with_very_tensors
from smelt.diag import Options, SmeltError
from smelt.diag.collector import full_collections_later
from smelt.diag.packages import VERSION
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph, TensorType, Value
from smelt.ir.dims import UnknownDim
from smelt.ops.convert import dtype_to_torch
from smelt.ops.registry import overload
from smelt.package.natives import TARGETS, Code, NativeWriter
from smelt.package.paths import with_short_paths
from smelt.package.sizes import Box, Wanted, boxes_of, check_free, dimension, free_sizes
from smelt.package.state import Tensors
from smelt.package.structures import structure_of
from smelt.runtime.ingot.abi import abi
from smelt.runtime.ingot.archive import Pieces
from smelt.runtime.ingot.errors import unsaved
from smelt.runtime.ingot.free_sizes import Bounds, FreeSizes, Profile, Sizes
from smelt.runtime.ingot.manifest import EXTRA, WEIGHTS, InputType, Manifest, Method
from smelt.runtime.ingot.packed import Packed, packed
from smelt.runtime.ingot.program import write_ingot
from smelt.runtime.ingot.structure import Mapping_, Sequence_
from smelt.runtime.ingot.tensors import write
from smelt.runtime.ingot.texts import held_json
from smelt.runtime.ingot.texts.json_text import dumps
from smelt.runtime.ingot.texts.plan_json import NotWritten
from smelt.runtime.machine.cache import code_cache

Lookup = Callable[[str, str], torch.Tensor]
_GRAD = inspect.getattr_static(torch.Tensor, "grad")
# Options that say nothing of what a program computes.
_HERE = frozenset(("cache_dir", "cache_limit_mb", "dump", "keep_plans", "profile", "adaptive", "strict", "verify"))


@record
class Saved:
    """A program to be saved: the unit that is, the module whose state goes with it, and its options."""

    unit: Unit
    module: torch.nn.Module | None
    options: Options


def save(
    programs: Mapping[str, Saved],
    target: str | os.PathLike[str] | BinaryIO,
    extra_files: Mapping[str, bytes],
    targets: Sequence[str] | None,
    sizes: Sequence[Wanted] | None = None,
) -> None:
    """Write the programs, each an entry point of its name; sizes: of free ones, those to make native code for.

    Raises: PackageError (S0702) where one has no form in a file; SmeltError (S0301) for a target that there is not.
    """
    for name in TARGETS if targets is None else targets:
        if name not in TARGETS:
            raise SmeltError(
                f"there is no target {name!r}", why=f"targets are {', '.join(TARGETS)}", fix="name some of these",
                code="S0301",
            )  # fmt: skip
    for name, saved in programs.items():
        if saved.options.dtype in NARROW:
            raise unsaved(
                f"{name} is compiled with dtype {saved.options.dtype!r}, which no file holds",
                "which layers are over few bits is measured on inputs, and their panels are made when it is compiled",
                "save what was compiled without it; smelt.compile what is loaded, with this option, where it runs",
            )
    writer = _Writer(programs, {name: TARGETS[name] for name in (TARGETS if targets is None else targets)}, sizes)
    with full_collections_later():
        manifest, pieces = writer.written()
    entries: dict[str, Pieces | Packed] = dict(pieces)
    for name in pieces.keys() - {WEIGHTS}:
        content = b"".join(pieces[name])
        entries[name] = packed(content) or [content]
    for name, content in extra_files.items():
        entries[EXTRA + name] = [bytes(content)]
    write_ingot(target, manifest, entries)


def save_programs(
    programs: Mapping[str, Any],
    target: str | os.PathLike[str] | BinaryIO,
    *,
    extra_files: Mapping[str, bytes] | None = None,
    targets: Sequence[str] | None = None,
    sizes: Sequence[Wanted] | None = None,
) -> None:
    """Write several programs into one file, each an entry point of its name: `smelt.load(path).name(...)`.

    Programs over one module share its parameters and buffers there, as here. What `smelt.compile` returned can be
    among them, once it was called: what was compiled for the last call is saved, a training step with its
    optimizer's state. Raises: as `Program.save`.
    """
    for name in programs:
        if not name.isidentifier() or (hasattr(torch.nn.Module, name) and name != "forward"):
            raise unsaved(
                f"an entry point cannot be called {name!r}",
                "it becomes an attribute of the program that is loaded",
                "take a name that is an identifier, and none of torch.nn.Module's",
            )
    saved = {
        name: of_compiled(program) if isinstance(program, Compiled) else program.to_be_saved()
        for name, program in programs.items()
    }
    save(saved, target, extra_files or {}, targets, sizes)


def of_compiled(compiled: Compiled) -> Saved:
    """What of a compiled object goes into an ingot: the entry that served last. Raises: PackageError (S0702)."""
    dispatcher = dispatcher_of(compiled)
    unit = next((entry for entry in dispatcher.entries if type(entry) is Unit), None)
    if unit is None or dispatcher.has_state:
        raise unsaved(
            f"{dispatcher.name} cannot be saved",
            "it changes Python objects at each call"
            if dispatcher.has_state
            else "there is nothing compiled of it that runs as a whole: it was not called, or `backward()` is "
            "called outside of it",
            "call it first (a module under torch.no_grad()), keep its state in tensors, or save smelt.trace(...)",
        )
    module = dispatcher.target if isinstance(dispatcher.target, torch.nn.Module) else None
    return Saved(unit, module, unit.options)


@dataclass
class _Plans:
    """The native code of one program, as it is made; codes: by target, the kernels of all programs; optimized: the last
    graph, and that behind the passes.
    """

    name: str
    saved: Saved
    codes: Mapping[str, Code]
    folded: set[int] = field(default_factory=set)
    why_not: dict[str, str] = field(default_factory=dict)
    optimized: tuple[Graph, Graph] | None = None

    def behind_passes(self, graph: Graph, options: Options) -> Graph:
        """A copy of its own of the optimized graph: one for all targets, which passes ask for where they narrow."""
        if options.dtype == "bf16":
            return optimized_graph(graph, options, self.saved.unit.lookup)[0]
        if self.optimized is None or self.optimized[0] is not graph:
            self.optimized = graph, optimized_graph(graph, options, self.saved.unit.lookup)[0]
        return self.optimized[1].clone()


@dataclass
class _Writer:
    programs: Mapping[str, Saved]
    targets: Mapping[str, Isa]
    sizes: Sequence[Wanted] | None = None
    tensors: Tensors = field(default_factory=Tensors)
    entries: dict[str, Pieces] = field(default_factory=dict)
    _native_entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def written(self) -> tuple[Manifest, dict[str, Pieces]]:
        for name, saved in self.programs.items():
            _check(name, saved.unit)
        self._collect_modules()
        codes = {target: Code() for target in self.targets}
        with torch.no_grad(), no_autocast():
            methods = {name: self._method(name, saved, codes) for name, saved in sorted(self.programs.items())}
        kernels, executors = self._code(codes, methods)
        states, stored = self.tensors.placed(
            {n for method in methods.values() for n in (*method.written, *method.folded)}
        )
        self.entries[WEIGHTS] = write(stored)
        for entry, native in self._native_entries.items():
            held = [[slot, held_json.write(self.tensors.panels.settled(recipe))] for slot, recipe in native["held"]]
            self.entries[entry] = [dumps(native | {"held": held})]
        modules = [saved.module for saved in self.programs.values() if saved.module is not None]
        manifest = Manifest(
            VERSION, torch.__version__, abi(), any(module.training for module in modules), tuple(states), methods,
            executors, kernels, {}, self._operators(),
        )  # fmt: skip
        return manifest, self.entries

    def _operators(self) -> dict[str, str]:
        """The schemas that torch has for operators of the graphs, and for those that weights follow from others by."""
        graphs = [graph for saved in self.programs.values() for graph in (saved.unit.graph, saved.unit.captured.graph)]
        names = {node.op for graph in graphs if graph is not None for node in graph.walk()}
        for native in self._native_entries.values():
            names |= {name for _, recipe in native["held"] for name in held_json.operators_of(recipe)}
        return {name: schema_text(found) for name in sorted(names) if (found := overload(name)) is not None}

    def _collect_modules(self) -> None:
        """All parameters and buffers of the modules, whether a graph reads them or not."""
        for name, saved in sorted(self.programs.items()):
            if saved.module is None:
                continue
            prefix = self._prefix(name)
            for path, parameter in saved.module.named_parameters(remove_duplicate=False):
                self.tensors.number("param", prefix + path, parameter)
            kept = saved.module.state_dict(keep_vars=True)
            for path, buffer in saved.module.named_buffers(remove_duplicate=False):
                self.tensors.number("buffer", prefix + path, buffer, is_persistent=path in kept)

    def _prefix(self, name: str) -> str:
        """What stands before the names of a method's state: its name, where methods are of several modules."""
        modules = {id(saved.module) for saved in self.programs.values() if saved.module is not None}
        return "" if len(modules) <= 1 else f"{name}."

    def _method(self, name: str, saved: Saved, codes: Mapping[str, Code]) -> Method:
        unit, signature = saved.unit, saved.unit.signature
        state = self._state_of(name, unit)
        args, kwargs = structure_of(signature.args, "args"), structure_of(signature.kwargs, "kwargs")
        assert isinstance(args, Sequence_) and isinstance(kwargs, Mapping_)
        graph, as_written = self._texts(name, unit)
        plans = _Plans(name, saved, codes)
        native, free = {}, None
        if unit.captured.sizes is None:
            native = self._natives(plans, name, unit.graph)
        else:
            free = self._free(plans, unit)
        written = {target for target in _written(unit.graph) if isinstance(target, StateName)}
        return Method(
            args=args,
            kwargs=kwargs,
            result=structure_of(signature.result, "the result"),
            places=tuple(signature.inputs),
            inputs=tuple(map(_input_type, unit.graph.inputs, signature.inputs)),
            state=state,
            written=tuple(sorted(state[each.kind, each.path] for each in written)),
            folded=tuple(sorted(plans.folded)),
            writes=unit.writes,
            draws=unit.draws,
            trains=_trains(unit),
            grads=self._grads(name, unit),
            has_no_gradient=_why_no_gradient(unit),
            modes=(unit.captured.caller.grad, unit.captured.caller.inference) if unit.captured.asks_modes else (),
            options=_options(saved.options),
            graph=graph,
            as_written=as_written,
            native=native,
            why_not_native=plans.why_not,
            free=free,
        )

    def _free(self, plans: _Plans, unit: Unit) -> FreeSizes:
        """What is free, and native code for some sizes."""
        facts = unit.captured.sizes
        assert isinstance(unit, SizedUnit) and facts is not None
        profiles: list[Profile] = []
        for box in boxes_of(facts, self.sizes):
            if box.is_one:
                profiles += self._alone(plans, unit, {box.sizes[0]: self.targets}, len(profiles))
                continue
            alone: dict[Sizes, dict[str, Isa]] = {}
            for target, isa in self.targets.items():
                for made in self._for_ranges(plans, unit, box, target, isa):
                    if isinstance(made, tuple):
                        alone.setdefault(made, {})[target] = isa
                        continue
                    entry = f"code/{target}/{plans.name}.{len(profiles)}.json"
                    try:
                        self._native_entries[entry] = self._entry(plans, made, isa, plans.codes[target])
                    except (NotWritten, SmeltError) as error:
                        plans.why_not[target] = str(getattr(error, "what", error))
                        continue
                    self.entries[entry] = []
                    profiles.append(Profile(tuple(map(_bounds, box.bounds)), {target: entry}))
            profiles += self._alone(plans, unit, alone, len(profiles))
        return free_sizes(facts, profiles)

    def _alone(
        self, plans: _Plans, unit: SizedUnit, wanted: Mapping[Sizes, Mapping[str, Isa]], number: int
    ) -> list[Profile]:  # fmt: skip
        """Plans for single sizes."""
        found: list[Profile] = []
        for sizes, targets in wanted.items():
            graph = specialize(unit.graph, dict(zip(unit.facts.symbols, sizes, strict=True)))
            native = self._natives(plans, f"{plans.name}.{number + len(found)}", graph, targets)
            found += [Profile(sizes, native)] if native else []
        return found

    def _for_ranges(self, plans: _Plans, unit: SizedUnit, box: Box, target: str, isa: Isa) -> list[Ranged | Sizes]:
        with compiling_for(isa):
            try:
                return list(plans_for(unit, box, _for_elsewhere(plans.saved.options)))
            except SmeltError as error:
                plans.why_not[target] = error.what
                return []

    def _natives(
        self, plans: _Plans, label: str, graph: Graph, targets: Mapping[str, Isa] | None = None
    ) -> dict[str, str]:  # fmt: skip
        """By target, the entry of the graph's plan; label: what the entries are called."""
        native: dict[str, str] = {}
        for target, isa in (self.targets if targets is None else targets).items():
            entry = f"code/{target}/{label}.json"
            try:
                self._native_entries[entry] = self._native(plans, graph, isa, plans.codes[target])
                self.entries[entry] = []
                native[target] = entry
            except (NotWritten, SmeltError) as error:
                plans.why_not[target] = str(getattr(error, "what", error))
        return native

    def _texts(self, name: str, unit: Unit) -> tuple[str, str]:
        """The entries of the functional graph's text, and of that as it was written: one, where these are the same."""
        assert unit.captured.graph is not None
        graph, as_written = f"graphs/{name}.txt", f"graphs/{name}.as_written.txt"
        self.entries[graph] = [with_short_paths(str(unit.graph)).encode()]
        written = [with_short_paths(str(unit.captured.graph)).encode()]
        if written == self.entries[graph]:
            return graph, graph
        self.entries[as_written] = written
        return graph, as_written

    def _state_of(self, name: str, unit: Unit) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        assert unit.captured.graph is not None
        for graph in (unit.graph, unit.captured.graph):
            for node in graph.walk():
                if node.op in STATE_OPS:
                    kind, path = node.op, str(node.args[0])
                    if (kind, path) not in found:
                        found[kind, path] = self._number(name, kind, path, unit.lookup(kind, path))
            for digest, tensor in graph.constants.items():
                found["const", digest] = self.tensors.number("const", digest, tensor)
        return found

    def _grads(self, name: str, unit: Unit) -> tuple[tuple[int, int | None], ...]:
        """What a call leaves in the `grad` of tensors of the state: its output of this number, or nothing."""
        found = []
        for tensor, tree in gradients_put(unit):
            entries = unit.captured.state.entries.items()
            kind, path = next(key for key, entry in entries if entry.tensor is tensor)
            number = self._number(name, kind, path, tensor)
            found.append((number, tree.index if isinstance(tree, TensorLeaf) else None))
        return tuple(found)

    def _number(self, name: str, kind: str, path: str, tensor: torch.Tensor) -> int:
        prefix = self._prefix(name) if kind != "captured" else f"{name}." if len(self.programs) > 1 else ""
        return self.tensors.number(kind, prefix + path, tensor, is_persistent=False)

    def _native(self, plans: _Plans, graph: Graph, isa: Isa, code: Code) -> Any:
        """Raises: NotWritten; SmeltError where it cannot be lowered."""
        unit, options = plans.saved.unit, _for_elsewhere(plans.saved.options)
        with compiling_for(isa):
            optimized = plans.behind_passes(graph, options)
            return self._entry(plans, lower(optimized, unit.lookup, options, later=True), isa, code)

    def _entry(self, plans: _Plans, made: Lowered | Ranged, isa: Isa, code: Code) -> Any:
        """Raises: NotWritten."""
        unit, options = plans.saved.unit, _for_elsewhere(plans.saved.options)
        lowered, table = (made.lowered, made.table) if isinstance(made, Ranged) else (made, None)
        with compiling_for(isa):
            writer = NativeWriter(
                with_very_tensors(lowered, unit.captured), isa, options, unit.lookup,
                lambda kind, path: self._number(plans.name, kind, path, unit.lookup(kind, path)), self.tensors, code,
                table,
            )  # fmt: skip
            entry = writer.entry()
        plans.folded |= writer.folded
        return entry

    def _code(
        self, codes: Mapping[str, Code], methods: Mapping[str, Method]
    ) -> tuple[dict[str, str], dict[str, str]]:  # fmt: skip
        """The entries of machine code, by target and by kind of machine."""
        kernels: dict[str, str] = {}
        executors: dict[str, str] = {}
        options = next(iter(self.programs.values())).options
        for target, code in codes.items():
            if not code.nbytes and not any(_is_native(method, target) for method in methods.values()):
                continue
            kernels[target] = f"code/{target}/kernels.bin"
            self.entries[kernels[target]] = [b"".join(code.pieces)]
            machine = self.targets[target].triple.partition("-")[0]
            if machine not in executors:
                executors[machine] = f"code/{machine}.o"
                made = executor_for(self.targets[target], code_cache(options.cache_dir, options.cache_limit_mb))
                self.entries[executors[machine]] = [made]
        return kernels, executors


def _for_elsewhere(options: Options) -> Options:
    """Kernels of other machines cannot be timed here."""
    return replace(options, keep_plans=False, profile=False, dump="", measure=False)


def _bounds(span: tuple[int, int]) -> Bounds:
    low, high = span
    return low if low == high else span


# --- what can be saved ------------------------------------------------------------------------------------------------


def _check(name: str, unit: Unit) -> None:
    """Raises: PackageError (S0702) where the program does what a file cannot say."""
    captured = unit.captured
    if unit.signature.puts is not None and len(gradients_put(unit)) < len(unit.signature.puts.puts):
        raise unsaved(
            f"{name} cannot be saved: it changes Python objects",
            "a call leaves something in an attribute, a list or a dict, and a file holds no such objects",
            "keep state in buffers (register_buffer) and write to them in place (copy_), or return it",
        )
    if captured.sizes is not None:
        check_free(captured.sizes)
    if captured.catches:
        raise unsaved(
            f"{name} cannot be saved: it catches errors that depend on data",
            "what follows from such an error is the program's Python code",
            "test for the case before the operator that raises",
        )
    if unit.draws_in_python:
        raise unsaved(
            f"{name} cannot be saved: it draws random numbers of Python or NumPy",
            "their generators are no part of a file",
            "draw by torch.rand, or pass the numbers in",
        )


def gradients_put(unit: Unit) -> list[tuple[torch.Tensor, TensorLeaf | ConstantLeaf]]:
    """Of what a call leaves in Python objects, the gradients of tensors of the state: new ones, or None."""
    puts = unit.signature.puts
    found: list[tuple[torch.Tensor, TensorLeaf | ConstantLeaf]] = []
    for put in () if puts is None else puts.puts:
        way = puts.ways.get(put.place, ())
        tensor = way[-1][1] if way and way[-1][0] == "outside" else None
        if put.kind != "slot" or put.keys != (_GRAD,) or put.deleted or not isinstance(tensor, torch.Tensor):
            continue
        (tree,) = put.items
        known = any(entry.tensor is tensor for entry in unit.captured.state.entries.values())
        if known and (isinstance(tree, TensorLeaf) or (isinstance(tree, ConstantLeaf) and tree.value is None)):
            found.append((tensor, tree))
    return found


def _trains(unit: Unit) -> bool:
    """Whether the program takes gradients itself, so that nobody takes them of its results."""
    if unit.captured.spent or gradients_put(unit):
        return True
    written = (each for each in _written(unit.graph) if isinstance(each, StateName))
    return unit.captured.caller.grad and any(unit.lookup(each.kind, each.path).requires_grad for each in written)


def _why_no_gradient(unit: Unit) -> str:
    if unit.captured.own_backward:
        return f"{unit.captured.own_backward} has a backward of its own, which is Python"
    return ""


def _written(graph: Graph) -> list[Any]:
    """What the graph writes to: names of the state; inputs by their own."""
    found: list[Any] = []
    for node in graph.walk():
        if node.op != "write":
            continue
        value = node.args[0]
        if isinstance(value, Value) and value.node is not None and value.node.op in STATE_OPS:
            found.append(StateName(value.node.op, str(value.node.args[0])))
    return found


def _is_native(method: Method, target: str) -> bool:
    profiles = () if method.free is None else method.free.profiles
    return any(target in native for native in (method.native, *(each.native for each in profiles)))


def _input_type(value: Value, place: str) -> InputType:
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None or any(isinstance(d, UnknownDim) for d in type_.shape):
        raise unsaved(
            f"the program cannot be saved: {place} is {type_}",
            "an ingot holds graphs over tensors whose sizes are known, or are those of other inputs",
            "capture it with tensors of the sizes that it is to run for",
        )
    strides = None if type_.strides is None else tuple(map(dimension, type_.strides))
    return InputType(dtype_to_torch(type_.dtype), tuple(map(dimension, type_.shape)), strides)


def _options(options: Options) -> dict[str, Any]:
    """The options that are not as they are by default and have a say in what is computed."""
    found = {}
    for each in fields(options):
        value = getattr(options, each.name)
        default = each.default if each.default is not MISSING else None
        if each.name not in _HERE and value != default and type(value) in (bool, int, str):
            found[each.name] = value
    return found

"""A captured program whose sizes and numbers are free: one graph, and a plan for the sizes that calls come with.

Invariant: a plan runs only for the very sizes that it was made for. What it bakes in of the program's state is guarded
before it runs (`on_constants`). Plans of one unit share packed weights and kernels, as those of different units do.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, TypeAlias, cast

import torch

from smelt.capture import Captured
from smelt.capture.dynamic.spec import SizeFacts
from smelt.codegen.lower.products.packs import packs
from smelt.codegen.lower.symbolic import NotSymbolic, SymbolicLowered, lower_symbolic, specialize
from smelt.compiler.deciding.ledger import STOPPED
from smelt.compiler.object.compiled_types import LeftAlone
from smelt.compiler.object.entry_code import Extract, extractor
from smelt.compiler.pipeline import optimized_graph
from smelt.compiler.sizes.guard_forms import ranges_of
from smelt.compiler.sizes.size_conditions import symbols_of
from smelt.compiler.sizes.size_texts import holds, names_of
from smelt.compiler.sizes.sized_names import inputs_of_views, names_in_types
from smelt.compiler.unit import Lookup, Unit, machine_code
from smelt.diag import CaptureError, Options, SmeltError, limits
from smelt.diag.records import distinct_record
from smelt.ir import Graph, TensorType
from smelt.ir.dims import size_of
from smelt.ops.convert import type_of
from smelt.passes.sized import SizeCondition
from smelt.passes.sized import Sizes as Symbols
from smelt.runtime.encoding.sizes import SizedExecutable
from smelt.runtime.guarding.guard_constants import Constants

Sizes: TypeAlias = tuple[int, ...]

PLAN_LIMIT = limits.PLANS  # plans kept of one unit; the least recently used one goes
PLAN_NBYTES = 1 << 28  # and so many bytes of what each has for itself, but for the one that is used
TEMPLATE_LIMIT = limits.TEMPLATES  # plans for many sizes
PATIENCE = 12  # plans lowered alone, after which sizes must come twice to get one, unless plans are used again
_REMEMBERED = 256  # sizes that came once


def unit_of(captured: Captured, options: Options, lookup: Lookup | None = None) -> Unit:
    """The unit of a capture that has no error, with free sizes where it has some. Raises: as `Unit.of`."""
    return (Unit if captured.sizes is None else SizedUnit).of(captured, options, lookup)


@distinct_record
class Variant:
    """An optimized graph, and the sizes that it is for."""

    graph: Graph
    conditions: Sequence[SizeCondition]

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it is for these sizes."""
        return all(found.check(values) for found in self.conditions)


@distinct_record
class Template:
    """A plan for many sizes with what runs it. unit: what is common to the plans for one tuple of sizes each. made_at:
    the sizes at hand when it was made, for which it is right without having been checked at others.
    """

    lowered: SymbolicLowered
    executable: SizedExecutable
    unit: Unit
    made_at: Sizes

    def holds(self, sizes: Sizes) -> bool:
        """Whether it is for these sizes."""
        return self.lowered.plan.holds(*sizes)

    def at(self, sizes: Sizes) -> Unit:
        """The plan for these sizes: numbers are filled in, nothing is baked in that was not before."""
        return self.unit.with_plan(self.lowered.recipes(sizes), self.executable.at(sizes))


@dataclass
class SizedUnit(Unit):
    """A captured program with free sizes; `graph` is the functional one, with symbols in its types.

    plans: by the sizes that tell them apart, least recently used first. plans_made, plans_used: how many were, and
    calls that found one. templates: plans for many sizes, of which plans are filled in; variants: the graphs behind
    them, as the passes took sizes for larger than 1, or not. lowered_alone: how many plans were lowered for one tuple
    of sizes each, why_alone: why so.
    """

    plans: OrderedDict[Sizes, Unit] = field(default_factory=OrderedDict)
    plans_made: int = 0
    plans_used: int = 0
    templates: list[Template] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    lowered_alone: int = 0
    why_alone: str = ""
    _watch: Callable[[], bool] = lambda: True
    _held: dict[int, torch.Tensor] = field(default_factory=dict)
    _nbytes: dict[Sizes, int] = field(default_factory=dict)
    _seen_once: OrderedDict[Sizes, None] = field(default_factory=OrderedDict)
    _being_made: set[Sizes] = field(default_factory=set)
    _failed: dict[Sizes, str] = field(default_factory=dict)
    _extract: Extract | None = None
    _table: threading.Lock = field(default_factory=threading.Lock)
    _checking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def facts(self) -> SizeFacts:
        """What is free, and what must hold of it."""
        assert self.captured.sizes is not None
        return self.captured.sizes

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The symbols that a plan is made for. Other numbers come in with each run."""
        in_types, of_views = names_in_types(self.graph), inputs_of_views(self.graph)
        symbols = self.facts.symbols.items()
        return tuple(name for name, origin in symbols if name in in_types or origin.input in of_views)

    @cached_property
    def _sources(self) -> tuple[tuple[int, int | None], ...]:
        origins = self.facts.symbols
        return tuple((origins[name].input, origins[name].dim) for name in self.names)

    @cached_property
    def _numbers(self) -> dict[int, str]:
        """The inputs that are numbers of which sizes are made, by position."""
        return {i: name for name, (i, dim) in zip(self.names, self._sources, strict=True) if dim is None}

    def sizes_of(self, inputs: Sequence[Any]) -> Sizes:
        """The sizes that choose the plan of a call, in the order of `names`."""
        return tuple(inputs[i] if dim is None else inputs[i].shape[dim] for i, dim in self._sources)

    def values_of(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The value of each symbol for a graph's inputs."""
        origins = self.facts.symbols.items()
        return {n: inputs[o.input] if o.dim is None else inputs[o.input].shape[o.dim] for n, o in origins}

    def check_sizes(self, inputs: Sequence[Any]) -> None:
        """Whether calls like this one were to be captured: free is only what was to be, within its range.

        Raises: CaptureError (S0107).
        """
        for value, given, place in zip(self.graph.inputs, inputs, self.signature.inputs, strict=True):
            if isinstance(value.type, TensorType) and given.dim() != value.type.rank:
                raise _outside(f"{place} has sizes {list(given.shape)}, the program was captured for {value.type}")
        values = self.values_of(inputs)
        at = ", ".join(f"{name} = {value}" for name, value in values.items())
        for value, given, place in zip(self.graph.inputs, inputs, self.signature.inputs, strict=True):
            if isinstance(value.type, TensorType) and self._sizes(value.type, values) != tuple(given.shape):
                found = f"{place} has sizes {list(given.shape)}"
                raise _outside(f"{found}, the program was captured for {value.type}, and here {at}")
        broken = next((check for check in ranges_of(self.facts) if not holds(check, values)), None)
        if broken is not None:
            raise _outside(f"the program was captured for {broken}, and here {at}")

    def check_inputs(self, inputs: Sequence[Any]) -> None:
        """Whether the graph itself holds for so many inputs: for their sizes, too. Raises: CaptureError (S0107)."""
        super().check_inputs(inputs)
        values = self.values_of(inputs)
        broken = next((guard for guard in self.facts.guards if not guard.check(values)), None)
        if broken is not None or not self.facts.holds(values):
            at = ", ".join(f"{name} = {value}" for name, value in values.items())
            why = "other sizes" if broken is None else f"{broken} ({broken.span})" if broken.span else str(broken)
            raise _outside(f"this path through {self.graph.name} is for {why}, and here {at}")

    def steps(self, type_: TensorType, inputs: Sequence[Any]) -> tuple[int | None, ...]:
        """The strides that a tensor of this type has where these are the inputs."""
        return _at(type_, self.values_of(inputs)).steps

    def takes(self, inputs: Sequence[Any]) -> bool:
        """Whether the graph holds for these inputs, of whatever kind they are."""
        for value, given in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(value.type, TensorType) and (
                type_of(given).rank != value.type.rank or type_of(given).dtype is not value.type.dtype
            ):
                return False
        values = self.values_of(inputs)
        for value, given in zip(self.graph.inputs, inputs, strict=True):
            if isinstance(value.type, TensorType) and _at(value.type, values) != type_of(given):
                return False
        return self.facts.holds(values)

    @staticmethod
    def _sizes(type_: TensorType, values: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size_of(dim, values) for dim in type_.shape or ())

    def graph_at(self, sizes: Sizes) -> Graph:
        """The optimized graph behind the plan for these sizes."""
        plan = self.plan_for(sizes)
        return self.optimize() if plan.optimized is None else plan.optimized

    def shown(self, sizes: Sizes) -> str:
        """A plan's sizes as text; of a plan that is for all, nothing."""
        return ", ".join(f"{name}={size}" for name, size in zip(self.names, sizes, strict=True))

    # --- an entry

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """State tensors whose contents some plan has baked in."""
        return tuple(self._held.values())

    @property
    def originals(self) -> tuple[torch.Tensor, ...]:
        """State tensors that were folded or packed and that no plan reads."""
        plans = list(self.plans.values())
        read = {id(t) for plan in plans for t in plan.constants} - {id(t) for plan in plans for t in plan.originals}
        return tuple(tensor for tensor in self.constants if id(tensor) not in read)

    def prepare(self) -> None:
        """The same as `finish`."""
        self.finish()

    def finish(self) -> None:
        """Make the plan for the sizes of the recorded call. Raises: SmeltError where that cannot be done."""
        hints = [self.facts.symbols[name].hint for name in self.names]
        sizes: Sizes = tuple(cast(int, hint) if isinstance(hint, float) else int(hint) for hint in hints)
        if sizes not in self.plans:
            self._made(sizes, is_first=True)

    @property
    def goes_through_python(self) -> bool:
        """Whether Python goes through parts of a plan that was made."""
        return any(plan.goes_through_python for plan in self.plans.copy().values())

    def on_constants(self, watch: Callable[[], bool]) -> None:
        """Have `watch` called before a plan runs that has more of the state baked in."""
        self._watch = watch

    def refresh(self) -> None:
        """Fold and pack anew from the present contents of the state."""
        with self._table:
            self.plans.clear()
            self._nbytes.clear()
            self.templates.clear()
        packs().forget(self.state)
        self.finish()

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As of any unit. Raises: LeftAlone where the original is to run."""
        if self._extract is None:
            assert self.captured.signature is not None
            self._extract = extractor(self.captured.signature, args, kwargs)
        return self.plan_for(self.sizes_of(self._extract(args, kwargs))).run(args, kwargs)

    # --- plans

    def take_plans(self, narrow: SizedUnit) -> None:
        """Begin with the plans of the same program compiled for larger sizes, where its graph is the same."""
        if self.names != narrow.names or str(self.graph) != str(narrow.graph):
            return
        with narrow._table:
            self.plans, self.templates = narrow.plans.copy(), list(narrow.templates)
            self._nbytes, self._held = dict(narrow._nbytes), dict(narrow._held)

    def plan_for(self, sizes: Sizes) -> Unit:
        """The plan for these sizes, made now if that seems to pay. Raises: LeftAlone; SmeltError of the lowering."""
        with self._table:
            plan = self.plans.get(sizes)
            if plan is not None:
                self.plans.move_to_end(sizes)
                self.plans_used += 1
                return plan
            self._ask_whether_to_make(sizes)
            if self.background:
                self._being_made.add(sizes)
        if not self.background:
            return self._made(sizes)
        threading.Thread(
            target=self._make_aside, args=(sizes,), name=f"smelt {self.captured.name}", daemon=True
        ).start()
        raise LeftAlone("still compiling in the background, for other sizes")

    def _ask_whether_to_make(self, sizes: Sizes) -> None:
        if sizes in self._failed:
            raise LeftAlone(self._failed[sizes])
        if sizes in self._being_made:
            raise LeftAlone("still compiling in the background, for other sizes")
        pays = self.lowered_alone < PATIENCE or self.plans_used >= 2 * self.plans_made or self.options.strict
        if self._template(sizes) is not None:
            return
        if self.ledger is not None and not self.ledger.may_build():
            self.ledger.refused += 1
            raise LeftAlone(STOPPED)
        if pays or sizes in self._seen_once:
            return
        self._seen_once[sizes] = None
        if len(self._seen_once) > _REMEMBERED:
            self._seen_once.popitem(last=False)
        raise LeftAlone("its sizes differ at nearly each call, and each would need a plan of its own")

    def _made(self, sizes: Sizes, is_first: bool = False) -> Unit:
        """A plan for these sizes, among the others.

        Raises: LeftAlone where the state is changed meanwhile; of the first plan, whoever finishes the unit sees that.
        """
        template = self._checked_template(sizes)
        if template is not None:
            plan = template.at(sizes)
            plan.sample = self._sample_of(sizes)
            with self._table:
                if template not in self.templates:
                    raise LeftAlone("its state is folded and packed anew")
                self._keep(sizes, plan)
            return plan
        # Taken before anything is folded or packed: what changes meanwhile may be in the plan or not.
        before = Constants(self.state)
        with nullcontext() if self.ledger is None else self.ledger.building():
            template = self._new_template(sizes)
            plan = self._plan_alone(sizes) if template is None else template.at(sizes)
            plan.sample = self._sample_of(sizes)
            if template is not None:
                plan.let_originals_go()
        held = {id(tensor): tensor for tensor in plan.constants}
        is_new = not held.keys() <= self._held.keys()
        self._held |= held
        is_same = is_first or not is_new or self._watch()
        if not is_same or (not is_first and any(id(before.tensors[i]) in held for i in before.changed())):
            raise LeftAlone("the program's state is changed while a plan is made of it")
        with self._table:
            if template is not None:
                self.templates.append(template)
            self._keep(sizes, plan)
        return plan

    def _keep(self, sizes: Sizes, plan: Unit) -> None:
        self.plans[sizes], self._nbytes[sizes] = plan, plan.nbytes
        self.plans.move_to_end(sizes)  # another thread may have made it before
        self.plans_made += 1
        while len(self.plans) > 1 and (
            len(self.plans) > PLAN_LIMIT or sum(self._nbytes.values()) > PLAN_NBYTES + self._nbytes[sizes]
        ):
            del self._nbytes[self.plans.popitem(last=False)[0]]

    def _sample_of(self, sizes: Sizes) -> list[torch.Tensor] | None:
        """The inputs of the first call, where they have these sizes."""
        return self.sample if self.sample is not None and self.sizes_of(self.sample) == sizes else None

    def _plan_alone(self, sizes: Sizes) -> Unit:
        graph = specialize(self.graph, dict(zip(self.names, sizes, strict=True)), self._numbers)
        plan = Unit(
            self.captured, self.options, self.lookup, graph, sample=self._sample_of(sizes),
            narrowed=self.narrowed, moved=self.moved,
        )  # fmt: skip
        plan.finish()
        self.narrowed = plan.narrowed
        self.lowered_alone += 1
        return plan

    def _template(self, sizes: Sizes) -> Template | None:
        """A plan that is right for these sizes among others."""
        return next((template for template in self.templates if template.holds(sizes)), None)

    def _checked_template(self, sizes: Sizes) -> Template | None:
        """The same; one that another lowering does not come to is for the sizes at hand when it was made alone."""
        template = self._template(sizes)
        if template is None or sizes == template.made_at:
            return template
        try:
            with self._checking, nullcontext() if self.ledger is None else self.ledger.building():
                template.lowered.check()
        except Exception as error:
            self._is_alone(error)
            with self._table:
                self.templates = [other for other in self.templates if other is not template]
            return None
        return template

    def _is_alone(self, error: Exception) -> None:
        """Note why plans are for one tuple of sizes each. Raises: the error in strict mode, where it is no answer."""
        if self.options.strict and not isinstance(error, (NotSymbolic, SmeltError)):
            raise error
        self.why_alone = " ".join(str(error).split()) or type(error).__name__

    def _new_template(self, sizes: Sizes) -> Template | None:
        """One made now; None where each tuple of sizes is lowered by itself."""
        if self.why_alone or not self.names:
            return None
        if len(self.templates) >= TEMPLATE_LIMIT:
            self.why_alone = f"{TEMPLATE_LIMIT} plans for many sizes each do not fit all calls"
            return None
        ranges = {name: found for name in self.names if (found := self.facts.symbols[name].range) is not None}
        if len(ranges) < len(self.names):
            self.why_alone = "a float decides where in memory a view begins"
            return None
        hints = dict(zip(self.names, sizes, strict=True))
        start = perf_counter()
        try:
            variant = self._variant(hints)
            made = lower_symbolic(
                variant.graph,
                self.lookup,
                self.options,
                hints,
                ranges,
                inputs=self._numbers,
                holds=self._holds(variant),
                checks_later=True,
            )
        except Exception as error:  # whatever it is: a plan for these sizes alone gives the same answer
            self._is_alone(error)
            return None
        finally:
            self.stages_ms["lower for all sizes"] = round((perf_counter() - start) * 1000, 3)
        unit = Unit(
            self.captured, self.options, self.lookup, self.graph, sample=self.sample, narrowed=self.narrowed,
            moved=self.moved,
        )  # fmt: skip
        unit.optimized = variant.graph
        # Asked in each run, and found by a walk of the graph: once for all plans.
        _ = unit.is_path, unit.draws, unit.repeats_errors, unit.is_staged, unit.prints, unit.acts
        return Template(made, made.executable(machine_code(self.options)), unit, sizes)

    def lowered_for_files(self, sizes: Sizes, options: Options) -> SymbolicLowered:
        """A plan for these sizes among others, in which nothing is computed beforehand.

        Raises: NotSymbolic; SmeltError of the lowering.
        """
        ranges = {name: found for name in self.names if (found := self.facts.symbols[name].range) is not None}
        if len(ranges) < len(self.facts.symbols) or self._numbers:
            raise NotSymbolic("numbers decide of it that are no sizes of tensors")
        hints = dict(zip(self.names, sizes, strict=True))
        symbols = symbols_of(self.facts, self.names, hints)
        graph, _ = optimized_graph(self.graph, options, self.lookup, symbols)
        holds = self._holds(Variant(graph, symbols.conditions))
        return lower_symbolic(graph, self.lookup, options, hints, ranges, holds=holds, for_files=True)

    @cached_property
    def symbols(self) -> Symbols | None:
        """The symbols in the graph's types, of which passes are to know."""
        return symbols_of(self.facts, self.names)

    def _variant(self, hints: Mapping[str, int]) -> Variant:
        """The optimized graph for these sizes among others."""
        if not self.variants:
            assert self.symbols is not None
            self.variants.append(Variant(self.optimize(), self.symbols.conditions))
        found = next((variant for variant in self.variants if variant.holds(hints)), None)
        if found is None:
            symbols = symbols_of(self.facts, self.names, hints)
            graph, _ = optimized_graph(self.graph, self.options, self.lookup, symbols)
            found = Variant(self.narrow(graph), symbols.conditions)
            self.variants.append(found)
        return found

    def _holds(self, variant: Variant) -> Callable[..., bool]:
        """Whether the guards that speak of `names` alone, and what passes relied on, hold for these sizes."""
        guards = [guard for guard in self.facts.guards if names_of(guard) <= set(self.names)]

        def holds(*sizes: int) -> bool:
            values = dict(zip(self.names, sizes, strict=True))
            return variant.holds(values) and all(guard.check(values) for guard in guards)

        return holds

    def _make_aside(self, sizes: Sizes) -> None:
        try:
            self._made(sizes)
        except LeftAlone:
            pass  # the next call tries again
        except SmeltError as error:
            self._failed[sizes] = error.reason
        except Exception as error:  # whatever it is, the original answers for these sizes
            self._failed[sizes] = f"{type(error).__name__}: {error}"
        finally:
            self._being_made.discard(sizes)


def _at(type_: TensorType, values: Mapping[str, int]) -> TensorType:
    """A type at given values of its symbols."""
    sizes = [size_of(dim, values) for dim in type_.shape or ()]
    strides = None if type_.strides is None else [size_of(dim, values) for dim in type_.strides]
    return TensorType.of(type_.dtype, sizes, strides, type_.device, type_.layout)


def _outside(what: str) -> CaptureError:
    return CaptureError(
        what,
        why="the captured graph holds for what it was captured with, and for what dynamic_shapes leaves free",
        fix="capture it again for these arguments, or use smelt.compile, which does so by itself",
        code="S0107",
    )

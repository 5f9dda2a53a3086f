"""From the records of a staged run to its graph: regions inside nodes, and state at the top.

Invariant: a value that was recorded in a region is known there only; a use elsewhere (through something that no
snapshot saw) is an error, never another value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.record_modes import Modes
from smelt.capture.dynamic.dims import Emitter
from smelt.capture.dynamic.inputs import Symbols
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.recording.build import GraphBuilder
from smelt.capture.recording.kept_casts import KeptCast
from smelt.capture.recording.tensor_slots import Record, Slot, StateSlot, slot_type
from smelt.capture.staging.records import RegionRecords, Structured
from smelt.diag import CaptureError
from smelt.ir import INT, Graph, Type, Value

if TYPE_CHECKING:
    from smelt.capture.staging.fakes.fake_tensors import FakeRecorder


class StagedBuilder(GraphBuilder):
    """Builds the graph of a staged run."""

    def __init__(self, name: str, recorder: FakeRecorder, caller: Modes, symbols: Symbols | None = None) -> None:
        super().__init__(name, recorder, caller)
        self.symbols = symbols
        self.numbers: dict[Any, Any] = {}

    def build(self, input_names: Sequence[str], outputs: Sequence[Slot]) -> Graph:
        graph = self.builder.graph
        recorder: Any = self.recorder
        for slot, name in zip(recorder.inputs, input_names, strict=True):
            self.values[slot] = self.builder.add_param(graph.body, name, slot_type(slot))
        for slot in _states(recorder.records, outputs):
            self._state(recorder.session.paths.resolved(slot))
        escaping = {slot.family for slot in outputs if slot.family.is_constant}
        self._records(recorder.records, escaping)
        self.builder.span, self.builder.scope, self.builder.mode = None, "", ""
        return self.builder.finish([self._arg_of(slot) for slot in outputs])

    def _records(self, records: Sequence[Any], escaping: set[Any]) -> None:
        for record in records:
            if isinstance(record, Structured):
                self._structured(record, escaping)
            else:
                made = Record._make(record)
                if not self._is_construction(made):
                    self._node(made, escaping)

    def _structured(self, record: Structured, escaping: set[object]) -> None:
        builder = self.builder
        args = tuple(self._arg_of(a) for a in record.args)
        builder.span, builder.scope, builder.mode = self._span(record.site), record.scope, ""
        node = builder.add(record.op, args, [slot_type(r) for r in record.results])
        for region in record.regions:
            self._region(node, region, escaping)
        for value, slot in zip(node.results, record.results, strict=True):
            self.values[slot] = value

    def _cast(self, slot: Slot, record: Record, low: torch.dtype) -> Value:
        """Raises: KeptCast in a branch or loop: which way makes it first is not known until a run."""
        if self.builder.region is not self.builder.graph.body:
            raise KeptCast(record, is_staged=True)
        return super()._cast(slot, record, low)

    def _region(self, node: Any, region: RegionRecords, escaping: set[object]) -> None:
        inner = self.builder.add_region(node)
        saved, self.values = self.values, dict(self.values)
        numbers, self.numbers = self.numbers, dict(self.numbers)
        for slot in region.params:
            self.values[slot] = self.builder.add_param(inner, "", slot_type(slot))
        with self.builder.inside(inner):
            self._records(region.records, escaping)
            inner.set_yields(tuple(self._arg_of(y) for y in region.yields))
        self.values, self.numbers = saved, numbers

    def _number(self, slot: SizeSlot) -> Any:
        """The value of a number, computed here unless it was before; a literal where nothing is left of it."""
        if slot in self.values:
            return self.values[slot]
        return Emitter(slot.trace, self._plain, self._symbol).number(slot.number, self.numbers)

    def _plain(self, op: str, args: tuple[Any, ...], types: list[Type]) -> Value:
        mode, self.builder.mode = self.builder.mode, ""
        node = self.builder.add(op, args, types)
        self.builder.mode = mode
        return node.result

    def _symbol(self, name: str) -> Value:
        assert self.symbols is not None
        origin = self.symbols.origins[name]
        value = self.builder.graph.body.params[origin.input]
        return value if origin.dim is None else self._plain("aten.sym_size.int", (value, origin.dim), [INT])

    def _arg_of(self, value: object) -> Any:
        return self._value(value) if isinstance(value, Slot) else value

    def _known(self, slot: Slot) -> Value | None:
        recorder: Any = self.recorder
        found = self.values.get(slot)
        return self.values.get(recorder.session.paths.resolved(slot)) if found is None else found

    def _value(self, slot: Slot) -> Value:
        if isinstance(slot, SizeSlot):
            return self._number(slot)
        found = self._known(slot)
        if found is None and isinstance(slot, StateSlot):
            return self._state(slot)
        if found is None:
            raise CaptureError(
                f"a value {slot_type(slot)} that was made on one path was used outside of it",
                why="it is stored where staging does not look: in an object of C code, or in a generator",
                fix="keep it in a variable, a container or an attribute",
                code="S0104",
            )
        return found


def _states(records: Iterable[Any], outputs: Iterable[Any]) -> Iterable[StateSlot]:
    for record in records:
        if isinstance(record, Structured):
            yield from _in(record.args)
            for region in record.regions:
                yield from _states(region.records, region.yields)
        else:
            yield from _in(record[1])
            yield from _in(list(record[2].values()))
    yield from _in(list(outputs))


def _in(value: object) -> Iterable[StateSlot]:
    if isinstance(value, StateSlot):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _in(item)

"""From records to a graph: one node a record, in order; whole operators, views and in-place writes as they were."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from smelt._torch.seen.record_modes import Modes
from smelt._torch.state import is_any_autocast
from smelt.capture.recording.expects import ExpectEmitter
from smelt.capture.recording.kept_casts import KeptCast, kept, kept_type
from smelt.capture.recording.recorder import Recorder
from smelt.capture.recording.spans import Site, Spans
from smelt.capture.recording.tensor_slots import Record, Slot, StateSlot, slot_type
from smelt.diag import CaptureError, Span
from smelt.ir import NONE, Arg, Builder, Graph, Node, TensorType, TupleType, Type, Value
from smelt.ops.convert import constant_of, dtype_from_torch, from_torch, type_of
from smelt.ops.registry import normalize


def mode_text(now: Modes, caller: Modes) -> str:
    """What is switched on around an operator: what the program set itself, and what differs from the caller's state."""
    words: list[str] = []
    if now.inference and (now.is_set or not caller.inference):
        words.append("inference")
    elif now.is_set or now.grad != caller.grad:
        words.append("enable_grad" if now.grad else "no_grad")
    # Without a word it is as whoever runs the graph as Python has it, who may be the caller that had it on.
    off = now.without_autocast | ({"cpu"} if is_any_autocast() and not now.autocast else set())
    found = dict(now.autocast)
    for device in sorted({*found, *off}):
        where = "" if device == "cpu" else f"{device}, "
        words.append(f"autocast({where}{dtype_from_torch(found[device]) if device in found else 'off'})")
    return " ".join(words)


class GraphBuilder:
    """Builds one graph; values by slot."""

    def __init__(self, name: str, recorder: Recorder, caller: Modes) -> None:
        self.recorder = recorder
        self.caller = caller
        self.builder = Builder.new(name, {})
        self.values: dict[Slot, Value] = {}
        self.states: dict[tuple[str, str], Value] = {}
        self.modes: dict[Modes, str] = {}
        self.casts: dict[tuple[int, int], Value] = {}  # that autocast keeps, by id of the weight
        self.spans = Spans()
        self.position = 0  # of the record that becomes a node

    def build(self, input_names: Sequence[str], outputs: Sequence[Slot]) -> Graph:
        """The whole graph. Raises: CaptureError (S0104) for an argument that no graph can hold."""
        graph = self.builder.graph
        for slot, name in zip(self.recorder.inputs, input_names, strict=True):
            self.values[slot] = self.builder.add_param(graph.body, name, slot_type(slot))
        escaping = {slot.family for slot in outputs if slot.family.is_constant}
        for position, record in enumerate(map(Record._make, self.recorder.records)):
            self.position = position
            if not self._is_construction(record):
                self._node(record, escaping)
        self.position = len(self.recorder.records)
        self.builder.span, self.builder.scope, self.builder.mode = None, "", ""
        return self.builder.finish([self._value(slot) for slot in outputs])

    def _state(self, slot: StateSlot) -> Value:
        """The node of a parameter, buffer or captured tensor, right before its first use and with that use's origin."""
        key = (slot.kind, slot.entry.path)
        if key not in self.states:
            mode, self.builder.mode = self.builder.mode, ""
            node = self.builder.add(slot.kind, (slot.entry.path,), [slot_type(slot)], names=[_name(slot.entry.path)])
            self.states[key] = node.result
            self.builder.mode = mode
        return self.states[key]

    def _node(self, record: Record, escaping: set[Any]) -> None:
        builder = self.builder
        builder.span = self._span(record.site)
        builder.scope = record.scope
        mode = self.modes.get(record.modes)
        if mode is None:
            mode = self.modes[record.modes] = mode_text(record.modes, self.caller)
        builder.mode = mode
        if record.info.name.startswith("expect:"):
            self._expect(record)
            return
        first = record.args[0] if record.args else None
        if isinstance(first, Slot) and first.kind == "constant" and record.info.short.startswith("lift"):
            result = record.results[0]
            self.values[first] = self.values[result] = self._constant(first, escaping)
            return
        low = kept_type(record)
        if low is not None:
            record = record._replace(args=[self._with_casts(a, record, low) for a in record.args])
        args = tuple(self._arg(a, record) for a in record.args)
        kwargs = {k: self._arg(v, record) for k, v in record.kwargs.items()}
        args, kwargs = normalize(record.info.name, args, kwargs)
        node = builder.add(record.info.name, args, [_type(r) for r in record.results], kwargs)
        self._results(node, record)

    def _with_casts(self, arg: Any, record: Record, low: torch.dtype) -> object:
        """An operand, with the first cast in the place of a weight that autocast keeps the cast of."""
        if isinstance(arg, (list, tuple)):
            return [self._with_casts(item, record, low) for item in arg]
        weight = kept(arg) if isinstance(arg, Slot) else None
        if weight is None:
            return arg
        key = id(weight), record.modes.cache
        if key not in self.casts:
            self.casts[key] = self._cast(arg, record, low)
        return self.casts[key]

    def _cast(self, slot: Slot, record: Record, low: torch.dtype) -> Value:
        """Raises: KeptCast where it may have been made before the run."""
        if record.modes.cache == 0:
            raise KeptCast(record, is_staged=False)
        mode, self.builder.mode = self.builder.mode, mode_text(record.modes._replace(autocast=()), self.caller)
        type_ = slot_type(slot)
        cast = self.builder.add(
            "aten.to.dtype",
            (self._value(slot), dtype_from_torch(low)),
            [TensorType(dtype_from_torch(low), type_.shape, type_.strides, type_.device)],
        )
        self.builder.mode = mode
        return cast.result

    def _expect(self, record: Record) -> None:
        """What Python read, as comparisons of 0-d tensors with what it was."""
        args = tuple(self._arg(a, record) for a in record.args)
        wanted = record.kwargs["value"]
        named = {k: self._arg(v, record) for k, v in record.kwargs.items() if k != "value"}
        emit = ExpectEmitter(self.builder)
        match record.info.short:
            case "bool":
                emit.truth(args[0], wanted)
            case "item":
                emit.number(args[0], wanted)
            case "equal":
                emit.equality(args[0], args[1], wanted)
            case "allclose":
                emit.all_of(emit.call("aten.isclose.default", *args, **named), wanted)
            case "error":
                emit.error(str(args[0]), args[1:], named, wanted)
            case "sizes":
                emit.sizes(args[0], wanted)
            case "offset":
                emit.offset(args[0], wanted)
            case "elements":
                data, large = constant_of(wanted)
                if large is not None:
                    self.builder.graph.constants[large[0]] = large[1]
                emit.elements(args[0], self.builder.add("const", data, [type_of(wanted)]).result)

    def _is_construction(self, record: Record) -> bool:
        """Whether a record only made room for Python data, which its `const` will hold or holds."""
        result = record.results[0] if len(record.results) == 1 else None
        if not isinstance(result, Slot) or not result.family.is_constant:
            return False
        first = record.args[0] if record.args else None
        known = self._known(first) if isinstance(first, Slot) else None
        if known is not None:
            if record.info.short == "detach_":
                self.values[result] = known
                return True
            return False
        return record.info.short in ("empty", "to")

    def _known(self, slot: Slot) -> Value | None:
        """The value that a slot has in the graph so far."""
        return self.values.get(slot)

    def _span(self, site: Site | None) -> Span | None:
        return None if site is None else self.spans.of(site)

    def _constant(self, slot: Slot, escaping: set[object]) -> Value:
        args, large = constant_of(self.recorder.constants[slot])
        if large is not None:
            self.builder.graph.constants[large[0]] = large[1]
        value = self.builder.add("const", args, [slot_type(slot)]).result
        if slot.family in escaping:
            # The caller may write into a result; the constant must stay.
            value = self.builder.add("aten.clone.default", (value,), [slot_type(slot)]).result
        return value

    def _results(self, node: Node, record: Record) -> None:
        for value, result in zip(node.results, record.results, strict=True):
            if isinstance(result, Slot):
                self.values[result] = value
            elif isinstance(result, list):
                parts = self.builder.add("unpack", (value,), [_type(r) for r in result])
                for part, slot in zip(parts.results, result, strict=True):
                    if isinstance(slot, Slot):
                        self.values[slot] = part

    def _arg(self, arg: object, record: Record) -> Arg:
        if isinstance(arg, Slot):
            return self._value(arg)
        if isinstance(arg, Value):
            return arg
        if isinstance(arg, (list, tuple)):
            return tuple(self._arg(item, record) for item in arg)
        try:
            return from_torch(arg)
        except TypeError as unfit:
            what, why, fix = no_argument(record.info.name, arg, unfit)
            raise CaptureError(what, record.site.span if record.site else None, why, fix, "S0104") from None

    def _value(self, slot: Slot) -> Value:
        last, state = self.recorder.kept.get(slot, (0, None))
        if state is not None and self.position > last:
            return self._state(state)
        value = self.values.get(slot)
        if value is None and isinstance(slot, StateSlot):
            value = self.values[slot] = self._state(slot)
        if value is None:
            raise KeyError(slot)
        return value


def no_argument(operator: str, arg: object, unfit: TypeError) -> tuple[str, str, str]:
    """What, why and how to fix, of an argument that no graph holds."""
    if isinstance(arg, (list, tuple)):
        arg = next((item for item in arg if isinstance(item, torch.ScriptObject)), arg)
    what = f"{operator} was called with a {type(arg).__qualname__}"
    if isinstance(arg, torch.ScriptObject):
        return (
            what,
            "it is an object of torch's own, such as the packed weights of a quantized module, and no tensor",
            "capture the model before torch.ao.quantization changes it, or use smelt.compile, which runs such a "
            "module in eager mode and compiles the code around it",
        )
    return what, str(unfit), "use the default generator, and plain tensors and numbers as arguments"


_NO_WORD = re.compile(r"\W")


def _name(path: str) -> str:
    return _NO_WORD.sub("_", path)


def _type(result: object) -> Type:
    if isinstance(result, Slot):
        found: TensorType = slot_type(result)
        return found
    if isinstance(result, list):
        return TupleType(tuple(_type(item) for item in result))
    return NONE

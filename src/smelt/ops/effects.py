"""What a node does besides computing its results: writes, random numbers, outside effects; and what its results share.

Everything follows from the schema, torch's tags and the catalogue; nothing here knows an operator by name.
"""

from __future__ import annotations

from typing import Any

from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, Node, TensorType, TupleType, Type, Value, may_hold_tensor, values_in
from smelt.ops.catalogue import CATALOGUE, record_of
from smelt.ops.lazy_bits import is_copied
from smelt.ops.meta import CannotRun, meta_outcome, operand_values
from smelt.ops.python.python_ops import python_op
from smelt.ops.python.scalar_reads import scalar_read
from smelt.ops.raises import may_raise
from smelt.ops.record import OpRecord, Trait, nothing_written
from smelt.ops.registry import Argument, Schema, arguments_of, by_overload, overload, read, schema_of, tags_of
from smelt.ops.sets import bases_where

_KNOWN_NAMESPACES = ("aten", "prims")
_MADE_BEFORE = (*STATE_OPS, "const")
_CONTROL = ("if", "for", "while")


@record
class Effects:
    """writes: operands whose memory changes. rng: draws random numbers. io: acts on something we do not see.

    may_throw: the data may make it raise. arbitrary: the result's content is not determined (`empty`).
    stops: it may end the run as a miss, of which nothing may be visible (`expect`).
    """

    writes: tuple[Value, ...] = ()
    rng: bool = False
    io: bool = False
    may_throw: bool = False
    arbitrary: bool = False
    stops: bool = False

    @property
    def is_pure(self) -> bool:
        """Whether dropping the node, or running it elsewhere, changes nothing but its own results."""
        return not (self.writes or self.rng or self.io or self.stops)

    @property
    def is_reproducible(self) -> bool:
        """Whether a second run on equal operands gives equal results and nothing else."""
        return self.is_pure and not self.arbitrary


PURE = Effects()
THROWS = Effects(may_throw=True)
UNKNOWN = Effects(io=True, may_throw=True)
STOP = Effects(stops=True, may_throw=True)
"""Of `expect`, which ends the run where its value is another."""


def effects(node: Node) -> Effects:
    """The effects of a node, those of its regions included."""
    if node.regions:
        return _effects(node)
    found: Effects | None = node.memo.get("effects")
    if found is None:
        found = node.memo["effects"] = _effects(node)
    return found


def _effects(node: Node) -> Effects:
    if node.op in _MADE_BEFORE or node.op == "unpack":
        return PURE
    if node.op == "write":
        return Effects(writes=tuple(values_in(node.args[0])))
    if node.op == "expect":
        return STOP
    if node.op in _CONTROL:
        return _control_effects(node)
    found = overload(node.op)
    if found is None:
        return _python_effects(node)
    if _is_always_pure(found):
        return THROWS if may_raise(node, found) else PURE
    scalar = scalar_read(node.op)
    if scalar is not None:
        return Effects(may_throw=scalar.throws(node.args))
    return _operator_effects(node, read(found))


def _python_effects(node: Node) -> Effects:
    python = python_op(node.op)
    if python is None:
        return UNKNOWN
    return Effects(rng=python.rng, io=python.io, may_throw=python.throws(node.args))


def declared_writes(node: Node) -> tuple[Value, ...]:
    """What the schema says that a node writes to, which autograd and version counters see; of `batch_norm`, nothing."""
    schema = schema_of(node.op) if not node.regions else None
    call = _call(schema, node) if schema is not None else None
    if schema is None or call is None:
        return ()
    return tuple(v for a in schema.arguments if a.is_write for v in values_in(call[a.name]))


def is_pure(node: Node) -> bool:
    """Whether a node only computes its results."""
    return effects(node).is_pure


def is_reproducible(node: Node) -> bool:
    """Whether a node may be run twice, or once for two: pure, and of determined content."""
    return effects(node).is_reproducible


def _control_effects(node: Node) -> Effects:
    """The union over all inner nodes; writes to values made inside are nobody else's business."""
    found: list[Effects] = []
    holders = [node]
    for holder in holders:
        for region in holder.regions:
            for inner in region:
                if inner.op in _CONTROL:
                    holders.append(inner)
                    # A while loop may not end; that too must stay.
                    found += [Effects(io=True)] if inner.op == "while" else []
                else:
                    found.append(effects(inner))
    written = [v for e in found for v in e.writes]
    # In a functional graph, nothing is.
    writes = _written_outside(written, holders) if written else set()
    return Effects(
        tuple(writes),
        any(e.rng for e in found),
        any(e.io for e in found) or node.op == "while",
        any(e.may_throw for e in found),
        any(e.arbitrary for e in found),
        any(e.stops for e in found),
    )


def _written_outside(written: list[Value], holders: list[Node]) -> set[Value]:
    """The values from outside that writes to some inside of nodes with regions may reach."""
    inside: set[Value] = set()
    feeds: dict[Value, list[Value]] = {}
    for holder in holders:
        # A region's parameter may be what the loop was started with, or what the trip before handed on.
        handed = [v for r in holder.regions for arg in r.yields for v in values_in(arg)]
        for region in holder.regions:
            inside.update(region.params)
            feeds.update((p, [*holder.operands(), *handed]) for p in region.params)
            for inner in region:
                inside.update(inner.results)
                feeds.update((r, list(shared)) for r, shared in zip(inner.results, aliases(inner), strict=True))
    return _reached(written, feeds) - inside


def _reached(values: list[Value], feeds: dict[Value, list[Value]]) -> set[Value]:
    """The values whose memory any of some may lie in, as far as it can hold tensors."""
    found: set[Value] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in found and may_hold_tensor(value.type):
            found.add(value)
            pending += feeds.get(value, ())
    return found


@by_overload
def _is_always_pure(found: Any) -> bool:
    """Whether no call of an overload does anything but compute, or raise, whatever its arguments."""
    schema = read(found)
    op, record = schema.name, record_of(schema.name)
    if schema.is_mutable or not schema.returns or schema.name.partition(".")[0] not in _KNOWN_NAMESPACES:
        return False
    if "nondeterministic_seeded" in tags_of(op) or any("Generator" in a.type for a in schema.arguments):
        return False
    if scalar_read(op) is not None:
        return False
    return record is None or (record.writes is nothing_written and not record.uninitialised)


_SHARING = {record.name.split(".")[1] for record in CATALOGUE if record.alias != "fresh"}
_FRESH = bases_where(Trait.READS_ALL) - _SHARING
"""Operators of which no overload gives an operand's memory, by their names."""


@by_overload
def _is_always_fresh(found: Any) -> bool:
    """Whether the results of an overload always have memory of their own: so the catalogue says, and the schema."""
    schema = read(found)
    record = record_of(schema.name)
    declared = any(r.alias for r in schema.returns) or any("*" in a.alias for a in schema.arguments)
    # Variances have overloads without a record, of which torch's kernels without data import sympy: half a second.
    is_fresh = record.alias == "fresh" if record is not None else schema.name.split(".")[1] in _FRESH
    return is_fresh and not declared and not schema.is_mutable


def _call(schema: Schema, node: Node) -> dict[str, Arg] | None:
    try:
        return arguments_of(schema, node.args, node.kwargs)
    except TypeError:
        return None


def _operator_effects(node: Node, schema: Schema) -> Effects:
    call = _call(schema, node)
    record = record_of(node.op)
    tags = tags_of(node.op)
    if call is None:
        return UNKNOWN
    written = [v for a in schema.arguments if a.is_write for v in values_in(call[a.name])]
    if record is not None:
        written += [v for name in record.writes(call) for v in values_in(call[name])]
    rng = "nondeterministic_seeded" in tags or any("Generator" in a.type for a in schema.arguments)
    if rng and record is not None:
        rng = record.rng(call)
    elif rng:
        rng = not _is_switched_off(call)
    known = schema.name.partition(".")[0] in _KNOWN_NAMESPACES
    io = not known or (not schema.returns and not written)
    return Effects(
        tuple(dict.fromkeys(written)),
        rng,
        io,
        not known or may_raise(node, overload(node.op)),
        record.uninitialised if record is not None else False,
    )


def _is_switched_off(call: dict[str, Arg]) -> bool:
    """Whether an operator with dropout inside (`lstm`, `rrelu`, ...) is told not to draw."""
    train = next((call[n] for n in ("train", "training") if n in call), None)
    if train is False:
        return True
    probability = next((call[n] for n in ("dropout_p", "dropout", "p") if n in call), None)
    return type(probability) in (int, float) and probability == 0 and "lambd" not in call


# --- what results share memory with


def aliases(node: Node) -> tuple[tuple[Value, ...], ...]:
    """For each result, the operands whose memory it may share; an empty tuple means memory of its own.

    Results of `if`, `for` and `while` are given every tensor they could be: see `smelt.analysis.aliases` for better.
    """
    if node.regions:
        return _aliases(node)
    found: tuple[tuple[Value, ...], ...] | None = node.memo.get("aliases")
    if found is None or len(found) != len(node.results):
        found = node.memo["aliases"] = _aliases(node)
    return found


def _aliases(node: Node) -> tuple[tuple[Value, ...], ...]:
    if node.op in _MADE_BEFORE:
        return tuple(() for _ in node.results)
    if node.op == "write":
        return (tuple(values_in(node.args[0])),)
    if node.op == "unpack":
        source = node.args[0]
        made = python_op(source.node.op) if isinstance(source, Value) and source.node is not None else None
        if made is not None and made.is_fresh:
            return tuple(() for _ in node.results)
        return tuple(tuple(values_in(node.args[0])) for _ in node.results)
    if node.op in _CONTROL:
        outside = tuple(v for v in node.operands() if may_hold_tensor(v.type))
        yielded = tuple(v for r in node.regions for arg in r.yields for v in values_in(arg) if may_hold_tensor(v.type))
        return tuple(outside + yielded if may_hold_tensor(r.type) else () for r in node.results)
    found = overload(node.op)
    if found is None:
        python = python_op(node.op)
        if python is not None and python.is_fresh:
            return tuple(() for _ in node.results)
        holders = tuple(v for v in operand_values(node.args, node.kwargs) if may_hold_tensor(v.type))
        return tuple(holders if may_hold_tensor(r.type) else () for r in node.results)
    if _is_always_fresh(found) or scalar_read(node.op) is not None or is_copied(node, alias_of):
        return tuple(() for _ in node.results)
    return _operator_aliases(node, read(found))


def _operator_aliases(node: Node, schema: Schema) -> tuple[tuple[Value, ...], ...]:
    call = _call(schema, node)
    if call is None:
        everything = tuple(operand_values(node.args, node.kwargs))
        return tuple(everything for _ in node.results)
    record = record_of(node.op)
    declared = tuple(_declared(returned, schema, call) for returned in schema.returns)
    if schema.is_mutable:
        return declared
    if record is not None and record.alias == "fresh" and not any(declared):
        return declared
    if _is_certain(record, schema):
        return declared
    return _observed(node, declared)


def _is_certain(record: OpRecord | None, schema: Schema) -> bool:
    return record is not None and record.alias == "view" and len(schema.returns) == 1


def _declared(returned: Argument, schema: Schema, call: dict[str, Arg]) -> tuple[Value, ...]:
    """The operands that the schema says a result shares memory with."""
    found: list[Value] = []
    for argument in schema.arguments:
        # `Tensor(a -> *) self` with a list result: the elements are views of self.
        wild = "*" in argument.alias and returned.type.startswith("List[")
        if wild or (argument.alias & returned.alias):
            found.extend(values_in(call[argument.name]))
    return tuple(found)


def _observed(node: Node, declared: tuple[tuple[Value, ...], ...]) -> tuple[tuple[Value, ...], ...]:
    """What the operator really does on these types; where it cannot be tried, what the schema allows."""
    try:
        outcome, values = meta_outcome(node.op, node.args, node.kwargs)
    except CannotRun:
        return tuple(_cautious(node, shared, r.type) for shared, r in zip(declared, node.results, strict=True))
    return tuple(tuple(values[n] for n in sorted(shared)) for shared in outcome.shares)


def _cautious(node: Node, declared: tuple[Value, ...], type_: Type) -> tuple[Value, ...]:
    if declared or not isinstance(type_, (TensorType, TupleType)):
        return declared
    if "maybe_aliasing_or_mutating" in tags_of(node.op):
        return tuple(v for v in operand_values(node.args, node.kwargs) if isinstance(v.type, TensorType))
    return ()


def alias_of(node: Node) -> Value | None:
    """The one operand that the node's only tensor result is surely a view of (or is), or None.

    `reshape`, `contiguous`, `to` and the like are decided by the operands' static types.
    """
    if len(node.results) != 1 or node.op in _CONTROL or node.op == "unpack":
        return None
    if not isinstance(node.results[0].type, TensorType):
        return None
    (shared,) = aliases(node)
    if len(shared) == 1 and node.op != "write":
        shared = _sure(node, shared)
    return shared[0] if len(shared) == 1 else None


def _sure(node: Node, shared: tuple[Value, ...]) -> tuple[Value, ...]:
    """What of the operands that a result may share memory with was declared or seen, rather than feared.

    What was feared once, because the sizes did not tell, may be known by now: a guard has told more of them since.
    """
    schema = schema_of(node.op)
    if schema is None:
        return ()
    if schema.is_mutable or _is_certain(record_of(node.op), schema):
        return shared
    try:
        outcome, values = meta_outcome(node.op, node.args, node.kwargs)
    except CannotRun:
        return ()
    return tuple(value for value in shared if values.index(value) in outcome.shares[0])

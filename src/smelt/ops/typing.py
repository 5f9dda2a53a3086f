"""The types of an operator's results, from the types of its operands.

Asked in this order: the catalogue's rule, torch's meta kernel, a FakeTensor run, a run on real zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.diag import InternalError
from smelt.ir import Arg, Type
from smelt.ops.catalogue import record_of
from smelt.ops.meta import CannotRun, dummy_outcome, fake_outcome, meta_outcome
from smelt.ops.python_ops import infer_python
from smelt.ops.registry import arguments_of, schema_of
from smelt.ops.scalar_reads import scalar_read


def infer(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg] | None = None) -> tuple[Type, ...]:
    """One type per result of the schema; a list result is one TupleType. Strides are those of eager.

    Raises: InternalError (S0902) where no way to tell works; it lists what each said.
    """
    if op.startswith("py."):
        return infer_python(op, args)
    scalar = scalar_read(op)
    if scalar is not None:
        return (scalar.result(args),)
    named = kwargs or {}
    ruled = _by_rule(op, args, named)
    if ruled is not None:
        return ruled
    said: list[str] = []
    record = record_of(op)
    # A view that meta tensors refuse is refused by all tensors; asking on would cost a second for nothing.
    is_view = record is not None and record.alias == "view"
    for way in (meta_outcome,) if is_view else (meta_outcome, fake_outcome, dummy_outcome):
        try:
            return way(op, args, named)[0].types
        except CannotRun as failure:
            said.append(f"{way.__name__}: {failure}")
    raise InternalError(
        f"the result type of {op} cannot be told",
        why=f"for operands {', '.join(map(repr, args))}",
        notes=tuple(said),
    )


def _by_rule(op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[Type, ...] | None:
    record = record_of(op)
    schema = schema_of(op)
    if record is None or record.result is None or schema is None:
        return None
    return record.result(arguments_of(schema, args, kwargs))

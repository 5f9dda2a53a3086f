"""What the recorder needs to know of an overload, read once from its schema and tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Schema, read_schema, tag_names
from smelt.diag.records import record
from smelt.ops.catalogue import record_of
from smelt.ops.raises import may_raise_by_data
from smelt.ops.ranks.collective_ops import name_of
from smelt.ops.ranks.collectives import exchanges
from smelt.ops.record import nothing_written
from smelt.ops.registry import arguments_of, by_overload

# Answers that follow from types alone, so that a tensor's data does not reach Python through them.
METADATA = frozenset((
    "size", "stride", "dim", "numel", "storage_offset", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset",
    "is_same_size", "is_complex", "is_floating_point", "is_signed", "is_conj", "is_neg", "is_inference", "is_leaf",
    "is_contiguous", "sym_is_contiguous", "is_non_overlapping_and_dense", "is_strides_like_format", "is_pinned",
    "is_coalesced", "is_distributed", "is_vulkan_available", "is_set_to", "result_type", "can_cast", "promote_types",
    "output_nr", "retains_grad", "_version", "dense_dim", "sparse_dim", "_dimI", "_dimV", "get_device", "qscheme",
    "layout", "device", "dtype", "requires_grad", "_has_same_storage_numel", "_nested_get_ragged_idx",
    "_use_cudnn_ctc_loss", "_cudnn_rnn_flatten_weight", "cudnn_is_acceptable", "is_autocast_enabled",
    "_fused_sdp_choice", "_debug_has_internal_overlap", "_is_zerotensor", "_has_compatible_shallow_copy_type",
    "_chunk_grad_outputs_efficient_attention",
    "__is__", "__isnot__", "__contains__",
))  # fmt: skip

# Composite operators that may return an operand or a view of one without saying so in their schema.
UNDECLARED_ALIAS = frozenset((
    "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_tensors", "meshgrid", "einsum", "dropout", "alpha_dropout",
    "feature_dropout", "feature_alpha_dropout", "type_as", "pad", "combinations", "cartesian_prod", "block_diag",
    "stft", "istft", "matrix_power", "repeat_interleave", "chain_matmul", "linalg_multi_dot", "hstack", "vstack",
))  # fmt: skip


_DROPPED = ("profiler.", "prim.")

Written: TypeAlias = "tuple[str, int | None]"


@record
class OpInfo:
    """One overload, seen by the recorder.

    is_kept: whether a call becomes a node (profiler marks do not).
    returns_tensors: every result is a tensor, an optional one, or a list of them.
    is_conversion: a result is a Python value that follows from a tensor's data.
    writes: names of written arguments with their positions (None: by name only). undeclared: more of them, for given
        arguments, that the catalogue knows though the schema does not say so.
    shares: position of the operand that the first result may be a view of, -1 for none.
    sized_by: for operators whose result sizes follow from data: the positions of the operands that decide them, given
        the arguments; None where sizes are static.
    raises: data may make it raise.
    is_collective: it talks to other processes.
    """

    name: str
    short: str
    is_kept: bool
    result_count: int
    is_random: bool
    returns_tensors: bool
    is_conversion: bool
    writes: tuple[Written, ...]
    undeclared: Callable[[Sequence[object], dict[str, object]], tuple[Written, ...]] | None
    shares: int
    may_share: bool
    sized_by: Callable[[OpArgs, OpKwargs], Sequence[object]] | None
    raises: bool = False
    is_collective: bool = False

    def written(self, args: Sequence[object], kwargs: dict[str, object]) -> tuple[Written, ...]:
        """The arguments that a call writes."""
        return self.writes if self.undeclared is None else (*self.writes, *self.undeclared(args, kwargs))


def targets_of(written: Written, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """What a call writes by one of its written arguments: that argument, or what is in a list of them."""
    name, position = written
    target = kwargs.get(name)
    if target is None and position is not None and position < len(args):
        target = args[position]
    return target if isinstance(target, (list, tuple)) else (target,)


def expectation(kind: str) -> OpInfo:
    """What stands in a record for the fact that Python read something: `expect:` and the kind of reading."""
    return OpInfo(f"expect:{kind}", kind, True, 0, False, True, False, (), None, -1, False, None)


@by_overload
def op_info(overload: object) -> OpInfo:
    """What the recorder needs to know of an overload."""
    schema = read_schema(overload)
    tags = tag_names(overload)
    short = schema.name.split(".")[1]
    positions = {a.name: i for i, a in enumerate(schema.positional)}
    returns_tensors = all(a.is_tensor for a in schema.returns)
    takes_tensors = any(a.is_tensor for a in schema.arguments)
    shared = [positions.get(a.name, -1) for a in schema.arguments if a.alias and not a.is_write]
    # A list of views says so by its operand alone, `Tensor(a -> *)`.
    is_shared = any(r.alias for r in schema.returns) or any("*" in a.alias for a in schema.arguments)
    return OpInfo(
        name_of(schema.name),
        short,
        not schema.name.startswith(_DROPPED),
        len(schema.returns),
        "nondeterministic_seeded" in tags or any("Generator" in a.type for a in schema.arguments),
        returns_tensors,
        not returns_tensors and takes_tensors and short not in METADATA,
        tuple((a.name, positions.get(a.name)) for a in schema.arguments if a.is_write),
        _undeclared(schema, positions),
        shared[0] if shared and is_shared else -1,
        "maybe_aliasing_or_mutating" in tags or short in UNDECLARED_ALIAS,
        _sized_by(schema, short, tags),
        may_raise_by_data(overload),
        exchanges(name_of(schema.name)),
    )


def _undeclared(
    schema: Schema, positions: dict[str, int]
) -> Callable[[Sequence[object], dict[str, object]], tuple[Written, ...]] | None:
    record = record_of(schema.name)
    if record is None or record.writes is nothing_written:
        return None
    names_of = record.writes

    def found(args: OpArgs, kwargs: OpKwargs) -> tuple[Written, ...]:
        return tuple((name, positions.get(name)) for name in names_of(arguments_of(schema, args, kwargs)))

    return found


def _masks(args: OpArgs, kwargs: dict[str, object]) -> Sequence[object]:
    return [t for t in args[1] if t is not None and t.dtype in (torch.bool, torch.uint8)]


def _repeats(args: Sequence[object], kwargs: dict[str, object]) -> Sequence[object]:
    if kwargs.get("output_size") is not None:
        return []
    # `repeat_interleave(repeats)` alone, or `(x, repeats)`; a plain number of repeats decides nothing by data.
    repeats = args[0] if len(args) < 2 else args[1]
    return [repeats] if isinstance(repeats, torch.Tensor) else []


def _one_hot(args: OpArgs, kwargs: dict[str, object]) -> Sequence[object]:
    return [] if len(args) > 1 and args[1] >= 0 else [args[0]]


def _all(args: Sequence[object], kwargs: dict[str, object]) -> Sequence[object]:
    found = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    for arg in args:
        if isinstance(arg, (list, tuple)):
            found.extend(a for a in arg if isinstance(a, torch.Tensor))
    return found


def _first(args: Sequence[object], kwargs: dict[str, object]) -> Sequence[object]:
    return [args[0]]


def _second(args: Sequence[object], kwargs: dict[str, object]) -> Sequence[object]:
    return [args[1]]


def _none(args: Sequence[object], kwargs: dict[str, object]) -> Sequence[object]:
    return []


_SIZED_BY: dict[str, Callable[[Sequence[object], dict[str, object]], Sequence[object]]] = {
    "index": _masks, "_unsafe_index": _masks,
    "masked_select": _second, "tensor_split": _none,
    "repeat_interleave": _repeats, "one_hot": _one_hot,
    "nonzero": _first, "nonzero_numpy": _first, "argwhere": _first, "bincount": _first,
    "unique_dim": _first, "unique_consecutive": _first, "_unique": _first, "_unique2": _first,
    "unique_dim_consecutive": _first, "linalg_lstsq": _all, "_linalg_lstsq": _all,
    "to_sparse": _first, "coalesce": _first,
    "_coalesce": _first, "_to_sparse": _first, "_pack_padded_sequence": _second, "_pad_packed_sequence": _second,
    "nonzero_static": _none, "boolean_mask": _all, "combinations": _none, "equal": _none, "item": _none,
    "_local_scalar_dense": _none, "allclose": _none,
}  # fmt: skip


def _sized_by(
    schema: Schema, short: str, tags: frozenset[str]
) -> Callable[[Sequence[object], dict[str, object]], Sequence[object]] | None:
    if schema.name == "aten.where.default":
        return _first
    if schema.name in ("aten.tensor_split.tensor_indices_or_sections", "aten.narrow.Tensor"):
        return lambda args, kwargs: [args[1 if "split" in short else 2]]
    if schema.name.startswith("aten.") and short in _SIZED_BY:
        return _SIZED_BY[short]
    return _all if "dynamic_output_shape" in tags else None


GIVING_BACK_BY_SIZE = frozenset((torch.ops.aten.diff.default,))
"""They give their operand back where it has too few elements, and what shares no memory with it where it has more."""


def apart(result: torch.Tensor, args: Sequence[object]) -> torch.Tensor:
    """The result as a tensor of its own, for operands whose sizes data decide: one object is one value of the graph."""
    given: torch.Tensor = torch.ops.aten.alias.default(result) if args and result is args[0] else result
    return given

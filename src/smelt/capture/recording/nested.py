"""Nested tensors that torch's own modules make of padded ones for a while: the graph has the padded ones.

    n = _nested_tensor_from_mask(x, valid)        ==>   (nothing)
    m = _transformer_encoder_layer_fwd(n, ...)          %1 = logical_not(%valid); %2 = layer(%x, ..., %1, 1)
    y = to_padded_tensor(m, 0.0, x.size())              %3 = masked_fill(%2, unsqueeze(%1, -1), 0.0)

`nn.TransformerEncoder` does so in evaluation mode where it is given a mask of padding whose rows are aligned; that they
are is what Python reads of data there.

Invariant: the run itself has the nested tensors, and its answer; only what is recorded is another way to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from smelt._torch.library.schemas import OpArgs

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder

_aten: Any = torch.ops.aten
_MASK = 18  # where a layer's operator takes its mask, and what kind it is behind it
_OF_PADDING = 1


class _Padded(NamedTuple):
    """The padded tensor that a nested one stands for, and where it holds nothing."""

    nested: Callable[[], torch.Tensor | None]
    tensor: torch.Tensor
    padding: torch.Tensor


class NestedTensors:
    """What nested tensors of a run stand for."""

    def __init__(self) -> None:
        self._known: dict[int, _Padded] = {}

    def note(self, recorder: Recorder, name: str, args: OpArgs, result: Any) -> bool:
        """Record such a call; whether it was one. Raises: whatever the padded way raises."""
        if name == "_nested_tensor_from_mask_left_aligned":
            _expect_aligned(recorder, args[1], result)
        elif name == "_nested_tensor_from_mask":
            self._keep(result, args[0], recorder.record(_aten.logical_not.default, (args[1],), {}))
        else:
            held = self._known.get(id(args[0]))
            if held is None or held.nested() is not args[0]:
                return False
            if name == "to_padded_tensor":
                return _pad(recorder, held, args, result)
            if any(arg is not None for arg in args[_MASK:]):
                return False
            given = (held.tensor, *args[1:_MASK], held.padding, _OF_PADDING)
            self._keep(result, recorder.record(_aten._transformer_encoder_layer_fwd.default, given, {}), held.padding)
        return True

    def _keep(self, nested: torch.Tensor, tensor: torch.Tensor, padding: torch.Tensor) -> None:
        self._known[id(nested)] = _Padded(weakref.ref(nested), tensor, padding)


class PaddedInstead:
    """What a run on tensors without data has in the place of nested tensors: the padded ones themselves."""

    def __init__(self) -> None:
        self._known: dict[int, _Padded] = {}

    def call(self, recorder: Recorder, decide: Callable[[Any], bool], name: str, args: Sequence[object]) -> Any:
        """What such a call gives; NotImplemented for any other. decide: answers a question that depends on data."""
        record = recorder.record
        if name == "_nested_tensor_from_mask_left_aligned":
            return not decide(recorder.slot_of(_gaps(record, args[1])))
        if name == "_nested_tensor_from_mask":
            padding = record(_aten.logical_not.default, (args[1],), {})
            return self._kept(record(_aten.alias.default, (args[0],), {}), padding)
        held = self._known.get(id(args[0]))
        if held is None or held.nested() is not args[0]:
            return NotImplemented
        if name == "to_padded_tensor":
            mask = record(_aten.unsqueeze.default, (held.padding, -1), {})
            return record(_aten.masked_fill.Scalar, (args[0], mask, args[1]), {})
        if any(arg is not None for arg in args[_MASK:]):
            return NotImplemented
        given = (*args[:_MASK], held.padding, _OF_PADDING)
        return self._kept(record(_aten._transformer_encoder_layer_fwd.default, given, {}), held.padding)

    def _kept(self, tensor: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        self._known[id(tensor)] = _Padded(weakref.ref(tensor), tensor, padding)
        return tensor


NAMES = frozenset(
    ("_nested_tensor_from_mask_left_aligned", "_nested_tensor_from_mask", "_transformer_encoder_layer_fwd",
     "to_padded_tensor")
)  # fmt: skip


def _expect_aligned(recorder: Recorder, valid: torch.Tensor, is_aligned: bool) -> None:
    """Record that Python read whether what is valid stands to the left of all padding."""
    gaps = _gaps(recorder.record, valid)
    recorder.reads_truth(gaps, not is_aligned, "_nested_tensor_from_mask_left_aligned")


def _gaps(record: Callable[..., Any], valid: torch.Tensor) -> object:
    """Whether something valid stands behind padding."""
    later = record(_aten.slice.Tensor, (valid, 1, 1, 2**63 - 1), {})
    padding = record(_aten.logical_not.default, (record(_aten.slice.Tensor, (valid, 1, 0, -1), {}),), {})
    return record(_aten.any.default, (record(_aten.logical_and.default, (later, padding), {}),), {})


def _pad(recorder: Recorder, held: _Padded, args: Sequence[object], result: torch.Tensor) -> bool:
    if result.shape != held.tensor.shape:
        return False
    mask = recorder.record(_aten.unsqueeze.default, (held.padding, -1), {})
    made = recorder.record(_aten.masked_fill.Scalar, (held.tensor, mask, args[1]), {})
    recorder.stands_for(result, made)
    return True

"""Memory of tensors that Python has got, as NumPy's arrays: what it writes there, or makes of it, no operator tells.

Invariant: each lent tensor has a copy of what it held when it was lent, so that a write is found afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from smelt._torch.seen.record_patches import is_plain_tensor_type
from smelt._torch.storage import nbytes_spanned
from smelt.capture.recording.spans import Site

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder

_BITS = {
    torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16,
}  # fmt: skip
_COMPARED = 4096  # elements


class _Lent(NamedTuple):
    tensor: torch.Tensor
    copy: torch.Tensor
    what: str
    site: Site | None


class LentMemory:
    """The tensors whose memory Python got in a run. True where there are any."""

    def __init__(self) -> None:
        self._lent: list[_Lent] = []

    def __bool__(self) -> bool:
        return bool(self._lent)

    def lend(self, tensor: torch.Tensor, copy: torch.Tensor, what: str, site: Site | None) -> None:
        """Python gets a tensor's memory. copy: what is in it. what: by which method."""
        self._lent.append(_Lent(tensor, copy, what, site))

    def check_unwritten(self, recorder: Recorder) -> None:
        """Fail where Python wrote to memory that was lent."""
        for lent in self._lent:
            if not same_bits(lent.tensor, lent.copy):
                recorder.fail(
                    f"memory that Python got by {lent.what} was written afterwards",
                    "what Python writes there is not seen",
                    "work on a copy: tensor.clone().numpy()",
                    "S0104",
                )

    def check_new(self, recorder: Recorder, tensor: torch.Tensor) -> None:
        """A tensor is made of an array's or a buffer's memory: fail where that is lent memory, or may hold what was
        computed from some.
        """
        self._check_apart(recorder, tensor)
        # The graph would hold for the very elements that the recorded run had.
        if self._lent:
            first = self._lent[0]
            recorder.fail(
                f"elements go through NumPy: Python got them by {first.what}, and an array becomes a tensor again",
                "what NumPy computes is no part of a graph",
                "compute it with torch, or outside, with what the program returns",
                "S0104",
                first.site,
            )

    def _check_apart(self, recorder: Recorder, tensor: torch.Tensor) -> None:
        if not self._lent or tensor.layout is not torch.strided:
            return
        start, end = tensor.data_ptr(), tensor.data_ptr() + nbytes_spanned(tensor)
        for lent in self._lent:
            if start < lent.tensor.data_ptr() + nbytes_spanned(lent.tensor) and lent.tensor.data_ptr() < end:
                recorder.fail(
                    f"a tensor was made over memory that Python got by {lent.what}",
                    "the two share their elements, which the graph cannot tell",
                    "use the tensor itself, or a copy of it: torch.tensor(array)",
                    "S0104",
                )


def is_comparable(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are few, and of a type that can be compared bit by bit."""
    return (
        tensor.layout is torch.strided
        and tensor.numel() <= _COMPARED
        and not tensor.is_quantized
        and is_plain_tensor_type(type(tensor))
        and (tensor.dtype in _BITS or tensor.dtype.is_complex or not tensor.dtype.is_floating_point)
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and size hold the same, NaN included."""
    with torch.no_grad():
        left, right = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (a.detach(), b.detach()))
        bits = _BITS.get(left.dtype)
        if bits is not None:
            left, right = left.resolve_neg().view(bits), right.view(bits)
        return torch.equal(left, right)

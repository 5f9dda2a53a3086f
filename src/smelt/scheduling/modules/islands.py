"""Islands of f32 in a region of bf16 or f16: functions that get their tensors widened, as Python's or as operators.

    with Islands():
        F.softmax(h, -1)                   F.softmax(h.float(), -1)
        torch.ops.aten.softmax.int(h, -1)  the same: what a step made of the code keeps its islands

Invariant: a function that is already in an island is called as it is; `unmarked` code gets its islands when it runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from smelt._torch.library.schemas import operator_name
from smelt.ops.record import Trait
from smelt.ops.sets import bases_where
from smelt.scheduling.comparing.compare_runs import in_region
from smelt.scheduling.comparing.nested import mapped

NARROW = frozenset({torch.bfloat16, torch.float16})
_ISLANDS = (
    *sorted(bases_where(Trait.KEPT_IN_F32)),
    # torch's functions beside the catalogue
    "softmin", "local_response_norm", "normalize", "norm", "cosine_similarity", "pairwise_distance", "cdist",
    "logaddexp", "logcumsumexp", "__pow__", "__rpow__", "erfinv", "cumprod", "var_mean", "std_mean", "dist",
    "renorm", "cross_entropy", "nll_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss", "gaussian_nll_loss",
    "ctc_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_loss", "cosine_embedding_loss",
)  # fmt: skip
# Operators that those functions call under other names.
_OPERATORS = frozenset({
    *_ISLANDS, "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "native_batch_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training",
    "_fused_rms_norm", "linalg_vector_norm", "linalg_matrix_norm", "cross_entropy_loss", "nll_loss_nd", "nll_loss2d",
})  # fmt: skip
_inside: ContextVar[bool] = ContextVar("smelt_islands", default=False)
_unmarked: ContextVar[bool] = ContextVar("smelt_islands_unmarked", default=False)


class Islands(TorchFunctionMode):
    """Gives some of torch's functions their operands in f32."""

    def __enter__(self) -> Islands:
        self.token = _inside.set(True)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        _inside.reset(self.token)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not _unmarked.get() and _is_island(func):
            args, kwargs = mapped(args, widened), mapped(kwargs or {}, widened)
        return func(*args, **(kwargs or {}))


Region = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def region(is_alone: bool) -> Iterator[None]:
    """A block with islands. is_alone: whether no torch function mode but a region's is around."""
    token = in_region.set(is_alone)
    try:
        with Islands():
            yield
    finally:
        in_region.reset(token)


def surrounding_region() -> Region:
    """What enters again, later and elsewhere, the region in which this is called; without one, nothing."""
    return partial(region, in_region.get()) if in_islands() else contextlib.nullcontext


def in_islands() -> bool:
    """Whether this code runs in a region with islands."""
    return _inside.get()


@contextlib.contextmanager
def unmarked() -> Iterator[None]:
    """A block that is recorded as it is written, without the casts of islands."""
    token = _unmarked.set(True)
    try:
        yield
    finally:
        _unmarked.reset(token)


def _is_island(func: Any) -> bool:
    return operator_name(func) in _OPERATORS or func in island_functions()


@lru_cache(maxsize=1)
def island_functions() -> frozenset[Any]:
    """Those of torch's functions that stay in f32, in each form in which they are called."""
    places = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.special)
    found = {getattr(place, name, None) for place in places for name in _ISLANDS}
    return frozenset({*found, torch.linalg.vector_norm, torch.linalg.matrix_norm} - {None})


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in f32 where it is of a narrow type."""
    return tensor.float() if tensor.dtype in NARROW else tensor

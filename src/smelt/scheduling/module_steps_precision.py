"""`precision`: a module computes in bf16 or f16, with islands of f32 in it.

before:  y = softmax(norm(x @ w))              all in f32
after:   h = bf16(x) @ bf16(w)                 products, convolutions and attention in bf16
         y = softmax(f32(norm(f32(h))))        norms, softmax, losses, sums and powers in f32; the answer in f32

Invariant: parameters stay in f32, so that training updates them as before; what enters and leaves is of eager's types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode

from smelt._torch.state import has_function_mode
from smelt.diag import ScheduleError
from smelt.scheduling.compare_runs import in_region
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.module_steps import OnModule
from smelt.scheduling.module_steps_error import Measured
from smelt.scheduling.module_steps_forward import Around, mapped, surround

DTYPES = {torch.bfloat16: 0.05, torch.float16: 0.02}
"""The types of a region, each with the error that it may make unless told otherwise."""
_ISLANDS = (
    "softmax", "softmin", "log_softmax", "layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm",
    "local_response_norm", "normalize", "norm", "cosine_similarity", "pairwise_distance", "cdist", "logsumexp",
    "logaddexp", "logcumsumexp", "exp", "expm1", "log", "log2", "log10", "log1p", "pow", "__pow__", "__rpow__", "rsqrt",
    "reciprocal", "softplus", "erfinv", "cumsum", "cumprod", "sum", "prod", "mean", "var", "std", "var_mean",
    "std_mean", "dist", "renorm", "cross_entropy", "nll_loss", "kl_div", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss", "gaussian_nll_loss",
    "ctc_loss", "hinge_embedding_loss", "margin_ranking_loss", "soft_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss", "multilabel_soft_margin_loss", "triplet_margin_loss", "cosine_embedding_loss",
)  # fmt: skip


class Precision(OnModule):
    """A module in a narrower type."""

    name = "precision"
    keeps_meaning: ClassVar[bool] = False

    @classmethod
    def allowed_error(cls, arguments: Mapping[str, Any]) -> float:
        given = arguments.get("max_error")
        return DTYPES[arguments["dtype"]] if given is None else float(given)

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        dtype = arguments["dtype"]
        if dtype not in DTYPES:
            raise ScheduleError(f"a region cannot be in {dtype}", fix="torch.bfloat16 or torch.float16", code="S0607")
        module = self.module(draft, at)
        self.once(module, at.path, Narrow)
        measured = Measured(draft)
        surround(module, partial(Narrow, dtype=dtype), at.path)
        for path in arguments.get("keep", ()):
            try:
                kept = module.get_submodule(path)
            except AttributeError:
                raise ScheduleError(
                    f"{at.path or 'the whole'} has no module {path!r} to keep in f32",
                    fix="give paths counted from the module", code="S0601",
                ) from None  # fmt: skip
            surround(kept, Kept, path)
        error = measured.error(f"precision({dtype})", at.path, self.allowed_error(arguments))
        shown = f", error {error:.2g}" if error is not None else ", error not measured: no example inputs"
        draft.note(at.path, str(dtype).removeprefix("torch.") + shown)


class Narrow(Around):
    """Runs a module in bf16 or f16; islands stay in f32, and so does what it gives."""

    def __init__(self, module: torch.nn.Module, inner: Callable[..., Any] | None, dtype: torch.dtype) -> None:
        super().__init__(module, inner)
        self.dtype = dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outer = self._outer(args, kwargs)
        device = next((p.device.type for p in self.module.parameters()), "cpu")
        token = in_region.set(in_region.get() or not has_function_mode())
        try:
            with torch.autocast(device, dtype=self.dtype), _Islands(self.dtype):
                found = self.original(*args, **kwargs)
        finally:
            in_region.reset(token)
        return mapped(found, lambda tensor: tensor.to(outer) if tensor.dtype == self.dtype else tensor)

    def _outer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
        """The type outside: of the first floating argument, or parameter."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        floats = (t.dtype for t in (*given, *self.module.parameters()) if t.is_floating_point())
        return next(floats, torch.get_default_dtype())


class Kept(Around):
    """Runs a module in f32 within a narrower region."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        device = next((p.device.type for p in self.module.parameters()), "cpu")
        with torch.autocast(device, enabled=False):
            return self.original(*mapped(args, _widened), **mapped(kwargs, _widened))


class _Islands(TorchFunctionMode):
    """Gives some of torch's functions their operands in f32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in island_functions():
            args, kwargs = mapped(args, _widened), mapped(kwargs or {}, _widened)
        return func(*args, **(kwargs or {}))


@lru_cache(maxsize=1)
def island_functions() -> frozenset[Any]:
    """Those of torch's functions that stay in f32, in each form in which they are called."""
    places = (torch, torch.nn.functional, torch.Tensor, torch.linalg, torch.special)
    found = {getattr(place, name, None) for place in places for name in _ISLANDS}
    return frozenset({*found, torch.linalg.vector_norm, torch.linalg.matrix_norm} - {None})


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in DTYPES else tensor

"""`precision`: a module computes in bf16 or f16, with islands of f32 in it.

before:  y = softmax(norm(x @ w))              all in f32
after:   h = bf16(x) @ bf16(w)                 products, convolutions and attention in bf16
         y = softmax(f32(norm(f32(h))))        norms, softmax, losses, sums and powers in f32; the answer in f32

Invariant: parameters stay in f32, so that training updates them as before; what enters and leaves is of eager's types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from smelt._torch.state import has_function_mode
from smelt.diag import ScheduleError
from smelt.scheduling.comparing.compare_runs import in_region, in_search
from smelt.scheduling.comparing.nested import mapped
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.modules.islands import region, widened
from smelt.scheduling.modules.module_steps import OnModule
from smelt.scheduling.modules.module_steps_error import Measured
from smelt.scheduling.modules.module_steps_forward import Around, surround

DTYPES = {torch.bfloat16: 0.05, torch.float16: 0.02}
"""The types of a region, each with the error that it may make unless told otherwise."""


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
    """Runs a module in bf16 or f16; islands stay in f32, and so does what it gives.

    A search sees the module as it is written, without casts.
    """

    surrounds = True

    def __init__(self, module: torch.nn.Module, inner: Callable[..., Any] | None, dtype: torch.dtype) -> None:
        super().__init__(module, inner)
        self.dtype = dtype

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if in_search.get():
            return self.original(*args, **kwargs)
        outer = self._outer(args, kwargs)
        device = next((p.device.type for p in self.module.parameters()), "cpu")
        is_alone = in_region.get() or not has_function_mode()
        with torch.autocast(device, dtype=self.dtype), region(is_alone):
            found = self.original(*args, **kwargs)
        return mapped(found, lambda tensor: tensor.to(outer) if tensor.dtype == self.dtype else tensor)

    def _outer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
        """The type outside: of the first floating argument, or parameter."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        floats = (t.dtype for t in (*given, *self.module.parameters()) if t.is_floating_point())
        return next(floats, torch.get_default_dtype())


class Kept(Around):
    """Runs a module in f32 within a narrower region."""

    surrounds = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        device = next((p.device.type for p in self.module.parameters()), "cpu")
        with torch.autocast(device, enabled=False):
            return self.original(*mapped(args, widened), **mapped(kwargs, widened))

"""The runs of a model once more in float64: what its answers would be without rounding.

Invariant: the model given is consumed; nothing global is changed. Every operator gets its float tensors in float64, and
a wish for a narrower type as float64, so that constants and casts of the program do not round either. Operators that
draw random numbers run in the program's own type, so that they draw the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch

from smelt._torch.library import schemas
from smelt._torch.seen import dispatch_mode
from smelt.scheduling.comparing.compare_runs import Observation, Run, observe

_WIDE = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip
_read = lru_cache(maxsize=4096)(schemas.read_schema)
_tags = lru_cache(maxsize=4096)(schemas.tag_names)


class Exact:
    """A model in float64, run as its original is.

    make: the model; it is made at the first run. noise: rounds each result at random, as the model's own type would or
    this much, and from the seed: it shows what that does to answers.
    """

    def __init__(self, make: Callable[[], torch.nn.Module], *, noise: float | None = None, seed: int = 0) -> None:
        self._make = make
        self._noise = torch.Generator().manual_seed(1 + seed) if noise is not None else None
        self._least = noise or 0.0
        self._runs = 0
        self._failed = False
        self._observed: Observation | None = None

    @cached_property
    def _model(self) -> torch.nn.Module:
        model = self._make()
        floats = [t.dtype for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
        self._narrow = floats[0] if floats else torch.get_default_dtype()
        eps = torch.finfo(self._narrow).eps
        # Inside of a kernel, sums are in f32 at least.
        self._eps, self._inner_eps = max(self._least, eps), min(eps, torch.finfo(torch.float32).eps)
        return model.double()

    def observe(self, runs: Sequence[Run]) -> Observation | None:
        """The last of these runs; the first of them are made where they were not. None where float64 does not run."""
        for run in runs[self._runs :]:
            if not self._failed:
                self._observed = observe(self._model, run, widen=_wide, around=self._intercepted)
                self._failed = self._observed.error is not None
        self._runs = len(runs)
        return None if self._failed else self._observed

    def _intercepted(self) -> Any:
        return dispatch_mode.intercepting(self._run)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        schema = _read(func)
        written = [i for i, argument in enumerate(schema.arguments) if argument.is_write]
        if "nondeterministic_seeded" in _tags(func):
            return self._draw(func, args, kwargs, written)
        has_floats = any(t.is_floating_point() for t in _tensors((args, kwargs)))
        names = {schema.arguments[i].name for i in written}
        args = tuple(arg if i in written else _map(arg, _wide) for i, arg in enumerate(args))
        kwargs = {name: arg if name in names else _map(arg, _wide) for name, arg in kwargs.items()}
        found = func(*args, **kwargs)
        if any(result.alias for result in schema.returns):
            return found
        return _map(found, self._rounded if has_floats and self._noise is not None else _wide)

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[int]) -> Any:
        """An operator that draws random numbers, in the model's own type."""
        narrow = _map(args, self._narrowed), _map(kwargs, self._narrowed)
        found = func(*narrow[0], **narrow[1])
        if not written:
            return _map(found, _wide)
        for i in written:
            if i < len(args) and isinstance(args[i], torch.Tensor):
                args[i].copy_(narrow[0][i])
        return args[written[0]] if written[0] < len(args) else found

    def _narrowed(self, value: Any) -> Any:
        narrow = self._narrow if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else None
        return value if narrow is None else value.to(narrow)

    def _rounded(self, value: Any) -> Any:
        value = _wide(value)
        if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
            return value
        error = self._eps * self._drawn(value.shape)
        for dim in range(value.dim()):
            # What a kernel computes once for a row (a softmax's sum, a norm's mean) is rounded once for all of it.
            error += 2 * self._inner_eps * self._drawn((*value.shape[:dim], 1, *value.shape[dim + 1 :]))
        return value * (1 + error)

    def _drawn(self, shape: Sequence[int]) -> torch.Tensor:
        return torch.rand(shape, generator=self._noise, dtype=torch.float64) - 0.5


def _wide(value: Any) -> Any:
    """A float tensor in float64, a float dtype as float64; all else as it is."""
    if isinstance(value, torch.dtype):
        return _WIDE.get(value, value)
    return value.to(_WIDE[value.dtype]) if isinstance(value, torch.Tensor) and value.dtype in _WIDE else value


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """Tensors and dtypes changed, also those in lists."""
    if isinstance(value, list | tuple):
        return type(value)([_map(part, change) for part in value])
    if isinstance(value, dict):
        return {key: _map(part, change) for key, part in value.items()}
    return change(value)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in _tensors(part)]
    if isinstance(value, dict):
        return _tensors(list(value.values()))
    return [value] if isinstance(value, torch.Tensor) else []

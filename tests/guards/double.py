"""A builder for tests: records the program's operators in one run and replays them, with every Python value baked in.

So an entry that runs although something it depends on has changed gives a wrong answer: what the tests look for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.compiler.object.compiled import make_compile
from smelt.compiler.object.compiled_types import NeedsGradients


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, out))
        return out


class ReplayEntry:
    """Replays the steps; tensors that are neither arguments nor made by a step are read live."""

    def __init__(self, steps: list[Any], args: Any, kwargs: Any, result: Any) -> None:
        self.steps, self.result = steps, result
        self.inputs = pytree.tree_leaves((args, dict(kwargs)))
        self.constants: tuple[torch.Tensor, ...] = ()
        self.state: tuple[torch.Tensor, ...] = ()
        self.runs = 0
        self.finished = False
        self.refreshed = 0
        self.writes = True
        self.outcomes: tuple[Any, ...] = ()
        self.repeats_errors = False
        self.is_staged = False
        self.goes_through_python = self.exchanges = False
        self.prints = False
        self.forms: dict[str, Any] = {}
        self.checks = ()
        self.free: frozenset[Any] = frozenset()
        self.why_fixed = self.why_paths = ""
        self.captured = None
        self.enables_grad = False
        self.has_gradients = self.is_on_gpu = False
        self.kept_casts: tuple[torch.Tensor, ...] = ()

    def on_constants(self, watch: Any) -> None: ...

    def prepare(self) -> None:
        self.finish()

    def pause(self) -> None: ...

    def finish(self) -> None:
        self.finished = True

    def refresh(self) -> None:
        self.refreshed += 1

    def run(self, args: Any, kwargs: Any) -> Any:
        assert self.finished
        self.runs += 1
        values = {
            id(old): new
            for old, new in zip(self.inputs, pytree.tree_leaves((args, dict(kwargs))), strict=True)
            if isinstance(old, torch.Tensor)
        }

        def now(x: Any) -> Any:
            return values.get(id(x), x) if isinstance(x, torch.Tensor) else x

        for func, a, k, out in self.steps:
            made = func(*pytree.tree_map(now, a), **pytree.tree_map(now, k))
            for old, new in zip(pytree.tree_leaves(out), pytree.tree_leaves(made), strict=True):
                if isinstance(old, torch.Tensor):
                    values[id(old)] = new
        return pytree.tree_map(now, self.result)


class Builder:
    """Counts builds; `before_run`, `after_run` are called inside a build, e.g. to raise or to wait."""

    def __init__(self) -> None:
        self.entries: list[ReplayEntry] = []
        self.before_run: Any = None
        self.after_run: Any = None
        self.constants: tuple[torch.Tensor, ...] = ()
        self.state: tuple[torch.Tensor, ...] = ()

    def __call__(self, fn: Any, args: Any, kwargs: Any, options: Any) -> ReplayEntry:
        if self.before_run is not None:
            self.before_run()
        with _Recorder() as recorder:
            result = fn(*args, **kwargs)
        if self.after_run is not None:
            self.after_run()
        if any(isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None for leaf in pytree.tree_leaves(result)):
            raise NeedsGradients
        entry = ReplayEntry(recorder.steps, args, kwargs, result)
        entry.constants = self.constants
        self.entries.append(entry)
        return entry

    @property
    def runs(self) -> int:
        return sum(entry.runs for entry in self.entries)

    def compile(self, f: Any = None, **kwargs: Any) -> Any:
        return make_compile(self)(f, **kwargs)


def plain_builder(fn: Any, args: Any, kwargs: Any, options: Any) -> ReplayEntry:
    """The same as a module-level function, so that compiled objects pickle."""
    return Builder()(fn, args, kwargs, options)

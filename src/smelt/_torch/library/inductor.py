"""`torch.compile` with Inductor as a benchmark peer: its configuration, its caches, its imports.

Adapter for `torch._inductor.config`, `torch._dynamo.reset` and the cache environment variables. Where the
configuration module is missing, the same options go through the public `torch.compile(options=...)` alone.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

MODULES = ("torch._dynamo", "torch._inductor.compile_fx")
"""What `torch.compile` imports on first use."""

_PASSES = tuple(f"{stage}_custom_{side}_pass" for stage in ("joint", "post_grad") for side in ("pre", "post"))
"""Where Inductor's configuration holds passes that others add."""

_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""The variables that name the folders, read each time that one is needed."""


@contextlib.contextmanager
def _cache_dir(path: str) -> Iterator[None]:
    """Point Inductor's caches at `path` (read by Inductor each time it needs a file)."""
    before = {name: os.environ.get(name) for name in _CACHES}
    use_cache(path)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _config_patch(options: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Set Inductor's global options for a block.

    `freezing` is read by Dynamo from the global configuration before the options of `torch.compile` are applied.
    Passes that a backend on top of Inductor leaves in the configuration are gone after the block.
    """
    try:
        config = importlib.import_module("torch._inductor.config")
    except ImportError:
        return contextlib.nullcontext()
    passes = {name: getattr(config, name) for name in _PASSES if hasattr(config, name)}
    return config.patch({**passes, **options})


def compile_and_run(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    cache_dir: str,
    backend: str = "inductor",
) -> Callable[..., Any]:
    """`target` compiled by Inductor with `options` for `args` (static shapes), caches in `cache_dir`.

    backend: Inductor itself, or one on top of it that reads `options` from Inductor's configuration.
    """
    with _cache_dir(cache_dir), _config_patch(options):
        # Options that differ also keep Dynamo from taking one configuration's code for another's.
        own = dict(options) if backend == "inductor" else None
        compiled = torch.compile(target, backend=backend, dynamic=False, fullgraph=False, options=own)
        compiled(*args)
    return compiled


def set_config(options: Mapping[str, Any]) -> None:
    """Set Inductor's global options for the rest of this process: what is compiled later must meet them, too.

    Raises: AttributeError where this version has no such option.
    """
    if options:
        config = importlib.import_module("torch._inductor.config")
        for name, value in options.items():
            setattr(config, name, value)


def use_cache(path: str) -> None:
    """Keep what `torch.compile` makes from now on in a folder of its own."""
    os.environ.update(dict.fromkeys(_CACHES, path))


def graphs_made() -> int | None:
    """How many graphs Dynamo has compiled in this process since the last `forget`; None where nobody counts them."""
    try:
        counters = importlib.import_module("torch._dynamo.utils").counters
        return int(counters["stats"]["unique_graphs"])
    except (ImportError, AttributeError, KeyError, TypeError):
        return None


def forget() -> None:
    """Drop all code that `torch.compile` holds in this process."""
    torch.compiler.reset()

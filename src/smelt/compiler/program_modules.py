"""The modules that a traced program may call, and what of them a capture was made under.

    modules = SourceModules(source, captured.roots)
    modules.now()       -> Now(flags, ids, hooks): equal ones let one capture stand for both

Invariant: a module counts wherever the program has it from: it is the program, or a closure, a global, an attribute or
a container holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from smelt._torch.state import global_hooks
from smelt.capture.roots import Roots, reachable
from smelt.runtime.guard_facts import CALL_HOOKS


class Now(NamedTuple):
    """What the modules are at a moment: their `training` flags, their ids, and the numbers of the hooks on them."""

    training: tuple[bool, ...]
    modules: tuple[int, ...]
    hooks: tuple[int, ...]


class SourceModules:
    """The places of a program's modules, as they were found when it was captured."""

    def __init__(self, source: Callable[..., Any], roots: Roots) -> None:
        if not (roots.functions or roots.module_list):  # of a saved capture
            roots = reachable(source)
        self._source = source if isinstance(source, torch.nn.Module) else None
        places = [place for place in roots.module_places if place.module is not self._source]
        inner = {id(module) for place in places for module in (*place.module.modules(),)[1:]}
        if self._source is not None:
            inner.update(map(id, self._source.modules()))
        # Members of other modules are seen as such; of where they stand besides, only that they do.
        self._whole = tuple(place for place in places if id(place.module) not in inner)
        self._members = tuple(place for place in places if id(place.module) in inner)

    def all(self) -> tuple[torch.nn.Module, ...]:
        """The modules there are now; those that places outside of any module hold come last."""
        return tuple(chain(self._own(), *(_tree(place.current()) for place in self._whole)))

    def now(self) -> Now:
        """What the modules are now."""
        modules = self.all()
        ids = chain(map(id, modules), (id(place.current()) for place in self._members))
        return Now(tuple(module.training for module in modules), tuple(ids), tuple(_hooks(modules)))

    def _own(self) -> Iterator[torch.nn.Module]:
        return iter(()) if self._source is None else self._source.modules()


def is_uninitialized(program: Callable[..., Any]) -> bool:
    """Whether a module of a program, or it itself, gets the sizes of its parameters in its first call
    (`nn.LazyLinear`)."""
    modules = (program,) if isinstance(program, torch.nn.Module) else reachable(program).module_list
    return any(is_lazy(held) for module in modules for held in chain(module.parameters(), module.buffers()))


def _tree(value: Any) -> Iterator[torch.nn.Module]:
    return value.modules() if isinstance(value, torch.nn.Module) else iter(())


def _hooks(modules: tuple[torch.nn.Module, ...]) -> Iterator[int]:
    """The numbers of all hooks that a call of these runs; torch gives no two the same one."""
    backward, before_backward, after, before = CALL_HOOKS
    for module in modules:
        own = module.__dict__
        if own.get(after) or own.get(before) or own.get(backward) or own.get(before_backward):
            yield from chain.from_iterable(own.get(name) or () for name in CALL_HOOKS)
    for table in global_hooks():
        yield from table

"""The modules that a traced program may call, and what of them a capture was made under.

    modules = SourceModules(source, captured.roots)
    modules.now()       -> Now(flags, ids, hooks, look): equal ones let one capture stand for both

Invariant: a module counts wherever the program has it from: it is the program, or a closure, a global, an attribute or
a container holds it. What a module's `forward` and its members are is asked as Python does, of the instance first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from smelt._torch.exact import MISSING
from smelt._torch.state import global_hooks
from smelt.capture.reads.reads_values import REGISTRIES, peek
from smelt.capture.structure.roots import Roots, reachable
from smelt.runtime.guarding.fact_kinds import CALL_HOOKS, CALL_METHODS
from smelt.runtime.guarding.guard_versions import Identities, Namespace, Namespaces, class_namespace, lookup_path

_LOOKS = count(1)
_CHANGED = 0


class Now(NamedTuple):
    """What the modules are at a moment: their `training` flags, their ids, the numbers of the hooks on them, and a
    number for what asking them for their members finds (`_CHANGED`: something that no capture was made under).
    """

    training: tuple[bool, ...]
    modules: tuple[int, ...]
    hooks: tuple[int, ...]
    look: int


class SourceModules:
    """The places of a program's modules, as they were found when it was captured.

    before: those of an earlier capture; where nothing has changed since, the two have one look.
    """

    def __init__(self, source: Callable[..., Any], roots: Roots, before: SourceModules | None = None) -> None:
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
        modules = self.all()
        self._members_found = Namespaces(_lookups(modules))
        self._identities = Identities(modules, ())
        self._look = next(_LOOKS)
        if before is not None and before.now() == self.now()._replace(look=before._look):
            self._look = before._look

    def all(self) -> tuple[torch.nn.Module, ...]:
        """The modules there are now; those that places outside of any module hold come last."""
        return tuple(chain(self._own(), *(_tree(place.current()) for place in self._whole)))

    def now(self) -> Now:
        """What the modules are now."""
        modules = self.all()
        ids = chain(map(id, modules), (id(place.current()) for place in self._members))
        is_as_found = self._identities.unchanged() and self._members_found.unchanged()
        look = self._look if is_as_found else _CHANGED
        return Now(tuple(module.training for module in modules), tuple(ids), tuple(_hooks(modules)), look)

    def is_elsewhere(self, space: Any, name: Any) -> bool:
        """Whether the module of one of these dicts (its registries, its attributes) holds a tensor of that name all the
        same, as a buffer that was deleted and set to a plain tensor."""
        for module in self.all():
            own = module.__dict__
            if space is own or any(space is own.get(registry) for registry in REGISTRIES):
                return isinstance(peek(module, name), torch.Tensor)
        return False

    def _own(self) -> Iterator[torch.nn.Module]:
        return iter(()) if self._source is None else self._source.modules()


def _lookups(modules: Sequence[torch.nn.Module]) -> list[Namespace]:
    """What the instances and their classes hold under the names of members, and of what a call runs: most of them
    nothing, so that a module's registries are asked.
    """
    found: list[Namespace] = []
    of_classes: dict[type, dict[str, None]] = {}
    for module in modules:
        own = module.__dict__
        members = {name: None for registry in REGISTRIES for name in own.get(registry) or ()}
        of_classes.setdefault(type(module), {}).update(members)
        names = (*REGISTRIES, *CALL_METHODS, *members)
        found.append(Namespace(own, names, tuple(own.get(name, MISSING) for name in names), None))
    spaces: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for cls, asked in of_classes.items():
        for name in (*CALL_METHODS, "__getattr__", *asked):
            for base, held in lookup_path(cls, name):
                entries = class_namespace(base)
                if entries is not None:
                    spaces.setdefault(id(entries), (entries, {}))[1][name] = held
    found.extend(Namespace(entries, tuple(held), tuple(held.values()), None) for entries, held in spaces.values())
    return found


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

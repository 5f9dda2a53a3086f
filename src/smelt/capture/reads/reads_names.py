"""What code reads by name: globals, cells, imported modules, and what these hold under the names that follow.

Invariant: a chain of names (`np.random.rand`) is read as far as that runs no code of the program's, when the function
that has it is entered; where a module is not there yet, or has no such name yet, once the run is over.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from smelt._torch.annotations import NAMES as ANNOTATIONS
from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_effects import DRAWS, file_kind, is_builtin_module
from smelt.capture.reads.reads_facts import Reached, Site, Store
from smelt.capture.reads.reads_scan import NAMES, Chain
from smelt.capture.reads.reads_values import raw_lookup
from smelt.capture.reads.settings import flag_of, home_in, setting_of
from smelt.ops.python.python_draws import draw_name

if TYPE_CHECKING:
    from smelt.capture.reads.reads_roots import Roots


class NamedReads:
    """Chains of names that a run's code has, as far as they were followed."""

    def __init__(self) -> None:
        self._unresolved: list[
            tuple[Chain, Site, object, int]
        ] = []  # chains cut short: the module, the place in the path

    def follow_import(self, roots: Roots, chain: Chain, site: Site) -> None:
        """Read a module that code imports, and what it names of it."""
        module = sys.modules.get(chain.name, MISSING)
        if module is MISSING:
            self._unresolved.append((chain, site, MISSING, 0))
        else:
            roots.fact("item", sys.modules, chain.name, module, site, f"sys.modules[{chain.name!r}]")
        self.follow(roots, module, chain, site)

    def follow(self, roots: Roots, base: Any, chain: Chain, site: Site, start: int = 0) -> None:
        """Read `base.path[start:]` where that runs no user code: on modules and classes; stop where watching takes
        over, and where a module has no such name yet."""
        value, parent, label = base, 0, ".".join((chain.name, *chain.path[:start]))
        if value is MISSING:
            return
        _reach_by_name(roots, value, 0, label, site)
        for i, name in enumerate(chain.path[start:], start):
            parent, label = id(value), f"{label}.{name}"
            if isinstance(value, ModuleType):
                home = home_in(value, name)
                if home is not value:
                    roots.fact("absent", value.__dict__, name, MISSING, site, label)
                value, space = home, home.__dict__
                if name == "random" and name not in space and value.__name__ == "numpy":
                    importlib.import_module("numpy.random")  # as asking for it does
                flag = flag_of(value, name) if name not in space else None
                if flag is not None:
                    roots.fact("context", flag, None, flag.get(), site, flag.name)
                if name not in space:
                    self._unresolved.append((chain, site, value, i))
                    return
                if (id(space), name) in roots.state:
                    return
                roots.fact("item", space, name, space[name], site, label)
                value = space[name]
            elif isinstance(value, type):
                raw = raw_lookup(value, name) if name not in ANNOTATIONS else MISSING
                if raw is MISSING or roots.class_state(value, name):
                    return
                roots.fact("static", value, name, raw, site, label)
                value = raw
            else:
                if isinstance(value, FunctionType) and name in NAMES:
                    roots.fact("attr", value, name, getattr(value, name), site, label)
                return
            _reach_by_name(roots, value, parent, f".{name}", site)
            _refuse_random(roots, value, label, site)
        is_handed_on = chain.is_handed_on and isinstance(value, ModuleType) and not is_builtin_module(value)
        if is_handed_on and id(value) not in roots.held_modules:
            roots.hold_module(value, parent, label, site)

    def follow_late(self, roots: Roots) -> None:
        """Read on where a module, or a name in one, was not there yet when the code that uses it was entered."""
        while self._unresolved:
            chain, site, module, start = self._unresolved.pop()
            if module is MISSING and chain.name in sys.modules:
                self.follow(roots, sys.modules[chain.name], chain, site)
            elif module is MISSING:
                roots.fact("absent", sys.modules, chain.name, MISSING, site, f"sys.modules[{chain.name!r}]")
            elif chain.path[start] in module.__dict__:
                self.follow(roots, module, chain, site, start)
            else:
                label = ".".join((chain.name, *chain.path[: start + 1]))
                roots.fact("absent", module.__dict__, chain.path[start], MISSING, site, label)


def read_global(
    roots: Roots, namespace: dict[str, object], builtins: dict[str, object], name: str, site: Site
) -> object:
    """A global or a builtin, as a fact; MISSING for none, and for what is state of the graph."""
    value = namespace.get(name, MISSING)
    if (id(namespace), name) in roots.state:
        return MISSING
    if value is not MISSING:
        roots.fact("item", namespace, name, value, site, name)
        return value
    value = builtins.get(name, MISSING)
    roots.fact("absent", namespace, name, MISSING, site, name)
    roots.fact("absent" if value is MISSING else "item", builtins, name, value, site, name)
    return value


def _reach_by_name(roots: Roots, value: object, parent: int, label: str, site: Site) -> None:
    """The same as `reach`, for what is named in code: what is read of a module there is named, too."""
    setting = setting_of(value)
    if setting is not None:
        roots.fact("context", setting, None, setting.get(), site, setting.name)
    if isinstance(value, ModuleType):
        roots.rooted.setdefault(id(value), Reached(value, parent, label, site))
    else:
        roots.reach(value, parent, label, site)


def expect_store(roots: Roots, namespace: dict[str, object], chain: Chain, site: Site) -> None:
    """Remember what a global, or an attribute of a module or class, holds before executed code assigns it."""
    name, space = chain.name, namespace
    if chain.path:
        owner = namespace.get(chain.name, MISSING) if chain.root == "global" else sys.modules.get(chain.name)
        for part in chain.path[:-1]:
            owner = home_in(owner, part) if isinstance(owner, ModuleType) else owner
            owner = owner.__dict__.get(part, MISSING) if isinstance(owner, (ModuleType, type)) else MISSING
        if not isinstance(owner, (ModuleType, type)):
            return
        flag = flag_of(owner, chain.path[-1]) if isinstance(owner, ModuleType) else None
        if flag is not None:
            roots.fact("context", flag, None, flag.get(), site, flag.name)
            return
        name, space = chain.path[-1], owner.__dict__  # type: ignore[assignment]  # a class's is a read-only view
    label = ".".join((chain.name, *chain.path))
    cls = owner if chain.path and isinstance(owner, type) else None
    place = id(space) if cls is None else id(cls)
    roots.stores.setdefault((place, name), Store(space, name, space.get(name, MISSING), label, site, cls))


def _refuse_random(roots: Roots, value: object, label: str, site: Site) -> None:
    """NumPy's own functions are not builtins that a profile hook sees; their owner tells what they are."""
    if (draw_name(value) or "").startswith("numpy."):
        roots.numpys_draws.append((label, site))
        return
    owner = type(getattr(value, "__self__", None)).__module__ or ""
    module = getattr(value, "__module__", None)
    if owner.startswith("numpy.random") or (isinstance(module, str) and module.startswith("numpy.random")):
        roots.refusals.append((DRAWS, label, site))


def widen_modules(
    roots: Roots, chains: tuple[Chain, ...], spaces: dict[str, Mapping[str, object]], texts: Sequence[str]
) -> None:
    """`getattr(module, name)` reads a global of a module by a name that no scan can know, or finds none; of a
    library's module, by one that stands in the code.
    """
    for chain in chains:
        value = spaces[chain.root].get(chain.name)
        for name in chain.path:
            value = value.__dict__.get(name) if isinstance(value, ModuleType) else value
        if not isinstance(value, ModuleType):
            continue
        site, label = Site(next(iter(roots.executed.values()))[0], chain.offset), ".".join((chain.name, *chain.path))
        is_all = chain.root == "global" and not is_builtin_module(value)
        is_all = is_all and file_kind(getattr(value, "__file__", None) or "<none>") == "user"
        names = [name for name in value.__dict__ if name[:2] != "__"] if is_all else ()
        for name in dict.fromkeys((*names, *filter(str.isidentifier, texts))):
            if (id(value.__dict__), name) not in roots.state:
                member = value.__dict__.get(name, MISSING)
                kind = "absent" if member is MISSING else "item"
                roots.fact(kind, value.__dict__, name, member, site, f"{label}.{name}")
                roots.reach(member, id(value), f".{name}", site)

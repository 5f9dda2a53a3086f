"""What a program asks of Python's own library where no hook sees it: known by the function called, or by names alone.

enter_environment(roots, frame)     os.environ[key] is about to be read
enter_logger(roots, frame)          a logger is about to be asked whether a message is wanted
enter_import(roots, frame)          `importlib.import_module` is about to run
enter_context_variable(roots, ...)  a context variable is about to be read or set
hold_error(roots, error, site)      an error was reached, of which anybody may read and set the arguments
hold_factory(roots, value, site)    a container was reached, which may make what it does not hold
enter_static(roots, frame)          `inspect.getattr_static` is about to run
RawAsks                             functions that name `object.__getattribute__` and the like
Loggers                             loggers and handlers, which are read by name
"""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_arguments import slots_of
from smelt.capture.reads.reads_effects import ENVIRONMENT, file_kind, user_site
from smelt.capture.reads.reads_facts import Read, Site
from smelt.capture.reads.reads_values import field_of, fields_of_errors, instance_dict, kind_of, peek

if TYPE_CHECKING:
    from smelt.capture.reads.reads_roots import Roots

# What code looks up and sets attributes by; in a class's own such method the lookup is seen that led there.
_LOOKUPS = frozenset(("__getattribute__", "__setattr__", "__delattr__"))
# What of a logger can be set; what it keeps for itself, as whether it is enabled, follows from that.
_SET = frozenset(("level", "disabled", "propagate", "parent", "handlers", "filters", "formatter"))
_ASKS = frozenset(("hasHandlers",))

_FACTORY = defaultdict.__dict__["default_factory"]


def enter_environment(roots: Roots, frame: FrameType) -> bool:
    """`os.environ[key]` is about to be read: what it holds is a fact. Whether it could be noted as one."""
    environ, key = frame.f_locals.get("self"), frame.f_locals.get("key")
    space = getattr(environ, "_data", None)
    if environ is not os.environ or not isinstance(space, dict) or not isinstance(key, str):
        return False
    site = site_of(frame, ENVIRONMENT)
    if site is not None:
        held = os.fsencode(key) if os.supports_bytes_environ else key.upper()
        kind, seen = ("item", space[held]) if held in space else ("absent", MISSING)
        roots.fact(kind, space, held, seen, site, f"os.environ[{key!r}]")
    return True


def enter_logger(roots: Roots, frame: FrameType) -> None:
    """A logger is about to be asked whether a message is wanted: its level, and those that it takes it from."""
    logger, site = frame.f_locals.get("self"), site_of(frame, ENVIRONMENT)
    while site is not None and isinstance(logger, logging.Logger):
        manager = logger.manager
        for owner, key in ((logger, "level"), (logger, "disabled"), (logger, "parent"), (manager, "_disable")):
            own = instance_dict(owner)
            if own is not None and key in own:
                roots.fact("item", own, key, own[key], site, f"logger {logger.name!r}.{key}")
        logger = None if logger.level else logger.parent


def enter_import(roots: Roots, frame: FrameType) -> None:
    """`importlib.import_module(name)` is about to run: the module that it gives is a fact, if there is one."""
    caller, name = frame.f_back, frame.f_locals.get("name")
    if caller is None or file_kind(caller.f_code.co_filename) != "user" or not isinstance(name, str):
        return
    module, site = sys.modules.get(name, MISSING), Site(caller.f_code, caller.f_lasti)
    if module is not MISSING:
        roots.fact("item", sys.modules, name, module, site, f"sys.modules[{name!r}]")
        roots.reach(module, 0, f"sys.modules[{name!r}]", site)


def enter_context_variable(roots: Roots, variable: ContextVar[object], frame: FrameType) -> None:
    """A context variable is about to be read or set; what it holds the first time is what the program started from,
    what it holds later the program put there itself."""
    if ("context", id(variable), None) in roots.facts:
        return
    site = site_of(frame)
    value = variable.get(MISSING)
    roots.fact("context", variable, None, value, site, f"ContextVar {variable.name!r}")
    roots.reach(value, 0, f"ContextVar {variable.name!r}", site)


def hold_factory(roots: Roots, value: object, site: Site | None) -> None:
    """What a `defaultdict` calls for a key that it lacks, which nobody sees. Of arguments it is known by structure."""
    if isinstance(value, defaultdict):
        factory = _FACTORY.__get__(value)
        if id(value) not in roots.arguments:
            roots.fact("attr", value, "default_factory", factory, site)
        roots.reach(factory, id(value), ".default_factory", site)


def hold_error(roots: Roots, error: BaseException, site: Site | None) -> None:
    """What an error holds beside its attributes: read and set without anything to watch."""
    for name, field in fields_of_errors(type(error)).items():
        held = field_of(error, field)
        if held is not MISSING:
            roots.fact("attr", error, name, held, site)
            roots.reach(held, id(error), f".{name}", site)


def site_of(frame: FrameType, what: str = "") -> Site | None:
    """Where the program stands that leads to a frame; None as `user_site` gives it."""
    place = user_site(frame, what)
    return None if place is None else Site(*place)


def enter_static(roots: Roots, frame: FrameType) -> None:
    """`inspect.getattr_static(thing, name)` is about to run."""
    _hold_whole(roots, frame.f_locals.get("obj"), (), site_of(frame))


class RawAsks:
    """The functions that may read and set attributes past the class of an object: `object.__getattribute__`."""

    def __init__(self) -> None:
        self._codes: dict[int, CodeType] = {}

    def __contains__(self, code: CodeType) -> bool:
        """Whether such a function has run."""
        return id(code) in self._codes

    def enter(self, roots: Roots, frame: FrameType) -> None:
        """A function of the user's is about to run: all that the objects hold which it is given, or names, counts."""
        code = frame.f_code
        if id(code) not in self._codes:
            if _LOOKUPS.isdisjoint(code.co_names) or code.co_name in _LOOKUPS:
                return
            self._codes[id(code)] = code
        named = (frame.f_globals.get(name) for name in code.co_names)
        for value in (*frame.f_locals.values(), *named):
            _hold_whole(roots, value, code.co_names, Site(code, 0))


def _hold_whole(roots: Roots, value: object, names: Sequence[str], site: Site | None) -> None:
    """All that an object holds counts, if the run has reached it; and all that those hold which are named after it."""
    if kind_of(type(value)) != "instance" or id(value) not in roots.rooted:
        return
    own = instance_dict(value)
    is_new = own is not None and id(own) not in roots.copies
    if is_new:
        roots.widen(value, site)
    for name, slot in slots_of(type(value)):
        if ("attr", id(value), name) not in roots.facts:
            is_new, held = True, field_of(value, slot)
            roots.fact("attr", value, name, held, site)
            roots.reach(held, id(value), f".{name}", site)
    for name in names if is_new else ():
        _hold_whole(roots, peek(value, name), names, site)


class Loggers:
    """The loggers and handlers that a run has reached, with what they held then."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, dict[str, Any], Site | None]] = {}

    def meet(self, logger: object, site: Site | None) -> None:
        """One was reached; with it those that it hands messages on to."""
        while logger is not None and id(logger) not in self._held:
            own = instance_dict(logger) or {}
            self._held[id(logger)] = logger, {name: own[name] for name in _SET if name in own}, site
            logger = own.get("parent")

    def facts(self, names: set[str]) -> Iterator[Read]:
        """What a program that names these attributes may have read."""
        wanted = _SET if names & _ASKS else _SET & names
        for logger, held, site in self._held.values() if wanted else ():
            own, shown = instance_dict(logger), f"logger {getattr(logger, 'name', '')!r}"
            for name in wanted & held.keys():
                label = f"{shown}.{name}"
                yield Read("item", own, name, held[name], site, label, own, lambda number: "")
                if type(held[name]) is list:
                    yield Read("content", held[name], None, list(held[name]), site, label, own, lambda number: "")

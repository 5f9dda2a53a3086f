"""What a program asks of Python's own library where no hook sees it: known by the function called, or by names alone.

enter_environment(roots, frame)     os.environ[key] is about to be read
enter_logger(roots, frame)          a logger is about to be asked whether a message is wanted
hold_error(roots, error, site)      an error was reached, of which anybody may read and set the arguments
Loggers                             loggers and handlers, which are read by name
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from smelt._torch.exact import MISSING
from smelt.capture.reads_effects import ENVIRONMENT, user_site
from smelt.capture.reads_facts import Read, Site
from smelt.capture.reads_values import field_of, fields_of_errors, instance_dict

if TYPE_CHECKING:
    from smelt.capture.reads_roots import Roots

# What of a logger can be set; what it keeps for itself, as whether it is enabled, follows from that.
_SET = frozenset(("level", "disabled", "propagate", "parent", "handlers", "filters", "formatter"))
_ASKS = frozenset(("hasHandlers",))


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


class Loggers:
    """The loggers and handlers that a run has reached, with what they held then."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, dict[str, Any], Site | None]] = {}

    def meet(self, logger: Any, site: Site | None) -> None:
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

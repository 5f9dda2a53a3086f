"""Settings of the process and of its libraries, around a way that a staged run tries: read at once, and put back.

    torch.use_deterministic_algorithms(True)      np.set_printoptions(precision=3)      warnings.simplefilter("ignore")

What has no getter, or reaches further than Python, is refused before it is done (`outside`).

Invariant: a library that nobody imported stays so.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from operator import attrgetter, is_
from typing import Any, NamedTuple

from smelt._torch import settings
from smelt.capture.staging.objects.hidden import are_one

_OF_DECIMALS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_OF_SYS = ("displayhook", "excepthook", "stdin", "path_hooks", "dont_write_bytecode", "tracebacklimit")


class _Setting(NamedTuple):
    read: Callable[[], Any]
    put: Callable[[Any], object]


class Settings:
    """What is set now."""

    def __init__(self) -> None:
        self._held = [(setting, setting.read()) for setting in _settings()]
        if any(now is False and settings.is_of_export(setting.read) for setting, now in self._held):
            self._leave_to_export()

    def _leave_to_export(self) -> None:
        """Another thread that exports a program has switched libraries off, and will switch them on itself."""
        if settings.is_exporting_elsewhere():
            self._held = [held for held in self._held if not settings.is_of_export(held[0].read)]

    def put_back(self) -> bool:
        """Set what was set; whether that was something else."""
        is_other = False
        for setting, old in self._held:
            now = setting.read()
            if now is not old and not _are_same(now, old) and not are_one(now, old):
                if settings.is_of_export(setting.read) and settings.is_exporting_elsewhere():
                    continue
                setting.put(old)
                is_other = True
        return is_other


def _are_same(now: Any, old: Any) -> bool:
    return type(now) is tuple and len(now) == len(old) and all(map(is_, now, old))


def _settings() -> list[_Setting]:
    found = list(_fixed())
    if "numpy" in sys.modules:
        found.extend(_of_numpy())
    if "decimal" in sys.modules:
        found.append(_of_decimals())
    return found


@lru_cache(maxsize=1)
def _fixed() -> tuple[_Setting, ...]:
    return (*(_Setting(*pair) for pair in settings.pairs()), _Setting(_filters, _filter_so), _Setting(_sys, _sys_so),
            _Setting(_logging, _log_so))  # fmt: skip


def _filters() -> tuple[object, ...]:
    return warnings.filters, tuple(warnings.filters), warnings.showwarning


def _filter_so(old: tuple[Any, ...]) -> None:
    filters, held, warnings.showwarning = old
    warnings.filters = filters
    filters[:] = held
    warnings._filters_mutated()  # type: ignore[attr-defined]  # so that what was given once is given again


def _sys() -> tuple[object, ...]:
    return (*(getattr(sys, name, None) for name in _OF_SYS), tuple(sys.path), tuple(sys.argv))


def _sys_so(old: tuple[Any, ...]) -> None:
    *hooks, sys.path[:], sys.argv[:] = old
    for name, held in zip(_OF_SYS, hooks, strict=True):
        if held is not None or hasattr(sys, name):
            setattr(sys, name, held)


@lru_cache(maxsize=1)
def _loggers(count: int) -> list[logging.Logger]:
    """Those that are known, without torch's, of which there are hundreds. count: how many there are; none ever goes."""
    known = logging.root.manager.loggerDict.items()
    return [found for name, found in known if type(found) is logging.Logger and not name.startswith("torch.")]


_LEVEL = attrgetter("level", "propagate")


def _logging() -> tuple[object, ...]:
    """Who logs, from what level on, as a flat tuple."""
    loggers = [logging.root, *_loggers(len(logging.root.manager.loggerDict))]
    return (logging.root.manager.disable, *logging.root.handlers, *loggers, *chain.from_iterable(map(_LEVEL, loggers)))


def _log_so(old: tuple[Any, ...]) -> None:
    logging.root.manager.disable = old[0]
    handlers = [found for found in old if isinstance(found, logging.Handler)]
    loggers = [found for found in old if isinstance(found, logging.Logger)]
    logging.root.handlers[:] = handlers
    levels = old[len(old) - 2 * len(loggers) :]
    for log, level, propagates in zip(loggers, levels[::2], levels[1::2], strict=True):
        if log.level != level:
            log.setLevel(level)
        log.propagate = propagates


def _of_numpy() -> list[_Setting]:
    numpy: Any = sys.modules["numpy"]
    return [
        _Setting(lambda: tuple(numpy.geterr().items()), lambda old: numpy.seterr(**dict(old))),
        _Setting(lambda: tuple(numpy.get_printoptions().items()), lambda old: numpy.set_printoptions(**dict(old))),
    ]


def _of_decimals() -> _Setting:
    context = sys.modules["decimal"].getcontext()

    def put(old: tuple[object, ...]) -> None:
        for name, held in zip(_OF_DECIMALS, old, strict=True):
            setattr(context, name, held)

    return _Setting(lambda: tuple(getattr(context, name) for name in _OF_DECIMALS), put)

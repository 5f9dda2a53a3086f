"""What one arm of a branch does to objects and settings, outside of any container, is nothing to the other arm."""

from __future__ import annotations

import importlib.util
import locale
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import smelt

_IMPORTS = """
import abc, array, collections, ctypes, decimal, functools, gc, itertools, locale, logging, math, mmap, queue, random
import signal, socket, sys, threading, types, warnings
import numpy as np
import torch
"""
_NOTES, _MODULE = "o.__annotations__['b'] = 2", "types.ModuleType('own')"
# By name: what stands before the function, what it does at first, in the arm, and what it returns.
_CASES = {
    "class of an object": ("class A: k = 1\nclass B: k = 2", "o = A()", "o.__class__ = B", "o.k"),
    "class of one outside": ("class A: k = 1\nclass B: k = 2\no = A()", "o.__class__ = A", "o.__class__ = B", "o.k"),
    "dictionary of an object": ("class A: k = 1", "o = A()", "o.__dict__ = {'k': 5}", "o.k"),
    "metaclass": ("class M(type): pass\nclass N(M): pass", "class A(metaclass=M): pass", "A.__class__ = N", "type(A)"),
    "bases": ("class A: k = 1\nclass B: k = 2", "class D(A): pass", "D.__bases__ = (B,)", "D.k"),
    "name of a class": ("", "class A: pass", "A.__name__ = 'B'", "A.__name__"),
    "defaults": ("", "o = lambda a=1: a", "o.__defaults__ = (7,)", "o()"),
    "named defaults": ("", "o = lambda *, a=1: a", "o.__kwdefaults__ = {'a': 7}", "o()"),
    "name of a function": ("", "o = lambda: 1", "o.__name__ = 'other'", "o.__name__"),
    "text of a function": ("", "o = lambda: 1", "o.__doc__ = 'other'", "o.__doc__"),
    "attributes of a function": ("", "o = lambda: 1; o.k = 1", "o.__dict__ = {'k': 2}", "o.k"),
    "annotations": ("", "o = lambda: 1", _NOTES, "o.__annotations__"),
    "new annotations": ("", "def o(a: 3): pass", "o.__annotations__ = {'b': 2}", "o.__annotations__"),
    "annotations outside": ("def o(a: 3): pass", "o.__annotations__.pop('b', 0)", _NOTES, "len(o.__annotations__)"),
    "annotations of a class": ("", "class o: a: 3", _NOTES, "o.__annotations__"),
    "annotations of a module": ("", f"o = {_MODULE}; o.__annotations__ = {{}}", _NOTES, "o.__annotations__"),
    "code": ("", "o = lambda: 1", "o.__code__ = (lambda: 2).__code__", "o()"),
    "defaults outside": ("def o(a=1): return a", "o.__defaults__ = (1,)", "o.__defaults__ = (7,)", "o()"),
    "name outside": ("def o(): pass", "o.__name__ = 'o'", "o.__name__ = 'other'", "o.__name__"),
    "partial": ("", "o = functools.partial(max, 1)", "o.__setstate__((min, (1,), {}, {}))", "o(5)"),
    "property": ("", "o = property(lambda s: 1)", "o.__init__(lambda s: 2)", "o.fget(0)"),
    "error's field": ("", "o = OSError(1, 'a')", "o.errno = 2", "o.errno"),
    "error's context": ("", "o = ValueError(1)", "o.__context__ = KeyError(1)", "type(o.__context__)"),
    "default of a dict": ("", "o = collections.defaultdict(list)", "o.default_factory = set", "type(o[1])"),
    "form of an array": ("", "o = np.zeros(2)", "o.shape = (1, 2)", "o.shape"),
    "objects in an array": ("", "o = np.array([None, 1], dtype=object)", "o[0] = 2", "o.tolist()"),
    "flag of an array": ("", "o = np.zeros(2)", "o.flags.writeable = False", "o.flags.writeable"),
    "number of C's": ("", "o = ctypes.c_int(1)", "o.value = 2", "o.value"),
    "memory": ("", "o = mmap.mmap(-1, 4)", "o[0] = 2", "o[0]"),
    "decimal context": ("", "o = decimal.Context(prec=3)", "o.prec = 5", "o.prec"),
    "lock": ("", "o = threading.Lock()", "o.acquire()", "o.locked()"),
    "queue": ("", "o = queue.SimpleQueue()", "o.put(1)", "o.qsize()"),
    "iterator": ("def h(it): return next(it)", "o = iter([1, 2, 3])", "h(o)", "next(o)"),
    "count": ("def h(it): return next(it)", "o = itertools.count()", "h(o)", "next(o)"),
    "cache": ("o = functools.lru_cache(lambda a: [a])", "o.cache_clear(); q = o(1)", "o.cache_clear()", "o(1) is q"),
    "module": ("", "o = types.ModuleType('own'); o.k = 1", "o.k = 2", "o.k"),
    "list of a module": ("", f"o = {_MODULE}; o.k = []", "o.k.append(2)", "o.k"),
    "module of Python's": ("", "math.own = 1", "math.own = 2", "math.own"),
    "modules": ("", "sys.modules.pop('own', None)", "sys.modules['own'] = sys", "'own' in sys.modules"),
    "recursion": ("", "sys.setrecursionlimit(3000)", "sys.setrecursionlimit(4000)", "sys.getrecursionlimit()"),
    "collector": ("", "gc.enable()", "gc.disable()", "gc.isenabled()"),
    "locale": ("", "locale.setlocale(0, 'C')", "locale.setlocale(0, 'C.UTF-8')", "locale.setlocale(0)"),
    "timeout": ("", "socket.setdefaulttimeout(None)", "socket.setdefaulttimeout(2)", "socket.getdefaulttimeout()"),
    "signal": ("", "s = signal; s.signal(10, s.SIG_DFL)", "s.signal(10, s.SIG_IGN)", "s.getsignal(10) is s.SIG_IGN"),
    "registered class": ("", "class A(abc.ABC): pass", "A.register(int)", "isinstance(3, A)"),
    "paths": ("", "sys.path[:] = [p for p in sys.path if p != 'q']", "sys.path.append('q')", "'q' in sys.path"),
    "decimals": ("", "c = decimal.getcontext(); c.prec = 28", "c.prec = 5", "str(decimal.Decimal(1) / 3)"),
    "NumPy's texts": ("p = np.set_printoptions", "p(precision=8)", "p(precision=5)", "str(np.ones(1) / 3)"),
    "torch's texts": ("p = torch.set_printoptions", "p(precision=4)", "p(precision=5)", "str(torch.ones(1) / 3)"),
    "threads": ("", "torch.set_num_threads(1)", "torch.set_num_threads(2)", "torch.get_num_threads()"),
    "kernels": ("", "b = torch.backends.cudnn; b.benchmark = False", "b.benchmark = True", "b.benchmark"),
    "warnings": ("", "warnings.simplefilter('ignore')", "warnings.simplefilter('always')", "warnings.filters[0][0]"),
    "logs": ("", "o = logging.getLogger('q'); o.setLevel(10)", "o.setLevel(30)", "o.level"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """What programs here set at first is not what was set."""
    limit, threads, place = sys.getrecursionlimit(), torch.get_num_threads(), locale.setlocale(locale.LC_ALL)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)
    sys.setrecursionlimit(limit)
    locale.setlocale(locale.LC_ALL, place)


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spread(15)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [smelt.compile, smelt.script], ids=["compile", "script"])
@pytest.mark.parametrize("case", _CASES)
def test_one_arm_is_nothing_to_the_other(case: str, make: Callable[[Any], Any], tmp_path: Path) -> None:
    _arms_are_apart(case, make, tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_annotations_and_lists_of_modules_in_one_arm(tmp_path: Path) -> None:
    for case in _CASES:
        if "annotations" in case or case == "list of a module":
            _arms_are_apart(case, smelt.compile, tmp_path)


def _arms_are_apart(case: str, make: Callable[[Any], Any], tmp_path: Path) -> None:
    before, first, arm, result = _CASES[case]
    path = tmp_path / "program_of_arms.py"
    lines = [before, "def f(x):", f"    {first}", f"    if x.sum() > 0: {arm}", f"    return x + 1, str(({result}))"]
    path.write_text(_IMPORTS + "\n".join(lines))
    program = _loaded(path).f
    try:
        made = make(_loaded(path).f)
    except smelt.CaptureError:
        assert make is smelt.script  # an honest refusal
        return
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2) * 2, -torch.ones(2) * 2):
        expected = str(program(x))
        assert str(made(x)) == expected


own_settings = ModuleType("own_settings")


def _by_name(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        own_settings.level = 3  # type: ignore[attr-defined]
        own_settings.seen.append(1)  # type: ignore[attr-defined]
    return x + len(own_settings.seen)


_HOLDER = SimpleNamespace(settings=own_settings)


def _by_holder(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        _HOLDER.settings.seen.append(1)
    return x + len(_HOLDER.settings.seen)


@pytest.mark.parametrize("program", [_by_name, _by_holder])
def test_a_module_outside(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = []
    for run in (program, smelt.compile(program)):
        own_settings.seen, seen = [], []  # type: ignore[attr-defined]
        for x in (torch.ones(2), -torch.ones(2), torch.ones(2), -torch.ones(2)):
            own_settings.level = 0  # type: ignore[attr-defined]
            seen.append((run(x).tolist(), own_settings.level, len(own_settings.seen)))
        found.append(seen)
    assert found[0] == found[1]

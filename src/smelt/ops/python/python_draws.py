"""Random numbers of Python's and of NumPy's global generator: what `py.draw` may name, and how these generators stand.

Invariant: a name stands for a method of the very generator that `random.random` or `numpy.random.random` draws from,
so a graph draws the numbers that the program would have drawn, in their order, and leaves the generator as it would.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from smelt.diag import SmeltError

_PYTHON_FLOATS = (
    "random", "uniform", "betavariate", "expovariate", "gammavariate", "gauss", "lognormvariate", "normalvariate",
    "vonmisesvariate", "paretovariate", "weibullvariate",
)  # fmt: skip
_PYTHON_INTS = ("randint", "randrange", "getrandbits", "binomialvariate")
_OF_LISTS = ("choice", "choices", "sample")
# NumPy's, with the numbers that each takes before `size`, which would make it an array.
_NUMPY_FLOATS = {
    "random": 0, "random_sample": 0, "rand": 0, "randn": 0, "standard_normal": 0, "standard_cauchy": 0,
    "standard_exponential": 0, "chisquare": 1, "exponential": 1, "pareto": 1, "power": 1, "rayleigh": 1,
    "standard_gamma": 1, "standard_t": 1, "weibull": 1, "uniform": 2, "normal": 2, "beta": 2, "f": 2, "gamma": 2,
    "gumbel": 2, "laplace": 2, "logistic": 2, "lognormal": 2, "vonmises": 2, "wald": 2, "triangular": 3,
}  # fmt: skip
_NUMPY_INTS = {"randint": 2, "binomial": 2, "geometric": 1, "negative_binomial": 2, "poisson": 1, "choice": 1}

DRAWS: Mapping[str, type] = MappingProxyType(
    {f"random.{name}": float for name in _PYTHON_FLOATS}
    | {f"random.{name}": int for name in _PYTHON_INTS}
    | {f"random.{name}": list for name in _OF_LISTS}
    | {f"numpy.random.{name}": float for name in _NUMPY_FLOATS}
    | {f"numpy.random.{name}": int for name in _NUMPY_INTS}
)
"""By name what a draw gives: a float, an int, or (list) what stands in the list that it draws from."""

KEYWORDS = frozenset((
    "a", "b", "alpha", "beta", "df", "dfden", "dfnum", "high", "k", "kappa", "lam", "lambd", "left", "loc", "low",
    "mean", "mode", "mu", "n", "p", "right", "scale", "shape", "sigma", "start", "stop", "step",
))  # fmt: skip
"""The keywords that `py.draw` hands on."""

# Where NumPy's own functions stay what they are while others stand for them in `numpy.random`.
_NUMPYS = "numpy.random.mtrand"
# As they are when this is imported: what a program puts in their place is the program's.
PYTHONS = random.random.__self__  # type: ignore[attr-defined]


def _owner(module: str) -> Any:
    """The global generator of a module."""
    return PYTHONS if module == "random" else importlib.import_module(_NUMPYS).random.__self__


def draw(name: str, *args: Any, **kwargs: Any) -> Any:
    """The next number of a global generator. Raises: SmeltError (S0202) for a name that is none of `DRAWS`."""
    if name not in DRAWS:
        raise SmeltError(
            f"py.draw cannot draw by {name!r}",
            why="only what draws numbers from a global generator of Python's or NumPy's may stand there",
            fix="docs/graph.md lists what does",
            code="S0202",
        )
    module, _, method = name.rpartition(".")
    return getattr(_owner(module), method)(*args, **kwargs)


def draw_name(function: Any) -> str | None:
    """The name under which `py.draw` knows a function; None for any other."""
    owner = getattr(function, "__self__", None)
    if owner is None:
        return None
    method = str(getattr(function, "__name__", ""))
    if owner is PYTHONS:
        found = f"random.{method}"
    elif owner is numpys_generator():
        found = f"numpy.random.{method}"
    else:
        return None
    return found if found in DRAWS else None


def numpys_generator() -> Any:
    """NumPy's global generator; None until its module is loaded."""
    # While another thread imports it, it is there and empty.
    return getattr(getattr(sys.modules.get(_NUMPYS), "random", None), "__self__", None)


def gives_a_number(name: str, args: Sequence[Any]) -> bool:
    """Whether a draw with so many arguments gives one number, and not an array of them."""
    method = name.removeprefix("numpy.random.")
    most = _NUMPY_FLOATS.get(method, _NUMPY_INTS.get(method, 0))
    return method == name or len(args) <= most


class Generators:
    """All global generators on the CPU as they stood: torch's own, Python's, and NumPy's where it is loaded."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._pythons, self._numpys = python_states()

    @property
    def has_numpys(self) -> bool:
        """Whether NumPy's was loaded then."""
        return self._numpys is not None

    def restore(self) -> None:
        """Put them back."""
        if not torch.equal(self._torch, torch.get_rng_state()):
            torch.set_rng_state(self._torch)
        put_back(self._pythons, self._numpys)


def python_states() -> tuple[Any, Any]:
    """The states of Python's and NumPy's generator, which compare as values."""
    return PYTHONS.getstate(), _state_of(numpys_generator())


def put_back(pythons: Any, numpys: Any) -> None:
    """Set Python's and NumPy's generator to states that they had."""
    PYTHONS.setstate(pythons)
    if numpys is not None:
        kind, keys, *rest = numpys
        array = importlib.import_module("numpy").frombuffer(keys, dtype="uint32")
        numpys_generator().set_state((kind, array, *rest))


@contextmanager
def put_back_after() -> Iterator[None]:
    """Python's and NumPy's generator are afterwards what they were before."""
    before = python_states()
    try:
        yield
    finally:
        put_back(*before)


def _state_of(generator: Any) -> Any:
    state: Callable[[], Any] | None = getattr(generator, "get_state", None)
    if state is None:
        return None
    found = state()
    if not isinstance(found, tuple):  # of a bit generator that the program has put there
        return None
    kind, keys, position, has_gauss, cached = found
    return kind, bytes(keys), position, has_gauss, cached

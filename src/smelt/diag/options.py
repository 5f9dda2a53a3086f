"""Options: one frozen value, passed down everywhere and hashed into cache keys. The environment is read only here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from math import inf
from pathlib import Path
from typing import Any, Literal

from smelt.diag.errors import SmeltError
from smelt.diag.loops import LoopStep, Parallel, Stages, Tile, Unroll, Vectorize, Warps
from smelt.diag.records import record

Numerics = Literal["default", "fast", "eager-library"]
Products = Literal["default", "bf16", "int8", "int4"]
_NAME_LISTS = ("skip", "enable")
_COUNTS = ("stop_after", "cache_limit_mb")
_LOOP_STEPS = (Tile, Vectorize, Unroll, Parallel, Warps, Stages)
_ALLOWED = {
    "numerics": "one of default, fast, eager-library",
    "skip": "a list of names",
    "enable": "a list of names",
    "stop_after": "a number of passes, 0 or more, or None",
    "cache_limit_mb": "a number of megabytes, 0 or more",
    "dtype": "one of default, bf16, int8, int4",
    "max_error": "a number above 0, or None",
    "memory_budget": "a number from 0 to 1",
    "measure_seconds": "a number of seconds, 0 or more",
    "loops": "a list of steps on the loops of kernels, as a schedule takes them",
}
_WORDS = {"numerics": ("default", "fast", "eager-library"), "dtype": ("default", "bf16", "int8", "int4")}


def _default_cache_dir() -> str:
    base = os.environ.get("SMELT_CACHE_DIR")
    if base:
        return base
    return str(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smelt")


def isa_limit() -> str:
    """The most that own kernels may use of the CPU (SMELT_ISA: avx512, avx2, neon, baseline, none); "" for all of it.

    Read at each call: it is for comparing and testing within a process, not part of a program's options.
    """
    return os.environ.get("SMELT_ISA", "").strip().lower()


def _as_names(value: Any) -> Any:
    """A list of names as a tuple; anything else as it is, to be refused."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping)) else value


@record
class Options:
    """How a program is compiled and run.

    strict: every fallback (to a call of Python, to eager) is an error instead of a counted warning.
    deterministic: choose kernels by the cost model instead of by measurement, so that two processes choose alike.
    numerics: "default" is the bound of docs/decisions (numerics); "fast" allows 3x eager's rms error; "eager-library"
        uses the library that eager itself uses for every product.
    skip: names of passes to omit (bisecting, debugging).
    enable: names of optional passes to run.
    stop_after: run only the first N passes (None: all).
    dump: directory into which the graph is written after each pass and each rewrite before lowering ("" for none).
    verify: run the graph verifier after every pass, not only after the last.
    cache_dir, cache_limit_mb: the folder that caches machine code, and its size limit; "" caches nothing on disk. The
        default is `SMELT_CACHE_DIR`, else smelt's folder in the user's cache (~/.cache/smelt).
    measure: let kernels be chosen by timing them once at compile time.
    measure_seconds: on a GPU: for how many seconds of a compilation tiles of products and attention, and the libraries'
        operators, may be compiled and timed; the rest is chosen by rule. `cache_dir` caches the choices.
    dtype: "bf16" computes the large f32 products of a program in bf16; everything else, and the dtypes of all results,
        stay unchanged (docs/decisions, bf16). "int8" computes linear layers over bytes, "int4" over weights of 4 bits,
        as many of them as `max_error` allows (docs/decisions, few bits); on a GPU weights of that many bits, and
        products of bf16. "default" computes in the dtypes of the
        program.
    max_error: with "int8" and "int4", the greatest error of an output: the root of the mean square of its difference
        to the program in f32, divided by the root of its own, on the inputs of the first call. None: 0.05 and 0.25.
    release_originals: free the memory of weights that a packed copy has replaced; the parameters stay readable and
        writable, from a file (docs/decisions, released originals).
    code_weights: compress large f32 weights losslessly to 28 bits an element, if products of at most four rows read
        them from memory at each run, as in decoding token by token: fewer bytes need less time (docs/decisions,
        compressed weights). False reads weights uncompressed, and needs no memory for copies.
    own_kernels: run everything but products in fused kernels of our own where possible; False uses eager's operators.
    keep_plans: cache in `cache_dir` the results of passes and lowering, too, so that a later process that captures the
        same graph, with whatever weights, need not do it again.
    profile: measure every native instruction of every call (`profile()` of an executable), and show them as ranges in
        `torch.profiler`; launches then run one after the other. A program without it has none of this in its code.
    adaptive: let measured times decide: a compiled program that is slower than eager falls back to eager, and builds
        take no longer than the program's calls are worth (docs/decisions, what pays). False runs whatever was compiled,
        and builds for each kind of call. `strict`, `deterministic` and `release_originals` imply False.
    train: compile calls whose results need gradients, too: forward and backward are native, and autograd sees one
        operator. False leaves such calls to eager.
    memory_budget: where gradients are needed, how much may be saved between forward and backward, as a fraction, from 0
        to 1, of what would be if nothing were computed again. Products are computed again as far as that takes; with 1
        none is.
    loops: schedules of the loops of single kernels, as steps of a schedule (`s.tile`, `s.vectorize`, ...). A step that
        does not fit a kernel is omitted, with a warning.
    """

    strict: bool = False
    deterministic: bool = False
    numerics: Numerics = "default"
    skip: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    stop_after: int | None = None
    dump: str = ""
    verify: bool = False
    cache_dir: str = ""
    cache_limit_mb: int = 512
    measure: bool = True
    measure_seconds: float = 5.0
    dtype: Products = "default"
    max_error: float | None = None
    release_originals: bool = False
    profile: bool = False
    code_weights: bool = True
    own_kernels: bool = True
    loops: tuple[LoopStep, ...] = ()
    keep_plans: bool = True
    adaptive: bool = True
    train: bool = True
    memory_budget: float = 1.0

    @staticmethod
    def make(given: Mapping[str, Any] | Options | None = None) -> Options:
        """Options from a user's mapping; unknown names and wrong values are errors that list what is allowed.

        Raises: SmeltError (S0301).
        """
        if isinstance(given, Options):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise SmeltError(
                f"options cannot be {given!r}",
                why="they are a mapping from the options' names to values, or an Options",
                fix='write, for example, options={"strict": True}',
                code="S0301",
            )
        values: dict[str, Any] = {"cache_dir": _default_cache_dir(), "dump": os.environ.get("SMELT_DUMP", "")}
        known = {f.name: f for f in fields(Options)}
        for name, value in (given or {}).items():
            if name not in known:
                raise SmeltError(
                    f"there is no option {name!r}",
                    why=f"the options are {', '.join(known)}",
                    fix="correct the name",
                    code="S0301",
                )
            values[name] = _as_names(value) if name in (*_NAME_LISTS, "loops") else value
        options = Options(**values)
        options._check()
        return options

    def _check(self) -> None:
        expected: dict[str, tuple[type, ...]] = {
            "strict": (bool,), "deterministic": (bool,), "numerics": (str,), "skip": (tuple,),
            "enable": (tuple,),
            "stop_after": (int, type(None)), "dump": (str,), "verify": (bool,), "cache_dir": (str,),
            "cache_limit_mb": (int,), "measure": (bool,), "dtype": (str,),
            "max_error": (float, int, type(None)), "release_originals": (bool,),
            "profile": (bool,), "code_weights": (bool,), "own_kernels": (bool,), "loops": (tuple,),
            "keep_plans": (bool,), "adaptive": (bool,), "train": (bool,), "memory_budget": (float, int),
            "measure_seconds": (float, int),
        }  # fmt: skip
        for name, types in expected.items():
            value = getattr(self, name)
            wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
            if name in _NAME_LISTS and isinstance(value, tuple):
                wrong = not all(isinstance(item, str) for item in value)
            elif name == "loops" and isinstance(value, tuple):
                wrong = not all(isinstance(item, _LOOP_STEPS) for item in value)
            elif name in _COUNTS and isinstance(value, int):
                wrong = wrong or value < 0
            elif name == "memory_budget" and not wrong:
                wrong = not 0 <= value <= 1
            elif name == "measure_seconds" and not wrong:
                wrong = not 0 <= value < inf
            elif name == "max_error" and not wrong and value is not None:
                wrong = not 0 < value < inf
            if wrong or (name in _WORDS and value not in _WORDS[name]):
                allowed = _ALLOWED.get(name, types[0].__name__)
                raise SmeltError(
                    f"option {name!r} cannot be {value!r}",
                    why=f"it takes {allowed}",
                    fix="correct the value",
                    code="S0301",
                )

    def as_dict(self) -> dict[str, Any]:
        """All options by name, as plain data."""
        return asdict(self)

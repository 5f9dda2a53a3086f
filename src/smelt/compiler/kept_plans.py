"""Plans on disk: a process that captures a graph which some process has lowered before takes the plan from there.

    graph, options, machine, versions, source  -- SHA-256 -->  key  -->  codegen.lower.kept, in the cache's folder

Invariant: everything that passes and lowering look at is in the key, or is looked at anew
(`codegen.lower.static.plan_tensors`): the contents of parameters are in no entry, so that an entry serves other weights
of the same types. What cannot be read, or is not what it should be, is removed and made again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

import torch

from smelt._torch.library import shim
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.result import Lookup, Lowered
from smelt.codegen.lower.static.serialized_plans import CannotKeep, read, write
from smelt.codegen.lower.static.static_program import OtherState
from smelt.compiler.programs.narrow_layers import Narrowed, narrowed_from
from smelt.compiler.source_digest import begin_source_digest, source_digest
from smelt.diag import Options
from smelt.ir import Graph
from smelt.ops.registry import overload
from smelt.runtime.machine.cache import CodeCache, code_cache
from smelt.runtime.machine.cpu import cpu_fingerprint, data_cache_nbytes

KIND = "plan"
"""What files of this kind are called by, in the cache's folder."""

WORTH_MS = 10.0
"""Passes and lowering that take less than this are done again each time."""

_VERSION = "1"
# Where an entry is kept, how much of it, and what is shown or checked on the way, change nothing about a plan.
_IRRELEVANT = frozenset(("cache_dir", "cache_limit_mb", "dump", "verify", "keep_plans", "adaptive"))
# Operators whose implementation is torch's own: nobody else's code has been run for what was folded.
_NAMESPACES = ("aten.", "prims.")


class KeptPlans:
    """The plans in one cache; `of` gives it where there is one."""

    def __init__(self, cache: CodeCache, options: Options) -> None:
        self._cache, self._options = cache, options

    @staticmethod
    def of(options: Options) -> KeptPlans | None:
        """The plans that these options keep, or None. The digest of the source begins to be found."""
        # A measured plan has other code; what is written or warned of on the way is to be seen each time.
        shows = options.profile or options.dump or options.loops
        wanted = options.keep_plans and options.cache_dir and not shows
        if not wanted or shim.hides_something():
            return None
        begin_source_digest()
        return KeptPlans(code_cache(options.cache_dir, options.cache_limit_mb), options)

    def key(self, graph: Graph) -> str | None:
        """What a graph's plan is known by; None where it is not to be kept."""
        source = source_digest()
        if not source or not all(_is_known(node.op) for node in graph.walk()):
            return None
        parts = (KIND, _VERSION, source, _here(), *_settings(self._options), str(graph))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def load(self, key: str, optimize: Callable[[], Graph], state: Lookup) -> Lowered | None:
        """The plan of this key for the state at hand; None where there is none that fits."""
        data = self._cache.take(key, KIND)
        if data is None:
            return None
        try:
            return read(data, optimize, state, host_isa(), self._options)
        except OtherState:
            return None
        except Exception:  # whatever bytes that are no plan lead to: made again, and written over
            self._cache.drop(key, KIND)
            return None

    def narrowed(self, key: str) -> Narrowed | None:
        """Which layers of the plan of this key are over few bits; None where that is not known."""
        data = self._cache.take(_of_layers(key), KIND)
        try:
            return None if data is None else narrowed_from(json.loads(data))
        except Exception:  # whatever bytes that say nothing of layers lead to
            self._cache.drop(_of_layers(key), KIND)
            return None

    def keep(self, key: str, lowered: Lowered, narrowed: Narrowed | None = None) -> str:
        """Write a plan for later processes; why it is not, or nothing. narrowed: which layers are over few bits."""
        if narrowed is not None and not narrowed.chosen:
            return "no layer of it is over few bits, which is reported each time"
        try:
            data = write(lowered)
        except CannotKeep as why:
            return str(why)
        if narrowed is not None:
            self._cache.keep(_of_layers(key), json.dumps(asdict(narrowed), default=sorted).encode(), KIND)
        self._cache.keep(key, data, KIND)
        return ""


def _of_layers(key: str) -> str:
    return hashlib.sha256(f"{key} layers".encode()).hexdigest()


def _is_known(op: str) -> bool:
    return op.startswith(_NAMESPACES) or overload(op) is None


def _settings(options: Options) -> list[str]:
    named = [(f.name, getattr(options, f.name)) for f in fields(options)]
    return [f"{name}={value!r}" for name, value in named if name not in _IRRELEVANT]


@lru_cache(maxsize=1)
def _machine() -> str:
    versions = (sys.version, torch.__version__, getattr(torch.version, "git_version", ""))
    return repr((versions, cpu_fingerprint(), data_cache_nbytes(), torch.backends.cpu.get_cpu_capability()))


def _here() -> str:
    """The machine, the versions, and what torch is set to in this process."""
    isa = host_isa()
    flags: list[Any] = [
        None if isa is None else (isa.key, isa.f32_lanes, isa.vector_registers, isa.has_bf16),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.is_available(),
        torch.backends.mkldnn.enabled,
        torch.backends.mkldnn.deterministic,
    ]
    return _machine() + repr(flags)

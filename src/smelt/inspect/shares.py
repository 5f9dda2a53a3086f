"""The share of a call's time that own kernels take, measured on a second executable of the same plan.

Invariant: the program's arguments are left as they are; its state is written as by any call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from smelt.compiler import SizedUnit, Unit
from smelt.compiler.unit import machine_code
from smelt.diag import Miss, SmeltError
from smelt.inspect.kernels import launched_ns
from smelt.runtime.executable import Executable

_RUNS = 5


def time_share(unit: Unit, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """The share of time in own kernels for these arguments; None where it cannot be measured.

    Launches run one after the other meanwhile, and each reading of the clock is about 30 ns.
    """
    if isinstance(unit, SizedUnit) or unit.lowered is None or unit.prints:
        return None
    plan = replace(unit.lowered.plan, profile=True)
    executable = Executable(plan, machine_code(replace(unit.options, profile=True)))
    try:
        inputs = unit.signature.flatten(args, kwargs)
        for _ in range(_RUNS):
            executable.run([value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])
    except (SmeltError, Miss, RuntimeError):  # these arguments take another path, or raise
        return None
    own, total = launched_ns(plan, executable.profile())
    return own / total if total else None

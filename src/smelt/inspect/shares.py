"""What each instruction of a call takes, measured on a second executable of the same plan.

Invariant: the program's arguments are left as they are; its state is written as by any call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.compiler import SizedUnit, Unit
from smelt.compiler.training.training import TrainingUnit
from smelt.compiler.unit import machine_code
from smelt.diag import Miss, SmeltError
from smelt.diag.records import record
from smelt.inspect.kernels import launched_ns
from smelt.runtime.executable import Executable
from smelt.runtime.plan import Plan
from smelt.runtime.profile import ProfileRow

_RUNS = 5


@record
class Measured:
    """What the instructions of a unit's plan took."""

    unit: Unit
    plan: Plan
    rows: Sequence[ProfileRow]

    @property
    def own_share(self) -> float | None:
        """The share of the time that own kernels take."""
        own, total = launched_ns(self.plan, self.rows)
        return own / total if total else None


def profile_of(unit: Unit, args: tuple[Any, ...], kwargs: Mapping[str, Any], runs: int = _RUNS) -> Measured | None:
    """The times of these arguments; None where they cannot be measured.

    Launches run one after the other meanwhile, and each reading of the clock is about 30 ns.
    """
    if isinstance(unit, SizedUnit | TrainingUnit) or unit.lowered is None or unit.prints:
        return None
    plan = replace(unit.lowered.plan, profile=True)
    executable = Executable(plan, machine_code(replace(unit.options, profile=True)))
    try:
        inputs = unit.signature.flatten(args, kwargs)
        for _ in range(runs):
            executable.run([value.clone() if isinstance(value, torch.Tensor) else value for value in inputs])
    except (SmeltError, Miss, RuntimeError):  # these arguments take another path, or raise
        return None
    return Measured(unit, plan, executable.profile())


def time_share(unit: Unit, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """The share of time in own kernels for these arguments; None where it cannot be measured."""
    found = profile_of(unit, args, kwargs)
    return None if found is None else found.own_share

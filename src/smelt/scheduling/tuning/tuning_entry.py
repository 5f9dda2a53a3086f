"""`smelt.tune`: a scheduling function and a model, searched in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.scheduling.comparing.compare_runs import Arguments
from smelt.scheduling.schedule import Schedule, schedule
from smelt.scheduling.tuning.tuned import Tuned


def tune(shape: Callable[[Schedule], Any], model: torch.nn.Module, *args: Any, **options: Any) -> Tuned:
    """The schedule of a model that a scheduling function makes with the choices of its knobs that measure fastest.

    args: of a call of the model. options: as of `Schedule.tune`, where the model's own keyword arguments stand, too.
    Returns: what was tried; `.schedule` has the steps, `.schedule.build()` is the module. The model is never touched.
    Raises: as of `Schedule.tune`.
    """
    given = args[0].args if len(args) == 1 and isinstance(args[0], Arguments) else args
    made = schedule(model, given or None)
    return made.tune(shape, *args, **options)

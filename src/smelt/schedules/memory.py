"""`low_memory`: repeated blocks keep only their inputs for backward.

before:  for layer in layers: x = layer(x)      all that is in a layer is kept until backward
after:   x = checkpoint(layer, x)               x is kept; backward runs the layer again
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.ir import is_under
from smelt.schedules.applying import Taker
from smelt.schedules.report import Ready
from smelt.scheduling import Match, Schedule
from smelt.scheduling.finding.target import join

_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def low_memory(model: Schedule | torch.nn.Module, example_inputs: Any = None) -> Ready:
    """Checkpoint the repeated blocks of a model, so that training needs less memory.

    before:  y = layer(x), for each of n layers     after:  y = checkpoint(layer, x)
    model: a schedule, or a module; example inputs are not needed. Repeated blocks are modules of one class that have
        submodules, two or more in one ModuleList or Sequential; in nested lists, those of the outermost list that has
        some. Results and gradients stay bit for bit; each block runs once more in backward. `skipped` reports a block
        that refuses the step.
    """
    taker = Taker(model, example_inputs)
    blocks = repeated_blocks(taker.schedule)
    if blocks:
        taker.found["repeated blocks"] += len(blocks)
    taker.step("repeated blocks", [(path, ()) for path in blocks], _checkpoint)
    return taker.report


def repeated_blocks(schedule: Schedule) -> list[str]:
    """The paths of modules of one class that stand beside each other in a list; of nested ones the outermost."""
    found: list[str] = []
    for name, module in schedule.module.named_modules():
        path = join(schedule.path, name)
        if not isinstance(module, _LISTS) or any(is_under(path, outer) for outer in found):
            continue
        children = [(child, part) for child, part in module.named_children() if any(True for _ in part.children())]
        classes = [type(part) for _, part in children]
        found += [join(path, child) for child, part in children if classes.count(type(part)) > 1]
    return found


def _checkpoint(view: Any, matches: list[Match], scope: str | None) -> None:
    view.checkpoint()

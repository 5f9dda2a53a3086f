"""A step of a schedule as data: where, what is selected there, which primitive, with which arguments.

Invariant: a step holds no state of the schedule it was taken in, so that it can be taken again in another one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import torch

from smelt.diag import Span
from smelt.diag.frames import is_own
from smelt.diag.records import record
from smelt.scheduling.finding.selector import Selector


@record
class Step:
    """One step.

    path: the module from the root, with the wildcards of its selection; the step then applies to each that fits.
    selector: the matches inside it; None where the module itself is meant. where: the user's line.
    """

    path: str
    primitive: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    selector: Selector | None = None
    where: Span | None = None

    def __str__(self) -> str:
        selected = f".find({self.selector})" if self.selector is not None else ""
        given = ", ".join(f"{name}={shown(value)}" for name, value in self.arguments.items())
        return f"s[{self.path!r}]{selected}.{self.primitive}({given})"


class Log(tuple[Step, ...]):
    """The applied steps, in order."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(f"{i}. {step}" for i, step in enumerate(self, 1)) or "no step"


def shown(value: Any) -> str:
    """An argument in one short line."""
    if isinstance(value, torch.nn.Module):
        return f"<{type(value).__name__}>"
    if isinstance(value, torch.Tensor):
        return f"<tensor {list(value.shape)}>"
    name = getattr(value, "__qualname__", None)
    text = name if isinstance(name, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def user_span() -> Span | None:
    """The line of the user's that called us."""
    frame = sys._getframe(1)
    while frame is not None and is_own(frame):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return Span(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)

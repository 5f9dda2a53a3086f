"""What a program remembers of its last native call, so that one just like it need not be examined anew.

Invariant: a call that `holds` takes the same way through `Program.forward` as the remembered one did, as far as its
arguments and modes decide; what the state decides is asked at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.compiler.training.histories import requires_gradients
from smelt.compiler.unit import Unit
from smelt.diag.records import record
from smelt.runtime.guarding.argument_kinds import TENSORS
from smelt.runtime.guarding.guard_args import ArgumentTests

# Values that are compared as a whole: objects with members may have changed inside.
_PLAIN = (*TENSORS, type(None), bool, int, float, str)

SELF = "__smelt_self__"
"""What an argument called `self` goes by on its way through torch's call of a module, whose hooks see it so."""


def renamed(kwargs: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    """Arguments by name, in their order, one of them by another name."""
    return {other if key == name else key: value for key, value in kwargs.items()}


@record
class KnownCall:
    """A call that ran natively: its unit, what it was made under, grad mode, the inputs that require gradients, and a
    function that knows its like.
    """

    unit: Unit
    setting: tuple[Any, ...]
    with_grad: bool
    requiring: frozenset[str]
    holds: Callable[[tuple[Any, ...], Mapping[str, Any]], bool]

    @staticmethod
    def of(
        unit: Unit, setting: tuple[Any, ...], inputs: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> KnownCall | None:
        """None where calls must be examined each time: structured arguments, memory shared with what is written."""
        if unit.writes or not _is_plain((*args, *kwargs.values())):
            return None
        tests = ArgumentTests(args, kwargs, writes=False)
        requiring = requiring_inputs(unit, inputs)
        return KnownCall(unit, setting, torch.is_grad_enabled(), requiring, tests.compiled())

    def fits(self, setting: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether this call is like the remembered one."""
        return self.with_grad == torch.is_grad_enabled() and setting == self.setting and self.holds(args, kwargs)


def requiring_inputs(unit: Unit, inputs: Sequence[Any]) -> frozenset[str]:
    """The names of the graph's inputs that require gradients in a call."""
    return frozenset(unit.graph.inputs[i].name for i, value in enumerate(inputs) if requires_gradients(value))


def _is_plain(values: Sequence[Any]) -> bool:
    # A sparse tensor has no strides to be compared by.
    return all(
        type(value) in _PLAIN and (not isinstance(value, torch.Tensor) or value.layout is torch.strided)
        for value in values
    )

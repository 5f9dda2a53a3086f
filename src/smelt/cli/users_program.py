"""What goes wrong in the user's own program, in sentences: where it raised, on what arguments, and what to change.

Invariant: an exception of the user's program stays what it is, with its traceback; a note says whose it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from smelt.cli.target import Target, load_target, tensors_in
from smelt.cli.terminal import place_of
from smelt.diag import SmeltError
from smelt.diag.console import console

_RANDOM = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU
)  # fmt: skip
_COUNTING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@contextmanager
def in_users_program(target: Target) -> Iterator[None]:
    """Within it the user's program runs: an error says so, and on which arguments."""
    try:
        yield
    except SmeltError:
        raise
    except Exception as error:
        place = place_of(error)
        where = f", at {place}" if place else f", in {_name(target.function)}"
        error.add_note(f"raised by your model in eager mode{where}, called with ({_arguments(target)})")
        raise


def load_program(text: str) -> Target:
    """The target, of which every tensor can be computed with here. Raises: as `load_target` and `check_devices`."""
    loaded = load_target(text)
    check_devices(loaded)
    return loaded


def check_devices(target: Target) -> None:
    """Raises: SmeltError (S0504) if parameters or arguments have no data, or are on another device."""
    held: list[tuple[str, Tensor]] = []
    if isinstance(target.function, nn.Module):
        held += [*target.function.named_parameters(), *target.function.named_buffers()]
    held += [("an argument", tensor) for tensor in tensors_in((*target.args, *target.kwargs.values()))]
    elsewhere = [(name, tensor.device.type) for name, tensor in held if tensor.device.type != "cpu"]
    if not elsewhere:
        return
    name, device = elsewhere[0]
    more = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
    if device == "meta":
        why = "tensors on meta have sizes and dtypes, but no numbers, so nothing can be computed with them"
        fix = 'build the model on the CPU, or give it memory and weights: model.to_empty(device="cpu"), load_state_dict'
    else:
        why = "Smelt compiles for the CPU"
        fix = 'move the model and its arguments to the CPU: model.to("cpu")'
    raise SmeltError(
        f"{target.name}: {name}{more} of {_name(target.function)} {'are' if more else 'is'} on the device {device}",
        why=why, fix=fix, code="S0504",
    )  # fmt: skip


def note_training(target: Target) -> None:
    """Say in one line on standard error that a module draws random numbers, or counts, because it is in train mode."""
    module = target.function
    if not isinstance(module, nn.Module):
        return
    parts = [(name or type(part).__name__, part) for name, part in module.named_modules() if part.training]
    drawn = [name for name, part in parts if isinstance(part, _RANDOM) and getattr(part, "p", True)]
    counted = [name for name, part in parts if isinstance(part, _COUNTING)]
    told = [f"{found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''} {what}" for found, what in (
        (drawn, "draws random numbers"), (counted, "updates its statistics"),
    ) if found]  # fmt: skip
    if told:
        text = f"note: {type(module).__name__} is in training mode: {', '.join(told)} at each call; "
        advice = "return model.eval() from the factory to run it as in inference"
        console(sys.stderr).print(text + advice, soft_wrap=True)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)


def _arguments(target: Target) -> str:
    positional = [_argument(value) for value in target.args]
    return ", ".join([*positional, *(f"{name}={_argument(value)}" for name, value in target.kwargs.items())])


def _argument(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, Mapping | list | tuple | set):
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 30 else type(value).__name__

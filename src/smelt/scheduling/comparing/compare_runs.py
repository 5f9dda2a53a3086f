"""One run of a module, observed: what it gives, what it leaves behind, and its gradients.

Invariant: nothing outside the module that runs is changed. Arguments are copies; torch's, Python's and numpy's random
states, the grad mode and `.grad` are as before afterwards; no hook stays anywhere. What is observed are the run's own
tensors, not copies: it is to be compared before the module runs again.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import field
from typing import Any

import numpy as np
import torch

from smelt.compiler.copies import copies_of
from smelt.diag import ScheduleError, SmeltWarning
from smelt.diag.records import record
from smelt.scheduling.comparing.compare import items
from smelt.scheduling.comparing.compare_state import attributes_of, gradients_of, state_of

SEED = 2013
STATE, GRADIENT = "parameter or buffer ", "gradient of parameter "
"""How the names of what a module holds begin among the values of an observation."""
in_check: ContextVar[bool] = ContextVar("smelt_in_check", default=False)
"""Whether the present run is one of a check, in which nothing is printed."""
in_search: ContextVar[bool] = ContextVar("smelt_in_search", default=False)
"""Whether the present run is there to be searched: what only surrounds the program is no part of it."""
in_region: ContextVar[bool] = ContextVar("smelt_in_region", default=False)
"""Whether the only torch function mode around is that of a region of another precision."""
Widen = Callable[[torch.Tensor], torch.Tensor]


@record
class Arguments:
    """The arguments of a call of a module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@record
class Run:
    """How a module is run.

    call: the arguments; number: which of the inputs they are. training: the mode that is set before, None for the one
    that the module is in. backward: whether gradients are computed; of_arguments: those of the arguments, too.
    """

    call: Arguments
    number: int
    training: bool | None = None
    backward: bool = False
    of_arguments: bool = True


@record
class Observation:
    """What a run showed.

    values: by name, in the order in which differences are told. attributes: plain ones of modules, by path, after the
    run; changed: those that the run changed. error: what the call raised, backward_error: what backward did.
    differentiable: whether an output has a gradient.
    """

    values: Mapping[str, Any]
    attributes: Mapping[str, Any]
    changed: frozenset[str]
    error: Exception | None
    backward_error: Exception | None
    differentiable: bool


def observe(
    module: torch.nn.Module,
    run: Run,
    *,
    widen: Widen | None = None,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Observation:
    """Run a module once. What the run does to buffers, parameters and attributes stays; `.grad` is None afterwards.

    widen: makes other tensors of the arguments. around: a context for forward and backward.
    Raises: ScheduleError (S0622) where arguments cannot be copied. What the module raises is part of what is observed.
    """
    args, kwargs, leaves = _arguments(run, widen)
    if run.training is not None:
        module.train(run.training)
    before = attributes_of(module)
    values: dict[str, Any] = {}
    error: Exception | None = None
    backward_error: Exception | None = None
    tensors: list[torch.Tensor] = []
    with isolated(), torch.set_grad_enabled(run.backward):
        try:
            with around(), _unsaid():
                values["output"] = module(*args, **kwargs)
        except Exception as raised:
            error = raised
        values["arguments after the call"] = {**dict(enumerate(args)), **kwargs}
        values["random numbers after the call"] = _random_states()
        values.update({f"{STATE}{name}": tensor for name, tensor in state_of(module).items()})
        after = attributes_of(module)
        if run.backward and error is None:
            found = [item for item in items(values["output"], "output") if isinstance(item.value, torch.Tensor)]
            values["outputs with a gradient"] = tuple(item.path for item in found if item.value.requires_grad)
            tensors = [item.value for item in found if item.value.requires_grad]
            cotangents = _cotangents(tensors)
            try:
                with around():
                    torch.autograd.backward(tensors, cotangents)
                values.update({f"gradient of {path}": leaf.grad for path, leaf in leaves})
                values.update({f"{GRADIENT}{name}": grad for name, grad in gradients_of(module).items()})
            except Exception as raised:
                backward_error = raised
            for parameter in module.parameters():
                parameter.grad = None
    attributes = {path: value for path, (value, _) in after.items()}
    changed = frozenset(path for path, (_, mark) in after.items() if path in before and before[path][1] != mark)
    return Observation(values, attributes, changed, error, backward_error, bool(tensors))


@contextlib.contextmanager
def searched() -> Iterator[None]:
    """A block whose runs are there to be searched."""
    token = in_search.set(True)
    try:
        yield
    finally:
        in_search.reset(token)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """A block with random numbers from the seed, after which all random states are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    token = in_check.set(True)
    try:
        with torch.random.fork_rng(devices=list(devices)), torch.inference_mode(False):
            torch.default_generator.manual_seed(SEED)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(SEED)
            random.seed(SEED)
            np.random.seed(SEED)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        in_check.reset(token)


@contextlib.contextmanager
def _unsaid() -> Iterator[None]:
    """A block in which a compiled part does not say that it runs as it is: a check asks for gradients on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* gradients are needed", SmeltWarning)
        yield


def _random_states() -> dict[str, str]:
    """What tells the states of the generators apart."""
    numpy: Any = np.random.get_state()
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": repr(random.getstate()).encode(),
        "numpy": numpy[1].tobytes() + repr(numpy[2:]).encode(),
    }
    return {name: hashlib.sha256(state).hexdigest()[:8] for name, state in states.items()}


def _cotangents(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Fixed random numbers for backward to start from, the same in each precision."""
    generator = torch.Generator().manual_seed(SEED)
    cotangents = []
    for output in outputs:
        shape = (*output.shape, 2) if output.is_complex() else output.shape
        drawn = torch.randn(shape, generator=generator).bfloat16().float()
        cotangents.append((torch.view_as_complex(drawn) if output.is_complex() else drawn).to(output))
    return cotangents


def _arguments(run: Run, widen: Widen | None) -> tuple[Any, Any, list[tuple[str, torch.Tensor]]]:
    """Copies of the arguments, and the tensors of which gradients are asked."""
    given = (run.call.args, dict(run.call.kwargs))
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for part in given:
        for item in items(part, ""):
            if isinstance(item.value, torch.Tensor):
                tensors.setdefault(id(item.value), (f"argument {item.path}", item.value))
    memo: dict[int, Any] = {}
    leaves = []
    with torch.inference_mode(False):
        plain = copies_of([tensor for _, tensor in tensors.values()])
        for (key, (path, tensor)), copied in zip(tensors.items(), plain, strict=True):
            made = copied if widen is None else widen(copied)
            if run.backward and _has_gradient(made) and (run.of_arguments or tensor.requires_grad):
                leaf = made.requires_grad_()
                leaves.append((path, leaf))
                # Written to in place, a leaf raises; what is computed from it may be.
                made = leaf.clone() if leaf.layout is torch.strided else leaf
            memo[key] = made
        try:
            args, kwargs = copy.deepcopy(given, memo)
        except Exception as error:
            raise ScheduleError(
                f"the arguments cannot be copied: {type(error).__name__}: {error}",
                why="each run of a check has arguments of its own, so that none sees what another did to them",
                fix="give arguments that copy.deepcopy takes", code="S0622",
            ) from error  # fmt: skip
    return args, kwargs, leaves


def _has_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()

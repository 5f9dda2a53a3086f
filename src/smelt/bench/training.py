"""Who trains: each system as a step of training, made of a loss, `backward` and AdamW as people write it.

What is timed is a whole step: gradients set to None, loss, backward, update. Learning rates are tiny: thousands of
steps on one batch leave the numbers what they are.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import smelt
from smelt._torch.library import inductor
from smelt.bench.models import Target
from smelt.bench.systems import Context, Ready, System
from smelt.bench.training_models import Gradients

_RATE = 1e-5
_CURVE_STEPS = 10


class Step:
    """One system's training: its own copy of a model, an optimizer, and a step that can begin again."""

    def __init__(self, target: Target, args: tuple[Tensor, ...], fused: bool) -> None:
        assert isinstance(target, Gradients)
        self.module = copy.deepcopy(target.loss)
        self.parameters = list(self.module.parameters())
        self.args = args
        self.loss: Callable[..., Tensor] = self.module
        self.optimizer = torch.optim.AdamW(self.parameters, lr=_RATE, fused=fused or None)
        self.update: Callable[[], Any] = self.optimizer.step
        self.whole: Callable[..., Tensor] = self._in_parts
        self._begin = copy.deepcopy(self.module.state_dict())

    def __call__(self, *args: Tensor) -> Tensor:
        """The loss before this step's update; gradients stay until the next step."""
        with torch.enable_grad():
            return self.whole(*args)

    def _in_parts(self, *args: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(*args)
        loss.backward()
        self.update()
        return loss.detach()

    def reset(self) -> None:
        """Parameters, statistics and the optimizer's state as they were before the first step, in place."""
        with torch.no_grad():
            for name, tensor in self.module.state_dict().items():
                tensor.copy_(self._begin[name])
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def outputs(self, _: Any) -> tuple[Tensor, ...]:
        """The loss and the gradients of a first step."""
        self.reset()
        loss = self(*self.args)
        found = loss.clone(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters)
        self.reset()
        return found

    def facts(self) -> dict[str, Any]:
        """Bytes that autograd keeps between forward and backward, and the losses of the first steps."""
        self.reset()
        losses = [float(self(*self.args)) for _ in range(_CURVE_STEPS)]
        self.reset()
        return {"saved_mb": self._saved_nbytes() / 1e6, "losses": losses}

    def _saved_nbytes(self) -> int:
        own = {t.untyped_storage().data_ptr() for t in (*self.module.state_dict().values(), *self.args)}
        found: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.loss(*self.args).backward()
        return sum(found.values())

    def ready(self, settings: dict[str, Any]) -> Ready:
        """The step as the benchmark runs it, after one that creates the optimizer's state."""
        self(*self.args)
        settings = {"optimizer": "AdamW", "fused": bool(self.optimizer.defaults["fused"]), **settings}
        return Ready(self, self.args, settings, self.outputs, facts=self.facts)


def _prepare_eager(target: Target, args: tuple[Tensor, ...], context: Context, fused: bool) -> Ready:
    return Step(target, args, fused).ready({})


def _prepare_smelt(target: Target, args: tuple[Tensor, ...], context: Context, fused: bool) -> Ready:
    """`smelt.compile` of the loss; the optimizer is torch's."""
    step = Step(target, args, fused)
    options = {"cache_dir": str(context.cache_dir), "adaptive": False}
    step.loss = smelt.compile(step.module, options=options)
    return step.ready({})


def _prepare_whole_step(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """`smelt.compile` of the whole step: loss, backward and update as one program."""
    step = Step(target, args, False)
    module, optimizer = step.module, step.optimizer

    def whole(*args: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = module(*args)
        loss.backward()
        optimizer.step()
        return loss.detach()

    options = {"cache_dir": str(context.cache_dir), "adaptive": False}
    step.whole = smelt.compile(whole, options=options)
    return step.ready({"compiled": "loss, backward and AdamW.step as one function"})


def _prepare_inductor(target: Target, args: tuple[Tensor, ...], context: Context) -> Ready:
    """Inductor's compiled loss and compiled `AdamW.step`, static shapes."""
    step = Step(target, args, False)
    with torch.enable_grad():
        step.loss = inductor.compile_and_run(step.module, args, {}, str(context.cache_dir))
        step(*args)
        step.update = inductor.compile_and_run(step.optimizer.step, (), {}, str(context.cache_dir))
        step(*args)
    return step.ready({"dynamic": False, "optimizer_step": "compiled, too"})


def training_systems() -> tuple[System, ...]:
    """All that take part in rows of training, eager first."""
    eager, smelt_ = (
        {fused: functools.partial(prepare, fused=fused) for fused in (False, True)}
        for prepare in (_prepare_eager, _prepare_smelt)
    )
    return (
        System("eager", "PyTorch, AdamW with its defaults; every ratio is to it", eager[False]),
        System("eager-fused", "PyTorch, AdamW(fused=True)", eager[True]),
        System("smelt", "smelt.compile of the loss; AdamW with its defaults", smelt_[False]),
        System("smelt-fused", "the same, AdamW(fused=True)", smelt_[True]),
        System("smelt-step", "smelt.compile of the whole step", _prepare_whole_step),
        System(
            "inductor",
            "torch.compile of the loss and of AdamW.step",
            _prepare_inductor,
            modules=inductor.MODULES,
            forget=inductor.forget,
        ),
    )

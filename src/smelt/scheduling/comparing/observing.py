"""A run of a model that was searched, kept for the steps: how it called its modules.

    run = ObservedRun(model)
    with run.watched() as probe:
        trace(probe, examples)
    run.calls(model, ["layers.0"])      -> {"layers.0": Call(probe's layer, args, kwargs)}

Invariant: it is asked only while the model is as it was then; else a step runs a probe of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.capture.recording.noting import CallNotes
from smelt.scheduling.finding.probing import Probe, is_seen
from smelt.scheduling.graphs.scope_twins import Call

_PLAIN = (bool, int, float, str, type(None))


class ObservedRun:
    """A probe of a model, and the first call of each module of which steps can be taken on the graph.

    Raises: ScheduleError (S0612) where a part of the model cannot be copied.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.probe = Probe(model)
        # Layers of torch's own have no code that a step edits.
        modules = self.probe.module.modules() if is_seen(model) else ()
        self._notes = CallNotes(m for m in modules if m._modules or not type(m).__module__.startswith("torch.nn."))
        self._facts = _facts(model)

    @contextlib.contextmanager
    def watched(self) -> Iterator[torch.nn.Module]:
        """A block in which the probe is captured once."""
        with self.probe.entered() as module, self._notes.watching():
            yield module

    def calls(self, model: torch.nn.Module, paths: Sequence[str]) -> dict[str, Call] | None:
        """The calls of the modules at these paths; None where not all are known, or the model has changed since."""
        found = {}
        for path in paths:
            module = self.probe.module.get_submodule(path)
            given = self._notes.calls.get(id(module))
            if given is None:
                return None
            found[path] = Call(module, *given)
        return found if _facts(model) == self._facts else None


def _facts(model: torch.nn.Module) -> list[Any]:
    """What tells a model from what it was: its modules, their plain attributes, the versions of its tensors."""
    found: list[Any] = []
    for module in model.modules():
        found.append((id(module), {k: v for k, v in module.__dict__.items() if type(v) in _PLAIN}))
        for table in (module._parameters, module._buffers):
            found += [(id(t), t.data_ptr(), _version(t)) for t in table.values() if t is not None]
    return found


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version

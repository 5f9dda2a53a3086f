"""Which nodes of a whole step of training are forward, which backward, and which update.

loss = ...                                      forward: what stands before the gradient in the program's graph
%g = py.gradient([%loss], ...)                  backward: the gradient, and all that it is written out as
%w2 = aten.add_.Tensor(%w, %g, alpha=-0.1)      update: what uses a gradient
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from smelt.inspect.page.model import NodeRecord, Stage
from smelt.ir import STATE_OPS
from smelt.ops.torch_gradients import GRADIENT

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


def phases_of(nodes: Sequence[NodeRecord], stages: Sequence[Stage]) -> dict[int, str]:
    """uid -> phase, of all nodes of all stages; empty where the program computes no gradient."""
    if not stages:
        return {}
    first = [nodes[index] for index in stages[0].records]
    if all(record.op != GRADIENT for record in first):
        return {}
    found = _of_first(first)
    for stage in stages[1:]:
        origins = {new: old for old, to in stage.led.items() for new in to}
        of_value: dict[str, str] = {}
        for record in (nodes[index] for index in stage.records):
            origin = found.get(origins.get(record.uid, -1))
            phase = found.get(record.uid) or origin or _new(record, of_value)
            if record.op not in STATE_OPS:
                found[record.uid] = phase
                of_value.update(dict.fromkeys(record.names, phase))
    return found


def _of_first(records: Sequence[NodeRecord]) -> dict[int, str]:
    found: dict[int, str] = {}
    behind: set[str] = set()
    for record in records:
        if record.op in STATE_OPS:
            continue
        if record.op == GRADIENT:
            found[record.uid] = BACKWARD
            behind.update(record.names)
        elif behind.intersection(record.inputs):
            # To take a tuple apart, or to detach, is part of how gradients come out.
            is_out = record.op in ("unpack", "aten.detach.default")
            found[record.uid] = BACKWARD if is_out else UPDATE
            behind.update(record.names)
        else:
            found[record.uid] = FORWARD
    return found


def _new(record: NodeRecord, of_value: Mapping[str, str]) -> str:
    """Of a node that a pass has made for none that was there: an update if it uses one, else part of a gradient."""
    return UPDATE if UPDATE in _phases(record, of_value) else BACKWARD


def _phases(record: NodeRecord, of_value: Mapping[str, str]) -> Iterator[str]:
    for name in record.inputs:
        if name in of_value:
            yield of_value[name]

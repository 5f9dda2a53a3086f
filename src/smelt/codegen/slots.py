"""What there is of ours for an operator: its gradient, its code for the CPU, its code for GPUs.

An operator's record says why one of its slots is empty (`why_not`); a test asks all records for all slots.
"""

from __future__ import annotations

from smelt.codegen.fusion.rules.gathered import GATHERED_RULES
from smelt.codegen.fusion.rules.products import PRODUCT_RULES
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.lower.gpu.attentions import ATTENTIONS
from smelt.codegen.lower.gpu.draws import DRAWS
from smelt.codegen.lower.images.convolution import CONVOLUTIONS
from smelt.codegen.lower.lowering import LOWERINGS
from smelt.ops.record import OpRecord, Slot
from smelt.passes.layers.expand_layers import EXPANDED
from smelt.passes.layers.transposed import TRANSPOSED


def filled(record: OpRecord, slot: Slot) -> str:
    """Where the slot is filled, in a few words; "" where it is empty."""
    match slot:
        case Slot.VJP:
            return "torch's backward" if record.vjp is None else "record"
        case Slot.KERNEL:
            return _kernel(record)
        case Slot.ONNX:
            return "form" if record.onnx is not None else "" if record.lower is None else "simpler operators"
        case Slot.TRITON:
            return _kernel_for_gpus(record)


def _kernel(record: OpRecord) -> str:
    if record.name in RULES:
        return "loop nest"
    if record.product is not None:
        return "product"
    if record.name in CONVOLUTIONS or record.name in TRANSPOSED:
        return "convolution"
    if record.name in LOWERINGS:
        return "lowering"
    return _in_simpler_operators(record)


def _kernel_for_gpus(record: OpRecord) -> str:
    if record.name in RULES:
        return "loop nest"
    if record.name in PRODUCT_RULES:
        return "product"
    if record.name in GATHERED_RULES:
        return "gathered sum"
    if record.name in ATTENTIONS:
        return "attention"
    if record.name in DRAWS:
        return "random numbers"
    # Where it is lowered to such as have no kernel, its record says so.
    return "" if Slot.TRITON in record.why_not else _in_simpler_operators(record)


def _in_simpler_operators(record: OpRecord) -> str:
    return "" if record.lower is None and record.name not in EXPANDED else "simpler operators"

"""Every sample of the catalogue that consists of nests, as kernels for a GPU in Triton's interpreter, against eager;
and every record says whether its operator has such kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from smelt.codegen.lower.gpu import GpuProgram, gpu_program
from smelt.codegen.slots import filled
from smelt.ops.catalogue import CATALOGUE
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import evaluate
from smelt.ops.record import OpRecord, Sample, Slot
from smelt.passes.layers.decompose import decompose
from smelt.passes.layers.expand_layers import expand_layers
from smelt.passes.layers.expand_recurrent import expand_recurrent
from smelt.passes.manager import run_passes
from tests.codegen.test_lower_catalogue import sample_graph
from tests.triton.harness import interpreter

_MOST_PROGRAMS = 64


def interpreted(program: GpuProgram, tensors: Sequence[Tensor], generator: Sequence[int] = (0, 0)) -> list[Tensor]:
    """The results of a program of kernels over these arguments. generator: seed and offset."""
    arena = torch.full((max(program.arena_nbytes, 1),), 0x7F, dtype=torch.uint8)
    bases: list[tuple[Tensor, int]] = []
    for memory in program.memories:
        if memory.kind == "arena":
            bases.append((arena, memory.number))
        elif memory.kind == "generator":
            bases.append((torch.tensor(generator, dtype=torch.int64).view(torch.uint8), 0))
        elif memory.kind == "argument":
            whole = tensors[memory.number].untyped_storage()
            mine = torch.empty(0, dtype=torch.uint8).set_(whole).clone()  # type: ignore[call-overload]
            bases.append((mine, tensors[memory.number].storage_offset() * tensors[memory.number].element_size()))
        else:
            bases.append((torch.full((memory.nbytes,), 0x7F, dtype=torch.uint8), 0))
    error = torch.zeros(4, dtype=torch.uint8)
    for one in program.kernels:
        memories: list[Tensor] = []
        pointers: list[tuple[int, int, torch.dtype]] = []
        where = [(*bases[number], dtype) for number, dtype in zip(one.buffers, one.dtypes, strict=True)]
        for memory_, offset, dtype in where:
            at = next((k for k, m in enumerate(memories) if m is memory_), len(memories))
            memories += [memory_] * (at == len(memories))
            element = dtype_to_torch(dtype)
            pointers.append((at, offset, torch.int8 if element == torch.bool else element))
        if one.kernel.source.can_fail:
            memories.append(error)
            pointers.append((len(memories) - 1, 0, torch.int32))
        interpreter().launch(one.kernel.source, memories, pointers, one.kernel.words, one.kernel.programs)
    assert not error.any()
    found = []
    for place, dtype in program.results:
        memory_, offset = bases[place.memory]
        element = dtype_to_torch(dtype)
        whole = (memory_.numel() - offset) // element.itemsize * element.itemsize
        elements = memory_[offset : offset + whole].view(element)
        found.append(
            elements.as_strided(
                place.geometry.sizes, place.geometry.strides, place.geometry.offset + elements.storage_offset()
            )
        )
    return found


@pytest.mark.spread(32)
@pytest.mark.parametrize("record", [r for r in CATALOGUE if not r.uninitialised], ids=lambda r: r.name)
def test_samples_equal_eager(record: OpRecord) -> None:
    for sample in record.samples():
        graph, tensors = sample_graph(record, sample)
        program = gpu_program(graph)
        if program.refused or len(program.results) != len(graph.outputs):
            continue
        if not program.kernels or sum(one.kernel.programs for one in program.kernels) > _MOST_PROGRAMS:
            continue
        if any(memory.kind == "generator" for memory in program.memories):
            continue  # A GPU's generator has numbers of its own: `test_random.py` compares these.
        # Of an infinite float, oneDNN's gelu is NaN on CPUs with AVX-512.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.backends.mkldnn.flags(enabled=False):
                want = evaluate(graph, tensors)
        for ours, eager in zip(interpreted(program, tensors), want, strict=True):
            assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
            tolerance = 4 * torch.finfo(eager.dtype).eps if eager.dtype.is_floating_point else 0.0
            scale = float(eager.nan_to_num(0.0, 1.0, 1.0).abs().max()) if eager.numel() and tolerance else 0.0
            torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _has_kernels(record: OpRecord, sample: Sample) -> bool:
    """Whether a call, in simpler operators where it is lowered to such, leaves nothing to torch's operators."""
    graph, _ = sample_graph(record, sample)
    run_passes(graph, (expand_layers, expand_recurrent, decompose))
    return not gpu_program(graph).refused


@pytest.mark.parametrize("record", CATALOGUE, ids=lambda r: r.name)
def test_a_record_says_whether_its_operator_has_kernels_for_gpus(record: OpRecord) -> None:
    """Where its slot is filled, some sample is kernels throughout; where `why_not` has a reason, none is."""
    assert any(_has_kernels(record, sample) for sample in record.samples()) == bool(filled(record, Slot.TRITON))

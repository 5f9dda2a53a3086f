"""What the modules of all ranks say of a step: its events and its memory, of the programs that they have compiled."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt.analysis import nbytes
from smelt.compiler.training.trainable import Native
from smelt.ir import Graph
from smelt.parallel.dividing.parted import PartedInference, PartedProgram
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import Entry, PartedForward
from smelt.parallel.pipelines.order import Action
from smelt.parallel.pipelines.stages import Pipe
from smelt.parallel.proving.clock import Clock, clocked
from smelt.parallel.proving.events import Event, Memory, Pieces, Staged, of_memory, of_pipe, of_step
from smelt.parallel.proving.figures import Figures, Kernels


def measured(
    mesh: Mesh, forwards: Sequence[PartedForward], optimizers: Sequence[torch.optim.Optimizer | None], figures: Figures
) -> tuple[Clock, list[Memory]]:  # fmt: skip
    """A step of all ranks by the clock, and what each holds."""
    events, memories, is_pipe = [], [], False
    for forward, optimizer in zip(forwards, optimizers, strict=True):
        entry = next(iter(forward.entries))
        found, memory = _of_rank(forward, entry, optimizer, figures.kernels)
        events.append(found)
        memories.append(memory)
        is_pipe = is_pipe or entry.pipe is not None
    clock = clocked(events, mesh.group, dict(mesh.axes), figures, is_pipe=is_pipe)
    return clock, memories


def _of_rank(
    forward: PartedForward, entry: Entry, optimizer: torch.optim.Optimizer | None, kernels: Kernels
) -> tuple[list[Event], Memory]:  # fmt: skip
    module = forward.module
    parameters = [p for p in module.parameters() if p is not None]
    trained = [p for p in parameters if p.requires_grad]
    state = sum(_nbytes(t) for one in (optimizer.state.values() if optimizer else ()) for t in one.values())
    fixed = sum(map(_nbytes, module.buffers())) + _inputs(entry.part.graph)
    count = sum(p.numel() for p in trained)
    if entry.pipe is not None:
        staged = staged_of(entry.pipe, any(forward.trained.values()))
        events, actions, pieces = of_pipe(staged, kernels, count), staged.order, staged.pieces
    else:
        one = _pieces(entry.trained)
        actions = [Action(0, 0, False), *([Action(0, 0, True)] if one.backward is not None else [])]
        events, pieces = of_step(one, kernels, count), {0: one}
    memory = of_memory(actions, pieces, sum(map(_nbytes, parameters)), list(map(_nbytes, trained)), state, fixed)
    return events, memory


def staged_of(pipe: Pipe, is_trained: bool) -> Staged:
    """A pipeline's rank as it runs a step."""
    order = (pipe.training if is_trained else pipe.forwards).orders[pipe.rank]
    pieces = {number: _pieces(code.program or code.inference) for number, code in pipe.codes.items()}
    sizes: dict[str, int] = {}
    for code in pipe.codes.values():
        state = code.graph.inputs[len(code.stage.inputs) :]
        sizes |= {path: nbytes(value) for (_, path), value in zip(code.places, state, strict=True)}
    return Staged(pipe.plan, pipe.axis, pipe.rank, pipe.ranks, order, pieces, pipe.entered, sizes)


def _pieces(program: PartedProgram | PartedInference | Native | None) -> Pieces:
    """A compiled program's graphs, as they run, and its planned memory."""
    assert program is not None, "a rank that has run has its programs"
    if isinstance(program, PartedProgram):
        (arena, made), (back_arena, back_made) = program.forward.memory, program.backward.memory
        graphs = program.forward.optimized, program.backward.optimized
        return Pieces(*graphs, program.halves.nbytes, arena + back_arena, made, back_made)
    native = program.native if isinstance(program, PartedInference) else program
    return Pieces(native.optimized, None, 0, *native.memory, 0)


def _inputs(graph: Graph) -> int:
    return sum(map(nbytes, graph.inputs))


def _nbytes(tensor: object) -> int:
    return tensor.numel() * tensor.element_size() if isinstance(tensor, torch.Tensor) else 0

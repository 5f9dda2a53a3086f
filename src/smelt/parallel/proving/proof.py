"""All ranks against the model that nothing was done to: outputs, gradients, parameters and buffers after some steps.

Invariant: neither the model nor the process's random numbers change. Both sides begin with the same seed, and ranks run
in one process (`parallel.proving.simulate`), natively or operator by operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.diag import SmeltError, Span, VerifyError
from smelt.ops.ranks.collectives import whole_of
from smelt.ops.ranks.placements import Shard
from smelt.parallel.dividing.parted import Parted
from smelt.parallel.mesh import Mesh
from smelt.parallel.module import Copy, PartedForward, mapped, positional, tensors_in, whole_program
from smelt.parallel.pipelines.pipeline import stages_of
from smelt.parallel.proving.clock import Clock
from smelt.parallel.proving.differs import first_gradient, first_value, told
from smelt.parallel.proving.events import Memory
from smelt.parallel.proving.figures import TYPICAL, Figures
from smelt.parallel.proving.measures import measured
from smelt.parallel.proving.simulate import World

Optimizer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
Make = Callable[[int], tuple[torch.nn.Module, Parted]]
_SEED = 20230717


@dataclass(slots=True)
class Rank:
    """What one rank had and sent. sent: messages and bytes along each axis, as a ring sends them, in all steps.

    idle, talking: the parts of a step in which it waits for others, and exchanges.
    """

    where: str
    memory: Memory
    sent: dict[str, tuple[int, int]]
    idle: float
    talking: float

    @property
    def parameters(self) -> int:
        """Bytes of parameters."""
        return self.memory.parameters

    @property
    def saved(self) -> int:
        """The most bytes that are kept at once from forward to backward."""
        return self.memory.saved


@dataclass(slots=True)
class Proof:
    """What was compared on how many ranks, with the largest relative error, and where that was.

    clock: a step by the clock, simulated from the cost of nodes and messages (`figures`). links: bytes from rank to
    rank, in all steps. part: rank 0's program, before stages. stages: by a value's name, where it is made.
    """

    mesh: Mesh
    compared: int
    steps: int
    error: float
    worst: str
    ranks: list[Rank] = field(default_factory=list)
    clock: Clock = field(default_factory=lambda: Clock([], 0.0, {}))
    links: dict[tuple[int, int], int] = field(default_factory=dict)
    figures: Figures = TYPICAL
    part: Parted | None = None
    stages: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [
            f"{self.mesh.size} ranks ({self.mesh}) agree with the model: {self.compared} values in {self.steps} "
            f"step{'s' * (self.steps != 1)}, largest relative error {self.error:.1e} ({self.worst})",
            f"{'rank':>5}  {'position':<16}{'parameters':>12}{'saved':>12}{'peak':>12}{'idle':>7}  sent a step",
        ]
        for number, one in enumerate(self.ranks[:_SHOWN]):
            sent = ", ".join(
                f"{axis} {text_of_bytes(nbytes / self.steps)} in {count // self.steps} messages"
                for axis, (count, nbytes) in one.sent.items()
            )
            held = "".join(
                f"{text_of_bytes(n):>12}" for n in (one.memory.parameters, one.memory.saved, one.memory.peak)
            )
            rows.append(f"{number:>5}  {one.where:<16}{held}{one.idle:>7.0%}  {sent or 'nothing'}")
        if len(self.ranks) > _SHOWN:
            rows.append(f"  and {len(self.ranks) - _SHOWN} more")
        if self.ranks:
            rows += ["", self.timeline(), "", self.traffic()]
        return "\n".join(rows)

    def timeline(self, width: int = 72) -> str:
        """A step, one line a rank. Times are simulated: what matters is who waits for whom, and how long."""
        shown = range(min(len(self.ranks), _SHOWN))
        bubble = f"bubble {self.clock.bubble:.0%} of all ranks' time; {self.figures.origin}"
        return f"{self.clock.picture(width, shown)}\n{bubble}"

    def traffic(self) -> str:
        """What goes from rank to rank in a step, the busiest links first."""
        links = sorted(self.links.items(), key=lambda item: (-item[1], item[0]))
        told = [f"{a} to {b} {text_of_bytes(n / self.steps)}" for (a, b), n in links[:_SHOWN]]
        more = f", and {len(links) - _SHOWN} more" if len(links) > _SHOWN else ""
        return f"links, bytes a step: {', '.join(told) or 'none'}{more}"


_SHOWN = 16
"""Ranks and links of a text."""


def text_of_bytes(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Momentum without a square root: rounding stays rounding."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def prove(
    copy: Copy, make: Make, mesh: Mesh, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, steps: int = 3,
    optimizer: Optimizer = sgd, tolerance: float = 1e-5, figures: Figures = TYPICAL,
) -> Proof:  # fmt: skip
    """Compare. copy: makes the model. make: the module of a rank, with its part. tolerance: relative to the largest
    element of each tensor. Raises: VerifyError (S0621) with the first value that differs.
    """
    numbers = torch.get_rng_state()
    try:
        model = copy()
        ranks = [make(rank) for rank in range(mesh.size)]
        torch.manual_seed(_SEED)
        wanted = _train(model, args, kwargs, steps, optimizer, _whole_cotangent)
        torch.manual_seed(_SEED)
        world = World(mesh)

        updates: dict[int, torch.optim.Optimizer] = {}

        def rank_program(rank: int) -> list[Snapshot]:
            module, part = ranks[rank]
            own_args, own_kwargs = local_arguments(module, part, args, kwargs)

            def noted(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
                updates[rank] = optimizer(parameters)
                return updates[rank]

            return _train(module, own_args, own_kwargs, steps, noted, _Local(part))

        found = world.run(rank_program)
    finally:
        torch.set_rng_state(numbers)
    parts, forwards = [part for _, part in ranks], [_forward_of(module) for module, _ in ranks]
    try:
        proof = _compared(mesh, wanted, found, parts, tolerance)
    except VerifyError as error:
        raise _explained(
            error, copy, forwards, parts, (wanted[0], [one[0] for one in found]), args, kwargs, tolerance
        ) from None
    proof.clock, memories = measured(mesh, forwards, [updates.get(r) for r in range(mesh.size)], figures)
    proof.links, proof.figures, proof.part = world.links, figures, ranks[0][1]
    pipe = forwards[0].entries[0].pipe
    proof.stages = stages_of(pipe.plan) if pipe is not None else {}
    for rank, memory in enumerate(memories):
        sent = {axis: (one.count, one.nbytes) for (r, axis), one in world.sent.items() if r == rank}
        idle, talking = proof.clock.idle(rank), proof.clock.talking(rank)
        proof.ranks.append(Rank(mesh.where(rank), memory, sent, idle, talking))
    return proof


def _forward_of(module: torch.nn.Module) -> PartedForward:
    forward = module.__dict__["forward"]
    assert isinstance(forward, PartedForward)
    return forward


def local_arguments(
    module: torch.nn.Module, part: Parted, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What of a call of all ranks together a rank is called with."""
    forward = _forward_of(module)
    args, given = positional(forward.parameters, args, kwargs)
    entry = forward.entry_of(part)
    by_id: dict[int, torch.Tensor] = {}
    for value, whole in zip(entry.whole_inputs, entry.signature.flatten(args, given), strict=True):
        if isinstance(whole, torch.Tensor) and value in part.inputs:
            by_id[id(whole)] = part.local(value, whole)

    def swap(x: Any) -> Any:
        return by_id.get(id(x), x)

    return mapped(args, swap), mapped(given, swap)


# --- what is compared


@dataclass(slots=True)
class Snapshot:
    """Of one step: outputs, gradients, parameters and buffers behind it, by name."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


Cotangent = Callable[[int, torch.Tensor], torch.Tensor]


def _whole_cotangent(number: int, output: torch.Tensor) -> torch.Tensor:
    if output.dim() == 0:
        return torch.ones_like(output)
    made = torch.Generator().manual_seed(_SEED + number)
    return torch.randn(output.shape, generator=made, dtype=output.dtype) / output.numel()


class _Local:
    """What of that a rank gives."""

    def __init__(self, part: Parted) -> None:
        self.part = part

    def __call__(self, number: int, output: torch.Tensor) -> torch.Tensor:
        lies = self.part.outputs[number] if number < len(self.part.outputs) else {}
        if not lies:
            return _whole_cotangent(number, output)
        shape = list(output.shape)
        for shard in reversed(lies.values()):  # the first one is of the whole
            shape[shard.dim] = shard.total
        whole = _whole_cotangent(number, output.new_empty(shape))
        return self.part.of_output(number, whole)


def _train(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], steps: int, optimizer: Optimizer,
    cotangent: Cotangent,
) -> list[Snapshot]:  # fmt: skip
    parameters = [p for p in module.parameters() if p.requires_grad]
    update = optimizer(parameters) if parameters else None
    found = []
    for _ in range(steps):
        outputs = tensors_in(module(*args, **kwargs))
        pairs = [(out, cotangent(i, out)) for i, out in enumerate(outputs) if out.requires_grad]
        if pairs:
            for p in parameters:
                p.grad = None
            torch.autograd.backward([out for out, _ in pairs], [grad for _, grad in pairs])
            if update is not None:
                update.step()
        named = dict(module.named_parameters())
        gradients = {name: p.grad.detach().clone() for name, p in named.items() if p.grad is not None}
        after = {name: p.detach().clone() for name, p in named.items()}
        buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
        found.append(Snapshot([out.detach().clone() for out in outputs], gradients, after, buffers))
    return found


def _compared(
    mesh: Mesh, wanted: Sequence[Snapshot], found: Sequence[Sequence[Snapshot]], parts: Sequence[Parted],
    tolerance: float,
) -> Proof:  # fmt: skip
    proof = Proof(mesh, 0, len(wanted), 0.0, "")
    for number, want in enumerate(wanted):
        own = [snapshots[number] for snapshots in found]
        where = f"step {number + 1}"
        for i, value in enumerate(want.outputs):
            lies = parts[0].outputs[i] if i < len(parts[0].outputs) else {}
            got = assembled(mesh, {r: one.outputs[i] for r, one in enumerate(own)}, lies)
            _check(
                proof,
                f"output {i} in {where}",
                value,
                got,
                tolerance,
                value.abs().max().item() if value.numel() and value.is_floating_point() else 0,
            )
        for kind in ("gradients", "parameters", "buffers"):
            # What is zero but for rounding (the gradient of a bias of keys) is compared with what others are.
            every = [t.abs().max().item() for t in getattr(want, kind).values() if t.numel() and t.is_floating_point()]
            floor = 0.02 * max(every, default=0.0)
            for name, value in getattr(want, kind).items():
                pieces = {r: x for r, one in enumerate(own) if (x := getattr(one, kind).get(name)) is not None}
                if not pieces and kind == "buffers":
                    continue  # no stage uses it
                if not pieces:
                    raise _differs(f"no rank has a {kind.removesuffix('s')} of {name} in {where}", "the model has one")
                got = assembled(mesh, pieces, parts[0].state_of(name))
                largest = value.abs().max().item() if value.numel() and value.is_floating_point() else 0.0
                scale = max(largest, floor)
                _check(proof, f"{kind.removesuffix('s')} {name} in {where}", value, got, tolerance, scale)
    return proof


def assembled(mesh: Mesh, pieces: Mapping[int, Any], lies: Mapping[str, Shard]) -> list[torch.Tensor]:
    """The whole of what ranks have: one for each group of ranks that have it between them."""
    groups: dict[tuple[int, ...], dict[tuple[int, ...], torch.Tensor]] = {}
    axes = list(lies)
    for rank, piece in pieces.items():
        here = mesh.coordinates(rank)
        other = tuple(here[a] for a in mesh.names if a not in lies)
        groups.setdefault(other, {})[tuple(here[a] for a in axes)] = piece
    return [_joined(group, [lies[a] for a in axes]) for group in groups.values()]


def _joined(group: Mapping[tuple[int, ...], torch.Tensor], shards: Sequence[Shard]) -> torch.Tensor:
    if not shards:
        return group[()]
    # What was divided last is joined first.
    last = shards[-1]
    firsts = dict.fromkeys(place[:-1] for place in group)
    inner = {p: whole_of([group[(*p, i)] for i in range(len(last.sizes))], last) for p in firsts}
    return _joined(inner, shards[:-1])


def _check(
    proof: Proof, name: str, want: torch.Tensor, got: Sequence[torch.Tensor], tolerance: float, scale: float
) -> None:
    for one in got:
        proof.compared += 1
        if one.shape != want.shape or one.dtype != want.dtype:
            raise _differs(
                f"{name} is {one.dtype} {list(one.shape)}", f"the model's is {want.dtype} {list(want.shape)}"
            )
        if not want.is_floating_point():
            if not torch.equal(one, want):
                raise _differs(f"{name} differs", "numbers that are counted have to be equal")
            continue
        error = _error(one, want, scale)
        if error > proof.error:
            proof.error, proof.worst = error, name
        if not error <= tolerance:
            at = int((one - want).abs().nan_to_num(nan=float("inf")).argmax()) if want.numel() else 0
            index = [int(i) for i in torch.unravel_index(torch.tensor(at), want.shape)]
            raise _differs(
                f"{name}{index} is {one.flatten()[at].item():.9g} and not {want.flatten()[at].item():.9g}",
                f"the relative error is {error:.2e}, and {tolerance:.0e} is allowed",
            )


def _error(one: torch.Tensor, want: torch.Tensor, scale: float) -> float:
    if not want.numel():
        return 0.0
    both = torch.isfinite(one) & torch.isfinite(want)
    same = (one == want) | (one.isnan() & want.isnan())
    if not bool((both | same).all()):
        return float("inf")
    return float(torch.where(both, one - want, torch.zeros_like(want)).abs().max()) / max(scale, 1e-30)


def _explained(
    error: VerifyError, copy: Copy, forwards: Sequence[PartedForward], parts: Sequence[Parted],
    first: tuple[Snapshot, Sequence[Snapshot]], args: tuple[Any, ...], kwargs: Mapping[str, Any], tolerance: float,
) -> VerifyError:  # fmt: skip
    """The error with the first value that differs, and the step that is about it. first: the snapshots of step 1."""
    numbers, forward = torch.get_rng_state(), forwards[0]
    pipes = [one.entries[0].pipe for one in forwards]
    try:
        args, given = positional(forward.parameters, args, kwargs)
        whole = whole_program(copy, args, given, forward.flags())
        found = first_value(whole, parts, pipes, args, given, forward.marks, forward.ties, _SEED, tolerance)
        gradient = (
            None
            if found is not None
            else first_gradient(whole.graph, _wrong_gradients(parts, *first, tolerance), forward.marks, forward.ties)
        )
    except SmeltError as failure:
        error.add_note(f"where it begins is not known: {failure.what}")
        return error
    finally:
        torch.set_rng_state(numbers)
    if found is not None:
        what, notes = f"the first value that differs is {found.what}", found.notes
    elif gradient is not None:
        found, notes = gradient[1], (f"all values of forward agree; {gradient[1].what}",)
        what = f"the first gradient that differs is that of {gradient[0]}"
    else:
        notes = (
            "values and gradients of step 1 agree; what follows from them on one rank differs: an optimizer that "
            "looks at a whole tensor, or the order of sums, or, with stages, what they exchange",
        )
        what = error.what
    step = found.step if found is not None else None
    line = f"the model's line is {found.line}; " if found is not None and found.line is not None else ""
    seen = "" if what == error.what else f"; seen as {error.what}"
    return VerifyError(
        what, step.where if step is not None else None, why=f"{line}{error.why}{seen}", code="S0621", fix=error.fix,
        notes=(*((told(step),) if step is not None else ()), *notes),
    )  # fmt: skip


def _wrong_gradients(
    parts: Sequence[Parted], want: Snapshot, own: Sequence[Snapshot], tolerance: float
) -> list[str]:  # fmt: skip
    """The parameters whose gradients differ."""
    found = []
    for name, value in want.gradients.items():
        pieces = {r: x for r, one in enumerate(own) if (x := one.gradients.get(name)) is not None}
        got = assembled(parts[0].mesh, pieces, parts[0].state_of(name)) if pieces else []
        scale = max(value.abs().max().item() if value.numel() else 0.0, 1e-30)
        if not got or any(one.shape != value.shape or _error(one, value, scale) > tolerance for one in got):
            found.append(name)
    return found


def _differs(what: str, why: str, where: Span | None = None) -> VerifyError:
    return VerifyError(
        what, where, why=why, fix="a derived collective is wrong, or a step: see the notes", code="S0621"
    )

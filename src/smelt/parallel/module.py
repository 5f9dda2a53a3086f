"""A model on one rank of a mesh: a module of the model's class and keys, with this rank's part of the parameters.

Its forward captures the whole model's once for each kind of call, and runs this rank's part of that; `backward()`,
optimizers, hooks around it and `state_dict` work as of any module. Invariant: the parts of all ranks together are the
model's tensors; a parameter that several ranks have whole is equal on them after a step, since its gradients are.
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from smelt.capture import is_capturing
from smelt.capture.structure.signature import Signature
from smelt.compiler.programs.tracing import trace
from smelt.diag import CaptureError, Options, SmeltError, SmeltWarning, Span
from smelt.diag.records import record
from smelt.ir import Graph, TensorType, Type, Value
from smelt.ops.convert import type_of
from smelt.ops.ranks import collective_ops
from smelt.ops.ranks.collectives import Communicator, named_axes
from smelt.parallel.dividing.marks import Cut, Mark, Pipeline
from smelt.parallel.dividing.parted import Parted, PartedInference, PartedProgram, flat, parted
from smelt.parallel.groups import Groups
from smelt.parallel.mesh import Mesh
from smelt.parallel.pipelines.pipeline import staged
from smelt.parallel.pipelines.stages import Pipe
from smelt.parallel.spelled import Kind, spelled_forward

Copy = Callable[[], torch.nn.Module]
"""Makes a copy of the whole model, with tensors of its own."""


@record
class Whole:
    """The whole model's program for one kind of call."""

    graph: Graph
    signature: Signature
    lookup: Callable[[str, str], Any]
    own_backward: str = ""
    own_line: Span | None = None


Wholes: TypeAlias = dict[Any, Whole]
"""Programs that ranks of one process have in common: a second capture may find caches that the first one left."""


def whole_program(copy: Copy, args: tuple[Any, ...], kwargs: Mapping[str, Any], training: Sequence[bool]) -> Whole:
    """Capture the model on these arguments, with its modules' `training` flags. Raises: CaptureError."""
    model = copy()
    for module, flag in zip(model.modules(), training, strict=True):
        module.training = flag
    numbers = torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            # What a run does besides (logging, counters) happens in no rank.
            warnings.simplefilter("ignore", SmeltWarning)
            program = trace(model, args, kwargs, check=False)
    finally:
        torch.set_rng_state(numbers)
    unit = program.unit
    captured = unit.captured
    return Whole(unit.graph, unit.signature, unit.lookup, captured.own_backward, captured.own_line)


@dataclass(slots=True)
class Entry:
    """One kind of call: what runs, with gradients and without."""

    part: Parted
    signature: Signature
    graph: Graph
    places: tuple[tuple[str, str], ...]
    unseen: tuple[str, ...]
    lookup: Callable[[str, str], Any]
    whole_inputs: tuple[str, ...]
    programs: dict[tuple[bool, ...], PartedProgram | PartedInference]
    pipe: Pipe | None = None
    why_no_gradients: SmeltError | None = None

    @property
    def trained(self) -> PartedProgram | PartedInference | None:
        """The program that gives gradients, if there is one; else one that gives none."""
        found = sorted(self.programs.values(), key=lambda p: isinstance(p, PartedProgram))
        return found[-1] if found else None


class PartedForward:
    """Stands as `module.forward`. copy: makes the whole model. ties: as of `parted`."""

    def __init__(
        self, module: torch.nn.Module, copy: Copy, mesh: Mesh, rank: int, marks: Sequence[Mark],
        ties: Mapping[str, str], with_: Communicator | None, options: Options, wholes: Wholes | None = None,
    ) -> None:  # fmt: skip
        self.wholes: Wholes = {} if wholes is None else wholes
        self.module, self.copy, self.mesh, self.rank = module, copy, mesh, rank
        self.marks, self.ties, self.with_, self.options = tuple(marks), dict(ties), with_, options
        self._entries: dict[Any, Entry] = {}
        self.trained = {name: p.requires_grad for name, p in module.named_parameters(remove_duplicate=False)}
        self.parameters = inspect.signature(type(module).forward)
        self.axes = {name: name for name in mesh.names} if with_ is None else named_axes(with_, mesh.names)
        self._kinds: list[Kind] = []
        self._target: tuple[weakref.ref[torch.nn.Module], Callable[..., Any]] | None = None
        collective_ops.register()

    @property
    def smelt_target(self) -> Callable[..., Any]:
        """What a program that calls this is captured with: this rank's operators as Python."""
        made = self._target
        if made is None or made[0]() is not self.module:  # in a copy, of the module that it was copied from
            made = self._target = (
                weakref.ref(self.module),
                spelled_forward(self.module, self._kinds, self.axes, self._positional, self._now),
            )
        return made[1]

    def prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Parted:
        """Make ready for calls of which these are the whole arguments, those of all ranks together."""
        args, kwargs = self._positional(args, kwargs)
        key = tuple(map(id, tensors_in((args, kwargs)))), self.flags()
        whole = self.wholes.get(key) or whole_program(self.copy, args, kwargs, self.flags())
        self.wholes[key] = whole
        self._agree(_told_of(whole.graph, self.mesh, self.marks))
        part = parted(whole.graph, self.mesh, self.rank, self.marks, self.ties)
        graph, places, unseen = flat(part.graph)
        entry = Entry(
            part, whole.signature, graph, places, unseen, whole.lookup, tuple(v.name for v in whole.graph.inputs), {},
            why_no_gradients=_why_no_gradients(whole),
        )  # fmt: skip
        entry.pipe = self._pipe(part, whole.graph)
        inputs = whole.signature.flatten(args, kwargs)
        local = [self._local_input(part, v.name, x) for v, x in zip(whole.graph.inputs, inputs, strict=True)]
        if entry.pipe is None and entry.why_no_gradients is None:
            self._kinds.append(self._kind(entry, args, kwargs))
            self._target = None
            if self.with_ is not None:
                _ = self.smelt_target  # before a program that calls it is captured
        self._entries[_key(local, whole.signature, self.flags())] = entry
        return part

    def _kind(self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Kind:
        """A kind of call as a program calls it that is captured. args, kwargs: those of all ranks together."""
        names = dict(zip(map(id, entry.signature.flatten(args, kwargs)), entry.whole_inputs, strict=True))

        def local(x: Any) -> Any:
            name = names.get(id(x))
            return x if name is None else self._local_input(entry.part, name, x)

        said = f"call {len(self._entries)}, gradients"
        return Kind(
            entry.part.graph, entry.signature, mapped(args, local), mapped(dict(kwargs), local),
            (f"{said} False, captured", f"{said} True, captured"),
            {p: entry.lookup(k, p) for k, p in entry.places if k == "captured"},
            {path: module.training for path, module in self.module.named_modules()},
        )  # fmt: skip

    def _local_input(self, part: Parted, name: str, whole: Any) -> Any:
        return part.local(name, whole) if isinstance(whole, torch.Tensor) and name in part.inputs else whole

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return self.smelt_target(*args, **kwargs)
        return self._now(args, kwargs)

    def _now(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, given = self._positional(args, kwargs)
        entry, inputs = self._found(args, given)
        inputs = _row_major(entry, inputs)
        if entry.pipe is not None:
            return entry.signature.rebuild(self._piped(entry, entry.pipe, inputs), args, given)
        state = [self._state(entry, kind, path) for kind, path in entry.places]
        everything = [*inputs, *state]
        grad = torch.is_grad_enabled()
        requires = tuple(grad and isinstance(x, torch.Tensor) and x.requires_grad for x in everything)
        program = entry.programs.get(requires)
        if program is None:
            program = entry.programs[requires] = self._program(entry, requires)
        return entry.signature.rebuild(program(everything), args, given)

    # --- pipelines

    def _pipe(self, part: Parted, whole: Graph) -> Pipe | None:
        mark = pipeline_of(self.marks, self.mesh)
        if mark is None:
            return None
        like = None
        if self.rank and not part.is_even:
            first = parted(whole, self.mesh, 0, self.marks, self.ties)
            like = staged(first.graph, mark, self.marks, self.trained)
        plan = staged(part.graph, mark, self.marks, self.trained, like)
        here, names = self.mesh.coordinates(self.rank)[mark.axis], [v.name for v in part.graph.inputs]
        ranks = self.mesh.extent(mark.axis)
        return Pipe(plan, names, mark.axis, ranks, here, mark.schedule, self.with_, self.options, self.trained)

    def _piped(self, entry: Entry, pipe: Pipe, inputs: Sequence[Any]) -> list[Any]:
        state = {path: self._state(entry, kind, path) for path, kind in sorted(pipe.state.items())}
        call = pipe.begin([x.detach() if isinstance(x, torch.Tensor) else x for x in inputs], state)
        trained = [path for path, tensor in state.items() if tensor.requires_grad]
        if not torch.is_grad_enabled() or not any(self.trained.values()):
            pipe.run(call, pipe.forwards.orders[pipe.rank], state, keeps=False)
            return pipe.outputs(call)
        if entry.why_no_gradients is not None:
            raise entry.why_no_gradients
        # A stage may have no parameter of its own, and has to go back all the same.
        anchor = torch.zeros((), requires_grad=True)
        return list(PipeNode.apply(pipe, call, state, tuple(trained), anchor, *(state[path] for path in trained)))

    def train(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Forward and backward of a batch, from the first result that is one number; gradients are added to `.grad`."""
        args, given = self._positional(args, kwargs)
        entry, inputs = self._found(args, given)
        pipe, inputs = entry.pipe, _row_major(entry, inputs)
        if entry.why_no_gradients is not None:
            raise entry.why_no_gradients
        if pipe is None:
            result = self(*args, **given)
            loss_of(tensors_in(result)).backward()
            return result
        state = {path: self._state(entry, kind, path) for path, kind in sorted(pipe.state.items())}
        call = pipe.begin([x.detach() if isinstance(x, torch.Tensor) else x for x in inputs], state)
        number = next((i for i, v in enumerate(entry.part.graph.outputs) if _is_loss(v)), None)
        if number is None:
            raise SmeltError("the program gives no loss", why="no result is one floating-point number", code="S0641")
        grads: list[Any] = [None] * len(entry.part.graph.outputs)
        grads[number] = torch.ones(())
        pipe.give_gradients(call, grads)
        with torch.no_grad():
            pipe.run(call, pipe.training.orders[pipe.rank], state, keeps=True)
            pipe.tie(call)
            for path, grad in call.sums.items():
                tensor = state[path]
                tensor.grad = grad if tensor.grad is None else tensor.grad + grad
            return entry.signature.rebuild(pipe.outputs(call), args, given)

    def owned(self, part: Parted) -> frozenset[str] | None:
        """Of a pipeline, the parameters and buffers that this rank has; the first one has those that no stage uses."""
        pipe = self.entry_of(part).pipe
        if pipe is None:
            return None
        own, used = frozenset(pipe.state), pipe.plan.state
        if pipe.rank:
            return own
        every = (*self.module.named_parameters(remove_duplicate=False), *self.module.named_buffers())
        return own | {name for name, _ in every if not _names(part, name) & used}

    def _tensor(self, path: str) -> torch.Tensor:
        owner, _, name = path.rpartition(".")
        found: torch.Tensor = getattr(self.module.get_submodule(owner), name)
        return found

    def _program(self, entry: Entry, requires: tuple[bool, ...]) -> PartedProgram | PartedInference:
        if not any(requires):
            return PartedInference(entry.graph, self.options, self.with_)
        if entry.why_no_gradients is not None:
            raise entry.why_no_gradients
        return PartedProgram(entry.graph, requires, self.options, self.with_, entry.unseen)

    @property
    def entries(self) -> Sequence[Entry]:
        """The kinds of calls so far."""
        return tuple(self._entries.values())

    def entry_of(self, part: Parted) -> Entry:
        """The kind of call that a part is of."""
        return next(entry for entry in self._entries.values() if entry.part is part)

    def _state(self, entry: Entry, kind: str, path: str) -> Any:
        if kind == "captured":
            return entry.lookup(kind, path)
        return self._tensor(path)

    def _found(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Entry, list[Any]]:
        flags = self.flags()
        for number, (key, entry) in enumerate(self._entries.items()):
            inputs = _fitting(entry.signature, args, kwargs)
            if inputs is not None and _key(inputs, entry.signature, flags) == key:
                self._agree(f"call {number}, gradients {torch.is_grad_enabled()}")
                return entry, inputs
        sizes = [f"{list(x.shape)} {x.dtype}" for x in tensors_in((args, kwargs))]
        self._agree(f"a call of a new kind, gradients {torch.is_grad_enabled()}: {', '.join(sizes)}")
        part = next(iter(self._entries.values()), None)
        grown = self._grown(part, args, kwargs)
        if is_capturing():
            raise CaptureError(
                "a rank's model is called in another mode, or with other sizes, than it was made ready for",
                why=f"it has to be captured for {', '.join(sizes) or 'these arguments'}, and the program that calls it "
                "is being captured", fix="call it so once outside of the compiled program", code="S0104",
            )  # fmt: skip
        self.prepare(*grown)
        entry = next(reversed(self._entries.values()))
        return entry, entry.signature.flatten(args, kwargs)

    def _grown(
        self, like: Entry | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments of all ranks together, from those of this one: as many of them as ranks share the batch."""
        counts = {len(s.sizes) for lies in (like.part.inputs.values() if like else ()) for s in lies.values()}
        count = max(counts, default=1)
        if count == 1:
            return args, kwargs
        sizes = [x.shape[0] for x in tensors_in((args, kwargs)) if x.dim()]
        batch = sizes[0] if sizes else 0

        def grow(x: Any) -> Any:
            is_batch = isinstance(x, torch.Tensor) and x.dim() and x.shape[0] == batch
            return torch.cat([x] * count) if is_batch else x

        return mapped(args, grow), mapped(dict(kwargs), grow)

    def _agree(self, said: str) -> None:
        """Raises: SmeltError (S0643) where other ranks are about to do something else."""
        if isinstance(self.with_, Groups):
            self.with_.agree(said)

    def _positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call in one spelling: by position as far as the signature goes."""
        return positional(self.parameters, args, kwargs)

    def flags(self) -> tuple[bool, ...]:
        """The modules' `training`."""
        return tuple(module.training for module in self.module.modules())


def pipeline_of(marks: Sequence[Mark], mesh: Mesh) -> Pipeline | None:
    """The step that lays stages along an axis. Raises: SmeltError (S0641, S0642) where they do not fit the mesh."""
    mark = next((mark for mark in marks if isinstance(mark, Pipeline)), None)
    if mark is None:
        cut = next((mark for mark in marks if isinstance(mark, Cut)), None)
        if cut is not None:
            raise SmeltError(
                "the model has stages, and no axis of a mesh for them", cut.where, code="S0641",
                fix="s.pipeline(stages=..., mesh_dim=...)",
            )  # fmt: skip
        return None
    ranks = mesh.extent(mark.axis)
    if mark.stages % ranks or (mark.stages != ranks and mark.schedule != "interleaved"):
        raise SmeltError(
            f"{mark.stages} stages do not go on {ranks} ranks", mark.where, code="S0642",
            why="each rank has one stage; of schedule='interleaved', as many as every other",
            fix=f"stages={ranks}, or a mesh with another {mark.axis!r}",
        )  # fmt: skip
    return mark


class PipeNode(torch.autograd.Function):
    """A pipeline as autograd sees it: all microbatches forward, then all backward."""

    @staticmethod
    def forward(
        ctx: Any, pipe: Pipe, call: Any, state: Any, trained: tuple[str, ...], anchor: Any, *parameters: Any
    ) -> Any:
        actions = pipe.all_then_all.orders[pipe.rank]
        pipe.run(call, [a for a in actions if not a.is_backward], state, keeps=True)
        ctx.set_materialize_grads(False)
        ctx.pipe, ctx.call, ctx.state, ctx.trained = pipe, call, state, trained
        outputs = pipe.outputs(call)
        ctx.mark_non_differentiable(*(x for x in outputs if isinstance(x, torch.Tensor) and not x.is_floating_point()))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        pipe, call = ctx.pipe, ctx.call
        actions = pipe.all_then_all.orders[pipe.rank]
        pipe.give_gradients(call, grads)
        pipe.run(call, [a for a in actions if a.is_backward], ctx.state, keeps=True)
        pipe.tie(call)
        return (None, None, None, None, None, *(call.sums.get(path) for path in ctx.trained))


def _why_no_gradients(whole: Whole) -> SmeltError | None:
    """Why ranks cannot train a program; None where they can."""
    if not whole.own_backward:
        return None
    return SmeltError(
        f"ranks have no gradients of {whole.own_backward}", whole.own_line, code="S0641",
        why="its backward is Python, and they derive their gradients from operators",
        fix="write it in operators (s.replace), or run the model with torch.no_grad() or frozen parameters",
    )  # fmt: skip


def _row_major(entry: Entry, inputs: Sequence[Any]) -> list[Any]:
    """A call's arguments, shares of them in the order of memory that their programs have them in."""
    names = zip(entry.whole_inputs, inputs, strict=True)
    return [x.contiguous() if name in entry.part.inputs and isinstance(x, torch.Tensor) else x for name, x in names]


def loss_of(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The first result that is one number with a history. Raises: SmeltError (S0641)."""
    for out in outputs:
        if out.dim() == 0 and out.requires_grad:
            return out
    raise SmeltError("the program gives no loss", why="no result is one number with a gradient", code="S0641")


def _is_loss(value: Any) -> bool:
    type_ = value.type if isinstance(value, Value) else None
    return isinstance(type_, TensorType) and not type_.sizes and type_.dtype.kind == "float"


def positional(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position as far as a method's signature goes, defaults in between; the others by name."""
    names = [
        p.name for p in list(signature.parameters.values())[1:]
        if p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    given = dict(kwargs)
    last = max((i for i, name in enumerate(names) if name in given), default=-1)
    found = list(args)
    for name in names[len(args) : last + 1]:
        default = signature.parameters[name].default
        if name not in given and default is inspect.Parameter.empty:
            return args, dict(kwargs)
        found.append(given.pop(name, default))
    return tuple(found), given


def _told_of(graph: Graph, mesh: Mesh, marks: Sequence[Mark]) -> str:
    """A program and what is done with it as lines, the same in every process: without files and line numbers."""
    steps = [str(replace(mark, where=None)) for mark in marks]
    nodes = [f"{node.op} of {', '.join(str(r.type) for r in node.results)}" for node in graph.walk()]
    inputs = [f"input {value.name} {value.type}" for value in graph.inputs]
    return "\n".join([f"mesh {mesh}", *steps, *inputs, *nodes])


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """All tensors of a structure, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    items = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


def mapped(tree: Any, f: Callable[[Any], Any]) -> Any:
    """A structure of tuples, lists and dictionaries with other leaves."""
    if isinstance(tree, dict):
        return {name: mapped(item, f) for name, item in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(mapped(item, f) for item in tree)
    return f(tree)


def _key(inputs: Sequence[Any], signature: Signature, flags: tuple[bool, ...]) -> Any:
    return tuple(map(_told, inputs)), id(signature.args), flags


def _told(value: Any) -> Type | Any:
    return type_of(value) if isinstance(value, torch.Tensor) else (type(value), value)


def _fitting(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any] | None:
    try:
        return signature.flatten(args, kwargs)
    except SmeltError:
        return None


def divide_state(module: torch.nn.Module, part: Parted, owned: frozenset[str] | None = None) -> None:
    """Leave of a module's parameters and buffers what the rank has. owned: of a pipeline, what its stages use."""
    made: dict[int, torch.Tensor] = {}
    for prefix, owner in module.named_modules():
        for table in (owner._parameters, owner._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                path = f"{prefix}.{name}" if prefix else name
                if owned is not None and not owned & _names(part, path):
                    table[name] = None  # another stage has it
                    continue
                if id(tensor) not in made:
                    made[id(tensor)] = _part_of_state(part, path, tensor)
                table[name] = made[id(tensor)]


def _names(part: Parted, path: str) -> set[str]:
    return {path, part.names.get(path, path)}


def _part_of_state(part: Parted, path: str, tensor: torch.Tensor) -> torch.Tensor:
    own = part.local(path, tensor.detach()).clone(memory_format=torch.contiguous_format)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(own, requires_grad=tensor.requires_grad)
    return own

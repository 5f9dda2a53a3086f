"""What `trace` returns: a captured program as an nn.Module, with its graphs to be seen.

Invariant: a program of a module shares the module's parameters, buffers and submodules (the very dictionaries), so
`state_dict` keys, ties, `.to`, `load_state_dict` and `train` are the module's own.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import torch
from torch.fx import GraphModule

from smelt._torch.autocast import cleared, is_kept, keeps_casts
from smelt._torch.state import autocast, default_dtype, is_grad_enabled, is_inference
from smelt.autodiff import computes_gradients, hidden_write, joint_graph
from smelt.capture import Captured, capture, is_capturing
from smelt.capture.recording.kept_casts import KeptCast
from smelt.capture.structure.entangled_memory import entangled
from smelt.codegen.python import python_source
from smelt.compiler.deciding.generalisation import NO_FREEDOM, Freedom
from smelt.compiler.doors.fx_out import graph_module
from smelt.compiler.object.compiled_types import LeftAlone, Undelivered
from smelt.compiler.object.output_replay import muted_again, pieces_since, pieces_written
from smelt.compiler.pipeline import first_wrong_pass
from smelt.compiler.programs import saving
from smelt.compiler.programs.code import Code, write_code
from smelt.compiler.programs.program_calls import SELF, KnownCall, renamed, requiring_inputs
from smelt.compiler.programs.program_copy import SavedCapture, load, save
from smelt.compiler.programs.program_modules import SourceModules
from smelt.compiler.sizes.sized_capture import sized_capture
from smelt.compiler.sizes.sized_unit import SizedUnit, unit_of
from smelt.compiler.staged import staged_capture
from smelt.compiler.training.histories import requires_gradients
from smelt.compiler.unit import Unit
from smelt.diag import CaptureError, Miss, Options, SmeltError, SmeltWarning, limits
from smelt.diag.notebook import text_box
from smelt.ir import Graph, TensorType, Type, Value
from smelt.ops.convert import dtype_to_torch, type_of
from smelt.ops.evaluate import evaluate
from smelt.package.sizes import Wanted
from smelt.passes.manager import Culprit
from smelt.runtime.guarding.guard_constants import Constants

CAPTURE_LIMIT = limits.TRACED_CAPTURES


class Setting(NamedTuple):
    """What a capture was made under: `training` flags, devices of autocast with their dtypes, torch's default dtype,
    the ids of the modules that the program may call, the numbers of the hooks on them, that of what asking them for
    their members finds, and grad and inference mode where the program asks for them.
    """

    training: tuple[bool, ...]
    autocast: tuple[tuple[str, torch.dtype], ...]
    dtype: torch.dtype
    modules: tuple[int, ...]
    hooks: tuple[int, ...]
    look: int
    modes: tuple[bool, ...] = ()

    @property
    def of_modules(self) -> tuple[Any, ...]:
        """What of it follows from which modules there are, not from how they are called."""
        return self.modules, self.hooks, self.look


Key: TypeAlias = tuple[Setting, tuple[int, ...], tuple[Type, ...], tuple[str, ...]]
"""What a capture holds for: its setting, which arguments are one tensor, the inputs' types, and the checks of sizes."""
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class Program(torch.nn.Module):
    """A captured program.

    graph: the functional graph, whole operations as the program called them. code: the same as Python that runs.
    graph_for(*args): the optimized graph that runs for these arguments.

    A call runs natively, or operation by operation where gradients are needed, with the same result. The program holds
    for the captured sizes and Python arguments, unless these are dynamic (`dynamic_shapes`), and raises for others. For
    other dtypes or strides, arguments that were different tensors and are one, other `training` flags, autocast or
    default dtype, parameters or modules that were moved or replaced, or other hooks on these, it is captured anew from
    its source (it caches at most `CAPTURE_LIMIT` captures).
    """

    def __init__(
        self, source: Callable[..., Any], captured: Captured, options: Options, free: Freedom = NO_FREEDOM
    ) -> None:
        super().__init__()
        object.__setattr__(self, "_source", source)
        if isinstance(source, torch.nn.Module):
            for name in _SHARED:
                self.__dict__[name] = source.__dict__[name]
            self.training = source.training
        self._options = options
        self._free = free
        self._units: dict[Key, Unit] = {}
        self._held: dict[int, Constants] = {}
        # By id of a unit: how often autocast had forgotten the casts that it keeps when the unit ran last.
        self._cast_in: dict[int, int] = {}
        self._known: KnownCall | None = None
        self._of: tuple[torch.nn.Module, ...] = ()  # what the ids of settings stand for: kept, so that they stay theirs
        self._modules_of = SourceModules(source, captured.roots)
        self._asks_modes = captured.asks_modes
        self.native_failure: str | None = None
        self._add(captured)

    # --- what a person looks at

    @property
    def graph(self) -> Graph:
        """The functional graph as captured."""
        return self.unit.graph

    @property
    def code(self) -> Code:
        """The graph as Python in a file that a debugger steps: `code.path`, `code.forward`, `code.run(*inputs)`.

        `code.state` is what `forward` takes first; docs/graph.md shows how to run the text, here and elsewhere.
        """
        unit = self.unit
        text = python_source(
            unit.graph, f"{unit.captured.name}, captured by Smelt. Run: forward(state, *inputs), state as p.code.state"
        )
        directory, state = self._options.cache_dir, lambda: self._named_state(unit)
        return write_code(unit.captured.name, text, directory, state, unit.check_inputs)

    def graph_for(self, /, *args: Any, **kwargs: Any) -> Graph:
        """The optimized graph that runs for these arguments. Raises: CaptureError (S0107) if they do not fit."""
        unit, inputs = self._unit_for(args, kwargs)
        return unit.graph_at(unit.sizes_of(inputs)) if isinstance(unit, SizedUnit) else unit.optimize()

    def grad_graph(self, wrt: Sequence[str] | None = None) -> Graph:
        """The gradient as a graph: it takes the inputs, and for each result that has one its gradient (`%grad_0`); it
        gives the results, then a gradient for each of `wrt`, None where no result depends on it.

        wrt: names of inputs and paths of parameters and buffers; by default all of them with floating-point numbers.
        `smelt.autodiff.joint_graph` differentiates the graph again. Raises: SmeltError (S0303) where an operator, or a
        name, has no gradient.
        """
        raw = self.unit.captured.graph
        hidden = None if raw is None else hidden_write(raw, lambda value: True)
        if hidden is not None:
            raise SmeltError(
                f"{hidden.op} writes where autograd does not look", hidden.span, code="S0303",
                why="behind it autograd goes on with the history of the old numbers, which no functional graph says",
                fix="compute a new tensor instead of writing under no_grad, or through detach or data",
            )  # fmt: skip
        return joint_graph(self.graph, wrt).graph

    def to_fx(self) -> GraphModule:
        """The program as captured, as a module of torch.fx that runs with torch alone, over the same parameters.

        Branches and loops become torch's `cond` and `while_loop`. Raises: CaptureError (S0108) where torch.fx has no
        form for something.
        """
        return graph_module(self.unit)

    def bisect(self, /, *args: Any, **kwargs: Any) -> Culprit | None:
        """The first pass that changes the result for these arguments, with the difference; None if none does.

        The graph is evaluated operation by operation on copies after each pass; only rounding may differ, and that only
        after passes that are known to round. Raises: CaptureError (S0107) if the arguments do not fit.
        """
        unit, inputs = self._unit_for(args, kwargs)
        with torch.no_grad():
            return first_wrong_pass(unit.graph, inputs, self._options, unit.lookup)

    def _get_name(self) -> str:
        return f"Program[{self.unit.captured.name}]"

    def extra_repr(self) -> str:
        """The signature of a call, unless all arguments are positional."""
        signature = self.unit.signature
        return f"called with {signature.spelling}" if signature.kwargs.keys else ""

    def _repr_html_(self) -> str:
        return text_box(f"Program {self.unit.captured.name}", str(self.graph))

    # --- saving

    def save(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        *,
        extra_files: Mapping[str, bytes] | None = None,
        targets: Sequence[str] | None = None,
        sizes: Sequence[Wanted] | None = None,
    ) -> None:
        """Write the program to a file, or a buffer, that `smelt.load` reads without its source: an ingot.

        extra_files: files to go with it, by name. targets: what native code is made for, of "avx512", "avx2" and
        "neon"; all by default, whatever this machine is. sizes: of a program with free sizes, those to make native
        code for, by name, each a number or a `range`; by default those that it was captured with, and all within the
        ranges of its capture where these are 1024 or fewer. The file appears under its name when it is whole.
        Raises: PackageError (S0702) where something of the program has no form in a file.
        """
        saving.save({"forward": self.to_be_saved()}, target, extra_files or {}, targets, sizes)

    def to_be_saved(self) -> saving.Saved:
        """What of it goes into an ingot: the capture for the present setting, with the module's state."""
        module = self._source if isinstance(self._source, torch.nn.Module) else None
        return saving.Saved(self.unit, module, self._options)

    # --- running

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """As of any module, also with an argument called `self`, which torch's own does not take by name."""
        return super().__call__(*args, **(renamed(kwargs, "self", SELF) if "self" in kwargs else kwargs))

    def forward(self, /, *args: Any, **kwargs: Any) -> Any:
        """The program's result.

        Raises: CaptureError (S0107) if the arguments do not fit the capture; (S0101, S0102) if the program holds for
            the recorded path only, and these lead to another: then nothing has happened.
        """
        if SELF in kwargs:
            kwargs = renamed(kwargs, SELF, "self")
        if is_capturing():
            return self._inlined(args, kwargs)
        unit = self._known_unit(args, kwargs)
        if unit is None:
            unit, inputs = self._found(args, kwargs)
            if unit is None or not self._state_is_as_captured(unit):
                try:
                    return self._capture(args, kwargs).captured.result
                except KeptCast as kept:
                    return kept.result
            if self._needs_grad(unit, inputs) or self.native_failure is not None or _overlap(unit, inputs):
                return self._by_op(unit, inputs, args, kwargs)
            self._known = KnownCall.of(unit, self._setting(), inputs, args, kwargs)
        before = pieces_written()
        try:
            self._freshen(unit)
            return unit.run(args, kwargs)
        except LeftAlone:
            return self._by_op(unit, unit.signature.flatten(args, kwargs), args, kwargs)
        except Undelivered as undelivered:
            raise undelivered.error from None
        except Miss:
            # Either the call takes another way, which raises, or only rounding decides.
            with muted_again(pieces_since(before)):
                return self._by_op(unit, unit.signature.flatten(args, kwargs), args, kwargs)
        except SmeltError as error:
            if self._options.strict:
                raise
            failure = error.reason
        except Exception:
            if not unit.repeats_errors:
                raise
            failure = None  # the program's own error, after whatever the program does before it
        # Where it is the data's fault (an index out of range), this raises as eager does, and the next call is native.
        with muted_again(pieces_since(before)):
            result = self._up_to_its_error(unit, args, kwargs)
        if failure is not None:
            self.native_failure = failure
            _warn(f"{unit.captured.name} runs operation by operation: {failure}")
        return result

    def _known_unit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Unit | None:
        """The unit of the last native call, if this one is like it and runs natively, too."""
        known = self._known
        if known is None or self.native_failure is not None:
            return None
        if not known.fits(self._setting(), args, kwargs) or not self._state_is_as_captured(known.unit):
            return None
        return None if self._needs_grad(known.unit, (), known.requiring) else known.unit

    def train(self, mode: bool = True) -> Program:
        """As of any module; the source's own flag follows."""
        super().train(mode)
        if isinstance(self._source, torch.nn.Module):
            self._source.training = mode
        return self

    @property
    def units(self) -> tuple[Unit, ...]:
        """What was captured, one for each setting and types of inputs that was called."""
        return tuple(self._units.values())

    @property
    def unit(self) -> Unit:
        """What was captured first for the present setting (the first of all where there is none yet)."""
        setting = self._setting()
        return next((unit for key, unit in self._units.items() if key[0] == setting), self.units[0])

    def _add(self, captured: Captured, training: tuple[bool, ...] | None = None) -> Unit:
        """training: the flags that it was captured under, where they are not the present ones."""
        unit = unit_of(captured, self._options, captured.state.current)
        unit.on_constants(_holder(weakref.ref(self), id(unit)))
        self._known = None
        self._modules_of = SourceModules(self._source, captured.roots, self._modules_of)
        setting = self._setting()._replace(autocast=captured.autocast, dtype=captured.default_dtype)
        if self._asks_modes:
            setting = setting._replace(modes=(captured.caller.grad, captured.caller.inference))
        if training is not None:
            setting = setting._replace(training=training)
        self._keep_only(setting)
        types = tuple(value.type for value in unit.graph.inputs)
        key = setting, unit.signature.same, types, tuple(map(str, unit.checks))
        if key not in self._units and len(self._units) >= CAPTURE_LIMIT:
            self._held.pop(id(self._units.pop(next(iter(self._units)))), None)
        self._units[key] = unit
        return unit

    def _keep_only(self, setting: Setting) -> None:
        """Let go of what was captured of other modules than these, or with other members or hooks on them."""
        for key in [key for key in self._units if key[0].of_modules != setting.of_modules]:
            self._held.pop(id(self._units.pop(key)), None)
        self._of = self._modules_of.all()

    def _capture(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Unit:
        try:
            captured = capture(self._source, args, kwargs, specialize=True)
        except Exception as error:
            other = self._of_another_dtype(args, kwargs, error)
            if other is None:
                raise
            raise other from error
        if captured.error is not None:
            if isinstance(captured.error, KeptCast):
                captured.error.result = captured.result
            raise captured.error
        if self._free:
            return self._add(sized_capture(captured, self._source, args, kwargs, self._free, is_first=False))
        if (captured.conversions or self.unit.prints) and not self.unit.is_path:
            staged = staged_capture(captured, self._source, args, kwargs)
            captured = captured if staged.error is not None else staged
        return self._add(captured)

    def _of_another_dtype(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
    ) -> CaptureError | None:
        """What an error of the program comes from where an argument has not the element type it was captured with."""
        unit = self.unit
        for value, tensor, place in zip(
            unit.graph.inputs, unit.signature.flatten(args, kwargs), unit.signature.inputs, strict=True
        ):
            if isinstance(tensor, torch.Tensor) and isinstance(value.type, TensorType):
                was = dtype_to_torch(value.type.dtype)
                if tensor.dtype != was:
                    return CaptureError(
                        f"{place} is of {tensor.dtype}, the program was captured for {was}",
                        why=f"a capture for {tensor.dtype} was tried and the program failed: {error}",
                        fix=f"pass {place}.to({was}), or the whole program in {tensor.dtype}: capture it again from a "
                        f"model and arguments of that type",
                        code="S0107",
                    )
        return None

    def _found(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Unit | None, list[Any]]:
        """The capture that holds for a call, if there is one, and the call's inputs. Raises: as `_flatten`."""
        inputs, setting = self._flatten(args, kwargs), self._setting()
        same = self.unit.signature.same
        first: dict[int, int] = {}
        which = [first.setdefault(id(x), i) if isinstance(x, torch.Tensor) else i for i, x in enumerate(inputs)]
        if len(distinct := sorted(set(which))) < len(inputs):
            # Python may ask whether one is another.
            same = tuple(distinct.index(which[i]) for i in same)
            inputs = [inputs[i] for i in distinct]
        if not self._free:
            return self._units.get((setting, same, tuple(type_of(tensor) for tensor in inputs), ())), inputs
        units = (u for key, u in self._units.items() if key[:2] == (setting, same) and isinstance(u, SizedUnit))
        return next((unit for unit in units if unit.takes(inputs)), None), inputs

    def _flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The inputs of a call. Raises: CaptureError (S0107) for another structure or other sizes."""
        unit = self.unit
        inputs: list[Any] = unit.signature.flatten(args, kwargs)
        unit.check_sizes(inputs)
        return inputs

    def _unit_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Unit, list[Any]]:
        """The capture for these arguments, made now (which runs the program once) where there is none yet."""
        unit, inputs = self._found(args, kwargs)
        if unit is None or not self._state_is_as_captured(unit):
            unit = self._capture(args, kwargs)
        return unit, inputs

    def _inlined(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Inside another capture: operation by operation, so that the outer program records what this one does."""
        unit, inputs = self._found(args, kwargs)
        # What is printed, and warned of, is recorded of the program's own lines alone.
        if unit is None or not self._state_is_as_captured(unit) or unit.prints:
            return self._source(*args, **kwargs)
        return self._by_op(unit, inputs, args, kwargs)

    def _freshen(self, unit: Unit) -> None:
        """Have the unit compiled, from the present contents of what is packed and folded in it."""
        held = self._held.get(id(unit))
        last, now = self._cast_in.get(id(unit), -1), cleared.times if unit.kept_casts and keeps_casts() else -1
        if held is not None and (held.unchanged() or (last == now >= 0 and _is_as_kept(unit, held))):
            self._cast_in[id(unit)] = now
            return
        if now >= 0:
            cleared.count()
        self._cast_in[id(unit)] = now
        before = Constants(unit.state)
        if held is not None:
            unit.refresh()
        unit.finish()
        held = self._held[id(unit)] = Constants(unit.constants)
        constants = {id(tensor) for tensor in unit.constants}
        if any(id(before.tensors[i]) in constants for i in before.changed()):
            del self._held[id(unit)]  # written while it was packed: packed again at the next call

    def hold_more(self, unit_id: int) -> bool:
        """A further plan of a unit has more of the state baked in; whether the state baked in before is unchanged."""
        unit = next((unit for unit in self.units if id(unit) == unit_id), None)
        held = self._held.get(unit_id)
        if unit is None or held is None:
            return True  # all of it is held when the unit has been finished
        self._held[unit_id] = Constants(unit.constants)
        if held.changed():
            del self._held[unit_id]
            return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        own = {
            "_source",
            "_options",
            "_free",
            "_units",
            "_held",
            "_cast_in",
            "_known",
            "_of",
            "_modules_of",
            "_asks_modes",
            "native_failure",
            "training",
            *_SHARED,
        }
        extra = {name: value for name, value in self.__dict__.items() if name not in own}
        saved = save(self._source, {flags: unit.captured for flags, unit in self._units.items()})
        return (_restore, (self._source, self._options, saved, extra, self._free))

    def _setting(self) -> Setting:
        now = self._modules_of.now()
        modes = (is_grad_enabled(), is_inference()) if self._asks_modes else ()
        return Setting(now.training, autocast(), default_dtype(), now.modules, now.hooks, now.look, modes)

    def _by_op(self, unit: Unit, inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        # The raw graph has the program's own in-place operations and views, so gradients, aliases and other dtypes come
        # out as in eager.
        assert unit.captured.graph is not None
        if computes_gradients(unit.captured.graph):
            return self._source(*args, **kwargs)  # of fake histories, and of none, autograd gives no gradients
        if unit.captured.reruns:
            # An operator that raises would have written by then what the program writes once more.
            return self._source(*args, **kwargs)
        unit.check_outcomes(inputs)
        if unit.captured.own_backward and self._needs_grad(unit, inputs):
            # Its gradient is what its author wrote, which no operator of the graph has.
            return self._source(*args, **kwargs)
        outputs = evaluate(unit.captured.graph, inputs, unit.lookup, as_written=True)
        return unit.signature.rebuild(outputs, args, kwargs)

    def _up_to_its_error(self, unit: Unit, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        inputs = unit.signature.flatten(args, kwargs)
        # A way that ends in a `raise` of the program's may change objects that no other way does.
        leaves_more = unit.signature.puts is not None or any(node.op == "py.raise" for node in unit.graph.walk())
        if not leaves_more or unit.captured.reruns:
            return self._by_op(unit, inputs, args, kwargs)
        # What it leaves in Python's objects is no operator of the graph: only the program has left it by then.
        unit.check_outcomes(inputs)
        return self._source(*args, **kwargs)

    def _state_is_as_captured(self, unit: Unit) -> bool:
        for kind, path, type_ in unit.places:
            try:
                tensor = unit.lookup(kind, path)
            except (LookupError, AttributeError):
                entry = unit.captured.state.entries[kind, path]
                if not self._modules_of.is_elsewhere(entry.owner, entry.key):
                    raise _nothing_there(kind, path) from None
                return False
            if type_of(tensor) != type_ or tensor is not unit.captured.state.lookup(kind, path):
                return False
        ways = {id(entry.way): entry.way for entry in unit.captured.state.entries.values() if entry.way is not None}
        if not all(way.holds() for way in ways.values()):
            return False
        return _ties_hold(unit, self._source)

    def _needs_grad(self, unit: Unit, inputs: Sequence[Any], requiring: frozenset[str] = frozenset()) -> bool:
        """Whether a result of this call, or what it leaves behind, has a history for autograd.

        requiring: names of inputs that are known to require gradients.
        """
        is_enabled = is_grad_enabled()
        if not is_enabled and not unit.enables_grad:
            return False
        state = {(kind, path) for kind, path, _ in unit.places if requires_gradients(unit.lookup(kind, path))}
        given = requiring | requiring_inputs(unit, inputs)
        return bool(state or given) and unit.has_history(is_enabled, given, frozenset(state))

    def _named_state(self, unit: Unit) -> dict[str, torch.Tensor]:
        return dict(unit.graph.constants) | {path: unit.lookup(kind, path) for kind, path, _ in unit.places}


def _nothing_there(kind: str, path: str) -> CaptureError:
    what = {"param": "the parameter", "buffer": "the buffer"}.get(kind, "the tensor")
    return CaptureError(
        f"{path} holds no tensor any more",
        why=f"the captured program reads {what} {path}, which was deleted or set to something else, and its module "
        "has no other tensor of that name",
        fix="give it a tensor, or capture the program again; smelt.compile does so by itself",
        code="S0107",
    )


def _holder(get_program: Callable[[], Program | None], unit_id: int) -> Callable[[], bool]:
    """What a unit tells of more constants; the program is not kept alive."""

    def watch() -> bool:
        program = get_program()
        return program is None or program.hold_more(unit_id)

    return watch


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _is_as_kept(unit: Unit, held: Constants) -> bool:
    """Whether only weights have changed of which autocast keeps the casts that it made before."""
    copied = {id(tensor) for tensor in unit.kept_casts if is_kept(tensor)}
    return all(id(held.tensors[i]) in copied for i in held.changed())


def _ties_hold(unit: Unit, source: Any) -> bool:
    """Whether places that held one tensor at capture, of which the graph names the first, still hold one."""
    if not isinstance(source, torch.nn.Module):
        return True
    for (kind, _), entry in unit.captured.state.entries.items():
        if kind == "captured" or not entry.aliases:
            continue
        try:
            if any(attrgetter(path)(source) is not entry.current() for path in entry.aliases):
                return False
        except (AttributeError, LookupError):
            return False
    return True


def _overlap(unit: Unit, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether inputs and state share memory while the graph writes: then the order of reads and writes matters."""
    return unit.writes and bool(entangled(unit.graph, inputs, unit.lookup))


def _restore(
    source: Callable[..., Any],
    options: Options,
    saved: tuple[SavedCapture, ...],
    extra: Mapping[str, Any],
    free: Freedom = NO_FREEDOM,
) -> Program:
    """A program from what it was pickled or deep-copied as; what was compiled is compiled again when needed."""
    captures = load(source, saved)
    program = Program(source, next(iter(captures.values())), options, free)
    program._units = {}
    for (setting, *_), captured in captures.items():
        program._add(captured, setting.training)
    program.__dict__.update(extra)
    return program


def _warn(text: str) -> None:
    warnings.warn(text, SmeltWarning, stacklevel=3)

"""One entry point of a loaded program: from arguments to the result, natively, or by the graph's text.

Invariant: native code runs only where it fits this machine, the call's sizes and memory layouts, and the present
weights; whatever it is not for, the graph of the same file gives.
"""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.busy import recordings
from smelt.diag import CaptureError, Miss, SmeltError, SmeltWarning, user_level
from smelt.diag.collector import full_collections_later
from smelt.runtime import ingot
from smelt.runtime.ingot import structure as structures
from smelt.runtime.ingot.free_sizes import Bounds, Sizes
from smelt.runtime.ingot.manifest import Method
from smelt.runtime.machine.elf import MACHINE_X86_64
from smelt.runtime.machine.loader import host_machine

if TYPE_CHECKING:
    from smelt.runtime.executable import Executable
    from smelt.runtime.ingot.natives import Native, Refused
    from smelt.runtime.ingot.program import LoadedProgram

_FROM_TEXT = "smelt.compiler.programs.from_text"
# The compiler is no part of what a loaded program needs: its package is imported where a graph is asked for, gradients
# are needed, or the file has no native code for this machine.


class EntryPoint:
    """One entry point of a loaded program. May be called from any number of threads at once."""

    def __init__(self, program: LoadedProgram, name: str, method: Method) -> None:
        self._program, self.name, self.method = program, name, method
        self._number = dict(method.state)
        self._read = tuple(dict.fromkeys(method.state.values()))
        self._natives: dict[int, Native] = {}
        self._late: Any = None
        self._lock = threading.Lock()
        self.why_not = ""
        self._is_native = program._allow_native
        if not self._is_native:
            self.why_not = "allow_native is False"
        elif not self.sizes:
            self.why_not = "the file has native code for none of its sizes"

    @property
    def graph(self) -> Any:
        """The functional graph."""
        return self._by_text().graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result.

        Raises: CaptureError (S0107) where the arguments are not of the structure and types that it was saved for;
            (S0101) where it was captured for one outcome of a test on data, and the data lead to another; what the
            program itself raises.
        """
        method = self.method
        inputs = structures.flatten(method.args, method.kwargs, args, kwargs, len(method.places))
        values = self._values(inputs)
        self._check(inputs, values)
        outputs = self._outputs(inputs, values)
        for number, output in method.grads:
            self._program.tensor(number).grad = None if output is None else outputs[output].detach()
        return structures.rebuild(method.result, outputs, self._program._classes)

    def _values(self, inputs: Sequence[torch.Tensor]) -> dict[str, int]:
        """The free sizes of a call. Raises: CaptureError (S0107)."""
        free = self.method.free
        if free is None:
            return {}
        found = {}
        for symbol in free.symbols:
            tensor, place = inputs[symbol.input], self.method.places[symbol.input]
            if symbol.dim >= tensor.dim():
                raise _unfit(f"{place} has {tensor.dim()} dimensions, and size {symbol.name} is its {symbol.dim}th")
            found[symbol.name] = tensor.shape[symbol.dim]
        broken = free.refused(found)
        if broken:
            at = ", ".join(f"{name} = {size}" for name, size in found.items())
            raise _unfit(f"the program was saved for {broken}, and here {at}")
        return found

    def _outputs(self, inputs: list[torch.Tensor], values: Mapping[str, int]) -> Sequence[Any]:
        needs_torch = self._needs_torch(inputs, values)
        native = None if needs_torch else self.native(tuple(values.values()))
        if native is None:
            return self._by_op(inputs, values, compiles=not needs_torch)
        generator = torch.get_rng_state() if self.method.draws else None
        try:
            return native.run(inputs, self._lookup)
        except ingot.natives.Refused as refused:
            if not native.is_clean(refused):
                raise self._torn(refused) from None
        except Miss as miss:
            raise CaptureError(
                f"the program takes another path for these data: {miss}",
                why="it was captured for one outcome of a test on data",
                fix="save a program in which the test is a branch, by smelt.script",
                code="S0101",
            ) from None
        if generator is not None:
            torch.set_rng_state(generator)
        return self._by_op(inputs, values)  # with torch's own error, where it is the data's fault

    def _torn(self, refused: Refused) -> SmeltError:
        return SmeltError(
            f"a run of {self.name} met data that native code cannot compute with, behind writes to its state",
            why=f"an index out of range, or a number beyond 64 bits ({refused})",
            fix="call p.reset(), and the program with other data",
            code="S0401",
        )

    def _lookup(self, kind: str, path: str) -> torch.Tensor:
        return self._program.tensor(self._number[kind, path])

    def _check(self, inputs: Sequence[torch.Tensor], values: Mapping[str, int]) -> None:
        for place, wanted, tensor in zip(self.method.places, self.method.inputs, inputs, strict=True):
            if tensor.dtype != wanted.dtype:
                raise _unfit(f"{place} has dtype {tensor.dtype}, the program was saved for {wanted.dtype}")
            sizes, _ = wanted.at(values)
            if tuple(tensor.shape) != sizes:
                raise _unfit(f"{place} has sizes {list(tensor.shape)}, the program was saved for {list(sizes)}")
        if self.method.modes and self.method.modes != (torch.is_grad_enabled(), torch.is_inference_mode_enabled()):
            raise _unfit("the program tests grad or inference mode, and was saved for other ones")

    def _needs_torch(self, inputs: Sequence[torch.Tensor], values: Mapping[str, int]) -> bool:
        """Whether only torch's own operators give the call's result: for gradients, devices and memory layouts."""
        if self._needs_gradients(inputs):
            return True
        if recordings():  # of a program that calls this one, maybe: what is to be recorded are operators
            return True
        for wanted, tensor in zip(self.method.inputs, inputs, strict=True):
            plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and type(tensor) in _PLAIN
            if not plain or tensor.is_neg() or tensor.is_conj() or not _has_strides(tensor, wanted.at(values)[1]):
                return True
        return self.method.writes and _overlap(inputs, [t for t in self._present() if t is not None])

    def _needs_gradients(self, inputs: Sequence[torch.Tensor]) -> bool:
        if self.method.trains or not torch.is_grad_enabled():
            return False
        return any(t.requires_grad for t in inputs) or self._requires_grad()

    def _requires_grad(self) -> bool:
        state = self._program.manifest.state
        return any(
            state[number].requires_grad if tensor is None else tensor.requires_grad
            for number, tensor in zip(self._read, self._present(), strict=True)
        )

    def _present(self) -> tuple[torch.Tensor | None, ...]:
        """The state that it reads; None for what only the file has, in panels."""
        return tuple(map(self._program.present, self._read))

    # --- natively

    @cached_property
    def _plans(self) -> tuple[Mapping[str, str], ...]:
        """By target, the entry of a plan; of free sizes several, each for its sizes."""
        free = self.method.free
        return (self.method.native,) if free is None else tuple(each.native for each in free.profiles)

    def _plans_for(self, sizes: Sizes) -> list[int]:
        """The numbers of plans that may be for these sizes, those for these alone first."""
        free = self.method.free
        if free is None:
            return [0]
        exact = [i for i, each in enumerate(free.profiles) if each.native and each.exact == sizes]
        here = set(ingot.natives.targets())
        return exact + [
            i for i, each in enumerate(free.profiles)
            if each.exact is None and each.takes(sizes) and here & each.native.keys()
        ]  # fmt: skip

    @property
    def sizes(self) -> tuple[tuple[Bounds, ...], ...]:
        """The free sizes, or bounds of these, for which the file has native code; one tuple of none where none is."""
        free = self.method.free
        return ((),) if free is None else tuple(each.sizes for each in free.profiles if each.native)

    @property
    def is_native(self) -> bool:
        """Whether it runs natively here; with free sizes, at those that the file has native code for."""
        here = set(ingot.natives.targets())
        wanted = [i for i, plans in enumerate(self._plans) if self.method.free is None or here & plans.keys()]
        if not wanted and self._is_native and any(self._plans):
            wanted = [next(i for i, plans in enumerate(self._plans) if plans)]
        return self._is_native and bool(wanted) and all(self._native_of(i) is not None for i in wanted)

    def native(self, sizes: Sizes = ()) -> Native | None:
        """Its native form over the present weights; None where there is none, and `why_not` says so."""
        for number in self._plans_for(sizes) if self._is_native else ():
            found = self._native_of(number)
            if found is None or found.takes(sizes):
                return found
        return None

    def _native_of(self, number: int) -> Native | None:
        """The native form of a plan."""
        native = self._current(number)
        if native is not None or not self._is_native:
            return native
        with self._lock:
            native = self._current(number)
            if native is not None:
                return native
            try:
                with full_collections_later():
                    native = self._built(number)
            except ingot.natives.CannotRun as why:
                self._natives, self._is_native, self.why_not = {}, False, str(why)
                text = f"{self.name}: the file's native code is not used, its graph is compiled here: {why}"
                warnings.warn(text, SmeltWarning, stacklevel=user_level())
                return None
            self._natives[number] = native
            return native

    def _current(self, number: int) -> Native | None:
        found = self._natives.get(number)
        is_current = found is not None and _same(self._present(), found.present) and found.is_current()
        return found if is_current else None

    def _built(self, number: int) -> Native:
        """Raises: CannotRun; PackageError (S0701)."""
        contents, manifest, method = self._program._contents, self._program.manifest, self.method
        if method.folded and not self._program.folded_is_as_saved():
            raise ingot.natives.CannotRun(
                "weights that are folded into the file's native code have changed since it was saved"
            )
        if manifest.abi != ingot.abi.abi():
            raise ingot.natives.CannotRun(f"its native code is of another version of Smelt, {manifest.smelt}")
        plans = self._plans[number]
        target = next((name for name in ingot.natives.targets() if name in plans and name in manifest.kernels), None)
        if target is None:
            whys = [method.why_not_native[name] for name in ingot.natives.targets() if name in method.why_not_native]
            raise ingot.natives.CannotRun(whys[0] if whys else f"the file has native code for {_listed(plans)} only")
        executor = manifest.executors.get("x86_64" if host_machine() == MACHINE_X86_64 else "aarch64")
        if executor is None:
            raise ingot.natives.CannotRun("the file has no executor for this kind of machine")
        self._check_state()
        text = ingot.natives.NativeText.read(
            contents.json(plans[target]), contents.entry(manifest.kernels[target]), method, len(manifest.state)
        )  # fmt: skip
        if manifest.torch != torch.__version__ and ingot.natives.uses_library(text.plan):
            raise ingot.natives.CannotRun(
                f"it calls functions of torch {manifest.torch}, and this is {torch.__version__}"
            )
        if changed := text.changed_operator(manifest):
            raise ingot.natives.CannotRun(f"weights follow from others by {changed}, which this torch has otherwise")
        return ingot.natives.Native(
            contents, method, text, bytes(contents.entry(executor)), self._program, self._read,
            torch.get_num_threads(),
        )  # fmt: skip

    def _check_state(self) -> None:
        """Raises: CannotRun where a tensor is not of the type that it was saved with."""
        for number, tensor in zip(self._read, self._present(), strict=True):
            if tensor is None:
                continue
            state = self._program.manifest.state[number]
            found = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device.type)
            if found != (state.placed.dtype, state.placed.sizes, state.placed.strides, "cpu"):
                raise ingot.natives.CannotRun(f"{state.path} has another type, layout or device than it was saved with")

    @property
    def executable(self) -> Executable | None:
        """What runs its plan, at the largest of its sizes where these are free."""
        native = self._native_of(0) if self.sizes and self._is_native else None
        return None if native is None else native.executable

    # --- by torch

    def _by_text(self) -> Any:
        if self._late is None:
            names = self.method.graph, self.method.as_written
            text, as_written = map(self._program._contents.text, names)
            constants = {
                path: number for (kind, path), number in self.method.state.items() if kind == "const"
            }  # fmt: skip
            make: Callable[..., Any] = importlib.import_module(_FROM_TEXT).TextProgram
            tensors = {path: self._program.tensor(number) for path, number in constants.items()}
            manifest = self._program.manifest
            self._late = make(text, as_written, tensors, self.method.options, manifest.operators, manifest.torch)
        return self._late

    def _by_op(
        self, inputs: Sequence[torch.Tensor], values: Mapping[str, int], *, compiles: bool = False
    ) -> Sequence[Any]:  # fmt: skip
        """compiles: the graph is compiled here; else torch runs it operator by operator."""
        needs_grad = self._needs_gradients(inputs)
        if self.method.has_no_gradient and needs_grad:
            raise CaptureError(
                f"{self.name} has no gradient of its own",
                why=self.method.has_no_gradient,
                fix="call it under torch.no_grad(), or train the program that it was saved from",
                code="S0107",
            )
        with torch.no_grad() if self.method.trains else nullcontext():
            text = self._by_text().at(values)
            found: Sequence[Any] = text.run(inputs, self._lookup, native=compiles)
        return found


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _listed(names: Any) -> str:
    return ", ".join(names) or "no machine"


def _same(now: Sequence[torch.Tensor | None], before: Sequence[torch.Tensor | None]) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _has_strides(tensor: torch.Tensor, strides: tuple[int, ...] | None) -> bool:
    """Whether a tensor lies in memory as planned; steps along dimensions of size 1 may be any."""
    if strides is None:
        return tensor.is_contiguous()
    if not tensor.numel():
        return True
    return all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))


def _overlap(inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> bool:
    """Whether an input shares memory with another one, or with the program's state."""
    taken = sorted((*_extent(tensor), is_input) for is_input, group in ((1, inputs), (0, state)) for tensor in group)
    end, end_of_input = 0, 0
    for start, stop, is_input in taken:
        if start < (end if is_input else end_of_input):
            return True
        end = max(end, stop)
        end_of_input = max(end_of_input, stop * is_input)
    return False


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """From its first byte to past its last."""
    if not tensor.numel():
        return 0, 0
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + span * tensor.itemsize


def _unfit(what: str) -> CaptureError:
    return CaptureError(
        what,
        why="the saved graph holds for the types and sizes that it was captured with",
        fix="pass such tensors, or save the program for these",
        code="S0107",
    )

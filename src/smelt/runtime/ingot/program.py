"""A program that was loaded from an ingot: an nn.Module with the saved state, and the saved entry points.

Invariant: a call gives what the saved program gave. It runs natively where native code of the file fits this machine
and the call needs no gradients, and operator by operator else, by the graph of the same file.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from smelt._torch.busy import recordings
from smelt.diag import CaptureError, Miss, PackageError, SmeltError, SmeltWarning, user_level
from smelt.diag.collector import full_collections_later
from smelt.runtime.elf import MACHINE_X86_64
from smelt.runtime.executable import Executable
from smelt.runtime.guard_constants import Constants
from smelt.runtime.ingot import structure as structures
from smelt.runtime.ingot.abi import abi
from smelt.runtime.ingot.archive import Pieces, replace_file, write_archive
from smelt.runtime.ingot.contents import Contents
from smelt.runtime.ingot.errors import unsaved
from smelt.runtime.ingot.manifest import EXTRA, NAME, WEIGHTS, Digest, Manifest, Method, State
from smelt.runtime.ingot.natives import CannotRun, Native, NativeText, Refused, targets, uses_library
from smelt.runtime.ingot.structure import Classes
from smelt.runtime.ingot.tensors import raw
from smelt.runtime.loader import host_machine

_FROM_TEXT = "smelt.compiler.from_text"
# The compiler is no part of what a loaded program needs: its package is imported where a graph is asked for, gradients
# are needed, or the file has no native code for this machine.


class Part(torch.nn.Module):
    """A module of the saved program: its parameters, its buffers, and the modules in it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: PackageError (S0701): only the whole program was saved."""
        raise PackageError(
            "a part of a loaded program cannot be called",
            why="the file has the program as one graph for each entry point, and of its modules the weights only",
            fix="call the program, or save the part by itself",
            code="S0701",
        )


class LoadedProgram(Part):
    """A program out of a file. `p(*args)` calls its entry point "forward", `p.name(*args)` the one of that name.

    Its parameters and buffers are those of the module that was saved, under the same names.
    """

    def __init__(self, contents: Contents, *, allow_native: bool = True, classes: Classes | None = None) -> None:
        """Raises: PackageError (S0701)."""
        super().__init__()
        manifest = contents.manifest
        self._contents, self._allow_native = contents, allow_native
        self._classes = dict(classes or {})
        self._others: dict[int, torch.Tensor] = {}
        self._places: list[tuple[dict[str, Any], str] | None] = []
        for number, state in enumerate(manifest.state):
            self._places.append(self._put(number, state))
        self.train(manifest.is_training)
        self._folded = Constants([self.tensor(number) for number in self._folded_numbers()])
        self._entries = {name: EntryPoint(self, name, method) for name, method in manifest.methods.items()}

    def _put(self, number: int, state: State) -> tuple[dict[str, Any], str] | None:
        tensor = self._contents.tensor(state.placed)
        if state.kind not in ("param", "buffer"):
            self._others[number] = tensor.requires_grad_(state.requires_grad and tensor.dtype.is_floating_point)
            return None
        module: torch.nn.Module = self
        *path, name = state.path.split(".")
        for step in path:
            # Not `add_module`: what a model calls its parts may be what a loaded program calls something else.
            module = module._modules.setdefault(step, Part())
        if state.kind == "param":
            same = self._same_parameter(number, state)
            made = torch.nn.Parameter(tensor, state.requires_grad) if same is None else same
            module._parameters[name] = made
            return module._parameters, name
        module._buffers[name] = tensor
        if not state.is_persistent:
            module._non_persistent_buffers_set.add(name)
        return module._buffers, name

    def _same_parameter(self, number: int, state: State) -> torch.nn.Parameter | None:
        """The parameter of another name that this one is tied to."""
        for other, place in zip(self._contents.manifest.state[:number], self._places[:number], strict=True):
            if place is not None and other.kind == "param" and other.placed == state.placed:
                found = place[0][place[1]]
                return found if isinstance(found, torch.nn.Parameter) else None
        return None

    # --- what it holds

    def __getattr__(self, name: str) -> Any:
        entries = self.__dict__.get("_entries", {})
        return entries[name] if name in entries else super().__getattr__(name)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its entry points."""
        return tuple(self._entries)

    def entry(self, name: str) -> EntryPoint:
        """The entry point of a name."""
        return self._entries[name]

    @property
    def extra_files(self) -> Mapping[str, bytes]:
        """The files that were saved with the program, by name."""
        return {name: bytes(self._contents.entry(EXTRA + name)) for name in self._contents.manifest.extra}

    @property
    def manifest(self) -> Manifest:
        """What the file holds."""
        return self._contents.manifest

    @property
    def graph(self) -> Any:
        """The graph of the only entry point, or of "forward"."""
        return self._main().graph

    def text(self, name: str = "forward") -> str:
        """The text of an entry point's graph: `smelt.parse` reads it."""
        return self._contents.text(self.manifest.methods[name].graph)

    @property
    def is_native(self) -> bool:
        """Whether its entry points run natively here."""
        return all(entry.native() is not None for entry in self._entries.values())

    def why_not_native(self) -> str:
        """Why an entry point does not run natively; nothing where all do."""
        return next((entry.why_not for entry in self._entries.values() if entry.native() is None), "")

    def tensor(self, number: int) -> torch.Tensor:
        """A tensor of the state."""
        place = self._places[number]
        found = self._others[number] if place is None else place[0][place[1]]
        if not isinstance(found, torch.Tensor):
            raise CaptureError(
                f"{self.manifest.state[number].path} holds no tensor any more",
                why="the program reads it",
                fix="give it a tensor, or load the file again",
                code="S0107",
            )
        return found

    def folded_is_as_saved(self) -> bool:
        """Whether the weights that are folded into native code, as far as anybody can tell, are those of the file."""
        now = [self.tensor(number) for number in self._folded_numbers()]
        return all(a is b for a, b in zip(now, self._folded.tensors, strict=True)) and self._folded.unchanged()

    def _folded_numbers(self) -> list[int]:
        return sorted({number for method in self.manifest.methods.values() for number in method.folded})

    def extra_repr(self) -> str:
        return f"entry points: {', '.join(self._entries)}"

    # --- running

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the entry point "forward", or of the only one. Raises: as `EntryPoint`."""
        return self._main()(*args, **kwargs)

    def _main(self) -> EntryPoint:
        if "forward" in self._entries:
            return self._entries["forward"]
        if len(self._entries) == 1:
            return next(iter(self._entries.values()))
        raise CaptureError(
            "the program has no entry point called forward",
            why=f"it was saved with {', '.join(self._entries)}",
            fix=f"call p.{next(iter(self._entries))}(...)",
            code="S0107",
        )

    def warmup(self) -> LoadedProgram:
        """Do now what the first calls would: load code, pack weights."""
        for entry in self._entries.values():
            entry.native()
        return self

    def reset(self) -> LoadedProgram:
        """Give the state that calls have written to the contents that were saved."""
        written = {number for method in self.manifest.methods.values() for number in method.written}
        with torch.no_grad():
            for number in sorted(written):
                self.tensor(number).copy_(self._contents.as_saved(self.manifest.state[number].placed))
        return self

    # --- saving

    def save(
        self, target: str | os.PathLike[str] | BinaryIO, *, extra_files: Mapping[str, bytes] | None = None
    ) -> None:  # fmt: skip
        """Write the program with its present weights; unchanged, it is the same file.

        extra_files: instead of those that it has. Raises: PackageError (S0702) where a weight has another type
        than it was saved with; OSError where the file cannot be written, and then an old file is unchanged.
        """
        manifest = self.manifest
        if not self.folded_is_as_saved():
            manifest = without_native(manifest, "weights that are folded into it were changed after it was made")
        entries: dict[str, Pieces] = {
            name: [self._contents.entry(name)]
            for name in manifest.entries
            if name != WEIGHTS and (extra_files is None or not name.startswith(EXTRA))
        }
        entries |= {EXTRA + name: [content] for name, content in (extra_files or {}).items()}
        entries[WEIGHTS] = self._weights()
        write_ingot(target, manifest, {name: entries[name] for name in entries if is_needed(name, manifest)})

    def _weights(self) -> Pieces:
        """The weights' entry with what the tensors hold now. Raises: PackageError (S0702)."""
        moved = []
        for number, state in enumerate(self.manifest.state):
            tensor, over = self.tensor(number), self._contents.tensor(state.placed)
            if tensor.data_ptr() == over.data_ptr():
                continue
            if (tensor.dtype, tensor.shape, tensor.stride()) != (over.dtype, over.shape, over.stride()):
                raise unsaved(
                    f"{state.path} is {tensor.dtype} {list(tensor.shape)} now, it was loaded as {over.dtype} "
                    f"{list(over.shape)}",
                    "the graphs of the file are for the types that it was saved with",
                    "save the program that it comes from again",
                )
            moved.append((over, tensor))
        entry = self._contents.entry(WEIGHTS)
        if not moved:
            return [entry]
        copy = bytearray(entry)
        for over, tensor in moved:
            content = raw(tensor)
            at = over.data_ptr() - self._contents.address(WEIGHTS)
            copy[at : at + len(content)] = content
        return [bytes(copy)]

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedProgram:
        made = LoadedProgram(self._contents, allow_native=self._allow_native, classes=self._classes)
        with torch.no_grad():
            for number in range(len(self._places)):
                made._own(number, self.tensor(number))
            if self.folded_is_as_saved():
                made._folded = Constants([made.tensor(number) for number in self._folded_numbers()])
        memo[id(self)] = made
        return made.train(self.training)

    def _own(self, number: int, tensor: torch.Tensor) -> None:
        """Have a tensor of the state in memory of its own, with these contents."""
        place, copy = self._places[number], tensor.detach().clone()
        if place is None:
            self._others[number] = copy.requires_grad_(tensor.requires_grad)
        elif isinstance(tensor, torch.nn.Parameter):
            same = self._same_parameter(number, self.manifest.state[number])
            place[0][place[1]] = torch.nn.Parameter(copy, tensor.requires_grad) if same is None else same
        else:
            place[0][place[1]] = copy

    def __reduce__(self) -> tuple[Any, ...]:
        raise PackageError(
            "a loaded program cannot be pickled",
            why="the ingot is its form in a file: without code, and checked when it is read",
            fix="call p.save(path) and smelt.load(path)",
            code="S0702",
        )


class EntryPoint:
    """One entry point of a loaded program. May be called from any number of threads at once."""

    def __init__(self, program: LoadedProgram, name: str, method: Method) -> None:
        self._program, self.name, self.method = program, name, method
        self._number = dict(method.state)
        self._read = tuple(dict.fromkeys(method.state.values()))
        self._native: Native | None = None
        self._tensors: tuple[torch.Tensor, ...] = ()
        self._late: Any = None
        self._lock = threading.Lock()
        self.why_not = ""
        self._is_native = program._allow_native
        if not self._is_native:
            self.why_not = "allow_native is False"

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
        self._check(inputs)
        outputs = self._outputs(inputs)
        return structures.rebuild(method.result, outputs, self._program._classes)

    def _outputs(self, inputs: list[torch.Tensor]) -> Sequence[Any]:
        native = None if self._needs_torch(inputs) else self.native()
        if native is None:
            return self._by_op(inputs)
        generator = torch.get_rng_state() if self.method.draws else None
        try:
            return native.run(inputs, self._lookup)
        except Refused as refused:
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
        return self._by_op(inputs)  # with torch's own error, where it is the data's fault

    def _torn(self, refused: Refused) -> SmeltError:
        return SmeltError(
            f"a run of {self.name} met data that native code cannot compute with, behind writes to its state",
            why=f"an index out of range, or a number beyond 64 bits ({refused})",
            fix="call p.reset(), and the program with other data",
            code="S0401",
        )

    def _lookup(self, kind: str, path: str) -> torch.Tensor:
        return self._program.tensor(self._number[kind, path])

    def _check(self, inputs: Sequence[torch.Tensor]) -> None:
        for place, wanted, tensor in zip(self.method.places, self.method.inputs, inputs, strict=True):
            if tensor.dtype != wanted.dtype:
                raise _unfit(f"{place} has dtype {tensor.dtype}, the program was saved for {wanted.dtype}")
            if tuple(tensor.shape) != wanted.sizes:
                raise _unfit(f"{place} has sizes {list(tensor.shape)}, the program was saved for {list(wanted.sizes)}")
        if self.method.modes and self.method.modes != (torch.is_grad_enabled(), torch.is_inference_mode_enabled()):
            raise _unfit("the program tests grad or inference mode, and was saved for other ones")

    def _needs_torch(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether only torch's own operators give the call's result: for gradients, devices and memory layouts."""
        if torch.is_grad_enabled() and (any(t.requires_grad for t in inputs) or self._requires_grad()):
            return True
        if recordings():  # of a program that calls this one, maybe: what is to be recorded are operators
            return True
        for wanted, tensor in zip(self.method.inputs, inputs, strict=True):
            plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and type(tensor) in _PLAIN
            if not plain or tensor.is_neg() or tensor.is_conj() or not _has_strides(tensor, wanted.strides):
                return True
        return self.method.writes and _overlap(inputs, [self._program.tensor(i) for i in self._read])

    def _requires_grad(self) -> bool:
        return any(self._program.tensor(number).requires_grad for number in self._read)

    # --- natively

    def native(self) -> Native | None:
        """Its native form over the present weights; None where there is none, and `why_not` says so."""
        if not self._is_native:
            return None
        tensors = tuple(map(self._program.tensor, self._read))
        native = self._native
        if native is not None and _same(tensors, self._tensors) and native.is_current():
            return native
        with self._lock:
            if self._native is not None and _same(tensors, self._tensors) and self._native.is_current():
                return self._native
            try:
                with full_collections_later():
                    self._native = self._built()
            except CannotRun as why:
                self._native, self._is_native, self.why_not = None, False, str(why)
                text = f"{self.name}: the file's native code is not used, its graph is compiled here: {why}"
                warnings.warn(text, SmeltWarning, stacklevel=user_level())
                return None
            self._tensors = tensors
            return self._native

    def _built(self) -> Native:
        """Raises: CannotRun; PackageError (S0701)."""
        contents, manifest, method = self._program._contents, self._program.manifest, self.method
        if method.folded and not self._program.folded_is_as_saved():
            raise CannotRun("weights that are folded into the file's native code have changed since it was saved")
        if manifest.abi != abi():
            raise CannotRun(f"its native code is of another version of Smelt, {manifest.smelt}")
        target = next((name for name in targets() if name in method.native and name in manifest.kernels), None)
        if target is None:
            whys = [method.why_not_native[name] for name in targets() if name in method.why_not_native]
            raise CannotRun(whys[0] if whys else f"the file has native code for {_listed(method.native)} only")
        executor = manifest.executors.get("x86_64" if host_machine() == MACHINE_X86_64 else "aarch64")
        if executor is None:
            raise CannotRun("the file has no executor for this kind of machine")
        tensors = [self._program.tensor(number) for number in range(len(manifest.state))]
        self._check_state(tensors)
        text = NativeText.read(
            contents.json(method.native[target]), contents.entry(manifest.kernels[target]), method, len(tensors)
        )  # fmt: skip
        if manifest.torch != torch.__version__ and uses_library(text.plan):
            raise CannotRun(f"it calls functions of torch {manifest.torch}, and this is {torch.__version__}")
        return Native(
            contents, method, text, bytes(contents.entry(executor)), tensors, torch.get_num_threads()
        )  # fmt: skip

    def _check_state(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raises: CannotRun where a tensor is not of the type that it was saved with."""
        for number in self._read:
            tensor, state = tensors[number], self._program.manifest.state[number]
            found = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device.type)
            if found != (state.placed.dtype, state.placed.sizes, state.placed.strides, "cpu"):
                raise CannotRun(f"{state.path} has another type, layout or device than it was saved with")

    @property
    def executable(self) -> Executable | None:
        """What runs its plan."""
        native = self.native()
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
            self._late = make(text, as_written, tensors, self.method.options)
        return self._late

    def _by_op(self, inputs: Sequence[torch.Tensor]) -> Sequence[Any]:
        needs_grad = torch.is_grad_enabled() and (any(t.requires_grad for t in inputs) or self._requires_grad())
        if self.method.has_no_gradient and needs_grad:
            raise CaptureError(
                f"{self.name} has no gradient of its own",
                why=self.method.has_no_gradient,
                fix="call it under torch.no_grad(), or train the program that it was saved from",
                code="S0107",
            )
        found: Sequence[Any] = self._by_text().run(
            inputs, self._lookup, native=not (needs_grad or self._is_native or recordings())
        )
        return found


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _listed(names: Any) -> str:
    return ", ".join(names) or "no machine"


def _same(now: Sequence[torch.Tensor], before: Sequence[torch.Tensor]) -> bool:
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


def without_native(manifest: Manifest, why: str) -> Manifest:
    """The same without native code."""
    methods = {
        name: replace(method, native={}, why_not_native=dict.fromkeys(method.native, why))
        for name, method in manifest.methods.items()
    }
    return replace(manifest, methods=methods, kernels={}, executors={})


def is_needed(name: str, manifest: Manifest) -> bool:
    """Whether an entry is named by what a manifest says."""
    named = {*manifest.executors.values(), *manifest.kernels.values()}
    for method in manifest.methods.values():
        named |= {method.graph, method.as_written, *method.native.values()}
    return name in named or name == WEIGHTS or name.startswith(EXTRA)


def write_ingot(
    target: str | os.PathLike[str] | BinaryIO, manifest: Manifest, entries: Mapping[str, Pieces]
) -> None:  # fmt: skip
    """Write entries and the manifest that lists them."""
    digests = {name: _digest(entries[name]) for name in sorted(entries)}
    listed = replace(manifest, entries=digests)
    # The weights last: what is read first stands together.
    order = sorted(entries, key=lambda name: (name == WEIGHTS, name))
    all_entries = [(NAME, [listed.text()]), *((name, entries[name]) for name in order)]
    if isinstance(target, (str, os.PathLike)):
        replace_file(Path(target), all_entries)
    else:
        write_archive(target, all_entries)


def _digest(pieces: Pieces) -> Digest:
    sha = hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    return Digest(sum(len(piece) for piece in pieces), sha.hexdigest())

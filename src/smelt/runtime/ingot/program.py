"""A program that was loaded from an ingot: an nn.Module with the saved state, and the saved entry points.

Invariant: a call gives what the saved program gave. It runs natively where native code of the file fits this machine
and the call needs no gradients, and operator by operator else, by the graph of the same file.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from smelt.diag import CaptureError, PackageError
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.ingot.archive import Pieces, replace_file, write_archive
from smelt.runtime.ingot.contents import Contents, stored_as
from smelt.runtime.ingot.entry_point import EntryPoint
from smelt.runtime.ingot.errors import unsaved
from smelt.runtime.ingot.late_parameters import LateParameters
from smelt.runtime.ingot.manifest import EXTRA, NAME, PROGRAM, WEIGHTS, Digest, InPanels, Manifest, Placed, State
from smelt.runtime.ingot.packed import Packed, packed
from smelt.runtime.ingot.panels import put_matrix
from smelt.runtime.ingot.structure import Classes
from smelt.runtime.ingot.tensors import raw


class Part(torch.nn.Module):
    """A module of the saved program: its parameters, its buffers, and the modules in it."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_parameters"] = LateParameters()

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
        self._tied = _tied(manifest.state)
        self._unpacked: dict[int, torch.nn.Parameter] = {}
        self._as_unpacked: dict[int, Constants] = {}
        self._lock = threading.Lock()
        self._places: list[tuple[dict[str, Any], str] | None] = []
        for number, state in enumerate(manifest.state):
            self._places.append(self._put(number, state))
        self.train(manifest.is_training)
        self._folded = Constants([self.tensor(number) for number in self._folded_numbers()])
        self._entries = {name: EntryPoint(self, name, method) for name, method in manifest.methods.items()}

    def _put(self, number: int, state: State) -> tuple[dict[str, Any], str] | None:
        if state.panels is not None:
            return self._put_late(number, state)
        tensor = self._contents.tensor(state.placed)
        if state.kind not in ("param", "buffer"):
            self._others[number] = tensor.requires_grad_(state.requires_grad and tensor.dtype.is_floating_point)
            return None
        module, name = self._module_of(state)
        if state.kind == "param":
            same = self._same_parameter(number)
            made = torch.nn.Parameter(tensor, state.requires_grad) if same is None else same
            module._parameters[name] = made
            return module._parameters, name
        module._buffers[name] = tensor
        if not state.is_persistent:
            module._non_persistent_buffers_set.add(name)
        return module._buffers, name

    def _module_of(self, state: State) -> tuple[torch.nn.Module, str]:
        """The module that holds a tensor of the state, and its name there."""
        module: torch.nn.Module = self
        *path, name = state.path.split(".")
        for step in path:
            # Not `add_module`: what a model calls its parts may be what a loaded program calls something else.
            inner = module._modules.get(step)
            if inner is None:
                inner = module._modules[step] = Part()
            module = inner
        return module, name

    def _put_late(self, number: int, state: State) -> tuple[dict[str, Any], str]:
        """A parameter that the file has in panels: a matrix of its own is made for who asks for it."""
        module, name = self._module_of(state)
        assert isinstance(module._parameters, LateParameters)
        module._parameters.put_late(name, lambda: self._read_late(number))
        return module._parameters, name

    def _read_late(self, number: int) -> torch.nn.Parameter:
        """The parameter, of all names that are tied."""
        first = self._tied.get(number, number)
        with self._lock:
            found = self._unpacked.get(first)
            if found is None:
                state = self.manifest.state[first]
                with torch.inference_mode(False), torch.no_grad():
                    found = torch.nn.Parameter(self._contents.state(state), state.requires_grad)
                self._unpacked[first], self._as_unpacked[first] = found, Constants([found])
            return found

    def present(self, number: int) -> torch.Tensor | None:
        """A tensor of the state; None where the file has it in panels, and nobody has read another form of it."""
        place = self._places[number]
        if place is not None and isinstance(place[0], LateParameters) and place[0].is_late(place[1]):
            return None
        return self.tensor(number)

    def is_as_in_panels(self, number: int) -> bool:
        """Whether a tensor of the state, as far as anybody can tell, is what the file has in panels."""
        now = self.present(number)
        if now is None:
            return True
        known = self._as_unpacked.get(self._tied.get(number, number))
        return known is not None and known.tensors[0] is now and known.unchanged()

    def _same_parameter(self, number: int) -> torch.nn.Parameter | None:
        """The parameter of another name, before it, that this one is tied to."""
        place = self._places[self._tied[number]] if number in self._tied else None
        found = None if place is None else place[0][place[1]]
        return found if isinstance(found, torch.nn.Parameter) else None

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
        return all(entry.is_native for entry in self._entries.values())

    def why_not_native(self) -> str:
        """Why an entry point does not run natively; nothing where all do."""
        return next((entry.why_not for entry in self._entries.values() if not entry.is_native), "")

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

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors that calls read or write, with the names that the program had for them.

        Its parameters and buffers, and what it found elsewhere: an optimizer's averages, say. Writing to one in place
        (`copy_`) changes what the next call begins with.
        """
        for number, state in enumerate(self.manifest.state):
            if state.kind != "const":
                yield state.path, self.tensor(number)

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
            _ = entry.is_native
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
        entries: dict[str, Pieces | Packed] = {}
        for name in manifest.entries:
            if name not in (WEIGHTS, PROGRAM) and (extra_files is None or not name.startswith(EXTRA)):
                found = self._contents.in_file(name)
                entries[name] = found if isinstance(found, Packed) else [found]
        entries |= {EXTRA + name: [content] for name, content in (extra_files or {}).items()}
        entries[WEIGHTS] = self._weights()
        entries = {name: entries[name] for name in entries if is_needed(name, manifest)}
        # As it is in the file where it says the same: another zlib would pack it into other bytes.
        program = manifest.program()
        if PROGRAM in manifest.entries and program == self._contents.entry(PROGRAM):
            found = self._contents.in_file(PROGRAM)
            entries[PROGRAM] = found if isinstance(found, Packed) else [found]
        write_ingot(target, manifest, entries)

    def _weights(self) -> Pieces:
        """The weights' entry with what the tensors hold now. Raises: PackageError (S0702)."""
        moved = []
        for number, state in enumerate(self.manifest.state):
            if state.panels is not None:
                continue
            tensor, over = self.tensor(number), self._contents.tensor(state.placed)
            if tensor.data_ptr() == over.data_ptr():
                continue
            _check_type(state, tensor)
            moved.append((over, tensor))
        packed = self._changed_in_panels()
        entry = self._contents.entry(WEIGHTS)
        if not moved and not packed:
            return [entry]
        copy = bytearray(entry)
        for over, tensor in moved:
            content = raw(tensor)
            at = over.data_ptr() - self._contents.address(WEIGHTS)
            copy[at : at + len(content)] = content
        for state, tensor in packed:
            over = self._contents.tensor(stored_as(state))
            at = over.data_ptr() - self._contents.address(WEIGHTS)
            assert state.panels is not None
            panels = torch.frombuffer(copy, dtype=over.dtype, count=over.numel(), offset=at)
            put_matrix(panels, state.panels, tensor.detach())
        return [bytes(copy)]

    def _changed_in_panels(self) -> list[tuple[State, torch.Tensor]]:
        """What the file has in panels and is not as it was. Raises: PackageError (S0702)."""
        found = []
        for number, state in enumerate(self.manifest.state):
            tensor = None if state.panels is None else self.present(number)
            if tensor is None:
                continue
            _check_type(state, tensor)
            if not torch.equal(_bits(tensor), _bits(self._contents.state(state))):
                found.append((state, tensor))
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> LoadedProgram:
        made = LoadedProgram(self._contents, allow_native=self._allow_native, classes=self._classes)
        with torch.no_grad():
            for number in range(len(self._places)):
                present = self.present(number)
                if present is not None:
                    made._own(number, present)
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
            same = self._same_parameter(number)
            made = torch.nn.Parameter(copy, tensor.requires_grad) if same is None else same
            place[0][place[1]] = self._unpacked[self._tied.get(number, number)] = made
        else:
            place[0][place[1]] = copy

    def __reduce__(self) -> tuple[Any, ...]:
        raise PackageError(
            "a loaded program cannot be pickled",
            why="the ingot is its form in a file: without code, and checked when it is read",
            fix="call p.save(path) and smelt.load(path)",
            code="S0702",
        )


def _check_type(state: State, tensor: torch.Tensor) -> None:
    """Raises: PackageError (S0702)."""
    placed = state.placed
    if (tensor.dtype, tuple(tensor.shape), tensor.stride()) != (placed.dtype, placed.sizes, placed.strides):
        raise unsaved(
            f"{state.path} is {tensor.dtype} {list(tensor.shape)} now, it was loaded as {placed.dtype} "
            f"{list(placed.sizes)}",
            "the graphs of the file are for the types that it was saved with",
            "save the program that it comes from again",
        )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().view(torch.uint8)


def _tied(states: Sequence[State]) -> dict[int, int]:
    """Of each parameter that lies over all of an earlier one, the number of the first such."""
    first: dict[tuple[Placed, InPanels | None], int] = {}
    found = {}
    for number, state in enumerate(states):
        key = state.placed, state.panels
        if state.kind == "param" and first.setdefault(key, number) != number:
            found[number] = first[key]
    return found


def without_native(manifest: Manifest, why: str) -> Manifest:
    """The same without native code."""
    methods = {
        name: replace(
            method,
            native={},
            why_not_native=dict.fromkeys(method.native, why),
            free=None if method.free is None else replace(method.free, profiles=()),
        )
        for name, method in manifest.methods.items()
    }
    return replace(manifest, methods=methods, kernels={}, executors={})


def is_needed(name: str, manifest: Manifest) -> bool:
    """Whether an entry is named by what a manifest says."""
    named = {*manifest.executors.values(), *manifest.kernels.values()}
    for method in manifest.methods.values():
        named |= method.entries
    return name in named or name == WEIGHTS or name.startswith(EXTRA)


def write_ingot(
    target: str | os.PathLike[str] | BinaryIO, manifest: Manifest, entries: Mapping[str, Pieces | Packed]
) -> None:  # fmt: skip
    """Write entries and the manifest that lists them. Those that are packed are written so."""
    if PROGRAM not in entries:
        program = manifest.program()
        entries = {**entries, PROGRAM: packed(program) or [program]}
    digests = {name: _digest(entries[name]) for name in sorted(entries)}
    listed = replace(manifest, entries=digests)
    # The weights last: what is read first stands together.
    order = sorted(entries, key=lambda name: (name == WEIGHTS, name))
    named = ((digests[name].in_archive(name), _pieces(entries[name])) for name in order)
    all_entries = [(NAME, [listed.head()]), *named]
    if isinstance(target, (str, os.PathLike)):
        replace_file(Path(target), all_entries)
    else:
        write_archive(target, all_entries)


def _pieces(entry: Pieces | Packed) -> Pieces:
    return [entry.data] if isinstance(entry, Packed) else entry


def _digest(entry: Pieces | Packed) -> Digest:
    pieces, sha = _pieces(entry), hashlib.sha256()
    for piece in pieces:
        sha.update(piece)
    unpacked = entry.nbytes if isinstance(entry, Packed) else None
    return Digest(sum(len(piece) for piece in pieces), sha.hexdigest(), unpacked)

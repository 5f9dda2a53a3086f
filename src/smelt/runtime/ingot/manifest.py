"""The manifest of an ingot: what the file holds, checked before anything of it is used.

    manifest.json     format, versions, size and digest of each other entry
    program.json      state, entry points, code: packed, as it has a line for each weight

Invariant: the manifest names every entry of the file with its digest, and every number in it is within the bounds of
what it counts. Writing what was read gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from smelt.diag.records import record
from smelt.runtime.ingot import structure as structures
from smelt.runtime.ingot.errors import broken, newer
from smelt.runtime.ingot.free_sizes import Expr, FreeSizes, read_expr, value_of, write_expr
from smelt.runtime.ingot.packed import SUFFIX
from smelt.runtime.ingot.structure import Mapping_, Sequence_, Structure
from smelt.runtime.ingot.tensors import dtype_name, dtype_of
from smelt.runtime.ingot.texts.json_text import Part, dumps
from smelt.runtime.ingot.upgrades import upgraded

FORMAT = 4
NAME = "manifest.json"
PROGRAM = "program.json"
WEIGHTS = "weights.safetensors"
EXTRA = "extra/"
_LOW = -(1 << 63)
_MOST_ELEMENTS = 1 << 46


@record
class Placed:
    """A tensor that lies over the memory of a stored one; `offset`, in elements, from its beginning."""

    stored: str
    offset: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """How many elements there are from the first to past the last."""
        if 0 in self.sizes:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    def written(self) -> Any:
        return [self.stored, self.offset, dtype_name(self.dtype), list(self.sizes), list(self.strides)]

    @staticmethod
    def read(part: Part) -> Placed:
        stored, offset, dtype, sizes, strides = part.items(5)
        steps = strides.ints(0, _MOST_ELEMENTS)
        if len(sizes.items(len(steps))) > 64:
            raise part.bad("has too many dimensions")
        found = Placed(stored.as_str(), offset.as_int(), dtype_of(dtype), sizes.ints(0, _MOST_ELEMENTS), steps)
        if found.span > _MOST_ELEMENTS:
            raise part.bad("is larger than any memory")
        return found


@record
class InPanels:
    """Where a matrix lies in the panels that kernels read: packed[panel][row of a panel][column of a panel].

    first: of its rows (columns where `is_transposed`) among the panels' columns. columns, rows: of a panel; count: how
    many panels there are.
    """

    first: int
    count: int
    rows: int
    columns: int
    is_transposed: bool

    @property
    def nelements(self) -> int:
        """Elements of all panels."""
        return self.count * self.rows * self.columns

    def written(self) -> Any:
        return [self.first, self.count, self.rows, self.columns, self.is_transposed]

    @staticmethod
    def read(part: Part, placed: Placed) -> InPanels:
        first, count, rows, columns, is_transposed = part.items(5)
        found = InPanels(
            first.as_int(0, _MOST_ELEMENTS), count.as_int(1, _MOST_ELEMENTS), rows.as_int(1, _MOST_ELEMENTS),
            columns.as_int(1, _MOST_ELEMENTS), is_transposed.as_bool(),
        )  # fmt: skip
        if len(placed.sizes) != 2 or placed.offset or placed.strides != (placed.sizes[1], 1):
            raise part.bad("is of a tensor that is no whole matrix")
        along, across = placed.sizes[:: -1 if found.is_transposed else 1]
        if found.first + along > found.count * found.columns or across > found.rows:
            raise part.bad("does not hold the matrix")
        return found


@record
class State:
    """A tensor of the programs' state: kind is "param", "buffer", "captured" (by a closure, say), or "const".

    panels: where it lies in what is stored, if that is the form that kernels read.
    """

    kind: str
    path: str
    placed: Placed
    requires_grad: bool
    is_persistent: bool
    panels: InPanels | None = None

    def written(self) -> Any:
        panels = None if self.panels is None else self.panels.written()
        return [self.kind, self.path, self.placed.written(), self.requires_grad, self.is_persistent, panels]

    @staticmethod
    def read(part: Part) -> State:
        kind, path, placed, requires_grad, is_persistent, panels = part.items(6)
        which = kind.one_of("param", "buffer", "captured", "const")
        if which in ("param", "buffer") and not all(name not in ("", "training") for name in path.as_str().split(".")):
            raise path.bad("is no path of a parameter")
        where = Placed.read(placed)
        packed = None if panels.is_null() else InPanels.read(panels, where)
        if packed is not None and which != "param":
            raise panels.bad("is of a tensor that is no parameter")
        return State(which, path.as_str(), where, requires_grad.as_bool(), is_persistent.as_bool(), packed)


@record
class InputType:
    """What an argument must be, of free sizes by expressions; strides are None where they are those of a contiguous
    tensor.
    """

    dtype: torch.dtype
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None

    def at(self, values: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Sizes and strides for these values of symbols; -1 where there is none."""

        def number(expr: Expr) -> int:
            found = value_of(expr, values)
            return -1 if found is None else found

        return tuple(map(number, self.sizes)), None if self.strides is None else tuple(map(number, self.strides))

    def written(self) -> Any:
        strides = None if self.strides is None else list(map(write_expr, self.strides))
        return [dtype_name(self.dtype), list(map(write_expr, self.sizes)), strides]

    @staticmethod
    def read(part: Part, names: frozenset[str]) -> InputType:
        dtype, sizes, strides = part.items(3)
        steps = None if strides.is_null() else tuple(_dim(each, names) for each in strides.items())
        if steps is not None and len(steps) != len(sizes.items()):
            raise part.bad("has other sizes than strides")
        return InputType(dtype_of(dtype), tuple(_dim(each, names) for each in sizes.items()), steps)


def _dim(part: Part, names: frozenset[str]) -> Expr:
    return part.as_int(0, _MOST_ELEMENTS) if type(part.value) is int else read_expr(part, names)


@record
class Method:
    """An entry point.

    places: where each input stands among the arguments. state: (kind, path) as its graph says -> number of the state.
    written: numbers of the state that a run writes to; folded: of that whose contents the file
    holds in another form too; writes: whether it writes to anything that its caller sees.
    draws: whether it draws random numbers. trains: whether its gradients are taken within: autograd is not to record
    it. grads: (number of the state, output or None), the `grad` that a call leaves in a tensor. has_no_gradient: why
    its gradients are not those of the program. modes: grad and inference mode that it was captured under, where the
    program asks for them. options: what it is compiled with. native: by target, the entry that holds its plan;
    why_not_native: by target, why there is none. free: sizes that are free; native code is for some of them then,
    and `native` is empty.
    """

    args: Sequence_
    kwargs: Mapping_
    result: Structure
    places: tuple[str, ...]
    inputs: tuple[InputType, ...]
    state: Mapping[tuple[str, str], int]
    written: tuple[int, ...]
    folded: tuple[int, ...]
    writes: bool
    draws: bool
    trains: bool
    grads: tuple[tuple[int, int | None], ...]
    has_no_gradient: str
    modes: tuple[bool, ...]
    options: Mapping[str, Any]
    graph: str
    as_written: str
    native: Mapping[str, str]
    why_not_native: Mapping[str, str]
    free: FreeSizes | None

    @property
    def entries(self) -> set[str]:
        """The entries of the file that belong to it."""
        profiles = () if self.free is None else self.free.profiles
        plans = (entry for native in (self.native, *(each.native for each in profiles)) for entry in native.values())
        return {self.graph, self.as_written, *plans}

    @property
    def has_native(self) -> bool:
        """Whether the file has native code of it."""
        return bool(self.entries - {self.graph, self.as_written})

    def to_json(self) -> Any:
        return {
            "args": structures.write(self.args),
            "kwargs": structures.write(self.kwargs),
            "result": structures.write(self.result),
            "places": list(self.places),
            "inputs": [each.written() for each in self.inputs],
            "state": [[kind, path, number] for (kind, path), number in sorted(self.state.items())],
            "written": list(self.written),
            "folded": list(self.folded),
            "writes": self.writes,
            "draws": self.draws,
            "trains": self.trains,
            "grads": [list(grad) for grad in self.grads],
            "has_no_gradient": self.has_no_gradient,
            "modes": list(self.modes),
            "options": dict(self.options),
            "graph": self.graph,
            "as_written": self.as_written,
            "native": dict(self.native),
            "why_not_native": dict(self.why_not_native),
            "free": None if self.free is None else self.free.written(),
        }

    @staticmethod
    def read(part: Part, nstate: int) -> Method:
        (args, kwargs, result, places, inputs, state, written, folded, writes, draws, trains, grads, no_gradient, modes,
         options, graph, as_written, native, why_not, free) = part.keys(*_METHOD_KEYS)  # fmt: skip
        positional, named = structures.read(args), structures.read(kwargs)
        if not isinstance(positional, Sequence_) or not isinstance(named, Mapping_):
            raise part.bad("has arguments that are no tuple and dict")
        names = tuple(place.as_str() for place in places.items())
        sizes = None if free.is_null() else FreeSizes.read(free, len(names))
        symbols = frozenset() if sizes is None else sizes.names
        types = tuple(InputType.read(each, symbols) for each in inputs.items(len(names)))
        if sizes is not None and any(symbol.dim >= len(types[symbol.input].sizes) for symbol in sizes.symbols):
            raise free.bad("has a size of a dimension that there is not")
        taken = {*structures.leaves(positional), *structures.leaves(named)}
        if taken != set(range(len(names))):
            raise part.bad("has other inputs than its arguments hold")
        found: dict[tuple[str, str], int] = {}
        for each in state.items():
            kind, path, number = each.items(3)
            found[kind.as_str(), path.as_str()] = number.as_int(0, nstate - 1)
        return Method(
            positional, named, structures.read(result), names, types, found, written.ints(0, nstate - 1),
            folded.ints(0, nstate - 1), writes.as_bool(), draws.as_bool(), trains.as_bool(),
            tuple(_grad(grad, nstate) for grad in grads.items()), no_gradient.as_str(),
            tuple(mode.as_bool() for mode in modes.items()),
            {name: _option(value) for name, value in options.pairs()}, graph.as_str(), as_written.as_str(),
            {target: entry.as_str() for target, entry in native.pairs()},
            {target: why.as_str() for target, why in why_not.pairs()}, sizes,
        )  # fmt: skip


_METHOD_KEYS = (
    "args", "kwargs", "result", "places", "inputs", "state", "written", "folded", "writes", "draws", "trains",
    "grads", "has_no_gradient", "modes", "options", "graph", "as_written", "native", "why_not_native",
    "free",
)  # fmt: skip


def _grad(part: Part, nstate: int) -> tuple[int, int | None]:
    number, output = part.items(2)
    return number.as_int(0, nstate - 1), None if output.is_null() else output.as_int(0, 1 << 24)


def _option(part: Part) -> Any:
    if type(part.value) not in (bool, int, str):
        raise part.bad("is no value of an option")
    return part.value


@record
class Digest:
    """What an entry must be in the file, and how many bytes it has unpacked; None: it is there unpacked."""

    nbytes: int
    sha256: str
    unpacked: int | None = None

    def written(self) -> Any:
        return [self.nbytes, self.sha256, self.unpacked]

    @staticmethod
    def read(part: Part) -> Digest:
        nbytes, sha256, unpacked = part.items(3)
        return Digest(nbytes.as_int(), sha256.as_str(), None if unpacked.is_null() else unpacked.as_int())

    def in_archive(self, name: str) -> str:
        """What the archive calls the entry of this name."""
        return name if self.unpacked is None else name + SUFFIX


@record
class Head:
    """What is read of the manifest first. program: the rest of it, None where it is in an entry of its own."""

    smelt: str
    torch: str
    abi: str
    entries: Mapping[str, Digest]
    program: Part | None

    @staticmethod
    def read(part: Part) -> Head:
        """Raises: PackageError (S0701)."""
        if type(part.value) is dict and "format" in part.value:
            version = Part(part.value["format"], NAME, ".format").as_int(1)
            if version > FORMAT:
                raise newer("format", version, FORMAT)
            part = Part(upgraded(part.value, version), NAME)
        _, smelt, its_torch, abi, entries, program = part.keys("format", "smelt", "torch", "abi", "entries", "program")
        digests = {name: Digest.read(each) for name, each in entries.pairs()}
        if len({digest.in_archive(name) for name, digest in digests.items()}) < len(digests):
            raise entries.bad("has an entry twice, packed and plain")
        if WEIGHTS in digests and digests[WEIGHTS].unpacked is not None:
            raise entries.bad("has weights that are packed, where they are to be mapped")
        inside = None if program.is_null() else program
        return Head(smelt.as_str(), its_torch.as_str(), abi.as_str(), digests, inside)


@record
class Manifest:
    """What an ingot holds.

    entries: all others, by name. executors: by the kind of machine, the entry of the executor's code. kernels: by
    target, the entry that holds its kernels. is_training: the modules' own flag. operators: the schema that torch had
    for each operator of the graphs, and for those that weights follow from others by.
    """

    smelt: str
    torch: str
    abi: str
    is_training: bool
    state: tuple[State, ...]
    methods: Mapping[str, Method]
    executors: Mapping[str, str]
    kernels: Mapping[str, str]
    entries: Mapping[str, Digest]
    operators: Mapping[str, str]

    @property
    def extra(self) -> tuple[str, ...]:
        """The names of the files that the user put in."""
        return tuple(name.removeprefix(EXTRA) for name in self.entries if name.startswith(EXTRA))

    def head(self) -> bytes:
        """The manifest's entry, which lists all others."""
        return dumps(
            {
                "format": FORMAT,
                "smelt": self.smelt,
                "torch": self.torch,
                "abi": self.abi,
                "entries": {name: each.written() for name, each in self.entries.items()},
                "program": None,
            }
        )

    def program(self) -> bytes:
        """The entry that has the rest."""
        return dumps(
            {
                "is_training": self.is_training,
                "state": [each.written() for each in self.state],
                "methods": {name: method.to_json() for name, method in self.methods.items()},
                "executors": dict(self.executors),
                "kernels": dict(self.kernels),
                "operators": dict(self.operators),
            }
        )

    @staticmethod
    def read(head: Head, part: Part) -> Manifest:
        """The manifest; part: what its head leaves out. Raises: PackageError (S0701)."""
        training, state, methods, executors, kernels, operators = part.keys(
            "is_training", "state", "methods", "executors", "kernels", "operators"
        )
        tensors = tuple(map(State.read, state.items()))
        found = {name: Method.read(each, len(tensors)) for name, each in methods.pairs()}
        if not found or not all(name.isidentifier() for name in found):
            raise methods.bad("are no names of entry points")
        manifest = Manifest(
            head.smelt, head.torch, head.abi, training.as_bool(), tensors, found,
            {name: entry.as_str() for name, entry in executors.pairs()},
            {name: entry.as_str() for name, entry in kernels.pairs()},
            head.entries,
            {name: schema.as_str() for name, schema in operators.pairs()},
        )  # fmt: skip
        _check_names(manifest)
        return manifest


def _check_names(manifest: Manifest) -> None:
    """Raises: PackageError (S0701) where something is to be in an entry that there is not."""
    named = {WEIGHTS, *manifest.executors.values(), *manifest.kernels.values()}
    for method in manifest.methods.values():
        named |= method.entries
    for name in sorted(named - manifest.entries.keys()):
        raise broken(name, "the manifest refers to this entry and does not list it")
    places = [(state.kind, state.path) for state in manifest.state]
    if len(set(places)) < len(places):
        raise broken(PROGRAM, "two tensors of the state have one name")

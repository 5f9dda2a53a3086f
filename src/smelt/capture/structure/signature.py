"""How a graph's flat inputs and outputs relate to the arguments and the result of the program it came from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from smelt._torch.seen.record_patches import is_plain_tensor_type
from smelt._torch.storage import is_zero
from smelt.capture.reads.reads_arguments import ArgumentHeap
from smelt.capture.structure.puts import Puts
from smelt.capture.structure.state import STATE
from smelt.capture.structure.tree import (
    ConstantLeaf,
    Container,
    Flattener,
    Made,
    SameObject,
    Tree,
    UnfitError,
    held_keys,
    is_lazy,
    leaves,
    match,
    opened,
    parts,
    rebuild,
)
from smelt.diag import CaptureError
from smelt.diag.records import record

NAMES = ("args", "kwargs")


def _refuse(what: str, why: str, fix: str) -> CaptureError:
    return CaptureError(what, why=why, fix=fix, code="S0106")


def check_argument(value: object, path: str) -> None:
    """Raises: CaptureError (S0106) for an argument whose data the recorder cannot follow."""
    if isinstance(value, torch.Tensor):
        if not is_plain_tensor_type(type(value)):
            raise _refuse(
                f"{path} is a {type(value).__qualname__}",
                "a tensor subclass may give operators another meaning",
                "pass a plain tensor",
            )
        if value.is_nested:
            raise _refuse(
                f"{path} is a nested tensor",
                "its rows have sizes of their own, which no type of the graph tells",
                "pad the rows (torch.nn.utils.rnn.pad_sequence), or pass them in a list",
            )
        if is_zero(value):
            raise _refuse(
                f"{path} is a tensor of zeros without memory (torch._efficientzerotensor)",
                "operators give other results for it than for zeros in memory",
                "pass its clone()",
            )
    elif getattr(type(value), "__module__", "") == "numpy" and hasattr(value, "__array_interface__"):
        raise _refuse(
            f"{path} is a NumPy {type(value).__qualname__}",
            "its data would be read outside torch, where it cannot be followed",
            "pass torch.from_numpy(array)",
        )
    elif isinstance(value, (set, frozenset, deque)) and any(isinstance(item, torch.Tensor) for item in value):
        raise _refuse(
            f"{path} is a {type(value).__qualname__} of tensors",
            "its tensors have no fixed access paths",
            "pass a list, a tuple or a dict",
        )
    elif is_lazy(value):
        raise _refuse(
            f"{path} is a {type(value).__qualname__}",
            "it can be read only once",
            "pass a list",
        )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Signature:
    """The structure of one call.

    args, kwargs: structure of the arguments; tensor leaf i is the graph's input i (a tensor that was passed twice is
        one input), and so is number leaf i, of a capture in which numbers are inputs.
    result: structure of the result; its tensor leaf i is the graph's output i.
    inputs: for each graph input where it stands, e.g. `args[0]['mask']`.
    puts: what the program leaves in its arguments' objects, from the same outputs.
    """

    args: Container
    kwargs: Container
    result: Tree
    inputs: tuple[str, ...]
    puts: Puts | None = None

    def flatten(self, args: Sequence[object], kwargs: Mapping[str, object] | None = None) -> list[Any]:
        """The graph's inputs for a call.

        Raises: CaptureError (S0107) where the arguments differ in structure, naming the first difference.
        """
        return self._flatten(args, kwargs, constants=True)

    def flatten_guarded(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """The graph's inputs for a call that guards have let pass: what is no tensor is theirs to compare. A callable
        object, say, is one of its kind here, and its attributes are guarded where the program read them.

        Raises: CaptureError (S0107) where the arguments differ in structure.
        """
        return self._flatten(args, kwargs, constants=False)

    def _flatten(self, args: Sequence[object], kwargs: Mapping[str, Any] | None, *, constants: bool) -> list[object]:
        tensors: dict[int, object] = {}
        given = dict(kwargs or {})
        if set(given) == set(self.kwargs.keys):
            given = {key: given[key] for key in self.kwargs.keys}
        try:
            match(self.args, tuple(args), "args", tensors, constants=constants)
            match(self.kwargs, given, "kwargs", tensors, constants=constants)
        except UnfitError as unfit:
            raise CaptureError(
                str(unfit),
                why="the captured program holds for one structure of arguments; numbers and strings are part of it",
                fix=f"call it with the captured structure{self._by_keyword}, or capture it again for these arguments",
                code="S0107",
            ) from None
        return [tensors[i] for i in range(len(self.inputs))]

    def rebuild(
        self, outputs: Sequence[object], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        """The program's result from the graph's outputs; the arguments matter where the result holds one of them, and
        get what the program leaves in them.
        """
        if self.puts is not None:
            return self.puts.deliver(self.result, outputs, args, kwargs or {})
        return rebuild(self.result, outputs, self._same(args, kwargs or {}))

    def _same(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        wanted = set(_shared(self.result))
        if not wanted:
            return {}
        found: dict[str, Any] = {}
        stack: list[tuple[str, object]] = [("args", tuple(args)), ("kwargs", dict(kwargs))]
        while stack and wanted - found.keys():
            path, value = stack.pop()
            if path in wanted:
                found[path] = value
            if any(place.startswith(path) for place in wanted):
                stack.extend((path + suffix, part) for suffix, part in parts(value))
        return found

    @property
    def spelling(self) -> str:
        """How a call is spelled: how many arguments stand by place, and which are given by keyword."""
        count = len(self.args.items)
        if not count and self._by_keyword:
            return self._by_keyword.removeprefix(", ")
        by_place = f"{count} argument{'s' * (count != 1)} by position"
        return by_place + self._by_keyword

    @property
    def _by_keyword(self) -> str:
        names = [str(key) for key in self.kwargs.keys if key != STATE]
        return f", {' and '.join(names)} by keyword" if names else ""

    @property
    def same(self) -> tuple[int, ...]:
        """Of each tensor and free number among the arguments, in order, which input it is."""
        trees = (leaf for tree in (self.args, self.kwargs) for _, leaf in leaves(tree))
        return tuple(leaf.index for leaf in trees if not isinstance(leaf, ConstantLeaf))

    @property
    def constants(self) -> dict[str, Any]:
        """The arguments that are no tensors, by path: ints, strings, None, configuration objects."""
        found: dict[str, Any] = {}
        for name, tree in zip(NAMES, (self.args, self.kwargs), strict=True):
            found.update((path, leaf.value) for path, leaf in leaves(tree, name) if isinstance(leaf, ConstantLeaf))
        return found


def _shared(tree: Tree) -> Iterator[str]:
    if isinstance(tree, SameObject):
        yield tree.path
    elif isinstance(tree, Container):
        for child in (*tree.items, *tree.attributes):
            yield from _shared(child)
    elif isinstance(tree, Made) and tree.tree is not None:
        yield from _shared(tree.tree)


@record
class Arguments:
    """The flattened arguments of the call that is being captured."""

    args: Container
    kwargs: Container
    tensors: tuple[torch.Tensor, ...]
    paths: tuple[str, ...]
    containers: Mapping[int, str]
    closed: Mapping[int, tuple[object, Container]] = field(default_factory=dict)

    def opened(self, heap: ArgumentHeap | None) -> Arguments:
        """The same where some objects are known by structure, not by identity."""
        if heap is None or not heap.opened:
            return self
        args, kwargs = (opened(tree, heap.opened, self.closed) for tree in (self.args, self.kwargs))
        assert isinstance(args, Container) and isinstance(kwargs, Container)
        return replace(self, args=args, kwargs=kwargs)

    def outside(self) -> dict[str, Any]:
        """By path what is no part of a call, but the same object at each: callables, modules, and keys of dicts."""
        found: dict[str, Any] = {}
        for name, tree in zip(NAMES, (self.args, self.kwargs), strict=True):
            for path, leaf in leaves(tree, name):
                if isinstance(leaf, ConstantLeaf) and callable(leaf.value):
                    found[path] = leaf.value
            found.update(held_keys(tree, name))
        return found


def flatten_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> Arguments:
    """The structure and the tensors of a call's arguments. Raises: CaptureError (S0106)."""
    flattener = Flattener(check_argument)
    args_tree = flattener.flatten(tuple(args), "args")
    kwargs_tree = flattener.flatten(dict(kwargs), "kwargs")
    assert isinstance(args_tree, Container) and isinstance(kwargs_tree, Container)
    _check_names(args_tree, kwargs_tree)
    return Arguments(
        args_tree, kwargs_tree, tuple(flattener.tensors), tuple(flattener.paths), flattener.containers, flattener.closed
    )


def _check_names(args: Tree, kwargs: Tree) -> None:
    """Raises: CaptureError (S0106) where two parts have one name, as attributes with dots and brackets in theirs."""
    seen: set[str] = set()
    for path in (path for name, tree in zip(NAMES, (args, kwargs), strict=True) for path, _ in leaves(tree, name)):
        if path in seen:
            raise _refuse(
                f"two arguments, or elements of them, are called {path}",
                "a name of an attribute, or of a class, has dots or brackets in it",
                "give the attribute a name that can be written in code",
            )
        seen.add(path)


def tensors_of(value: object) -> list[torch.Tensor]:
    """The distinct tensors of a nested value in the order of a signature's leaves."""
    flattener = Flattener()
    flattener.flatten(value, "")
    return flattener.tensors

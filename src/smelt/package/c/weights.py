"""The file of weights of an exported program: what its kernels read, each block once, in the form that they read.

    header | whole numbers, which may be indices | the rest | panels

Invariant: all that could lead a kernel astray stands in front, where the runtime compares it with its digest at each
opening; behind are floating numbers. It is an ordinary safetensors file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from smelt.diag import PackageError
from smelt.diag.records import record
from smelt.runtime.ingot.contents import Contents
from smelt.runtime.ingot.manifest import Placed
from smelt.runtime.ingot.tensors import read_header, write
from smelt.runtime.ingot.texts import held_json
from smelt.runtime.ingot.texts.held_json import (
    Computed,
    Filtered,
    Given,
    Packed,
    Packing,
    computed_of,
    filters_of,
    weight_of,
)
from smelt.runtime.ingot.texts.json_text import dumps
from smelt.runtime.plan import KernelCode

_NAME = "the weights"


@record
class Block:
    """Memory of weights. home: "FILE", "PANELS" (filled at opening) or "STATE" (of each context), as C has it.

    place: from the file's begin; own: from the begin of the panels, or of a context's state.
    """

    home: str
    place: int
    own: int
    nbytes: int


@record
class PackedLater:
    """Panels that opening fills: kernel, number of the matrix's block and of the panels', words, items."""

    kernel: KernelCode
    matrix: int
    panels: int
    words: tuple[int, ...]
    items: int


@dataclass
class Weights:
    """Blocks as they are asked for. runs_here: whether this machine runs the target's kernels, so that panels can be
    made now. written: names of stored tensors that calls write to.
    """

    contents: Contents
    runs_here: bool
    written: frozenset[str]
    packings: list[PackedLater] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)
    _made: dict[str, tuple[int, torch.Tensor]] = field(default_factory=dict)
    _contents: list[torch.Tensor | None] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)

    def of_stored(self, placed: Placed) -> int:
        """The block that a tensor lies over."""
        if placed.stored not in self._numbers:
            whole = self.contents.whole(placed.stored)
            fits = placed.dtype.itemsize and whole.numel() == placed.span * placed.dtype.itemsize and not placed.offset
            typed = whole.view(placed.dtype) if fits and whole.numel() else whole
            self._add(placed.stored, placed.stored, typed, whole.numel())
        return self._numbers[placed.stored]

    def of_packed(self, recipe: Packed, code: Sequence[KernelCode], state: Callable[[int], torch.Tensor]) -> int:
        """The block of a weight's panels. Raises: PackageError (S0704)."""
        kernel = code[recipe.kernel]
        key = hashlib.sha256(kernel.symbol.encode() + dumps(held_json.write(recipe))).hexdigest()[:32]
        if key in self._numbers:
            return self._numbers[key]
        if recipe.stored is not None:
            return self._add(
                key, f"~panels/{key}", self.contents.tensor(recipe.stored), recipe.stored.span * recipe.panels.itemsize
            )
        weight = _fitting(weight_of(recipe, self._given(state)))
        nbytes = recipe.nelements * recipe.panels.itemsize
        if self.runs_here:
            packing = Packing(recipe, weight, code)
            packing.panels.zero_()  # a kernel leaves what lies behind the last column as it is
            packing.run()
            return self._add(key, f"~panels/{key}", packing.panels, nbytes)
        flat = weight.as_strided((_span(weight),), (1,))
        matrix = self._add(f"{key} matrix", f"~matrix/{key}", flat, flat.numel() * flat.itemsize)
        panels = self._add(key, "", None, nbytes)
        self.packings.append(PackedLater(kernel, matrix, panels, recipe.words, recipe.items))
        return panels

    def of_made(self, recipe: Filtered | Computed, state: Callable[[int], torch.Tensor]) -> tuple[int, torch.Tensor]:
        """The block of what follows from weights, and the tensor itself. Raises: PackageError (S0704)."""
        key = hashlib.sha256(dumps(held_json.write(recipe))).hexdigest()[:32]
        if key not in self._made:
            given = self._given(state)
            found = filters_of(recipe, given) if isinstance(recipe, Filtered) else computed_of(recipe, given)
            made = _fitting(found)
            flat = made.as_strided((_span(made),), (1,))
            self._made[key] = self._add(key, f"~made/{key}", flat, flat.nbytes), made
        return self._made[key]

    def _given(self, state: Callable[[int], torch.Tensor]) -> Given:
        return lambda source: self.contents.tensor(source) if isinstance(source, Placed) else state(source.number)

    def _add(self, key: str, name: str, content: torch.Tensor | None, nbytes: int) -> int:
        self._numbers[key] = len(self._names)
        self._names.append(name)
        self._contents.append(content)
        self._sizes.append(nbytes)
        return self._numbers[key]

    def written_file(self) -> File:
        """The file, and where each block is."""
        named = [(n, t) for n, t in zip(self._names, self._contents, strict=True) if t is not None]
        named.sort(key=lambda pair: (not _is_checked(pair[1]), pair[0].startswith("~"), pair[0]))
        pieces = write(named) if any(t.numel() for _, t in named) else []
        whole = b"".join(pieces)
        extents = read_header(memoryview(whole), _NAME) if whole else {}
        checked = [extents[n] for n, t in named if n in extents and _is_checked(t)]
        first = min((extent.start for extent in extents.values()), default=0)
        end = max((extent.start + extent.nbytes for extent in checked), default=first)
        blocks, panels, state = [], 0, 0
        for name, content, nbytes in zip(self._names, self._contents, self._sizes, strict=True):
            place = extents[name].start if name in extents else 0
            if content is None:
                blocks.append(Block("PANELS", 0, panels, nbytes))
                panels += _padded(nbytes)
            elif name in self.written:
                blocks.append(Block("STATE", place, state, nbytes))
                state += _padded(nbytes)
            else:
                blocks.append(Block("FILE", place, 0, nbytes))
        digests = hashlib.sha256(whole[:end]).digest(), hashlib.sha256(whole).digest()
        return File(whole, tuple(blocks), end, panels, state, *digests)


def _fitting(made: torch.Tensor | None) -> torch.Tensor:
    """Raises: PackageError (S0704)."""
    if made is None:
        raise PackageError(
            "the ingot cannot be exported: a weight is not as its plan needs it",
            why="the file's plan and its weights do not fit", fix="save the program again", code="S0704",
        )  # fmt: skip
    return made


@record
class File:
    """The file's content; checked_nbytes: from its begin, what `checked` is the digest of."""

    content: bytes = field(repr=False)
    blocks: tuple[Block, ...]
    checked_nbytes: int
    panels_nbytes: int
    state_nbytes: int
    checked: bytes
    digest: bytes


def _is_checked(tensor: torch.Tensor) -> bool:
    """Whether elements may be indices."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype.itemsize > 1


def _span(tensor: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0


def _padded(nbytes: int) -> int:
    # Vectors may go up to a line over the end.
    return -(-nbytes // 64) * 64 + 64

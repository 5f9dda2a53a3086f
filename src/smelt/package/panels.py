"""Which weights the file has in panels, as kernels read them, instead of row by row.

    used packed alone, alike on all targets     panels, of one weight or of several that are one product
    used in another form too, or written to     row by row; panels are made when the file is loaded

Invariant: each weight is stored once, and read back from its panels bit by bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from smelt.codegen.contract.packing import Packing
from smelt.codegen.lower.products.packed_weight import packed_by_torch
from smelt.runtime.ingot.manifest import InPanels, Placed
from smelt.runtime.ingot.texts.held_json import ARITHMETIC, FromState, Held, Packed, Step, sources_of
from smelt.runtime.ingot.texts.json_text import dumps

# Panels of weights may be larger than these by so much: of narrow ones they are mostly padding.
_MOST_PADDING = 16


@dataclass
class Panels:
    """The panels that plans ask for, as they are collected, and what else reads the weights.

    made: by name. places: number of a weight in the state -> in which panels it lies, and where.
    """

    made: dict[str, torch.Tensor] = field(default_factory=dict)
    places: dict[int, tuple[str, InPanels]] = field(default_factory=dict)
    _read: set[int] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    def ask(
        self, packed: Packed, packing: Packing, matrix: torch.Tensor, state: Callable[[int], torch.Tensor]
    ) -> Packed:
        """The recipe with the place of its panels; as it is where the weights cannot lie in these.

        matrix: [n, k], what is packed. state: the tensor of a number.
        """
        name = _name(packed, packing)
        if name in self._refused:
            return packed
        if name not in self.made and not self._add(name, packed, packing, matrix, state):
            self._refused.add(name)
            return packed
        return replace(packed, stored=Placed(name, 0, packed.panels, (packed.nelements,), (1,)))

    def _add(
        self, name: str, packed: Packed, packing: Packing, matrix: torch.Tensor, state: Callable[[int], torch.Tensor]
    ) -> bool:  # fmt: skip
        is_moved_only = all(not isinstance(step, Step) or step.op not in ARITHMETIC for step in packed.steps)
        if not is_moved_only or any(isinstance(step, Placed) for step in packed.steps) or packing.tiling.group > 1:
            return False
        if packed.nelements * _MOST_PADDING > matrix.numel() * (_MOST_PADDING + 1):
            return False
        places, first = {}, 0
        for number in dict.fromkeys(step.number for step in packed.steps if isinstance(step, FromState)):
            place = _place(state(number), matrix, first, packing)
            if place is None or number in self.places:
                return False
            places[number] = name, place
            first += state(number).shape[1 if place.is_transposed else 0]
        if first != matrix.shape[0]:
            return False
        self.made[name] = packed_by_torch(matrix, packing)
        self.places.update(places)
        return True

    def note(self, recipe: Held) -> None:
        """Weights that a recipe reads otherwise than in panels are stored row by row."""
        if not isinstance(recipe, Packed) or recipe.stored is None:
            self._read |= sources_of(recipe)

    def settle(self, groups: Sequence[Sequence[int]], fits: Callable[[int], bool]) -> None:
        """Leave what all users agree on. groups: numbers of the state that share memory; fits: whether a tensor is a
        parameter that nobody writes to.
        """
        left = [group for group in groups if any(number in self.places for number in group)]
        refused = {
            self.places[number][0]
            for group in left
            for number in group
            if number in self.places and not self._is_agreed(group, fits)
        }
        self.places = {number: place for number, place in self.places.items() if place[0] not in refused}
        self.made = {name: panels for name, panels in self.made.items() if name not in refused}
        for group in left:
            place = next((self.places[number] for number in group if number in self.places), None)
            if place is not None:
                self.places.update(dict.fromkeys(group, place))

    def _is_agreed(self, group: Sequence[int], fits: Callable[[int], bool]) -> bool:
        places = {self.places[number] for number in group if number in self.places}
        return len(places) == 1 and not self._read & set(group) and all(map(fits, group))

    def settled(self, recipe: Held) -> Held:
        """The recipe as it is after all were collected."""
        if isinstance(recipe, Packed) and recipe.stored is not None and recipe.stored.stored not in self.made:
            return replace(recipe, stored=None)
        return recipe


def _name(packed: Packed, packing: Packing) -> str:
    """The same for the same panels, whatever target they are for."""
    steps = [step.number if isinstance(step, FromState) else repr(step) for step in packed.steps]
    form = [steps, packed.is_transposed, packing.n, packing.k, packing.columns, packing.panel_nelements]
    return f"~panels/{hashlib.sha256(dumps(form)).hexdigest()[:32]}"


def _place(tensor: torch.Tensor, matrix: torch.Tensor, first: int, packing: Packing) -> InPanels | None:
    """Where the panels of a matrix [n, k] have a weight whose rows or columns are its rows from `first` on."""
    if tensor.dim() != 2 or not tensor.is_contiguous() or not tensor.numel():
        return None
    for is_transposed in (False, True):
        lines = tensor.t() if is_transposed else tensor
        there = matrix[first : first + lines.shape[0]]
        if lines.shape == there.shape and torch.equal(_bits(lines), _bits(there)):
            rows = packing.panel_nelements // packing.columns
            return InPanels(first, packing.panels, rows, packing.columns, is_transposed)
    return None


def _bits(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.detach().view({4: torch.int32, 8: torch.int64}[matrix.itemsize])

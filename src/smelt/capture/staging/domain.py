"""What a run knows of values: the difference between the run of a program that was recorded and that of a script.

`Recorded` has for each value what it was in the recorded run, and tensors of known ranks and element types; `Open`
(`scripting/domain.py`) has types alone, which may be open. All else of a run is `Session`, which is handed one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.fakes.symbols import ScalarSlot
from smelt.ir import ListType, TensorType, Type

if TYPE_CHECKING:
    from smelt.capture.staging.flow.merge import Merger
    from smelt.capture.staging.session import Session


class Domain(Protocol):
    """What a session asks of it.

    most_explored: regions that may be run where paths multiply; most_regions: in all. knows_what_goes_on: behind a
    branch of which one arm raises, the question has the other's answer.
    """

    session: Session
    most_explored: int
    most_regions: int
    knows_what_goes_on: bool

    # --- values ------------------------------------------------------------------------------------------------------

    def emit(self, op: str, *args: object, **kwargs: object) -> Any:
        """Record an operator of Python's; the value it gives (a tuple of values where it gives several)."""

    def encode(self, value: object) -> Any:
        """A value as an argument of a record: a slot, or a literal. Raises: CannotStage."""

    def value_of(self, type_: Type, examples: tuple[object, ...], is_native: bool) -> tuple[object, Slot]:
        """A new value of a type: what Python sees, and its slot."""

    def specialize(self, slot: ScalarSlot) -> Any:
        """The value that a slot has, which the graph then expects. Raises: CannotStage where none is known."""

    def hashed(self, slot: ScalarSlot) -> object:
        """The value of an item of a set, or of a key of a dict. Raises: CannotStage."""

    def is_number(self, operand: object) -> bool:
        """Whether an operand of any kind is a number for sure, where there are operands of any kind."""

    def is_real_power(self, base: object, exponent: object) -> bool:
        """Whether a power is a float, whatever its base is in a run of the graph."""

    def as_in_program(self, value: object) -> object:
        """A value of the graph with the class that it has in the program."""

    def printed(self, value: object) -> object:
        """What `print` shows of a value that is none of the graph's."""

    def as_native(self, slot: Slot) -> bool | None:
        """What the recorded run found of a question, where the graph is to hold for that only."""

    def may_be_caught(self) -> bool:
        """Whether the program may catch an exception that comes up where it stands, for all that is known."""

    # --- types -------------------------------------------------------------------------------------------------------

    def tensor_of(
        self, type_: TensorType, like: torch.Tensor | None, other: torch.Tensor | None,
        numbers: tuple[int, ...] | None,
    ) -> tuple[torch.Tensor, Slot]:  # fmt: skip
        """A new fake tensor of a type, and its slot (see `Session.tensor_of`)."""

    def new_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        """Record any tensor of a type."""

    def item(self, tensor: torch.Tensor) -> Any:
        """The element of a one-element tensor as a staged number."""

    def size(self, tensor: torch.Tensor, dim: Any, what: str) -> object:
        """A size or stride of a tensor: a plain number where types tell, else read when the graph runs."""

    def numel(self, tensor: torch.Tensor) -> Any:
        """The number of elements."""

    def widened(self, before: Type, after: Type) -> Type | None:
        """The type of what a loop carries that is of two, where there is one that no join of the graph's gives."""

    # --- containers --------------------------------------------------------------------------------------------------

    def getitem(self, container: Any, key: Any) -> Any:
        """An element or a slice of a staged container."""

    def listed(self, items: object) -> Any:
        """What a staged list can take in of items that are no list."""

    def opened(self, items: tuple[object, ...], type_: ListType) -> object:
        """A tuple as one of any length. Raises: CannotStage where there are none."""

    def taken_apart(self, container: Any) -> object:
        """Code that is not converted iterates over a staged container. Raises: CannotStage."""

    def note_held(self, items: Sequence[object]) -> None:
        """Values are put into a staged container. Raises: CannotStage."""

    def note_merged(self, parts: Sequence[Sequence[Any]], results: Sequence[Slot]) -> None:
        """Values become those of an `if` or a loop."""

    def check_change(self, container: object) -> None:
        """A container is going to be changed. Raises: CannotStage where others would have to see that."""

    # --- paths -------------------------------------------------------------------------------------------------------

    def check_fork(self) -> None:
        """A question is about to fork what follows. Raises: Again where its paths should meet again."""

    def merger(self, slot: Slot, site: Site | None, why: object, names: Sequence[str]) -> Merger:
        """What merges the outcomes of the two arms of a branch on a question."""

    def check_unmerge(self, why: object) -> None:
        """What was merged at a place is not one value. Raises: CannotStage where no other path would tell."""

    def left_by(self, values: tuple[object, ...], before: Sequence[object]) -> tuple[object, ...]:
        """What the variables of an arm hold at its end, as far as it is known there. before: what they held."""

    # --- operators ---------------------------------------------------------------------------------------------------

    def record(self, overload: Overload, args: OpArgs, kwargs: OpKwargs) -> Any:
        """Note an operator of torch's, and give what stands for its results. Raises: what eager does; CannotStage."""

    def argument(self, arg: object) -> object:
        """What an argument of torch's stands for: a value of the graph's, by its slot, or what it is itself."""

    def check_lifted(self, slot: Slot) -> None:
        """Python's data became a tensor. Raises: CannotStage where they are not what a run would have."""

    def check_write(self, targets: Sequence[object]) -> None:
        """Slots are about to be written. Raises: CannotStage."""

"""What the catalogue says of one operator, and the small builder that its lowering writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from smelt.ir import Arg, TensorType, Type, Value

Alias: TypeAlias = Literal["fresh", "view", "maybe"]
"""fresh: results have memory of their own. view: the result is a view of the first operand. maybe: types decide."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call to try an operator with: tensors and literals of torch, ready to be passed."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def sample(*args: Any, **kwargs: Any) -> Sample:
    """A sample from a call's arguments."""
    return Sample(args, kwargs)


class Emitter(Protocol):
    """What a lowering writes its nodes with."""

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        """Add a node with one result; its type is inferred."""
        ...

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        """Add a node with several results (a list's elements are unpacked)."""
        ...


Call: TypeAlias = Mapping[str, Any]
"""All arguments of a call by the schema's names, defaults filled in."""

TypeRule: TypeAlias = Callable[[Call], "tuple[Type, ...] | None"]
Lowering: TypeAlias = Callable[[Emitter, Call], "Arg | tuple[Value, ...] | None"]
Samples: TypeAlias = Callable[[], Iterable[Sample]]


def never(call: Call) -> bool:
    """For no call."""
    return False


def nothing_written(call: Call) -> tuple[str, ...]:
    """No argument is written."""
    return ()


@dataclass(frozen=True, slots=True)
class OpRecord:
    """All that is known of one overload; what is left out comes from torch's registry.

    name: as in the graph. oracle: dotted name of the public torch function with the same meaning.
    result: types of the results where torch's meta kernel is wrong or missing; None for a call it cannot tell.
    result_of_unknown: where sizes of operands are unknown, and too many of them depend on each other to be tried.
    lower: the same in simpler ops, or None for a call that stays; `exact`: bit for bit what eager computes.
    rng: whether a call draws random numbers. writes: arguments that a call changes though its schema does not say so.
    may_throw: whether the data may make eager raise. uninitialised: the result's content is arbitrary.
    """

    name: str
    oracle: str
    samples: Samples
    source: str = ""
    result: TypeRule | None = None
    result_of_unknown: TypeRule | None = None
    lower: Lowering | None = None
    exact: bool = False
    alias: Alias = "fresh"
    rng: Callable[[Call], bool] = never
    writes: Callable[[Call], tuple[str, ...]] = nothing_written
    may_throw: bool = False
    uninitialised: bool = False


def tensor_type(arg: Any) -> TensorType:
    """The type of an argument that is a tensor. Raises: TypeError for any other."""
    if isinstance(arg, Value) and isinstance(arg.type, TensorType):
        return arg.type
    raise TypeError(f"{arg!r} is no tensor")

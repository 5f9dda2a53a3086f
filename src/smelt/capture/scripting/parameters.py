"""What a program's parameters may be: from annotations, defaults, examples, and what their use has taught."""

from __future__ import annotations

import dataclasses
import dis
import inspect
import typing
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, TypeVar

import torch

from smelt._torch.exact import contents, same
from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.scripting.annotations import TENSOR, Fields, type_of_annotation
from smelt.capture.scripting.arguments import misfit
from smelt.capture.scripting.domain import Open
from smelt.capture.scripting.merging import join_open
from smelt.capture.scripting.values.choices import Alternative, absent, alternatives_of
from smelt.capture.scripting.values.sequences import OpenTuple
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, slot_of, wrap
from smelt.capture.structure.tree import tuple_of
from smelt.diag import CaptureError, Span
from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    DictType,
    ListType,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    join_all,
)
from smelt.ops.convert import type_of

_DEFAULTS: dict[type, Type] = {bool: BOOL, int: INT, float: FLOAT, complex: COMPLEX, str: STR}
_MOST_OPTIONALS = 3
_NO_DEFAULT = inspect.Parameter.empty


@dataclass
class Leaf:
    """One input of the graph. is_read: whether the program does anything with it, so that it matters what it is."""

    name: str
    type: Type
    default: Any = _NO_DEFAULT
    is_assumable: bool = False
    is_tuple: bool = False
    is_read: bool = True
    slot: Slot | None = None
    tensor: torch.Tensor | None = None
    stand_in: torch.Tensor = field(default_factory=lambda: torch.empty(0))


@dataclass(frozen=True)
class Constant:
    """A parameter that keeps its default."""

    value: Any


@dataclass(frozen=True)
class Choice:
    """A parameter that is one of several things; `which`: the input that says which."""

    which: Leaf
    parts: tuple[Leaf | Fields | Constant, ...]
    alternatives: tuple[Alternative, ...]


Parameter = Leaf | Fields | Constant | Choice


class Parameters:
    """The parameters of one program: what they are made of, in the order of the graph's inputs.

    kept: those that the program is called without, and their defaults. examples: the names of those that examples tell.
    """

    def __init__(
        self,
        positional: Sequence[Parameter],
        named: Mapping[str, Parameter],
        span: Span,
        signature: inspect.Signature,
        kept: Mapping[str, object],
        examples: Collection[str],
    ) -> None:
        self.positional, self.named, self.span, self.signature = list(positional), dict(named), span, signature
        self.kept, self.examples = dict(kept), frozenset(examples)
        self.leaves: list[Leaf] = []
        for parameter in (*self.positional, *self.named.values()):
            self._gather(parameter)

    def _gather(self, parameter: object) -> None:
        if isinstance(parameter, Leaf):
            self.leaves.append(parameter)
        elif isinstance(parameter, (Fields, Choice)):
            self.leaves += [parameter.which] if isinstance(parameter, Choice) else []
            for part in parameter.parts:
                self._gather(part)

    @property
    def constants(self) -> list[Any]:
        """The objects that parameters keep: defaults, and what examples are that no input of a graph is."""
        return list(self.named_constants.values())

    @property
    def named_constants(self) -> dict[str, object]:
        """The same, by the parameter that keeps each, and its number where that keeps several."""
        found: dict[str, Any] = {}
        names = [*self.signature.parameters, "args"]
        pending: list[tuple[str, object]] = [(names[min(i, len(names) - 1)], p) for i, p in enumerate(self.positional)]
        pending += [*self.named.items(), *((name, Constant(value)) for name, value in self.kept.items())]
        while pending:
            name, part = pending.pop()
            if isinstance(part, Constant):
                found[name if name not in found else f"{name}_{len(found)}"] = part.value
            pending += [(name, inner) for inner in part.parts] if isinstance(part, (Fields, Choice)) else []
        return found

    @property
    def left_out(self) -> list[str]:
        """`*args` and `**kwargs` of which the program is called with none."""
        stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        given = len(self.positional) + len(self.named) + len(self.kept)
        found = [f"{stars[p.kind]}{n}" for n, p in self.signature.parameters.items() if p.kind in stars]
        return found if given == len(self.signature.parameters) - len(found) else []

    def may_be_given(self, name: str) -> bool:
        """Whether a parameter that is left out could be a tensor."""
        return _optional_tensor(self.signature.parameters[name].annotation) is not None

    @property
    def names(self) -> list[str]:
        """The names of the graph's inputs."""
        return [leaf.name for leaf in self.leaves]

    def declare(self, domain: Open) -> None:
        """Make the inputs known to a session."""
        for leaf in self.leaves:
            if isinstance(leaf.type, TensorType):
                leaf.tensor, slot = domain.session.tensor_of(leaf.type)
                slot.kind = "input"
            else:
                slot = ScalarSlot(leaf.type, (DEAD,) * WORLDS)
                if leaf.default is not _NO_DEFAULT and leaf.default is not None:
                    domain.defaults[slot] = leaf.default
            leaf.slot = slot
            domain.recorder.inputs.append(slot)
            domain.params[slot] = (leaf.name, self.span)
            if leaf.is_assumable:
                domain.assumable[slot] = leaf.name

    def make(self, domain: Open) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of one run; each optional one is asked for first."""
        chosen: dict[int, object] = {}
        return (
            tuple(self._value(domain, p, chosen) for p in self.positional),
            {name: self._value(domain, p, chosen) for name, p in self.named.items()},
        )

    def _value(self, domain: Open, parameter: Any, chosen: dict[int, object]) -> Any:
        if isinstance(parameter, Constant):
            return parameter.value
        if isinstance(parameter, Fields):
            parts = [self._value(domain, p, chosen) for p in parameter.parts]
            return _together(parameter, parts)
        if isinstance(parameter, Choice):
            which: Any = parameter.which.slot
            for number, part in enumerate(parameter.parts[:-1]):
                if domain.fork(slot_of(domain.emit("py.eq", wrap(which), number))):
                    return self._value(domain, part, chosen)
            return self._value(domain, parameter.parts[-1], chosen)
        if parameter.tensor is not None:
            return parameter.tensor
        slot = parameter.slot
        if parameter.type == NONE:
            return None
        if isinstance(parameter.type, OptionalType):
            if domain.fork(slot_of(domain.emit("py.is_none", wrap(slot)))):
                return None
            return domain.present(slot, is_argument=True)
        return OpenTuple(slot) if parameter.is_tuple else wrap(slot)

    def inputs(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[Any]:
        """The graph's inputs for a call. Raises: CaptureError (S0107) where it is not one that the graph is of."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as unfit:
            raise self._unfit(str(unfit)) from None
        bound.apply_defaults()
        given: list[tuple[str, object]] = []
        by_name: dict[str, object] = {}
        for name, value in bound.arguments.items():
            kind = self.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                given += [(name, item) for item in value]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                by_name.update(value)
            elif name in self.kept:
                self._collect(name, Constant(self.kept[name]), value, [])
            elif name in self.named:
                by_name[name] = value
            else:
                given.append((name, value))
        if len(given) != len(self.positional) or set(by_name) != set(self.named):
            raise self._unfit("it has other variable arguments")
        found: list[Any] = []
        owners: list[str] = []  # of each of these, which parameter it is of
        parts = [(name, parameter, value) for parameter, (name, value) in zip(self.positional, given, strict=True)]
        for name, parameter, value in (*parts, *((n, p, by_name[n]) for n, p in self.named.items())):
            self._collect(name, parameter, value, found)
            owners += [name] * (len(found) - len(owners))
        sizes: dict[str, int] = {}
        for leaf, owner, value in zip(self.leaves, owners, found, strict=True):
            why = misfit(leaf.type, value, sizes) if leaf.is_read else ""
            if why:
                raise self._unfit(f"{leaf.name} is {why}", owner)
        return found

    def _collect(self, name: str, parameter: object, value: object, found: list[Any]) -> None:
        try:
            _collect(parameter, value, found)
        except _Misfit as why:
            raise self._unfit(f"{name} is {why}", name) from None

    def _unfit(self, what: str, name: str = "") -> CaptureError:
        fix = "call the program itself, which takes any arguments"
        if name in self.examples:
            fix += ", or add an example with such a value (example_inputs=[(...), (...)])"
        elif name in self.kept:
            fix += f", or give {name} in example_inputs; it is left out there, and keeps its default"
        elif name in self.signature.parameters:
            is_annotated = self.signature.parameters[name].annotation is not inspect.Parameter.empty
            fix += f", or {'widen the annotation of' if is_annotated else 'annotate'} {name}"
        return CaptureError(
            f"the graph is of other arguments: {what}",
            why="a scripted graph holds for the types that its parameters have", fix=fix, code="S0107",
        )  # fmt: skip

    def stand_ins(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments with a tensor in the place of each input, for the signature."""

        def of(parameter: Any) -> Any:
            if isinstance(parameter, Constant):
                return parameter.value
            if isinstance(parameter, Fields):
                return _together(parameter, [of(p) for p in parameter.parts])
            if isinstance(parameter, Choice):
                return (parameter.which.stand_in, *(of(p) for p in parameter.parts))
            return parameter.stand_in

        return tuple(map(of, self.positional)), {name: of(p) for name, p in self.named.items()}


def _together(fields: Fields, parts: list[Any]) -> object:
    if issubclass(fields.cls, tuple):
        return tuple_of(fields.cls, parts)
    made = object.__new__(fields.cls)
    for name, part in zip(fields.names, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


class _Misfit(Exception):
    """What an argument is, and what the graph takes."""


def _collect(parameter: Any, value: Any, found: list[Any]) -> None:
    if isinstance(parameter, Leaf):
        found.append(value)
    elif isinstance(parameter, Fields):
        if not isinstance(value, parameter.cls):
            raise _Misfit(f"a {type(value).__name__}, and the graph takes a {parameter.cls.__name__}")
        values = value if isinstance(value, tuple) else [getattr(value, name) for name in parameter.names]
        if len(values) != len(parameter.parts):
            raise _Misfit(f"or holds a tuple of {len(values)}, and the graph takes {len(parameter.parts)} items there")
        for part, item in zip(parameter.parts, values, strict=True):
            _collect(part, item, found)
    elif isinstance(parameter, Choice):
        number = next((i for i, one in enumerate(parameter.alternatives) if one.fits(value)), None)
        if number is None:
            raise _Misfit(f"{value!r}, which is none of what {parameter.which.name} may be")
        found.append(number)
        for i, part in enumerate(parameter.parts):
            if i == number:
                _collect(part, value, found)
            else:
                found += map(absent, _types_of(part))
    elif not _is_same(value, parameter.value):
        raise _Misfit(f"{value!r}, and the graph is of {parameter.value!r}")


def _is_same(given: object, held: object) -> bool:
    """Whether an argument is the plain value that a graph is of; other containers than Python's own by their items."""
    is_container = isinstance(given, (dict, set, deque)) and type(given) is type(held)
    return same(given, held) or (is_container and same(contents(given), contents(held)))


def _types_of(parameter: object) -> list[Type]:
    if isinstance(parameter, Leaf):
        return [parameter.type]
    return [t for part in parameter.parts for t in _types_of(part)] if isinstance(parameter, Fields) else []


def parameters_of(
    fn: Any,
    function: Any,
    examples: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]],
    assumed: Mapping[str, Type],
    fixed: tuple[type, ...] = (),
    present: Sequence[str] = (),
) -> Parameters:
    """What a program's parameters may be. fixed: of which kinds the defaults are that parameters keep.

    present: optional tensors that are given.

    Raises: CaptureError (S0106).
    """
    code = function.__code__
    span = Span(code.co_filename, code.co_firstlineno, code.co_qualname)
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        signature = inspect.signature(target, eval_str=True)
    except Exception:  # an annotation may name what is not there
        signature = inspect.signature(target)
    given = [_bound(signature, *example) for example in examples]
    positional: list[Parameter] = []
    named: dict[str, Parameter] = {}
    kept: dict[str, object] = {}
    takes_any = any(p.kind == p.VAR_POSITIONAL for p in signature.parameters.values())
    optionals = sum(_is_optional(p) for p in signature.parameters.values())
    unread = _unread(code)
    for parameter in signature.parameters.values():
        values = [g[parameter.name] for g in given if parameter.name in g]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            _variable(parameter, values, positional, named, assumed)
            continue
        element = _optional_tensor(parameter.annotation) if parameter.name in present else None
        keeps = parameter.default is not _NO_DEFAULT and isinstance(parameter.default, fixed)
        if not values and element is None and (keeps or (given and parameter.default is not _NO_DEFAULT)):
            # The calls of the examples leave it out, or no graph could be of all that it may be.
            found: Parameter = Constant(parameter.default)
        elif element is not None:
            found = Leaf(parameter.name, element)
        else:
            found = _parameter(parameter, values, assumed, optionals <= _MOST_OPTIONALS, span)
        if isinstance(found, Leaf) and found.type == TENSOR:
            found.is_read = parameter.name not in unread
        is_default = isinstance(found, Constant) and found.value is parameter.default
        if is_default and parameter.kind != parameter.POSITIONAL_ONLY and not takes_any:
            kept[parameter.name] = parameter.default
        elif parameter.kind == parameter.KEYWORD_ONLY or (kept and parameter.kind != parameter.POSITIONAL_ONLY):
            named[parameter.name] = found
        else:
            positional.append(found)
    return Parameters(positional, named, span, signature, kept, {name for one in given for name in one})


def _unread(code: CodeType) -> set[str]:
    """The parameters that a function never looks at."""
    steps = [step for step in dis.get_instructions(code) if "LOAD_" in step.opname]
    read = {name for step in steps for name in (step.argval if isinstance(step.argval, tuple) else (step.argval,))}
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return {*named} - read - {*code.co_cellvars}


def _bound(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Mapping[str, object]:
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError as unfit:
        raise CaptureError(
            f"example_inputs do not fit: {unfit}", why="they are arguments of one call", code="S0106"
        ) from None


def _variable(parameter: Any, values: list[Any], positional: list[Any], named: dict[str, Any], assumed: Any) -> None:
    """`*args` and `**kwargs`: as in the examples, else none."""
    if not values:
        return
    if parameter.kind == parameter.VAR_POSITIONAL:
        positional.extend(
            _of_values(f"{parameter.name}_{i}", [v[i]]) for i, v in enumerate([values[0]] * len(values[0]))
        )
    else:
        named.update({k: _of_values(k, [v]) for k, v in values[0].items()})


def _optional_tensor(annotation: object) -> TensorType | None:
    found = type_of_annotation(annotation)
    element = found.element if isinstance(found, OptionalType) else None
    return element if isinstance(element, TensorType) else None


def _is_optional(parameter: Any) -> bool:
    return isinstance(type_of_annotation(parameter.annotation), OptionalType)


def _parameter(parameter: Any, values: list[Any], assumed: Any, splits_optionals: bool, span: Span) -> Parameter:
    name, default = parameter.name, parameter.default
    if values:
        return _of_values(name, values)
    if name in assumed:
        return Leaf(name, assumed[name], default)
    annotation = parameter.annotation
    if annotation is not inspect.Parameter.empty and annotation is not Any:
        found = type_of_annotation(annotation)
        if isinstance(found, Fields):
            return _with_leaves(name, found)
        if isinstance(found, OptionalType) and default is None and not splits_optionals:
            return Constant(None)
        if found is not None:
            is_tuple = typing.get_origin(annotation) is tuple and isinstance(found, ListType)
            return Leaf(name, found, default, is_tuple=is_tuple)
        several = alternatives_of(annotation)
        if several is not None and default is None and not splits_optionals:
            return Constant(None)
        if several is not None:
            return _choice(name, several)
        if isinstance(annotation, TypeVar):
            return Leaf(name, TENSOR, is_assumable=True)
        if default is not _NO_DEFAULT:
            return Constant(default)
        raise CaptureError(
            f"parameter {name} is a {annotation}", span, why="no value of a graph is of this type",
            fix="give it a default, bind it with functools.partial, or give an example (example_inputs=), whose value "
            "the graph is then of",
            code="S0106",
        )  # fmt: skip
    if default is not _NO_DEFAULT:
        kind = _DEFAULTS.get(type(default))
        return Constant(default) if kind is None else Leaf(name, kind, default)
    return Leaf(name, TENSOR, is_assumable=True)


def _choice(name: str, several: Sequence[Alternative]) -> Choice:
    parts: list[Leaf | Fields | Constant] = []
    for number, one in enumerate(several):
        inner = f"{name}_{number}"
        if isinstance(one.type, Fields):
            parts.append(_with_leaves(inner, one.type))
        else:
            parts.append(Constant(one.value) if one.type is None else Leaf(inner, one.type))
    return Choice(Leaf(name, INT), tuple(parts), tuple(several))


def _with_leaves(name: str, fields: Fields) -> Fields:
    parts: list[object] = []
    for field_name, part in zip(fields.names, fields.parts, strict=True):
        inner = f"{name}_{field_name}"
        parts.append(_with_leaves(inner, part) if isinstance(part, Fields) else Leaf(inner, part or TENSOR))
    return Fields(fields.cls, fields.names, parts)


def _of_values(name: str, values: Sequence[Any]) -> Parameter:
    """A parameter by examples of it."""
    first = values[0]
    if isinstance(first, tuple):
        names = getattr(first, "_fields", None) or [str(i) for i in range(len(first))]
        parts = [_of_values(f"{name}_{n}", [v[i] for v in values]) for i, n in enumerate(names)]
        return Fields(type(first), names, parts)
    if dataclasses.is_dataclass(first) and all(type(v) is type(first) for v in values):
        names = [f.name for f in dataclasses.fields(first)]
        return Fields(type(first), names, [_of_values(f"{name}_{n}", [getattr(v, n) for v in values]) for n in names])
    types = [_type_of_value(v) for v in values]
    if any(t is None for t in types):
        return Constant(first)
    found = types[0]
    for type_ in types[1:]:
        found = join_open(found, type_)  # type: ignore[arg-type]
    return Leaf(name, found)  # type: ignore[arg-type]


def _type_of_value(value: object) -> Type | None:
    if isinstance(value, torch.Tensor):
        return type_of(value)
    if type(value) in _DEFAULTS:
        return _DEFAULTS[type(value)]
    if type(value) is list and value:
        inner = [_type_of_value(v) for v in value]
        return None if None in inner else ListType(join_all(inner))  # type: ignore[arg-type]
    if type(value) is tuple:  # an item of a list or dict
        parts = [_type_of_value(v) for v in value]
        return None if None in parts else TupleType(tuple(parts))  # type: ignore[arg-type]
    if type(value) is dict and value:
        keys, items = [_type_of_value(k) for k in value], [_type_of_value(v) for v in value.values()]
        return None if None in (*keys, *items) else DictType(join_all(keys), join_all(items))  # type: ignore[arg-type]
    return None

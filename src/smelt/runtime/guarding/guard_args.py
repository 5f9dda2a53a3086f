"""Guards on a call's arguments: their structure, the plain values in it, and what each tensor is.

Invariant: two calls that pass agree in everything a program can ask of its arguments short of the tensors' elements,
and of what a form leaves free (`guard_sizes`). Each guard is one Python expression over `args` and `kwargs`; the same
text is compiled, shown and evaluated alone.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import types
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from smelt._torch.exact import same
from smelt._torch.seen.labels import attribute_code, attribute_label, key_labels
from smelt._torch.storage import is_zero, nbytes_spanned
from smelt.diag import InternalError, Span
from smelt.diag.records import record
from smelt.runtime.guarding.argument_kinds import TENSORS, kind_of
from smelt.runtime.guarding.guard_sizes import (
    FUNCTIONS,
    LIMIT,
    Form,
    NumberForm,
    SizeCheck,
    TensorForm,
    binding_places,
    parsed,
    rewritten,
    row_major,
)


@record
class ArgumentTest:
    """One guard: `code` is true if it holds; `place` names the argument; `seen` is what was there.

    where: the code that selects what the place names. shown: what of a guard on sizes is printed, in the names of
    forms; span: the user's line that asked.
    """

    kind: str
    place: str
    code: str
    seen: Any
    where: str
    shown: str = ""
    span: Span | None = None


@record
class Outside:
    """Lists, dicts and objects that the program reads by itself. others: those that an argument could be at another
    call; met: ids of those that arguments are.
    """

    others: tuple[Any, ...] = ()
    met: frozenset[int] = frozenset()


NOTHING_OUTSIDE = Outside()


class ArgumentTests:
    """The tests of one call's arguments, and the names that their code uses (`scope`)."""

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        rooted: Sequence[torch.Tensor] = (),
        writes: bool = True,
        free: Mapping[str, Form] | None = None,
        checks: Sequence[SizeCheck] = (),
        opened: Collection[int] = (),
        outside: Outside = NOTHING_OUTSIDE,
    ) -> None:
        self.scope: dict[str, Any] = {
            "same": same,
            "is_": operator.is_,
            "copysign": math.copysign,
            "extents_meet": extents_meet,
            "nbytes_spanned": nbytes_spanned,
            "row_major": row_major,
            **FUNCTIONS,
        }
        self.free, self.checks = dict(free or {}), tuple(checks)
        # Where each free name is found: the place, as code over the arguments, and as a variable of the check.
        self.names: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._binding = binding_places(self.free)
        self._expressions: list[tuple[str, str, str]] = []
        self._met: set[str] = set()
        # The code for places that are none by themselves: there is a key on the way that only a bound name gives.
        self._codes: dict[str, str] = {}
        self._opened = opened
        self.opened: set[str] = set()
        self.writes, self.outside, self.rooted = writes, outside, tuple(rooted)
        # Outside inference mode its tensors may not be written, which is known too late where that is tried.
        self._tells_inference = writes and not torch.is_inference_mode_enabled()
        self._is_beside = False  # amid what no member of a container is
        self._rooted = {id(tensor): tensor for tensor in rooted}
        self._apart: list[tuple[str, str, Any]] = []
        self.tests: list[ArgumentTest] = []
        self.lines: list[str] = []
        self._tensors: list[tuple[str, str, torch.Tensor]] = []
        self._containers: dict[int, str] = {}
        self._pending: list[str] = []  # tests since the last variable; they leave as one line of the check
        self._count = 0
        self._test("structure", "args", f"len(args) == {len(args)}", f"{len(args)} arguments")
        self._test(
            "structure", "kwargs", f"tuple(kwargs) == {tuple(kwargs)!r}" if kwargs else "not kwargs", tuple(kwargs)
        )
        self._flush()
        for i, value in enumerate(args):
            self._walk(value, f"args[{i}]", f"args[{i}]")
        for name, value in kwargs.items():
            self._walk(value, f"kwargs[{name!r}]", f"kwargs[{name!r}]")
        if self._met != self.free.keys():
            raise InternalError(f"there is no argument at {sorted(self.free.keys() - self._met)} that may be free")
        self._sizes()
        self._identities()
        self._aliasing(rooted, writes)
        self._flush()

    def compiled(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
        """A function that tells whether all tests hold for a call; it keeps none of the tested arguments alive."""
        body = "".join(f"        {line}\n" for line in self.lines)
        text = (
            f"def holds(args, kwargs):\n    try:\n{body}    except Exception:\n        return False\n    return True\n"
        )
        scope = {**self.scope, "failed": _never}
        exec(compile(text, "<smelt arguments>", "exec"), scope)
        holds: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] = scope["holds"]
        return holds

    @property
    def knows_aliases(self) -> bool:
        """Whether it matters which arguments share memory, and with what."""
        return any(test.kind == "aliasing" for test in self.tests)

    @cached_property
    def compiled_tests(self) -> list[types.CodeType]:
        """The code of each test by itself."""
        return [compile(test.code, "<smelt guard>", "eval") for test in self.tests]

    @cached_property
    def free_values(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]:
        """A function that gives the value of each free name in a call that has the arguments' structure."""
        pairs = ", ".join(f"{name!r}: {place}" for name, place in self.places.items())
        found: Callable[..., dict[str, Any]] = eval(f"lambda args, kwargs: {{{pairs}}}", dict(self.scope))
        return found

    def _test(
        self,
        kind: str,
        place: str,
        code: str,
        seen: Any,
        inline: str | None = None,
        shown: str = "",
        span: Span | None = None,
        where: str | None = None,
    ) -> None:
        self.tests.append(ArgumentTest(kind, place, code, seen, where or self._code(place), shown, span))
        self._pending.append(inline or code)

    def _flush(self) -> None:
        if self._pending:
            self.lines.append(f"if not ({' and '.join(self._pending)}): return failed(args, kwargs)")
            self._pending = []

    def _bind(self, value: Any, prefix: str) -> str:
        self._count += 1
        name = f"{prefix}{self._count}"
        self.scope[name] = value
        return name

    def _variable(self, selector: str) -> str:
        self._flush()
        self._count += 1
        self.lines.append(f"a{self._count} = {selector}")
        return f"a{self._count}"

    def _each(self, kind: str, place: str, variable: str, template: str, seen: Any) -> None:
        self._test(kind, place, template.format(v=self._code(place)), seen, template.format(v=variable))

    def _code(self, place: str) -> str:
        return self._codes.get(place, place)

    def _part(self, place: str, text: str, label: str = "") -> str:
        """The place of what `text` selects there; label: what names it, where that is not the text."""
        return self._coded(place + (label or text), self._code(place) + text)

    def _attribute(self, place: str, name: str) -> str:
        """The place of an attribute."""
        return self._coded(place + attribute_label(name), attribute_code(self._code(place), name))

    def _coded(self, place: str, code: str) -> str:
        if place != code:
            self._codes[place] = code
        return place

    def _walk(self, value: Any, place: str, selector: str) -> None:
        form = self.free.get(place)
        if form is not None:
            self._met.add(place)
        if self._is_beside and isinstance(value, torch.Tensor):
            self.identity(value, place, selector)  # it is no input of the graph, which has this very one
            return
        if form is not None and not isinstance(form, NumberForm) and type(value) not in TENSORS:
            raise InternalError(f"{place} is a {type(value).__qualname__}, which has no sizes")
        is_opened = id(value) in self._opened and not isinstance(value, (list, tuple))
        is_opened = is_opened and type(value) not in (dict, deque)
        kind_of(value, form, is_opened).visit(self, value, place, selector)

    # --- each kind of argument (`argument_kinds`) ---

    def constant(self, value: Any, place: str, at: str) -> None:
        """None, True or False."""
        self._each("value", place, at, f"{{v}} is {value!r}", value)

    def plain(self, value: Any, place: str, at: str) -> None:
        """An int or a text."""
        code = f"type({{v}}) is {type(value).__name__} and {{v}} == {_printed(value)}"
        self._each("value", place, self._variable(at), code, value)

    def set_of_values(self, value: Any, place: str, at: str) -> None:
        """A set may change in place, so a copy is what later ones are compared with."""
        if self._is_met_again(value, place, at):
            return
        variable = self._variable(at)
        self._apart.append((place, variable, value))
        self.by_value(set(value), place, variable)

    def by_value(self, value: Any, place: str, at: str) -> None:
        """A value that equal ones may stand for."""
        self._each("value", place, at, f"same({{v}}, {self._bind(value, 'V')})", value)

    def identity(self, value: Any, place: str, at: str) -> None:
        """An object of which nothing is known."""
        self._each("identity", place, at, f"{{v}} is {self._bind(value, 'O')}", value)

    def number(self, value: Any, place: str, at: str) -> None:
        """A number that is free: it keeps its type."""
        form, variable, cls = self.free[place], self._variable(at), type(value)
        assert isinstance(form, NumberForm)
        if cls not in (int, float, bool):
            raise InternalError(f"{place} is a {cls.__qualname__}; of numbers only int, float and bool may be free")
        self._each("type", place, variable, f"type({{v}}) is {cls.__name__}", cls)
        if cls is int:
            self._each("range", place, variable, f"{-LIMIT} <= {{v}} < {LIMIT}", "an int of 64 bits")
        if form.name and not self._bind_name(form.name, (place, None), place, variable):
            if cls is float:
                raise InternalError(f"the name {form.name!r} names two floats")
            self._expressions.append((place, variable, form.name))

    def _bind_name(self, name: str, at: tuple[str, int | None], place: str, variable: str) -> bool:
        """Let a name stand for what is found here, if it is here that it is bound."""
        if self._binding.get(name) != at:
            return False
        self.names[name], self.places[name], self._variables[name] = place, self._code(place), variable
        return True

    def float_number(self, value: float, place: str, at: str) -> None:
        """A float by its bits, but that one nan stands for another."""
        variable = self._variable(at)
        if value != value:
            code = "type({v}) is float and {v} != {v}"
        elif value == 0.0:
            code = f"type({{v}}) is float and {{v}} == 0.0 and copysign(1.0, {{v}}) == {math.copysign(1.0, value)}"
        else:
            code = (
                f"type({{v}}) is float and {{v}} == {value!r}"
                if math.isfinite(value)
                else f"same({{v}}, {self._bind(value, 'V')})"
            )
        self._each("value", place, variable, code, value)

    def _is_met_again(self, value: Any, place: str, selector: str) -> bool:
        """Whether a container or object stands at an earlier place, too: then it is to be that one."""
        known = self._containers.get(id(value))
        if known is None:
            self._containers[id(value)] = place
            return False
        self._each("alias", place, selector, f"{{v}} is {_escaped(self._code(known))}", "the same object")
        return True

    def container(self, value: Any, place: str, at: str) -> None:
        """A list, tuple, dict, deque or dataclass, member by member."""
        if self._is_met_again(value, place, at):
            return
        variable = self._variable(at)
        cls = type(value)
        if id(value) in self.outside.met:
            self._each("identity", place, variable, f"{{v}} is {self._bind(value, 'O')}", value)
        elif value or not isinstance(value, tuple):  # there is one empty tuple
            self._apart.append((place, variable, value))
        self._each("type", place, variable, f"type({{v}}) is {self._bind(cls, 'T')}", cls)
        if isinstance(value, dict):
            keys = list(dict.keys(value))
            self._keys(keys, place, variable)
            if isinstance(value, defaultdict):
                seen = value.default_factory
                self._each("factory", place, variable, f"{{v}}.default_factory is {self._bind(seen, 'F')}", seen)
        elif cls is deque or isinstance(value, (list, tuple)):
            self._each("length", place, variable, f"len({{v}}) == {len(value)}", len(value))
            if cls is deque:
                self._each("most", place, variable, f"{{v}}.maxlen == {value.maxlen}", value.maxlen)
        for label, key, inner in members(value):
            # a label such as [3] or .name; keys that are not plain text are bound
            text = label if key is None else f"[{self._bind(key[0], 'K')}]"
            self._walk(inner, self._part(place, text, label), variable + text)
        self._beside(value, place, variable)

    def _keys(self, keys: list[Any], place: str, variable: str) -> None:
        """A dict's keys, in order: the very same ones, or plain values. Texts of a class of their own may say that they
        are equal to a plain one, so that equality tells nothing.
        """
        seen = self._bind(keys, "V")
        code = f"(len({{v}}) == {len(keys)} and all(map(is_, {{v}}, {seen})) or same(list({{v}}), {seen}))"
        self._each("keys", place, variable, code, keys)

    def _beside(self, value: Any, place: str, variable: str) -> None:
        """What a container or dataclass holds besides its members, which may stand before something of its class."""
        if not has_attributes(value):
            return
        held, known = attributes_of(value), field_names(value)
        self._names(value, list(held), place, variable)
        within, self._is_beside = self._is_beside, True
        for name, inner in held.items():
            if name not in known:
                self._walk(inner, self._attribute(place, name), attribute_code(variable, name))
        self._is_beside = within

    def _names(self, value: Any, names: list[str], place: str, variable: str) -> None:
        """An object's attributes, by name and in order."""
        self.scope["attributes_of"] = attributes_of
        own = getattr(value, "__dict__", None)
        listed = "list({v}.__dict__)" if own is not None and len(own) == len(names) else "list(attributes_of({v}))"
        self._each("attributes", place, variable, f"{listed} == {_printed(names)}", names)

    def opened_object(self, value: Any, place: str, at: str) -> None:
        """An object whose attributes, and items, are compared one by one."""
        if self._is_met_again(value, place, at):
            return
        self.opened.add(place)
        variable = self._variable(at)
        self._apart.append((place, variable, value))
        self._each("type", place, variable, f"type({{v}}) is {self._bind(type(value), 'T')}", type(value))
        if isinstance(value, dict):
            keys = list(dict.keys(value))
            self._keys(keys, place, variable)
            for label, (key, inner) in zip(key_labels(keys), dict.items(value), strict=True):
                text = label if type(key) is str else f"[{self._bind(key, 'K')}]"
                self._walk(inner, self._part(place, text, label), variable + text)
        held = attributes_of(value)
        self._names(value, list(held), place, variable)
        for name, inner in held.items():
            self._walk(inner, self._attribute(place, name), attribute_code(variable, name))

    def tensor(self, value: torch.Tensor, place: str, at: str) -> None:
        """A tensor: what it is, and its layout."""
        variable = self._variable(at)
        for place_before, variable_before, before in self._tensors:
            if before is value:
                code = f"{self._code(place)} is {self._code(place_before)}"
                self._test("alias", place, code, "the same tensor", f"{variable} is {variable_before}")
                return
        each = self._each
        each("type", place, variable, f"type({{v}}) is {self._bind(type(value), 'T')}", type(value))
        if value.is_nested:
            # It has no shape to be asked for, and nothing is compiled for it.
            each("nested", place, variable, "{v}.is_nested", True)
            return
        if id(value) in self._rooted:
            each("identity", place, variable, f"{{v}} is {self._bind(value, 'O')}", value)
        self._tensors.append((place, variable, value))
        each("dtype", place, variable, f"{{v}}.dtype is {self._bind(value.dtype, 'D')}", value.dtype)
        layout = self._bind(value.layout, "L")
        each("layout", place, variable, f"{{v}}.layout is {layout} and not {{v}}.is_nested", value.layout)
        form = self.free.get(place)
        if isinstance(form, TensorForm):
            self._form(form, value, place, variable)
        elif form is not None:
            raise InternalError(f"{place} is a tensor, and no number")
        else:
            each("shape", place, variable, f"{{v}}.shape == {tuple(value.shape)!r}", tuple(value.shape))
            each("stride", place, variable, f"{{v}}.stride() == {value.stride()!r}", value.stride())
        if value.device.type == "cpu":
            each("device", place, variable, "{v}.is_cpu", value.device)
        else:
            each("device", place, variable, f"{{v}}.device == {self._bind(value.device, 'C')}", value.device)
        each("requires_grad", place, variable, f"{{v}}.requires_grad is {value.requires_grad}", value.requires_grad)
        if value.dtype.is_complex:
            each("conj", place, variable, f"{{v}}.is_conj() is {value.is_conj()}", value.is_conj())
        has_memory = f"not {self._bind(is_zero, 'Z')}({{v}})"
        each("neg", place, variable, f"{{v}}.is_neg() is {value.is_neg()} and {has_memory}", value.is_neg())
        if self._tells_inference:
            of_inference = value.is_inference()
            each("inference", place, variable, f"{{v}}.is_inference() is {of_inference}", of_inference)

    def _form(self, form: TensorForm, value: torch.Tensor, place: str, variable: str) -> None:
        """The sizes and strides of a tensor that has free ones."""
        rank = value.dim()
        if len(form.sizes) != rank or (form.strides is not None and len(form.strides) != rank):
            raise InternalError(f"the form of {place} has not the {rank} dimensions of the tensor")
        self._each("rank", self._part(place, ".dim()"), f"{variable}.dim()", f"{{v}} == {rank}", rank)
        if form.strides is None:
            self._each("stride", place, variable, "{v}.stride() == row_major({v}.shape)", value.stride())
        shape = self._variable(f"{variable}.shape")
        for dim, size in enumerate(form.sizes):
            where, at = self._part(place, f".shape[{dim}]"), f"{shape}[{dim}]"
            if isinstance(size, int):
                self._each("size", where, at, f"{{v}} == {size}", size)
            elif not self._bind_name(size, (place, dim), where, at):
                self._expressions.append((where, at, size))
        for dim, stride in enumerate(form.strides or ()):
            where, at = self._part(place, f".stride({dim})"), f"{variable}.stride({dim})"
            if stride is None:
                continue
            if isinstance(stride, int):
                self._each("stride", where, at, f"{{v}} == {stride}", stride)
            else:
                self._expressions.append((where, at, stride))

    def _sizes(self) -> None:
        """What must hold of free sizes and numbers, once all of them are found."""
        self._flush()
        for where, at, text in self._expressions:
            tree = parsed(text)
            pairs = (self._code(where), self.places), (at, self._variables)
            codes = [f"{w} == ({rewritten(tree, p)})" for w, p in pairs]
            self._test("check", codes[0], codes[0], True, codes[1], f"{where} == {text}")
        for check in self.checks:
            tree = parsed(check.text)
            wanted = "" if check.outcome else "not "
            shown, inline = (f"({wanted}({rewritten(tree, p)}))" for p in (self.places, self._variables))
            self._test("check", shown, shown, True, inline, str(check), check.span)

    def _extent(self, place: str, variable: str, value: torch.Tensor) -> tuple[str, str]:
        """The bytes that a tensor spans, as code over the arguments and over variables."""
        if place in self.free:
            return f"nbytes_spanned({self._code(place)})", f"nbytes_spanned({variable})"
        return (str(nbytes_spanned(value)),) * 2

    def _identities(self) -> None:
        """That arguments which were objects of their own are: Python may ask whether one is another, and whether it is
        one that the program reads by itself.
        """
        distinct = "len({{{ids}}}) == {count}"
        if len(self._tensors) > 1:
            self._ids(self._tensors, distinct, "different tensors")
        if len(self._apart) > 1:
            self._ids(self._apart, distinct, "different objects")
        for found, others, what in (
            (self._tensors, tuple(self._rooted.values()), "tensors"), (self._apart, self.outside.others, "objects"),
        ):  # fmt: skip
            own = [one for one in found if id(one[2]) not in self._rooted]
            if others and own:
                # The tuple keeps them, so that their ids name nothing else.
                self._bind(others, "K")
                template = self._bind(frozenset(map(id, others)), "V") + ".isdisjoint(({ids},))"
                self._ids(own, template, f"no {what} that the program reads by itself")

    def _ids(self, found: Sequence[tuple[str, str, Any]], template: str, seen: str) -> None:
        """A test of the ids of what stands at places and in variables."""
        places, variables, _ = zip(*found, strict=True)
        listed = ", ".join(map(self._code, places))
        code, inline = (
            template.format(ids=", ".join(map("id({})".format, n)), count=len(n))
            for n in (list(map(self._code, places)), variables)
        )
        self._test("alias", ", ".join(places), code, seen, inline, where=listed)

    def _aliasing(self, rooted: Sequence[torch.Tensor], writes: bool) -> None:
        """Which tensor arguments share memory with each other, and with tensors the program reads by itself.

        A program that writes nothing, recorded with separate arguments, answers the same for any that share.
        """
        if len(self._tensors) > 1:
            extents = tuple(nbytes_spanned(t) for _, _, t in self._tensors)
            names = [self._bind(extents, "E")] * 2
            if self.free:
                found = [self._extent(*each) for each in self._tensors]
                names = [f"({', '.join(codes)})" for codes in zip(*found, strict=True)]
            seen = extents_meet([t.data_ptr() for _, _, t in self._tensors], extents)
            meet = f"== {self._bind(seen, 'M')}" if seen else "== ()"
            codes = [
                ", ".join(f"{tensor}.data_ptr()" for tensor in tensors)
                for tensors in zip(*[(self._code(p), v) for p, v, _ in self._tensors], strict=True)
            ]
            template = "extents_meet(({pointers}), {extents}) {meet}"
            pairs = zip(codes, names, strict=True)
            shown, inline = (template.format(pointers=c, extents=e, meet=meet) for c, e in pairs)
            places = [p for p, _, _ in self._tensors]
            if seen or writes:
                where = ", ".join(map(self._code, places))
                self._test("aliasing", ", ".join(places), shown, seen or "no shared memory", inline, where=where)
        spans = Spans(rooted)
        if spans.starts and self._tensors:
            name = self._bind(spans, "R")
            for place, variable, value in self._tensors:
                extent = nbytes_spanned(value)
                touched = spans.touched(value.data_ptr(), extent)
                if not touched and not writes:
                    continue
                shown, inline = (
                    f"{name}.touched({v}.data_ptr(), {e}) == {touched}"
                    for v, e in zip((self._code(place), variable), self._extent(place, variable, value), strict=True)
                )
                self._test("aliasing", place, shown, touched or "memory of its own", inline)


def _printed(value: Any) -> str:
    """A value as code in a template."""
    return _escaped(repr(value))


def _escaped(text: str) -> str:
    """A text that stands in a template as it is."""
    return text.replace("{", "{{").replace("}", "}}")


def _never(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return False


def members(value: Any) -> list[tuple[str, tuple[Any] | None, Any]]:
    """The members of a structured argument, each with its label, which is also the code that selects it, or does so
    with the key in a 1-tuple. A dataclass that is a dict, as outputs of libraries are, has items and fields: what both
    hold is named by the item, which stands first in a structure, too.
    """
    found: list[tuple[str, tuple[Any] | None, Any]] = []
    if isinstance(value, dict):
        labelled = zip(key_labels(dict.keys(value)), dict.items(value), strict=True)
        found = [(label, None if type(key) is str else (key,), inner) for label, (key, inner) in labelled]
    elif isinstance(value, (list, tuple)) or type(value) is deque:
        found = [(f"[{i}]", None, inner) for i, inner in enumerate(value)]
    if dataclasses.is_dataclass(value):
        found += [(attribute_label(f.name), None, getattr(value, f.name)) for f in dataclasses.fields(value)]
    return found


def has_attributes(value: Any) -> bool:
    """Whether a container or dataclass may hold more than its items and fields."""
    return hasattr(value, "__dict__")


def field_names(value: Any) -> frozenset[str]:
    """The names of a dataclass's fields; of others none."""
    return frozenset(f.name for f in dataclasses.fields(value)) if dataclasses.is_dataclass(value) else frozenset()


def attributes_of(value: Any) -> dict[str, Any]:
    """An object's own attributes and what is in its slots, in order."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        for name, member in cls.__dict__.items():
            if isinstance(member, types.MemberDescriptorType) and name not in found:
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue
    return found


def extents_meet(pointers: Sequence[int], extents: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """The pairs of memory ranges that overlap, each as (i, j, distance in bytes); almost always none."""
    if len(pointers) == 2:
        (p, q), (m, n) = pointers, extents
        return ((0, 1, q - p),) if p < q + n and q < p + m else ()
    found = []
    order = sorted(range(len(pointers)), key=pointers.__getitem__)
    for at, i in enumerate(order):
        end = pointers[i] + extents[i]
        for j in order[at + 1 :]:
            if pointers[j] >= end:
                break
            if extents[j]:
                found.append((i, j, pointers[j] - pointers[i]))
    return tuple(found)


class Spans:
    """The memory of the tensors that a program reads by itself (parameters, globals), as disjoint ranges."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        ranges = sorted((t.data_ptr(), t.data_ptr() + nbytes_spanned(t)) for t in tensors if nbytes_spanned(t))
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in ranges:
            if self.ends and start < self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def touched(self, start: int, extent: int) -> int:
        """0 if memory from `start`, `extent` bytes long, meets no range, else 1 + the number of the last it meets."""
        at = bisect_right(self.starts, start + extent - 1) - 1
        return at + 1 if at >= 0 and start < self.ends[at] and extent else 0

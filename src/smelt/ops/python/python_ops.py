"""Python's own scalars and containers in the graph: the operators `py.*`; those between ranks, `dist.*`; steps of
recurrent layers, `rnn.*`.

Invariants: an explicit table; what an operator computes is what CPython computes. Containers are values: `py.append`
gives another list, and nothing here changes an operand. Tensors in containers are the very tensors that went in.
"""

from __future__ import annotations

import builtins
import operator
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ir import Arg, Type
from smelt.ops.own import narrow_linear, recurrent_steps
from smelt.ops.python import python_throws as throws
from smelt.ops.python import python_types as types
from smelt.ops.python.called import as_called
from smelt.ops.python.index_words import words_of_brackets
from smelt.ops.python.python_calls import call, exception_of, rebuilt
from smelt.ops.python.python_draws import KEYWORDS, draw
from smelt.ops.python.python_numbers import FITS, fits
from smelt.ops.python.python_warnings import warn
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks import expert_rows
from smelt.ops.registry import overload
from smelt.ops.torch_gradients import GRADIENT, gradient, types_of_gradient, types_of_vjp, vjp
from smelt.ops.torch_gradients import NAME as VJP

written = threading.local()
"""How many pieces of text `py.print` gave to `stdout` and `stderr` in this thread."""

Run = Callable[..., Any]
Rule = Callable[[Sequence[Arg]], tuple[Type, ...]]
Throws = Callable[[Sequence[Arg]], bool]


@record
class PyOp:
    """One operator. least, most: how many positional arguments it takes (most None: any number).

    run: what it computes. result: the types of its results as far as its operands tell. throws: whether these operands
    may make it raise. io: whether it acts on the world. rng: whether it draws random numbers. is_fresh: whether the
    tensors in its results have memory of their own. keywords: the keyword arguments it takes.
    """

    name: str
    run: Run
    result: Rule
    throws: Throws
    least: int
    most: int | None
    io: bool = False
    keywords: frozenset[str] = frozenset()
    results: int = 1
    rng: bool = False
    is_fresh: bool = False

    @property
    def is_pure(self) -> bool:
        """Whether it only computes its results."""
        return not (self.io or self.rng)


def _setitem(container: Any, index: Any, value: Any) -> Any:
    copy = container.copy()
    copy[index] = value
    return copy


def _delitem(container: Any, index: Any) -> Any:
    copy = container.copy()
    del copy[index]
    return copy


def _insert(items: list[Any], index: int, value: Any) -> list[Any]:
    copy = items.copy()
    copy.insert(index, value)
    return copy


def _pop(container: Any, index: Any = -1) -> tuple[Any, Any]:
    copy = container.copy()
    return copy, copy.pop(index)


def _dict(*items: Any) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _slice(container: Any, start: Any = None, stop: Any = None, step: Any = None) -> Any:
    return container[start:stop:step]


def _append(items: list[Any], value: Any) -> list[Any]:
    return [*items, value]


def _in(item: Any, container: Any) -> bool:
    return item in container


def _format(value: Any, spec: str = "", conversion: str | None = None) -> str:
    convert = {None: None, "s": str, "r": repr, "a": ascii}[conversion]
    return format(value if convert is None else convert(value), spec)


def _join(*parts: str) -> str:
    return "".join(parts)


def _print(
    *args: Any, sep: str | None = " ", end: str | None = "\n", stream: str = "stdout", flush: bool = False
) -> None:
    print(*args, sep=sep, end=end, file=getattr(sys, stream), flush=flush)
    setattr(written, stream, getattr(written, stream, 0) + max(2 * len(args), 1))


def _raise(
    name: str, *args: Any, fields: str | None = None, cause: str | None = None, cause_args: Sequence[Any] = ()
) -> None:
    cls = exception_of(name)
    if fields is None:
        error = cls(*args)
    else:
        names = fields.split()
        count = len(args) - len(names)
        error = rebuilt(cls, args[:count], dict(zip(names, args[count:], strict=True)))
    if cause is None:
        raise error
    raise error from (None if cause == "None" else rebuilt(exception_of(cause), tuple(cause_args), {}))


ATTEMPT_KEYWORDS = frozenset((
    "accumulate", "alpha", "beta", "copy", "correction", "device", "dim", "dtype", "dropout_p", "enable_gqa",
    "include_self", "is_causal", "keepdim", "layout", "memory_format", "non_blocking", "pin_memory", "reduce",
    "rounding_mode", "scale", "sparse_grad", "value",
))  # fmt: skip
"""Of the keywords that torch's operators have, those that `py.attempt` and `py.raised` hand on."""


def _attempt(name: str, *args: Any, indexed: int | None = None, **kwargs: Any) -> list[str]:
    """What an operator raises on these operands, its class and its text; nothing where it does not.

    indexed: it is the `select` of an index in brackets, and so many numbers stand before it there.
    """
    python = python_op(name)
    try:
        if python is None:
            run, operands = as_called(name, overload(name), list(args))
            run(*operands, **kwargs)
        else:
            python.run(*args, **kwargs)
    except Exception as error:
        if indexed is not None and isinstance(error, IndexError):
            return ["builtins.IndexError", words_of_brackets(args[0], args[1], args[2], indexed)]
        return [f"{type(error).__module__}.{type(error).__qualname__}", str(error.args[0]) if error.args else ""]
    return []


def _raised(name: str, *args: Any, **kwargs: Any) -> str:
    """What an operator raises on these operands, its class and its text, as one; empty where it does not."""
    return ": ".join(_attempt(name, *args, **kwargs))


def _assert(condition: Any, *message: Any) -> None:
    if not condition:
        raise AssertionError(*message)


def _attribute(tensor: Any, name: str) -> Any:
    return getattr(tensor, name)


def _list(*items: Any) -> list[Any]:
    return list(items)


def _tuple(*items: Any) -> tuple[Any, ...]:
    return items


def _binary(name: str, run: Run, rule: Rule, may_throw: Throws) -> PyOp:
    return PyOp(f"py.{name}", run, rule, may_throw, 2, 2)


_NEVER, _ALWAYS = throws.never, throws.always


def _steps(name: str) -> PyOp:
    """All steps of a recurrent layer."""
    states = recurrent_steps.CELLS[name].states
    run, rule = partial(recurrent_steps.run, name), partial(recurrent_steps.types_of, name)
    return PyOp(name, run, rule, _NEVER, 6 + states, 6 + states, is_fresh=True, results=1 + states)


def _narrow(name: str, operands: int) -> PyOp:
    """A linear layer over few bits, or the weight of one."""
    is_weight = name in (narrow_linear.BYTES, narrow_linear.NIBBLES)
    type_of = narrow_linear.wide_type if is_weight else narrow_linear.type_of
    return PyOp(name, narrow_linear.RUNS[name], type_of, _NEVER, operands, operands, is_fresh=True)


NAMESPACES = ("py.", "dist.", recurrent_steps.PREFIX, narrow_linear.PREFIX)
"""How the names of these operators begin."""

PYTHON_OPS: tuple[PyOp, ...] = (
    _binary("add", operator.add, types.add, throws.sum_),
    _binary("sub", operator.sub, types.arithmetic, throws.arithmetic),
    _binary("mul", operator.mul, types.mul, throws.arithmetic),
    _binary("truediv", operator.truediv, types.truediv, throws.division),
    _binary("floordiv", operator.floordiv, types.floordiv, throws.division),
    _binary("mod", operator.mod, types.mod, throws.division),
    _binary("pow", operator.pow, types.power, throws.power),
    _binary("lshift", operator.lshift, types.shift, throws.shift),
    _binary("rshift", operator.rshift, types.shift, throws.shift),
    _binary("and_", operator.and_, types.bitwise, throws.bitwise),
    _binary("or_", operator.or_, types.bitwise, throws.bitwise),
    _binary("xor", operator.xor, types.bitwise, throws.bitwise),
    PyOp("py.neg", operator.neg, types.signed, throws.signed, 1, 1),
    PyOp("py.pos", operator.pos, types.signed, throws.signed, 1, 1),
    PyOp("py.abs", abs, types.magnitude, throws.signed, 1, 1),
    PyOp("py.invert", operator.invert, types.shift, throws.bitwise, 1, 1),
    _binary("eq", operator.eq, types.comparison, throws.equality),
    _binary("ne", operator.ne, types.comparison, throws.equality),
    _binary("lt", operator.lt, types.comparison, throws.ordering),
    _binary("le", operator.le, types.comparison, throws.ordering),
    _binary("gt", operator.gt, types.comparison, throws.ordering),
    _binary("ge", operator.ge, types.comparison, throws.ordering),
    PyOp("py.not_", operator.not_, types.always_bool, throws.truth, 1, 1),
    PyOp("py.is_none", lambda value: value is None, types.always_bool, _NEVER, 1, 1),
    _binary("in_", _in, types.always_bool, throws.membership),
    PyOp("py.int", int, types.always_int, throws.to_int, 1, 2),
    PyOp("py.float", float, types.always_float, throws.to_float, 1, 1),
    PyOp("py.bool", bool, types.always_bool, throws.truth, 1, 1),
    PyOp("py.complex", complex, types.always_complex, throws.to_complex, 1, 2),
    PyOp("py.str", str, types.always_str, throws.to_str, 1, 1),
    PyOp("py.round", round, types.rounded, throws.rounded, 1, 2),
    PyOp("py.min", min, types.extreme, throws.extreme, 1, None),
    PyOp("py.max", max, types.extreme, throws.extreme, 1, None),
    PyOp("py.sum", sum, types.total, _ALWAYS, 1, 2),
    PyOp("py.call", call, types.called, throws.called, 1, None),
    PyOp("py.getattr", _attribute, types.attribute, throws.attribute, 2, 2),
    PyOp("py.list", _list, types.list_, _NEVER, 0, None),
    PyOp("py.tuple", _tuple, types.tuple_, _NEVER, 0, None),
    PyOp("py.dict", _dict, types.dict_, throws.dict_, 0, None),
    PyOp("py.len", len, types.always_int, throws.length, 1, 1),
    PyOp("py.getitem", operator.getitem, types.getitem, throws.getitem, 2, 2),
    PyOp("py.slice", _slice, types.slice_, throws.slice_, 1, 4),
    _binary("concat", operator.add, types.add, throws.concat),
    _binary("append", _append, types.append, throws.append),
    PyOp("py.setitem", _setitem, types.setitem, _ALWAYS, 3, 3),
    PyOp("py.delitem", _delitem, types.same, _ALWAYS, 2, 2),
    PyOp("py.insert", _insert, types.insert, throws.append, 3, 3),
    PyOp("py.pop", _pop, types.pop, _ALWAYS, 1, 2, results=2),
    PyOp("py.format", _format, types.always_str, throws.format_, 1, 3),
    PyOp("py.join", _join, types.always_str, throws.join, 0, None),
    PyOp("py.draw", draw, types.drawn, throws.drawn, 1, None, keywords=KEYWORDS, rng=True),
    PyOp(
        "py.print", _print, types.nothing, _ALWAYS, 0, None, io=True, results=0,
        keywords=frozenset(("sep", "end", "stream", "flush")),
    ),
    PyOp("py.warn", warn, types.nothing, _ALWAYS, 4, None, io=True, results=0, keywords=frozenset(("above",))),
    PyOp(
        "py.raise", _raise, types.nothing, _ALWAYS, 1, None, results=0,
        keywords=frozenset(("cause", "cause_args", "fields")),
    ),
    PyOp("py.assert", _assert, types.nothing, _ALWAYS, 1, 2, results=0),
    PyOp(FITS, fits, types.always_float, _ALWAYS, 2, 2),
    PyOp(VJP, vjp, types_of_vjp, _ALWAYS, 4, None),
    PyOp(GRADIENT, gradient, types_of_gradient, _ALWAYS, 3, 3, is_fresh=True, keywords=frozenset(("create_graph",))),
    PyOp(dist.ALL_REDUCE, dist.all_reduce, dist.same_type, _NEVER, 3, 3, io=True, is_fresh=True),
    PyOp(
        dist.ALL_GATHER, dist.all_gather, dist.type_of_whole, _NEVER, 6, 6, io=True, is_fresh=True,
        keywords=frozenset(("entered",)),
    ),
    PyOp(dist.REDUCE_SCATTER, dist.reduce_scatter, dist.type_of_part, _NEVER, 6, 6, io=True, is_fresh=True),
    PyOp(dist.ALL_TO_ALL, dist.all_to_all, dist.type_of_moved, _NEVER, 9, 9, io=True, is_fresh=True),
    PyOp(dist.BROADCAST, dist.broadcast, dist.same_type, _NEVER, 3, 3, io=True, is_fresh=True),
    PyOp(dist.AGREE, dist.agree, dist.type_of_entered, _NEVER, 3, 3, io=True, is_fresh=True),
    PyOp(dist.START, dist.start_all_reduce, dist.type_of_start, _NEVER, 4, 4, io=True, is_fresh=True),
    PyOp(dist.WAIT, dist.wait, dist.type_of_wait, _NEVER, 4, 4, io=True, is_fresh=True),
    PyOp(
        dist.SEND_ROWS, expert_rows.send_rows, expert_rows.type_of_exchanged, _NEVER, 6, 6, io=True, is_fresh=True
    ),
    PyOp(
        dist.RETURN_ROWS, expert_rows.return_rows, expert_rows.type_of_exchanged, _NEVER, 6, 6, io=True, is_fresh=True
    ),
    PyOp(dist.TAKE_ROWS, expert_rows.take_rows, dist.same_type, _NEVER, 4, 4, is_fresh=True),
    PyOp(dist.PUT_ROWS, expert_rows.put_rows, dist.same_type, _NEVER, 4, 4, is_fresh=True),
    PyOp(dist.OWN_ENDS, expert_rows.own_ends, expert_rows.type_of_own_ends, _NEVER, 3, 3, is_fresh=True),
    PyOp(dist.OWN_NOISE, dist.own_noise, dist.same_type, _NEVER, 4, 4, rng=True, is_fresh=True),
    PyOp(dist.ENTER, dist.enter, dist.type_of_entered, _NEVER, 2, 2, is_fresh=True),
    PyOp(dist.SHARD, dist.shard, dist.type_of_part, _NEVER, 6, 6, is_fresh=True),
    *(_steps(name) for name in recurrent_steps.CELLS),
    _narrow(narrow_linear.INT8, 3),
    _narrow(narrow_linear.INT4, 4),
    _narrow(narrow_linear.BYTES, 2),
    _narrow(narrow_linear.NIBBLES, 3),
    PyOp("py.raised", _raised, types.always_str, _NEVER, 1, None, keywords=ATTEMPT_KEYWORDS),
    PyOp("py.attempt", _attempt, types.texts, _NEVER, 1, None, keywords=ATTEMPT_KEYWORDS | {"indexed"}),
)  # fmt: skip
BUILTIN_NAMES = frozenset(
    name for op in PYTHON_OPS if getattr(builtins, name := op.name.removeprefix("py."), None) is op.run
)
"""Operators that are a function of `builtins` of the same name."""
_BY_NAME: Mapping[str, PyOp] = MappingProxyType({op.name: op for op in PYTHON_OPS})


def python_op(name: str) -> PyOp | None:
    """The operator of a name, None for any that is not Python's."""
    return _BY_NAME.get(name)


def infer_python(name: str, args: Sequence[Arg]) -> tuple[Type, ...]:
    """The types of an operator's results. Raises: SmeltError (S0202) for a call that the operator does not take."""
    found = _BY_NAME.get(name)
    fault = f"there is no operator {name}" if found is None else arity_fault(found, len(args))
    if fault or found is None:
        raise SmeltError(fault, fix="docs/graph.md lists the operators", code="S0202")
    return found.result(args)


def arity_fault(op: PyOp, count: int) -> str:
    """What is wrong with a number of positional arguments, or ""."""
    if count >= op.least and (op.most is None or count <= op.most):
        return ""
    most = "or more" if op.most is None else f"to {op.most}"
    return f"{op.name} takes {op.least if op.most == op.least else f'{op.least} {most}'} arguments, not {count}"

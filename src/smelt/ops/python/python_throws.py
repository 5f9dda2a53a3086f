"""Whether `py.*` operators may raise on operands of these types: never said to be safe where they are not.

What may raise stays where it stands: it is not dropped, not moved into another branch's way, not hoisted.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    STR,
    Arg,
    DictType,
    ListType,
    Node,
    Region,
    TensorType,
    TupleType,
    Type,
    Value,
    type_of_arg,
)
from smelt.ir.sizes import is_symbolic
from smelt.ops.python.python_types import is_number, is_plain

Args = Sequence[Arg]
_WHOLE = (INT, BOOL)
# What is hashable whatever it is.
_KEYS = (INT, BOOL, FLOAT, COMPLEX, STR)
# Bits up to which an int's conversion to a float cannot overflow.
_SMALL_BITS = 1000
# Literals whose differences and sums are finite.
_SMALL = 1e300
# How far back an int's makers are asked.
_DEPTH = 6
_BOUNDED = ("py.add", "py.sub", "py.mul", "py.neg", "py.pos", "py.abs", "py.floordiv", "py.mod", "py.min", "py.max")


def never(args: Args) -> bool:
    """For no operands."""
    return False


def always(args: Args) -> bool:
    """For any operands."""
    return True


_SURE_DRAWS = frozenset(f"{m}.{n}" for m in ("random", "numpy.random") for n in ("random", "uniform"))


def drawn(args: Args) -> bool:
    """A draw may refuse its numbers, where it takes any and they are not small literals of a range."""
    numbers = args[1:]
    if not numbers and args[0] != "random.choice":
        return args[0] not in ("numpy.random.rand", "numpy.random.randn", *_SURE_DRAWS)
    return args[0] not in _SURE_DRAWS or not all(type(a) in (int, float) and abs(a) < _SMALL for a in numbers)  # type: ignore[arg-type]


def attribute(args: Args) -> bool:
    """For what may be no tensor."""
    return not (isinstance(args[0], Value) and isinstance(args[0].type, TensorType))


def _types(args: Args) -> list[Type]:
    return [type_of_arg(arg) for arg in args]


def _is_small(arg: Arg) -> bool:
    """Whether an int surely fits a float."""
    bits = _bits(arg, _DEPTH)
    return bits is not None and bits <= _SMALL_BITS


def _bits(arg: Arg, depth: int) -> int | None:
    """Bits that an int surely has no more of: of literals, sizes, elements of tensors, indices of loops, their sums."""
    if is_symbolic(arg):
        return 64
    if not isinstance(arg, Value):
        return arg.bit_length() if isinstance(arg, int) else None
    if arg.type == BOOL:
        return 1
    node = arg.node
    if node is None:
        loop = arg.owner.owner if isinstance(arg.owner, Region) else None
        if not isinstance(loop, Node) or loop.op != "for" or loop.regions[0].params[0] is not arg or not depth:
            return None
        first = _bits(loop.args[0], depth - 1)
        return None if first is None else first + 64
    if node.op.startswith("aten.") or node.op == "py.len":
        return 64
    if node.op not in _BOUNDED or not depth:
        return None
    found = [_bits(a, depth - 1) for a in node.args]
    known = [bits for bits in found if bits is not None]
    if len(known) != len(found):
        return None
    return sum(known) if node.op == "py.mul" else max(known) + 1


def _floats_overflow(args: Args) -> bool:
    """Whether a huge int may have to become a float."""
    types = _types(args)
    is_mixed = any(t in (FLOAT, COMPLEX) for t in types)
    return is_mixed and any(t == INT and not _is_small(arg) for t, arg in zip(types, args, strict=True))


def arithmetic(args: Args) -> bool:
    """Numbers raise only where an int is too large for a float."""
    types = _types(args)
    if COMPLEX in types:
        return True
    return not all(map(is_number, types)) or _floats_overflow(args)


def sum_(args: Args) -> bool:
    """Numbers, two strings, two lists, two tuples."""
    return concat(args) and arithmetic(args)


def concat(args: Args) -> bool:
    """Two of one kind."""
    a, b = _types(args)
    if a == b == STR:
        return False
    return not any(isinstance(a, kind) and isinstance(b, kind) for kind in (ListType, TupleType))


def division(args: Args) -> bool:
    """Numbers by a literal other than 0; a huge int has no float for its quotient."""
    divisor = args[1]
    is_safe = type(divisor) in (int, float) and divisor != 0
    return not is_safe or arithmetic(args) or (type_of_arg(args[0]) == INT and not _is_small(args[0]))


def power(args: Args) -> bool:
    """An int to a small literal power."""
    base, exponent = type_of_arg(args[0]), args[1]
    return not (base in _WHOLE and type(exponent) is int and 0 <= exponent < 64)


def shift(args: Args) -> bool:
    """Ints by a small literal."""
    count = args[1]
    return not (type_of_arg(args[0]) in _WHOLE and type(count) is int and 0 <= count < 1024)


def bitwise(args: Args) -> bool:
    """Ints, bools."""
    return not all(t in _WHOLE for t in _types(args))


def signed(args: Args) -> bool:
    """Real numbers."""
    return type_of_arg(args[0]) not in (*_WHOLE, FLOAT)


def equality(args: Args) -> bool:
    """Anything that is no tensor and holds none."""
    return not all(_is_comparable(t) for t in _types(args))


def _is_comparable(type_: Type) -> bool:
    return is_plain(type_) and not isinstance(type_, (ListType, TupleType, DictType))


def ordering(args: Args) -> bool:
    """Real numbers, or strings."""
    types = _types(args)
    return not (all(t in (*_WHOLE, FLOAT) for t in types) or all(t == STR for t in types))


def truth(args: Args) -> bool:
    """Anything but tensors that may have no element or several."""
    type_ = type_of_arg(args[0])
    if isinstance(type_, TensorType):
        return not (type_.is_static and type_.numel == 1)
    return not is_plain(type_)


def membership(args: Args) -> bool:
    """Scalars in a list of scalars, a string in a string, a key in a dictionary."""
    item, container = _types(args)
    match container:
        case ListType(element=inside):
            return not (_is_comparable(item) and (_is_comparable(inside) or args[1] == ()))
        case DictType():
            return item not in _KEYS
    return not (item == container == STR)


def to_int(args: Args) -> bool:
    """Ints and bools."""
    return len(args) != 1 or type_of_arg(args[0]) not in _WHOLE


def to_float(args: Args) -> bool:
    """Floats, and ints that are not huge."""
    type_ = type_of_arg(args[0])
    return not (type_ == FLOAT or (type_ in _WHOLE and (type_ == BOOL or _is_small(args[0]))))


def to_complex(args: Args) -> bool:
    """Numbers, ints that are not huge."""
    return not all(t in (COMPLEX, FLOAT, BOOL) or (t == INT and _is_small(a)) for t, a in _pairs(args))


def _pairs(args: Args) -> list[tuple[Type, Arg]]:
    return [(type_of_arg(a), a) for a in args]


def to_str(args: Args) -> bool:
    """Floats, bools, strings; ints of few digits (Python refuses to print huge ones)."""
    type_ = type_of_arg(args[0])
    return not (type_ in (FLOAT, BOOL, STR) or (type_ == INT and _is_small(args[0])))


def rounded(args: Args) -> bool:
    """An int; a float may be nan."""
    return len(args) != 1 or type_of_arg(args[0]) not in _WHOLE


def extreme(args: Args) -> bool:
    """Two real numbers or more."""
    return len(args) < 2 or ordering(args)


_SAFE_CALLS = ("math.isfinite", "math.isinf", "math.isnan", "math.atan", "math.tanh", "math.fabs", "math.atan2")


def called(args: Args) -> bool:
    """A few functions of floats take any."""
    name, rest = args[0], _types(args[1:])
    counts = {"math.atan2": 2}
    safe = name in _SAFE_CALLS and all(t in (FLOAT, BOOL) for t in rest)
    return not (safe and isinstance(name, str) and len(rest) == counts.get(name, 1))


def dict_(args: Args) -> bool:
    """Keys that can be hashed."""
    return len(args) % 2 == 1 or not all(t in _KEYS for t in _types(args[::2]))


def length(args: Args) -> bool:
    """Containers and strings."""
    type_ = type_of_arg(args[0])
    return not (isinstance(type_, (ListType, TupleType, DictType)) or type_ == STR)


def getitem(args: Args) -> bool:
    """A tuple's element by a literal."""
    container, index = type_of_arg(args[0]), args[1]
    if not isinstance(container, TupleType) or type(index) is not int:
        return True
    return not -len(container.elements) <= index < len(container.elements)


def slice_(args: Args) -> bool:
    """A list, tuple or string, by ints, with a literal step."""
    kind, bounds = type_of_arg(args[0]), (*args[1:], None, None, None)[:3]
    step = bounds[2]
    is_sliceable = isinstance(kind, (ListType, TupleType)) or kind == STR
    are_ints = all(b is None or type_of_arg(b) in _WHOLE for b in bounds[:2])
    return not (is_sliceable and are_ints and (step is None or (type(step) is int and step != 0)))


def append(args: Args) -> bool:
    """To a list; at a place that is an int."""
    at = args[1] if len(args) == 3 else 0
    return not (isinstance(type_of_arg(args[0]), ListType) and type_of_arg(at) in _WHOLE)


def format_(args: Args) -> bool:
    """Without a specification, as `str` does."""
    spec = args[1] if len(args) > 1 else ""
    return spec != "" or to_str(args)


def join(args: Args) -> bool:
    """Strings."""
    return not all(t == STR for t in _types(args))

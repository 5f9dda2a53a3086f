"""The types of what `py.*` operators give, from the types of their operands: `any` where these do not tell.

A rule takes the positional arguments and gives one type for each result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from smelt.ir import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    UNKNOWN_DIM,
    Arg,
    DictType,
    DType,
    ListType,
    OptionalType,
    ScalarType,
    TupleType,
    Type,
    join,
    join_all,
    type_of_arg,
)
from smelt.ir.types import TensorType
from smelt.ops.python.python_draws import DRAWS

Types = tuple[Type, ...]
Args = Sequence[Arg]

# Each holds the numbers of those before it, so that of two the later is what arithmetic gives.
_NUMBERS: tuple[Type, ...] = (BOOL, INT, FLOAT, COMPLEX)


def _types(args: Args) -> list[Type]:
    return [type_of_arg(arg) for arg in args]


def number(types: Sequence[Type]) -> Type | None:
    """What arithmetic on numbers gives, bools counted as ints; None where one is no number for sure."""
    if not all(t in _NUMBERS for t in types):
        return None
    return _NUMBERS[max(1, *(_NUMBERS.index(t) for t in types))]


def is_number(type_: Type) -> bool:
    """Whether a value is a bool, int, float or complex."""
    return type_ in _NUMBERS


def _always(type_: Type) -> Types:
    return (type_,)


def always_bool(args: Args) -> Types:
    """A bool."""
    return _always(BOOL)


def always_int(args: Args) -> Types:
    """An int."""
    return _always(INT)


def always_float(args: Args) -> Types:
    """A float."""
    return _always(FLOAT)


def always_complex(args: Args) -> Types:
    """A complex number."""
    return _always(COMPLEX)


def texts(args: Args) -> Types:
    """A list of strings."""
    return _always(ListType(STR))


def always_str(args: Args) -> Types:
    """A string."""
    return _always(STR)


def nothing(args: Args) -> Types:
    """No result."""
    return ()


def same(args: Args) -> Types:
    """The first operand's type; a tuple's or optional's length or presence is not kept."""
    (type_, *_) = _types(args)
    return (type_ if isinstance(type_, (ListType, DictType)) else ANY,)


def arithmetic(args: Args) -> Types:
    """Numbers only."""
    return (number(_types(args)) or ANY,)


def add(args: Args) -> Types:
    """Numbers, strings, lists, tuples."""
    a, b = _types(args)
    match a, b:
        case ListType(element=left), ListType(element=right):
            return (ListType(_elements(args[0], left, args[1], right)),)
        case TupleType(elements=first), TupleType(elements=second):
            return (TupleType((*first, *second)),)
    return (STR if a == b == STR else number((a, b)) or ANY,)


def _elements(a: Arg, left: Type, b: Arg, right: Type) -> Type:
    """The elements of two lists; one that is surely empty has none."""
    if is_empty(a):
        return right
    return left if is_empty(b) else join(left, right)


def is_empty(arg: Arg) -> bool:
    """Whether an argument is a list without elements for sure."""
    if isinstance(arg, tuple):
        return not arg
    node = getattr(arg, "node", None)
    return node is not None and node.op == "py.list" and not node.args


def mul(args: Args) -> Types:
    """Numbers; strings and lists times an int."""
    a, b = _types(args)
    for kind, count in ((a, b), (b, a)):
        if count in (INT, BOOL) and (kind == STR or isinstance(kind, ListType)):
            return (kind,)
    return (number((a, b)) or ANY,)


def truediv(args: Args) -> Types:
    """A float, or complex."""
    found = number(_types(args))
    return (ANY if found is None else COMPLEX if found == COMPLEX else FLOAT,)


def floordiv(args: Args) -> Types:
    """Whole quotients: of ints an int, else a float."""
    return arithmetic(args)


def mod(args: Args) -> Types:
    """Remainders; a formatted string."""
    a = type_of_arg(args[0])
    return (STR,) if a == STR else arithmetic(args)


def power(args: Args) -> Types:
    """An int to a negative power is a float, a negative float to a broken one is complex: literals may tell."""
    (a, b), exponent = _types(args), args[1]
    found = number((a, b))
    if found is None or found == COMPLEX:
        return (ANY if found is None else COMPLEX,)
    if found == INT:
        if b == BOOL or (isinstance(exponent, int) and exponent >= 0):
            return (INT,)
        return (FLOAT if isinstance(exponent, int) else ANY,)
    is_whole = b in (INT, BOOL) or (isinstance(exponent, float) and exponent.is_integer())
    is_above = isinstance(args[0], (int, float)) and args[0] >= 0
    return (FLOAT if is_whole or is_above else ANY,)


def shift(args: Args) -> Types:
    """Of ints an int."""
    found = number(_types(args))
    return (INT if found == INT else ANY,)


def bitwise(args: Args) -> Types:
    """Of bools a bool, of ints an int."""
    a, b = _types(args)
    if a == b == BOOL:
        return (BOOL,)
    if isinstance(a, DictType) and isinstance(b, DictType):
        return (join(a, b),)
    return shift(args)


def signed(args: Args) -> Types:
    """A number of the operand's kind."""
    return arithmetic((args[0], False))


def magnitude(args: Args) -> Types:
    """A number of the operand's kind; of a complex one a float."""
    (found,) = signed(args)
    return (FLOAT if found == COMPLEX else found,)


def is_plain(type_: Type) -> bool:
    """Whether a value is no tensor, and not a thing whose kind is unknown: comparisons give bools."""
    return not isinstance(type_, TensorType) and type_ != ANY and not isinstance(type_, OptionalType)


def comparison(args: Args) -> Types:
    """A bool; with a tensor, a tensor."""
    return (BOOL if all(map(is_plain, _types(args))) else ANY,)


def rounded(args: Args) -> Types:
    """An int; with a number of digits, a number of the operand's kind."""
    kind = type_of_arg(args[0])
    if not is_number(kind):
        return (ANY,)
    if len(args) == 1 or args[1] is None or kind in (INT, BOOL):
        return (INT,)
    return (kind if type_of_arg(args[1]) in (INT, BOOL) else ANY,)


def extreme(args: Args) -> Types:
    """One of the operands, or of the elements of one."""
    if len(args) > 1:
        return (join_all(_types(args)),)
    return (element(type_of_arg(args[0])),)


def element(type_: Type) -> Type:
    """What is in a list, tuple or string; what are the keys of a dictionary."""
    match type_:
        case ListType(element=found):
            return found
        case TupleType(elements=elements):
            return join_all(elements)
        case DictType(key=key):
            return key
    return STR if type_ == STR else ANY


def total(args: Args) -> Types:
    """The sum of a list of numbers; 0 is where it starts, so that a list of bools gives an int."""
    start = type_of_arg(args[1]) if len(args) > 1 else INT
    inside = INT if is_empty(args[0]) else element(type_of_arg(args[0]))
    found = number((start, inside))
    # Of no elements the sum is the start.
    return (found if found is not None and found == number((start,)) and start != BOOL else ANY,)


TENSOR_ATTRIBUTES: Mapping[str, Type] = MappingProxyType(
    {
        "dtype": ScalarType("dtype"), "device": ScalarType("device"), "layout": ScalarType("layout"),
        "requires_grad": BOOL, "is_cuda": BOOL, "is_leaf": BOOL, "itemsize": INT, "nbytes": INT,
        "type": STR, "is_floating_point": BOOL, "is_complex": BOOL, "is_signed": BOOL,
    }
)  # fmt: skip
"""What `py.getattr` reads of a tensor, a device, an element type."""


def attribute(args: Args) -> Types:
    """What an attribute of a tensor, a device or an element type is."""
    name = args[1]
    return (TENSOR_ATTRIBUTES.get(name, ANY) if isinstance(name, str) else ANY,)


def list_(args: Args) -> Types:
    """A list of what the operands share."""
    return (ListType(join_all(_types(args))),)


def tuple_(args: Args) -> Types:
    """A tuple of the operands' types."""
    return (TupleType(tuple(_types(args))),)


def dict_(args: Args) -> Types:
    """A dictionary of what keys and values share."""
    types = _types(args)
    return (DictType(join_all(types[::2]), join_all(types[1::2])),)


def getitem(args: Args) -> Types:
    """An element; of a tuple the very one, where the index is a literal."""
    container, index = type_of_arg(args[0]), args[1]
    if isinstance(container, TupleType) and type(index) is int:
        inside = -len(container.elements) <= index < len(container.elements)
        return (container.elements[index] if inside else ANY,)
    return (container.value if isinstance(container, DictType) else element(container),)


def slice_(args: Args) -> Types:
    """A container of the same kind; a tuple's part where the bounds are literals."""
    kind, bounds = type_of_arg(args[0]), (*args[1:], None, None, None)[:3]
    if isinstance(kind, TupleType):
        if all(b is None or type(b) is int for b in bounds) and bounds[2] != 0:
            start, stop, step = (b if type(b) is int else None for b in bounds)
            return (TupleType(kind.elements[start:stop:step]),)
        return (ANY,)
    return (kind if isinstance(kind, ListType) or kind == STR else ANY,)


def append(args: Args) -> Types:
    """A list that holds one more."""
    kind, added = _types(args)
    if not isinstance(kind, ListType):
        return (ANY,)
    return (ListType(added if is_empty(args[0]) else join(kind.element, added)),)


def insert(args: Args) -> Types:
    """A list that holds one more, at a place."""
    return append((args[0], args[2]))


def setitem(args: Args) -> Types:
    """The container with an element of maybe another type."""
    kind, key, value = _types(args)
    match kind:
        case ListType(element=inside):
            return (ListType(join(inside, value)),)
        case DictType() if _is_empty_dict(args[0]):
            return (DictType(key, value),)
        case DictType():
            return (DictType(join(kind.key, key), join(kind.value, value)),)
    return (ANY,)


def _is_empty_dict(arg: Arg) -> bool:
    node = getattr(arg, "node", None)
    return node is not None and node.op == "py.dict" and not node.args


def pop(args: Args) -> Types:
    """What is left, and what was taken."""
    kind = type_of_arg(args[0])
    if isinstance(kind, DictType):
        return (kind, kind.value)
    return (kind, kind.element) if isinstance(kind, ListType) else (ANY, ANY)


_FLOATS_OF_MATH = frozenset(
    f"math.{name}" for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "copysign", "cos", "cosh", "degrees",
        "dist", "erf", "erfc", "exp", "exp2", "expm1", "fabs", "fmod", "fsum", "gamma", "hypot", "ldexp", "lgamma",
        "log", "log10", "log1p", "log2", "nextafter", "pow", "radians", "remainder", "sin", "sinh", "sqrt", "tan",
        "tanh", "ulp",
    )
)  # fmt: skip
_TEXTS_OF_TEXTS = (
    "capitalize", "casefold", "center", "expandtabs", "format", "join", "ljust", "lower", "lstrip", "removeprefix",
    "removesuffix", "replace", "rjust", "rstrip", "strip", "swapcase", "title", "upper", "zfill", "__mod__",
)  # fmt: skip
_QUESTIONS_OF_TEXTS = (
    "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric",
    "isprintable", "isspace", "istitle", "isupper", "startswith",
)  # fmt: skip
_OF_LISTS = {"torch.BoolTensor": DType.BOOL, "torch.LongTensor": DType.I64, "torch.DoubleTensor": DType.F64}
_CALLED: dict[str, Type] = {
    **dict.fromkeys(_FLOATS_OF_MATH, FLOAT),
    **dict.fromkeys(("math.comb", "math.factorial", "math.gcd", "math.isqrt", "math.lcm", "math.perm"), INT),
    **dict.fromkeys(("math.isclose", "math.isfinite", "math.isinf", "math.isnan"), BOOL),
    **dict.fromkeys(("builtins.all", "builtins.any", "float.is_integer"), BOOL),
    **dict.fromkeys(("builtins.ord", "int.bit_length", "int.bit_count", "list.index", "list.count"), INT),
    "float.as_integer_ratio": TupleType((INT, INT)),
    **dict.fromkeys(
        ("float.hex", "builtins.repr", "builtins.ascii", "builtins.bin", "builtins.hex", "builtins.oct"), STR
    ),
    **dict.fromkeys(("builtins.chr", *(f"str.{name}" for name in _TEXTS_OF_TEXTS)), STR),
    **dict.fromkeys((f"str.{name}" for name in ("count", "find", "index", "rfind", "rindex")), INT),
    **dict.fromkeys((f"str.{name}" for name in _QUESTIONS_OF_TEXTS), BOOL),
    **dict.fromkeys(("str.split", "str.rsplit", "str.splitlines"), ListType(STR)),
    **dict.fromkeys(("str.partition", "str.rpartition"), TupleType((STR, STR, STR))),
    "builtins.range": ListType(INT),
    "operator.index": INT,
    "torch.int": INT,
    "Tensor.type": STR,
}


def drawn(args: Args) -> Types:
    """By the draw's name; of a list, an item or a list of them."""
    kind = DRAWS.get(args[0]) if isinstance(args[0], str) else None
    if kind is not list or len(args) < 2:
        return ({float: FLOAT, int: INT}.get(kind, ANY),)  # type: ignore[arg-type]
    inside = element(type_of_arg(args[1]))
    return (inside if args[0] == "random.choice" else ListType(inside),)


def called(args: Args) -> Types:
    """By the function's name, and what it is given."""
    name, rest = args[0], _types(args[1:])
    if not isinstance(name, str):
        return (ANY,)
    if name in _CALLED:
        return (_CALLED[name],)
    if name in ("math.floor", "math.ceil", "math.trunc") and rest and is_number(rest[0]):
        return (INT,)
    first = rest[0] if rest else ANY
    match name:
        case "builtins.sorted" | "builtins.list" | "builtins.reversed" if rest:
            return (ListType(element(first)),)
        case "list.sorted_by" | "list.remove" if isinstance(first, ListType):
            return (first,)
        case "torch.BoolTensor" | "torch.LongTensor" | "torch.DoubleTensor" if isinstance(first, ListType):
            return (TensorType(_OF_LISTS[name], (UNKNOWN_DIM,)),)
        case "Tensor.tolist" if isinstance(first, TensorType) and first.rank == 1:
            inside = {"int": INT, "uint": INT, "float": FLOAT, "bool": BOOL}.get(first.dtype.kind, ANY)
            return (ListType(inside),)
        case "builtins.enumerate" if rest:
            return (ListType(TupleType((INT, element(first)))),)
        case "builtins.zip" if rest:
            return (ListType(TupleType(tuple(map(element, rest)))),)
        case "builtins.divmod" if len(rest) == 2:
            (one,) = floordiv(args[1:])
            return (ANY if one == ANY else TupleType((one, one)),)
        case "builtins.tuple" if isinstance(first, TupleType):
            return (first,)
        case "builtins.dict" if isinstance(first, DictType) and len(rest) == 1:
            return (first,)
        case "dict.keys" if isinstance(first, DictType):
            return (ListType(first.key),)
        case "dict.values" if isinstance(first, DictType):
            return (ListType(first.value),)
        case "dict.items" if isinstance(first, DictType):
            return (ListType(TupleType((first.key, first.value))),)
        case "dict.get" if isinstance(first, DictType):
            return (join(first.value, rest[2] if len(rest) > 2 else NONE),)
    return (ANY,)

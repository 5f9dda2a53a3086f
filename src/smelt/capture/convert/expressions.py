"""Expressions as calls of the runtime, evaluated in Python's order and as often as Python would."""

from __future__ import annotations

import ast
from typing import Any, Final

from smelt.capture.convert.builder import Builder
from smelt.capture.convert.names import GLOBAL, first_param
from smelt.capture.convert.runtime import HIDDEN

_BINARY: Final[dict[type, str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
_UNARY: Final[dict[type, str]] = {ast.USub: "-", ast.UAdd: "+", ast.Invert: "~"}
_COMPARE: Final[dict[type, str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}
_CONVERSIONS: Final = {-1: None, 115: "s", 114: "r", 97: "a"}
CONSUMERS: Final = frozenset({"any", "all", "sum", "min", "max", "list", "tuple", "sorted", "dict", "set"})
"""Functions that go over their argument at once."""
# What looks at the frame that calls it must be called from the user's code.
_CALLED_NATIVELY: Final = frozenset({"super", "globals", "breakpoint", "eval", "exec"})
_CALLED_NATIVELY_ANYWHERE: Final = frozenset({"warn", "warn_explicit", "set_trace"})


def binary(op: ast.operator) -> str:
    """Python's spelling of an operator."""
    return _BINARY[type(op)]


Operator = type[ast.boolop] | None


class Expressions(Builder):
    """Lowers expressions; what they define (lambdas, comprehensions) is emitted before the statement they stand in."""

    def expr(self, node: ast.expr) -> ast.expr:
        """An expression whose value is wanted."""
        saved = self.place
        self.stand_at(node)
        lowered: ast.expr = getattr(self, f"_{type(node).__name__}")(node)
        self.place = saved
        return lowered

    def test(self, node: ast.expr, *, valued: Operator = None) -> ast.expr:
        """An expression of which only the truth is asked, by the one who gets it. valued: the operator around it whose
        value it becomes where that stops at it.

        So that no operand of `and` and `or` is asked twice, they are given its bool; if not `valued`, the last one's,
        too: a bool of one way would meet what the other way gives, and no value is both.
        """
        saved = self.place
        self.stand_at(node)
        match node:
            case ast.BoolOp():
                lowered = self._logic(node, retested=True, valued=valued)
            case ast.IfExp():
                lowered = self._choice(node, retested=True, valued=valued)
            case ast.UnaryOp(op=ast.Not()):
                lowered = self.ask("not_", self.test(node.operand))
            case _:
                lowered = self.expr(node)
        self.place = saved
        return lowered

    def exprs(self, nodes: list[ast.expr]) -> list[ast.expr]:
        return [self.expr(n) for n in nodes]

    def arm(self, node: ast.expr, *, retested: bool = False, valued: Operator = None) -> ast.expr:
        """An expression that is evaluated later or not at all."""
        return self.thunk(lambda: self.test(node, valued=valued) if retested else self.expr(node))

    # Leaves

    def _Constant(self, node: ast.Constant) -> ast.expr:
        return node

    def _Name(self, node: ast.Name) -> ast.expr:
        if node.id.startswith(HIDDEN):
            return node
        # Where it is handed on (`return v`, `[v]`, `f(v)`), nothing else asks whether there is something.
        return self.ask("held", self.variable(node.id)) if self.is_open(node.id) else self.variable(node.id)

    def _Attribute(self, node: ast.Attribute) -> ast.expr:
        return self.ask("getattr_", self.expr(node.value), self.constant(node.attr))

    def _Subscript(self, node: ast.Subscript) -> ast.expr:
        return self.ask("getitem", self.expr(node.value), self.expr(node.slice))

    def _Slice(self, node: ast.Slice) -> ast.expr:
        parts = [self.constant(None) if p is None else self.expr(p) for p in (node.lower, node.upper, node.step)]
        return self.helper("slice_", *parts)

    def _Starred(self, node: ast.Starred) -> ast.expr:
        return ast.Starred(self.expr(node.value), node.ctx, **self.place)

    def _Tuple(self, node: ast.Tuple) -> ast.expr:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return self.ask("display", self.constant(False), *self._parts(node.elts))
        return ast.Tuple(self.exprs(node.elts), node.ctx, **self.place)

    def _List(self, node: ast.List) -> ast.expr:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return self.ask("display", self.constant(True), *self._parts(node.elts))
        return ast.List(self.exprs(node.elts), node.ctx, **self.place)

    def _parts(self, items: list[ast.expr]) -> list[ast.expr]:
        """The items of a display: one after the other in tuples, what a star takes apart as it is."""
        parts: list[ast.expr] = []
        for item in items:
            if isinstance(item, ast.Starred):
                parts.append(self.expr(item.value))
            else:
                parts.append(self.tuple([self.expr(item)]))
        return parts

    def _Set(self, node: ast.Set) -> ast.expr:
        return ast.Set(self.exprs(node.elts), **self.place)

    def _Dict(self, node: ast.Dict) -> ast.expr:
        keys, values = list[Any](), list[ast.expr]()
        for key, value in zip(node.keys, node.values, strict=True):
            keys.append(None if key is None else self.expr(key))
            values.append(self.expr(value))
        return ast.Dict(keys, values, **self.place)

    def _JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return self.ask("fstring", self.tuple(self.exprs(node.values)))

    def _FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        value = self.expr(node.value)
        spec = self.constant("") if node.format_spec is None else self.expr(node.format_spec)
        conversion = self.constant(_CONVERSIONS[node.conversion])
        return self.ask("format_value", value, conversion, spec)

    def _NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        value = self.expr(node.value)
        name = node.target.id
        body = self.body
        body.frame.writes.add(name)
        if body.scope.function is body.scope and not body.depth and name not in body.scope.deleted:
            body.sure.add(name)
        return self.helper("store", value, self.lambda_(self.name(name)))

    # Operators

    def _BinOp(self, node: ast.BinOp) -> ast.expr:
        return self.ask("binop", self.constant(binary(node.op)), self.expr(node.left), self.expr(node.right))

    def _UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            # Where its value is wanted, Python asks the result of `not (a and b)` once more.
            return self.ask("not_", self.expr(node.operand))
        if isinstance(node.operand, ast.Constant):
            return node
        return self.ask("unop", self.constant(_UNARY[type(node.op)]), self.expr(node.operand))

    def _Compare(self, node: ast.Compare) -> ast.expr:
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn):
            found = self.ask("contains", self.expr(node.left), self.expr(node.comparators[0]))
            return found if isinstance(node.ops[0], ast.In) else self.ask("not_", found)
        left = self.expr(node.left)
        rest = []
        first, *others = zip(node.ops, node.comparators, strict=True)
        rest.append(self._compared(*first))
        with self.gathered() as writes:
            rest.extend(self._compared(*other) for other in others)
        if others and self._rebinds(writes):
            return self.helper("chain", self.runtime(), self.at(), self.held(writes), left, *rest)
        return self.ask("compare", left, *rest)

    def _compared(self, op: ast.cmpop, right: ast.expr) -> ast.expr:
        return self.tuple([self.constant(_COMPARE[type(op)]), self.arm(right)])

    def _rebinds(self, writes: set[str]) -> bool:
        return bool(writes or self.body.scope.indirect)

    def _BoolOp(self, node: ast.BoolOp) -> ast.expr:
        return self._logic(node, retested=False, valued=None)

    def _logic(self, node: ast.BoolOp, *, retested: bool, valued: Operator) -> ast.expr:
        first, *others = _flat(node)
        # The value that it stops at is asked for where nobody asks for the truth alone, or for this one, too.
        kept: Operator = type(node.op) if not retested or valued is type(node.op) else None
        thunks = [self.thunk(lambda: self._operand(first, kept))]
        with self.gathered() as writes:
            for operand in others[:-1]:
                thunks.append(self.thunk(lambda o=operand: self._operand(o, kept)))  # type: ignore[misc]
            thunks.append(self.thunk(lambda: self._last_operand(others[-1], retested, valued)))
        is_and = isinstance(node.op, ast.And)
        if self._rebinds(writes):
            helper = "both" if is_and else "either"
            return self.helper(helper, self.runtime(), self.at(), self.held(writes), *thunks)
        return self.ask("and_" if is_and else "or_", *thunks)

    def _operand(self, node: ast.expr, kept: Operator) -> ast.expr:
        value = self.test(node, valued=kept)
        if kept is None and not (isinstance(node, ast.Name) and node.id.startswith(HIDDEN)):
            self.stand_at(node)
            return self.ask("truth", value)
        return value

    def _last_operand(self, node: ast.expr, retested: bool, valued: Operator) -> ast.expr:
        if not retested:
            return self.expr(node)
        if valued is None and not isinstance(node, (ast.BoolOp, ast.UnaryOp)):
            return self._operand(node, None)
        return self.test(node, valued=valued)

    def _IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._choice(node, retested=False, valued=None)

    def _choice(self, node: ast.IfExp, *, retested: bool, valued: Operator) -> ast.expr:
        test = self.test(node.test)
        with self.gathered() as writes:
            then = self.arm(node.body, retested=retested, valued=valued)
            orelse = self.arm(node.orelse, retested=retested, valued=valued)
        if self._rebinds(writes):
            return self.helper("choose", self.runtime(), self.at(), test, then, orelse, self.held(writes))
        return self.ask("ifexp", test, then, orelse)

    # Calls

    def _Call(self, node: ast.Call) -> ast.expr:
        if self._is_native(node.func):
            return self._native_call(node)
        consumer = self._consumer(node)
        if consumer is not None:
            return self._consume(node, consumer)
        fn = self.expr(node.func)
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            return self._gathered_call(fn, node)
        return self.ask("call", fn, self.tuple(self.exprs(node.args)), self._keywords(node.keywords))

    def _keywords(self, keywords: list[ast.keyword]) -> ast.expr:
        names: list[Any] = [self.constant(k.arg) for k in keywords]
        return ast.Dict(names, [self.expr(k.value) for k in keywords], **self.place)

    def _is_native(self, fn: ast.expr) -> bool:
        match fn:
            case ast.Name(name):
                is_builtin = name in _CALLED_NATIVELY
                known = is_builtin and self.names.resolve(name, self.body.scope) is GLOBAL
                return known or name in _CALLED_NATIVELY_ANYWHERE
            case ast.Attribute(attr=name):
                return name in _CALLED_NATIVELY_ANYWHERE
        return False

    def _native_call(self, node: ast.Call) -> ast.expr:
        args = self.exprs(node.args)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not args:
            args = [self.name("__class__"), self.variable(first_param(self.body.scope))]
        keywords = [ast.keyword(k.arg, self.expr(k.value), **self.place) for k in node.keywords]
        fn = self.expr(node.func)
        if isinstance(node.func, ast.Name) and node.func.id in _CALLED_NATIVELY_ANYWHERE:
            fn = self.ask("called_here", fn)
        return ast.Call(fn, args, keywords, **self.place)

    def _gathered_call(self, fn: ast.expr, node: ast.Call) -> ast.expr:
        made = self.helper("arguments", fn)
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                made = self.plain_call(self.attribute(made, "star"), self.expr(arg.value))
            else:
                made = self.plain_call(self.attribute(made, "plain"), self.expr(arg))
        for keyword in node.keywords:
            value = self.expr(keyword.value)
            if keyword.arg is None:
                made = self.plain_call(self.attribute(made, "mapping"), value)
            else:
                made = self.plain_call(self.attribute(made, "named"), self.constant(keyword.arg), value)
        return self.plain_call(self.attribute(made, "call"), self.runtime(), self.at())

    def _consumer(self, node: ast.Call) -> str | None:
        if not node.args or not isinstance(node.args[0], ast.GeneratorExp):
            return None
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            return None
        match node.func:
            case ast.Name(name) if name in CONSUMERS:
                return name
            case ast.Attribute(attr="join"):
                return "join"
        return None

    def _consume(self, node: ast.Call, name: str) -> ast.expr:
        generator = node.args[0]
        assert isinstance(generator, ast.GeneratorExp)
        fn = self.expr(node.func)
        iterable = self.expr(generator.generators[0].iter)
        with self.gathered():
            whole = self.comprehension(generator, name if name in ("any", "all") else "list")
            lazy = self.comprehension(generator, "generator")
        args = self.tuple(self.exprs(node.args[1:]))
        keywords = self._keywords(node.keywords)
        return self.helper(
            "consume", self.runtime(), self.at(), fn, self.constant(name), whole, lazy, iterable, args, keywords
        )

    # Functions and comprehensions

    def comprehension(self, node: object, kind: str) -> ast.expr:
        """The function that a comprehension is, a parameter for what it goes over."""
        raise NotImplementedError

    def function(self, node: object, name: str, args: ast.arguments) -> ast.FunctionDef:
        """A nested function or lambda, converted."""
        raise NotImplementedError

    def _Lambda(self, node: ast.Lambda) -> ast.expr:
        defaults = self.tuple(self.exprs(node.args.defaults))
        named = [(a.arg, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
        keys: list[Any] = [self.constant(name) for name, _ in named]
        keywords = ast.Dict(keys, [self.expr(d) for _, d in named], **self.place)
        a = node.args
        args = ast.arguments(a.posonlyargs, a.args, a.vararg, a.kwonlyargs, [None for _ in a.kwonlyargs], a.kwarg, [])
        name = self.fresh("lambda")
        self.emit(self.function(node, name, args))
        if not a.defaults and not named:
            return self.name(name)
        return self.helper("function", self.name(name), defaults, keywords)

    def _ListComp(self, node: Any) -> ast.expr:
        kind = {ast.ListComp: "list", ast.SetComp: "set", ast.DictComp: "dict"}[type(node)]
        iterable = self.expr(node.generators[0].iter)
        return self.plain_call(self.comprehension(node, kind), self.helper("iterated", self.runtime(), iterable))

    _SetComp = _DictComp = _ListComp

    def items_of(self, node: ast.GeneratorExp) -> ast.expr:
        """All that a generator expression gives, as a list."""
        iterable = self.expr(node.generators[0].iter)
        return self.plain_call(self.comprehension(node, "list"), self.helper("iterated", self.runtime(), iterable))

    def _GeneratorExp(self, node: ast.GeneratorExp) -> ast.expr:
        iterable = self.expr(node.generators[0].iter)
        items = self.helper("source", self.runtime(), self.at(), iterable)
        return self.plain_call(self.comprehension(node, "generator"), items)


def _flat(node: ast.BoolOp) -> list[ast.expr]:
    """The operands of `a and (b and c)`."""
    out: list[ast.expr] = []
    for value in node.values:
        if isinstance(value, ast.BoolOp) and type(value.op) is type(node.op):
            out.extend(_flat(value))
        else:
            out.append(value)
    return out

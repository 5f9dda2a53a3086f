"""Programs by construct. Each defines `f`, called with the pairs of INPUTS unless lines `# with …` give arguments."""

from __future__ import annotations

import linecache
from functools import cache
from types import FunctionType
from typing import Any

INPUTS = ((0, 1), (1, 0), (3, 2), (-2, 5), (7, 7))

_TABLE = '''
=== if
def f(a, b):
    if a > b:
        c = a
    return c
=== if else
def f(a, b):
    if a > b:
        c = a - b
    else:
        c = b - a
    return c * 2
=== elif
def f(a, b):
    if a > 5:
        r = "big"
    elif a > 2:
        r = "middle"
    elif a < 0:
        r = "below"
    else:
        r = "small"
    return r, b
=== nested if
def f(a, b):
    x = 0
    if a:
        if b:
            x = 1
        else:
            if a > b:
                x = 2
        x += 10
    return x
=== early return
def f(a, b):
    if a > b:
        return "first"
    print("on")
    if a == b:
        return "second"
    return "third"
=== early return without value
def f(a, b):
    if a > b:
        return
    return 1
=== falls off after a return
def f(a, b):
    if a > b:
        if b:
            return 5
        print("here")
    print("there")
=== return in both arms
def f(a, b):
    if a:
        return a
    else:
        return b
    print("never")
=== partial returns
def f(a, b):
    if a > 0:
        if b > 0:
            return "both"
        print("a only")
    else:
        if b > 1:
            return "b"
    print("after")
    return a, b
=== return in an elif
def f(a, b):
    if a > 2:
        x = 1
    elif a > 0:
        return "mid"
    else:
        x = 3
    return x
=== while
def f(a, b):
    n = 0
    while a < b:
        a += 1
        n += a
    return n, a
=== while break
def f(a, b):
    n = 0
    while True:
        n += 1
        if n > b:
            break
        print(n)
    return n
=== while continue
def f(a, b):
    n, out = 0, []
    while n < 6:
        n += 1
        if n % 2 == 0:
            continue
        out.append(n)
    return out
=== while else
def f(a, b):
    n = 0
    while n < 4:
        if n == a:
            print("break")
            break
        n += 1
    else:
        print("else")
    return n
=== while with return
def f(a, b):
    n = 0
    while n < 5:
        n += 1
        if n == b:
            return "found", n
    return "none", n
=== while with a test that changes
def f(a, b):
    items = [1, 2, 3]
    while items and items.pop() != b:
        print(items)
        if a in items:
            break
    return items
=== while with walrus
def f(a, b):
    items = [3, 2, 1, 0, 5]
    while (n := items.pop(0)) > b:
        a += n
    return a, n, items
=== while with walrus and break
def f(a, b):
    items = [3, 2, 1, 0, 5]
    while items and (n := items.pop(0)) != b:
        if n == a:
            break
    return n, items
=== for
def f(a, b):
    s = 0
    for i in range(b):
        s += i * a
    return s
=== for leaves its variable
def f(a, b):
    for i in range(b):
        pass
    return i
=== for break else
def f(a, b):
    for i in range(4):
        if i == a:
            break
    else:
        return "else"
    return "break", i
=== for continue
def f(a, b):
    out = []
    for i in range(6):
        if i == a:
            continue
        if i == b:
            continue
        out += [i]
    return out
=== for return
def f(a, b):
    for i in range(6):
        for j in range(6):
            if i * j == a * b:
                return i, j
            print(i, j)
    return None
=== nested loops with breaks
def f(a, b):
    out = []
    for i in range(4):
        for j in range(4):
            if j == a:
                break
            if i == b:
                continue
            out.append((i, j))
        else:
            out.append("else")
        if i == 2:
            break
        out.append(i)
    else:
        out.append("no")
    return out
=== break in else of an inner loop
def f(a, b):
    out = []
    for i in range(5):
        for j in range(i):
            if j == a:
                break
        else:
            if i == b:
                break
            out.append(i)
    return out
=== return in else of a loop
def f(a, b):
    for i in range(3):
        if i == a:
            break
    else:
        return "whole"
    print("broken", i)
=== continue then statements in nested if
def f(a, b):
    out = []
    for i in range(6):
        if i % 2:
            if i == a:
                continue
            out.append(-i)
        out.append(i)
    return out
=== break deep in if
def f(a, b):
    for i in range(10):
        if i > a:
            if i > b:
                print("leave", i)
                break
            print("inner", i)
        print("outer", i)
    return i
=== for over enumerate and zip
def f(a, b):
    out = []
    for i, (x, y) in enumerate(zip([1, 2], [a, b])):
        out.append(i + x * y)
    return out
=== for with starred target
def f(a, b):
    for x, *rest in [(1, 2, 3), (a,), (b, a)]:
        print(x, rest)
    return rest
=== for with attribute and item targets
class O: pass
def f(a, b):
    o, d = O(), {}
    for o.x in range(a):
        pass
    for d["k"] in range(b):
        pass
    for o.y, d[o.y] in [(1, 2), (3, 4)]:
        pass
    return vars(o), d
=== for over an iterator that fails
def f(a, b):
    def items():
        yield 1
        if a:
            raise ValueError("stop")
        yield 2
    for x in items():
        print(x)
    return x
=== for over what cannot be iterated
def f(a, b):
    for x in a:
        pass
=== loop in try in loop
def f(a, b):
    out = []
    for i in range(4):
        try:
            if i == a:
                break
            if i == b:
                continue
            out.append(1 // (i - 1))
        except ZeroDivisionError:
            out.append("zero")
            continue
        finally:
            out.append("finally")
        out.append(i)
    return out
=== unbound
def f(a, b):
    if a > 0:
        x = 1
    if b > 0:
        return x
    x = 3
    return x
=== unbound after the else of a loop
def f(a, b):
    for i in range(2):
        if i == a:
            break
    else:
        x = 1
    return b and x
=== unbound caught by its type
def f(a, b):
    try:
        if a > 0:
            x = 1
        if b > 0:
            print(x)
    except UnboundLocalError as e:
        return "unbound", str(e)
    return "fine"
=== unbound in a nested function
def f(a, b):
    def g():
        return x
    if a > 0:
        x = 1
    try:
        return g()
    except UnboundLocalError:
        return "local"
    except NameError as e:
        return "free", str(e)
=== unknown global
def f(a, b):
    if a:
        return nowhere_defined
    return b
=== del
def f(a, b):
    x = a
    if b > 1:
        del x
    if a > 0:
        return x
    return None
=== del twice
def f(a, b):
    x = a
    if b:
        del x
    if a:
        del x
    return "end"
=== del item, attribute, slice, several
class O: pass
def f(a, b):
    o, d, l = O(), {1: 2, 3: 4}, list(range(8))
    o.x = o.y = a
    if a:
        del o.x, d[1], (l[0], l[2:4])
    return vars(o), d, l
=== and or values
def f(a, b):
    return a and b, a or b, not a, a and b or 5, (a or b) and 7, (a if a > b else (b or 1)) or 9
=== short circuit
def f(a, b):
    def show(x):
        print("seen", x)
        return x
    return show(a) and show(b) or show(9)
=== bool is asked once
class T:
    def __init__(self, v, n): self.v, self.n = v, n
    def __bool__(self):
        print("bool", self.n)
        return bool(self.v)
    def __repr__(self): return self.n
def f(a, b):
    x, y, z = T(a > 0, "x"), T(b > 1, "y"), T(a > b, "z")
    if x and y:
        print(1)
    if (x or y) and not z:
        print(2)
    if ((x or y) and z) or y:
        print(3)
    u = 1 if x or y and z else 2
    while x and y and not z:
        break
    assert x or y or True
    k = [i for i in range(2) if x or y]
    return u, k, not (x and y), not x, (x if y or z else z) and y
=== bool in a nested chain
class T:
    def __init__(self, v, n): self.v, self.n = v, n
    def __bool__(self):
        print("bool", self.n)
        return bool(self.v)
    def __repr__(self): return self.n
def f(a, b):
    x, y, z = T(a > 0, "x"), T(b > 1, "y"), T(a > b, "z")
    v = ((x or y) and z) or y
    return repr(v), repr(x and (y or z) and x)
=== bool that fails
class T:
    def __bool__(self): raise TypeError("no bool")
def f(a, b):
    t = T()
    try:
        if a and t:
            return 1
    except TypeError as e:
        print(e)
    return b or t or 1
=== ternary
def f(a, b):
    return (a if a > b else b), ("x" if a else "y" if b else "z")
=== ternary evaluates one arm
def f(a, b):
    return 1 // a if a else "none"
=== chained comparison
def f(a, b):
    return 0 < a < b, a < b < 3 < 9, a == b != 2, 0 <= a in (1, 2, 3), a is not None is not b
=== chained comparison evaluates once
def f(a, b):
    def s(x):
        print(x)
        return x
    return s(0) < s(a) < s(b) <= s(7)
=== comparison of what cannot
def f(a, b):
    if a:
        return a < "x"
    return a < b < None
=== membership
def f(a, b):
    return a in (1, 2), a not in [0], b in {5: 1}, "x" in "axb"
=== membership errors
def f(a, b):
    return a in b
=== walrus
def f(a, b):
    if (n := a * 2) > 2:
        n += 1
    return n
=== walrus in and
def f(a, b):
    n = -1
    if a > 0 and (n := a * 3) > b:
        print("in", n)
    return n
=== walrus in or
def f(a, b):
    x = a or (n := b) or (m := 4)
    try:
        return x, n, m
    except UnboundLocalError as e:
        return x, str(e)
=== walrus in ternary
def f(a, b):
    y = (n := a) if b else (m := 7)
    return y, (n if b else m)
=== walrus in a comprehension
def f(a, b):
    out = [last := x * a for x in range(b + 1)]
    return out, last
=== walrus in a comprehension's condition
def f(a, b):
    out = [y for x in range(6) if (y := x * a) > b]
    return out, y
=== walrus in any
def f(a, b):
    found = any((hit := x) > a for x in (0, 2, 4))
    return found, hit
=== walrus in a chained comparison
def f(a, b):
    c = 0 < a < (n := b) < 9
    return c, (n if a > 0 else None)
=== walrus in a lambda
def f(a, b):
    g = lambda x: (y := x + 1) and y * 2
    return g(a), g(b)
=== walrus in an f-string
def f(a, b):
    return f"{(n := a + b)} {n!r:>4}", n
=== walrus in a call
def f(a, b):
    return max(n := a, n + b, (n := n * 2)), n
=== walrus in an assertion's message
def f(a, b):
    assert a > 0, (m := f"bad {a}")
    return a
=== global walrus
def f(a, b):
    global walrus_g
    if a and (walrus_g := a + b):
        return walrus_g
    walrus_g = None
    return [walrus_g := i for i in range(b)], walrus_g
=== list comprehension
def f(a, b):
    return [x * a for x in range(b)]
=== comprehension with conditions and two sources
def f(a, b):
    return [(x, y) for x in range(4) if x != a if x < 3 for y in range(x) if y != b]
=== comprehension with unpacking
def f(a, b):
    return [x + y for x, (y, *_) in [(1, (a, 2)), (b, (3,))]]
=== nested comprehension
def f(a, b):
    return [[x * y for y in range(x)] for x in range(b)]
=== comprehension shadows
def f(a, b):
    x = "outer"
    out = [x for x in range(3) if x != a]
    return out, x
=== comprehension closure
def f(a, b):
    fs = [lambda: x for x in range(3)]
    return [g() for g in fs]
=== comprehension over its own name
def f(a, b):
    x = [a, b]
    return [x for x in x]
=== set and dict comprehension
def f(a, b):
    return sorted({x % 3 for x in range(b + 3)}), {k: v for k, v in zip("abc", range(a, 9)) if v != b}
=== dict comprehension order
def f(a, b):
    def s(x):
        print(x)
        return x
    return {s(i): s(-i) for i in range(b) if s(i + 100)}
=== comprehension with attribute target
class O: pass
def f(a, b):
    o = O()
    return [o.x + a for o.x in range(b)], getattr(o, "x", None)
=== comprehension fails
def f(a, b):
    return [
        1 // x
        for x in range(a, 3)
    ]
=== comprehension over what cannot
def f(a, b):
    return [x for x in a]
=== generator expression stays lazy
def f(a, b):
    g = (print("made", x) or x for x in range(5) if x != a)
    print("before")
    return next(g), next(g)
=== generator expression with two sources
def f(a, b):
    g = ((x, y) for x in range(3) for y in range(x) if x + y != a)
    return list(g)
=== generator to consumers
def f(a, b):
    n = range(a, b + 2)
    return (
        sum(x * 2 for x in n), any(x > 3 for x in n), all(x > 1 for x in n), list(x for x in n),
        tuple(-x for x in n), sorted((x % 3 for x in n), reverse=True), dict((x, a) for x in n),
        sorted(set(x // 2 for x in n)),
        ",".join(str(x) for x in n), max((x for x in n), default=None), min((x for x in n), default=b),
        sum((x for x in n), 100),
    )
=== any stops
def f(a, b):
    def s(x):
        print(x)
        return x > a
    return any(s(x) for x in range(5)), all(s(x) for x in range(5))
=== any in any
def f(a, b):
    return any(all(x != y for y in range(3) if y != b) for x in range(a))
=== shadowed consumer
def f(a, b):
    def any(g):
        return "mine", next(g)
    sum = lambda g: list(g)
    return any(x for x in (a, b)), sum(x for x in (a, b))
=== join of something else
class J:
    def join(self, g): return "J", next(g)
def f(a, b):
    return J().join(print(x) or x for x in (a, b))
=== consumer fails in the middle
def f(a, b):
    def s(x):
        print(x)
        return x
    return sum(s(x) for x in [1, "a", 2])
=== assert
def f(a, b):
    assert a > 0
    return a
=== assert with message
def f(a, b):
    assert a > b, f"{a} <= {b}"
    assert b, ("tuple", a)
    return a
=== raise
def f(a, b):
    if a > b:
        raise ValueError(f"{a} > {b}")
    raise KeyError
=== raise from
def f(a, b):
    try:
        1 // a
    except ZeroDivisionError as e:
        if b:
            raise ValueError("from") from e
        raise ValueError("none") from None
    raise TypeError("bare") from IndexError("cause")
=== re-raise
def f(a, b):
    try:
        return b // a
    except ZeroDivisionError:
        print("seen")
        if b > 0:
            raise
        return "swallowed"
=== raise what is not an exception
def f(a, b):
    if a:
        raise 3
    raise ValueError("x") from 4
=== bare raise with nothing to raise
def f(a, b):
    if a:
        raise
    return 1
=== try except else finally
def f(a, b):
    log = []
    try:
        log.append(a // b)
        if a == 3:
            return log, "early"
    except ZeroDivisionError as e:
        log.append(str(e))
        if a:
            return log
    else:
        log.append("else")
    finally:
        log.append("finally")
        print(log)
    return log
=== else is skipped by a return in the body
def f(a, b):
    for i in range(2):
        try:
            if i == a:
                return "left"
            if i == b:
                continue
        except ValueError:
            pass
        else:
            print("else", i)
        finally:
            print("finally", i)
        print("after", i)
    return "end"
=== except in an arm
def f(a, b):
    if a:
        try:
            b / 0
        except (TypeError, ZeroDivisionError) as e:
            x = repr(e)
        except Exception:
            x = "other"
    else:
        x = None
    return x
=== except variable is gone
def f(a, b):
    e = 1
    if a:
        try:
            raise KeyError(a)
        except KeyError as e:
            print(e)
    return e
=== nested try
def f(a, b):
    try:
        try:
            if a > 2:
                raise ValueError(a)
            if a < 0:
                raise KeyError(b)
        except KeyError as k:
            print("key", k)
            raise RuntimeError("again") from k
        finally:
            print("inner")
    except (ValueError, RuntimeError) as v:
        return type(v).__name__, str(v), type(v.__cause__).__name__
    return "ok"
=== return in except and finally runs
def f(a, b):
    try:
        return b // a
    except ZeroDivisionError:
        return "zero"
    finally:
        print("finally", a)
=== return in try in an arm
def f(a, b):
    if b:
        try:
            return 1 // a
        finally:
            print("done")
    return "no"
=== exception group
def f(a, b):
    try:
        raise ExceptionGroup("g", [ValueError(a), KeyError(b)])
    except* ValueError as e:
        print(e.exceptions)
        if a:
            x = 1
    except* KeyError:
        print("key")
    return a
=== with
from contextlib import contextmanager
@contextmanager
def note(x):
    print("in", x)
    try:
        yield x * 2
    finally:
        print("out", x)
def f(a, b):
    with note(a) as x, note(b) as (y):
        if x > y:
            return "left", x
        print(x, y)
    return x, y
=== with suppress
from contextlib import suppress
def f(a, b):
    with suppress(ZeroDivisionError):
        x = b // a
        return x
    with suppress(UnboundLocalError):
        if b > 1:
            return x
    return "swallowed"
=== with targets
from contextlib import nullcontext
class O: pass
def f(a, b):
    o, d = O(), {}
    if b:
        with nullcontext(a) as o.x, nullcontext((a, b)) as (d["k"], (y)):
            pass
    return vars(o), d
=== with in a loop
from contextlib import nullcontext
def f(a, b):
    for i in range(5):
        with nullcontext(i) as j:
            if j == a:
                continue
            if j == b:
                break
            print(j)
        print("after", j)
    return j
=== match values
def f(a, b):
    match a:
        case 0:
            return "zero"
        case 1 | 2 | 3:
            r = "few"
        case -2:
            r = "minus"
        case _:
            r = "other"
    return r
=== match without default
def f(a, b):
    match a:
        case 0:
            x = "zero"
        case 3:
            x = "three"
    return x
=== match guards
def f(a, b):
    match (a, b):
        case (x, y) if x > y:
            return "gt", x
        case (x, 5):
            return "five", x
        case [0, *rest] if rest:
            return "zero", rest
        case (x, y):
            return "any", x, y
=== match patterns
from dataclasses import dataclass
@dataclass
class P:
    x: int
    y: int = 0
def g(v):
    match v:
        case None | True:
            return "single"
        case {"k": k, **rest}:
            return "map", k, rest
        case [] | [_]:
            return "short"
        case [a, (b, *c), *_] if c:
            return "seq", a, b, c
        case P(0, y=z):
            return "origin", z
        case P(x=int() as w) | [w]:
            return "point", w
        case str() | bytes():
            return "text"
        case float(z):
            return z
        case int() as n if n > 3:
            return "int", n
        case y:
            return "rest", y
def f(a, b):
    values = [None, True, {"k": a, "z": b}, {}, [], [1], [1, (2, 3)], [1, (2,)], P(0, a),
              P(a, b), "s", 2.5, a, b, (1, 2)]
    return [g(v) for v in values]
=== match in a loop
def f(a, b):
    for i in range(6):
        match i:
            case n if n == a:
                continue
            case 4:
                break
            case 2 if b:
                print("two")
        print(i)
    return i
=== match on attributes
class C:
    RED, BLUE = 0, 3
def f(a, b):
    match a:
        case C.RED:
            return "red"
        case C.BLUE if b:
            return "blue"
        case 1.0 as one:
            return "one", one
    return None
=== match binds though the guard fails
def f(a, b):
    match [a, b]:
        case [x, y] if x > 100:
            pass
        case _:
            z = 1
    return x, y
=== f-strings
def f(a, b):
    w = 8
    return f"{a}{b!r:>{w}}|{a:+d}|{'s'!a:^{w}}|{a=}|{a + b:0{b}.{2}f}" if b else f"" f"{{}}{a!s}"
=== f-string errors
def f(a, b):
    return f"{a:zz}"
=== format order
class V:
    def __format__(self, s):
        print("format", s)
        return "v" + s
    def __repr__(self):
        print("repr")
        return "V"
def f(a, b):
    return f"{V():x}{V()!r}{V()!s:>5}{V()}"
=== augmented assignment
def f(a, b):
    a += b; a -= 1; a *= 2; a //= 3; a %= 7; a <<= 2; a >>= 1; a |= 8; a &= 13; a ^= 3; a **= 2
    x = a / 2
    x /= 4
    return a, x
=== augmented lists alias
def f(a, b):
    x = y = [a]
    if b:
        x += [b]
        x *= 2
    else:
        x = x + [b]
    return x, y, x is y
=== augmented attribute and item
class O:
    n = 1
def f(a, b):
    o, d = O(), {"k": [1]}
    o.n += a
    d["k"] += [b]
    d["k"][0] -= 5
    i = iter([0, 1])
    l = [10, 20]
    l[next(i)] += a
    return vars(o), d, l
=== order of assignment
def f(a, b):
    def s(x):
        print(x)
        return x
    d = {}
    d[s("key")] = s("value")
    x = d[s("again")] = y = s(a)
    (d[s(1)], d[s(2)]), z = (s(3), s(4)), s(5)
    d[s(1)] += s(6)
    return d, x, y, z
=== order of unpacking
class D(dict):
    def __setitem__(self, k, v):
        print("set", k, v)
        super().__setitem__(k, v)
def f(a, b):
    d = D()
    i = 0
    i, d[i], (d["x"], i), d[i] = 1, 2, (3, 4), 5
    return d, i
=== unpacking
def f(a, b):
    x, (y, *z), [w] = a, (b, 1, 2), [3]
    *p, q = range(b + 1)
    return x, y, z, w, p, q
=== unpacking errors
def f(a, b):
    if a > 2:
        x, y = a
    elif a > 0:
        x, y = 1, 2, 3
    x, *y, z = [1]
=== chained assignment
def f(a, b):
    x = y = z = [a]
    y.append(b)
    return x, y is z
=== annotated
def f(a: int, b: "int" = 3) -> list:
    x: int = a
    y: undefined_name
    z: list[undefined_name] = [b]
    if a:
        w: int = 5
        y = w
    else:
        y = 2
    return [x, y, *z]
=== annotated attribute
class O: pass
def f(a, b):
    o = O()
    o.x: int = a
    d = {}
    d["k"]: int = b
    o.nothing: int
    return vars(o), d
=== swap
def f(a, b):
    a, b = b, a
    if a > b:
        a, b = b, a
    return a, b
=== slices
def f(a, b):
    l = list(range(10))
    l[1:3] = [a, b, 5]
    l[::2] = [0] * len(l[::2])
    class G:
        def __getitem__(self, k): return k
    return l[a:], l[:b], l[-2:], G()[a:b, ..., None, 1:], G()[:], G()[a]
=== slice assignment order
def f(a, b):
    l = [1, 2, 3, 4]
    if b:
        l[a:b] += [9]
    return l
=== star arguments
def g(*args, k=0, **kw):
    return args, k, kw
def f(a, b):
    l, d = [1, 2], {"x": a}
    return g(*l, a, *(b,), k=5, **d, y=1), g(**d, **{"z": 2}), g(*range(b)), g(*l, **{})
=== star argument errors
def g(*args, **kw):
    return args, kw
def f(a, b):
    if a > 2:
        return g(*a)
    if a > 0:
        return g(**[1])
    if a == 0:
        return g(k=1, **{"k": 2})
    return g(**{1: 2})
=== star argument order
def g(*args, **kw):
    return args, kw
def f(a, b):
    def s(x):
        print(x if x is not g else "g")
        return x
    return s(g)(s(1), *s([2]), s(3), x=s(4), **s({"y": 5}), z=s(6))
=== call errors
def g(x): return x
def f(a, b):
    if a > 2:
        return g()
    if a > 0:
        return a(b)
    if a == 0:
        return g(1, x=2)
    return g(y=1)
=== attribute errors
def f(a, b):
    if a:
        return a.nothing
    return None.x.y
=== operator errors
def f(a, b):
    if a > 2:
        return a + "x"
    if a > 0:
        a += []
    if a == 0:
        return -"x"
    return a @ b
=== index errors
def f(a, b):
    l, d = [1], {}
    if a > 2:
        return l[a]
    if a > 0:
        return d[a]
    if a == 0:
        l["x"] = 1
    del l[b]
=== positional only and keyword only
def f(a, /, b, *, c=5, **kw):
    if a > b:
        c = a
    return a, b, c, kw
=== nested function
def f(a, b):
    def g(x, y=a, *, z=b):
        """Its documentation."""
        if x > y:
            return x - z
        return y
    return g(1), g(b, 2), g(a, z=9), g.__doc__, g.__name__, g.__qualname__, g.__defaults__, g.__kwdefaults__
=== nested function in an arm
def f(a, b):
    if a > b:
        def g():
            return a
    else:
        def g():
            return -b
    return g(), g.__qualname__
=== closure sees later values
def f(a, b):
    def g():
        return x
    x = a
    r = g()
    if b:
        x = b
    return r, g()
=== nonlocal
def f(a, b):
    n = 0
    def inc(k):
        nonlocal n
        if k > 0:
            n += k
        else:
            n -= 1
        return n
    if a and inc(a):
        inc(b)
    return n
=== nonlocal two levels
def f(a, b):
    x = 1
    def g():
        y = 2
        def h():
            nonlocal x, y
            for i in range(b):
                x += i
                if x > 4:
                    y = x
                    return y
            return -1
        r = h()
        return r, y
    return g(), x
=== global
def f(a, b):
    global the_global
    the_global = a
    if b > 1:
        the_global += b
    def g():
        return the_global
    r = g()
    if a:
        del the_global
    return r, "the_global" in globals()
=== global in a nested function
the_other = 0
def f(a, b):
    the_other = "local"
    def g():
        global the_other
        if a > 0:
            the_other = a
        return the_other
    return g(), the_other
=== recursion
def f(a, b):
    if a <= 0:
        return b
    return f(a - 1, b + a)
=== inner recursion
def f(a, b):
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)
    return fib(max(a, 0) + 3), fib.__qualname__
=== lambda
def f(a, b):
    g = lambda x, y=a, *z, k=b, **w: (x, y, z, k, w) if x else None
    return g(1), g(0), g(1, 2, 3, k=4, m=5), g.__name__, g.__qualname__, g.__defaults__, g.__kwdefaults__
=== lambdas are new each time
def f(a, b):
    fs = []
    for i in range(3):
        fs.append(lambda x=i: x + a)
    return [g() for g in fs], fs[0] is fs[1]
=== lambda default order
def f(a, b):
    def s(x):
        print(x)
        return x
    return (s(1), (lambda p=s(2), *, q=s(3): (p, q))(), s(4))
=== lambda in a key
def f(a, b):
    return sorted([a, b, 3], key=lambda v: -v if v > 1 else v), list(map(lambda v: v and v + 1, [a, b]))
=== lambda in and
def f(a, b):
    g = a and (lambda: b if a > 1 else -b)
    return g() if g else g
=== decorators
def deco(k):
    def wrap(fn):
        print("deco", k)
        def inner(*args):
            return k, fn(*args)
        return inner
    return wrap
def f(a, b):
    @deco(a)
    @deco(b if b else "none")
    def g(x):
        return x or 5
    return g(a), g.__name__
=== decorated itself
import functools
def plain(fn): return fn
@plain
@functools.wraps(lambda: 0)
def f(a, b):
    if a:
        return b
    raise ValueError("line")
=== class in a function
def f(a, b):
    class C:
        k = a
        y = [i for i in range(b)]
        def m(self, v):
            if v:
                return self.k + b
            return super().__repr__()[:1]
        __private = 3
        def p(self): return self.__private
    c = C()
    return c.m(1), c.m(0), c.p(), C.__qualname__, C.m.__qualname__, C.y
=== class in an arm
def f(a, b):
    if a > 0:
        class C(int):
            def __add__(self, o): return "added"
    else:
        C = int
    return C(a) + 1, C.__name__, C.__qualname__
=== method with super
class A:
    def m(self, x): return ("A", x)
class B(A):
    def m(self, x):
        if x > 0:
            return super().m(x)
        r = [super(B, self).m(i) for i in range(2)]
        return r, super(B, self).m(x), super().m.__name__, __class__.__name__
def f(a, b):
    return B().m(a)
wanted = B.m
=== super in a nested function
class A:
    def m(self): return "A"
class B(A):
    def m(self):
        def g(me):
            return super().m() if me is self else None
        return g(self), (lambda s: super().m())(self)
def f(a, b):
    return B().m()
wanted = B.m
=== super with a rebound first argument
class A:
    def __init__(self, v=0): self.v = v
    def m(self): return self.v
class B(A):
    def m(self, a):
        if a:
            self = B(a)
        return super().m()
def f(a, b):
    return B(9).m(a)
wanted = B.m
=== class method and __init__
class A:
    def __init__(self, x): self.x = x
class B(A):
    def __init__(self, x, y):
        if x > y:
            super().__init__(x)
        else:
            super().__init__(y)
def f(a, b):
    return B(a, b).x
wanted = B.__init__
=== private names
class _K:
    __c = 4
    def __h(self, __v): return __v + self.__c
    def m(self, a, b):
        __t = a
        if a:
            __t = self.__h(b)
            self.__z = __t
            del self.__z
        def __inner(): return __t
        for __i in range(2):
            self.__dict__["k"] = __i
        return __t, __inner(), __inner.__name__, __inner.__qualname__, dict(__q=1), [__j for __j in (a, b)]
def f(a, b):
    return _K().m(a, b)
wanted = _K.m
=== private names in nested classes
class A:
    def m(self, a):
        class B:
            __x = 1
            def n(self): return self.__x
        if a:
            self.__y = B().n()
        return vars(self)
def f(a, b):
    return A().m(a)
wanted = A.m
=== property and static method
class A:
    @property
    def p(self):
        return 1 if self.v else 2
    @staticmethod
    def s(x):
        return x and 5
def f(a, b):
    o = A()
    o.v = a
    return o.p, A.s(b)
wanted = A.p.fget
=== closure root
def make(k):
    total = 0
    def f(a, b):
        nonlocal total
        if a > b:
            total += k
        elif unused:
            pass
        else:
            total -= 1
        return total, k
    unused = None
    return f
f = make(3)
=== import inside
def f(a, b):
    if a:
        import math, os.path as p
        from functools import reduce as r
        return math.floor(2.5), p.sep, r(lambda x, y: x + y, [a, b])
    try:
        import not_a_module_at_all
    except ImportError as e:
        return str(e)
=== docstring only
def f(a, b):
    """Nothing."""
=== pass and ellipsis
def f(a, b):
    if a:
        pass
    else:
        ...
    for _ in range(2): pass
    while False: pass
=== literals
def f(a, b):
    return {a, *[b]}, {"a": a, **{"b": b}}, [*range(b), a], (*[a],), b"x", 1j, None, -1, not None
=== conditional in arguments
def f(a, b):
    print(*([a] if a else []), sep="," if b else ";", end="!\\n")
=== string methods and format
def f(a, b):
    return "%d-%s" % (a, b), "{} {x}".format(a, x=b), "a,b".split(","), ("x" * b).upper()
=== none and identity
def f(a, b):
    x = None
    if a > 2:
        x = a
    if x is None:
        return "none"
    return x is not None and x
=== mutable argument
# with [1, 2], {"k": 3}
# with [], {}
def f(a, b):
    if a:
        a.append(len(b))
        b["n"] = a
    else:
        a += [1]
    return a
=== bubble sort
# with [3, 1, 2], 0
# with [5, 4, 3, 2, 1], 0
def f(a, b):
    n = len(a)
    for i in range(n):
        swapped = False
        for j in range(n - 1 - i):
            if a[j] > a[j + 1]:
                a[j], a[j + 1] = a[j + 1], a[j]
                swapped = True
        if not swapped:
            break
    return a
=== primes
def f(a, b):
    out = []
    n = 2
    while len(out) < max(a, 0) + b:
        for p in out:
            if p * p > n:
                out.append(n)
                break
            if n % p == 0:
                break
        else:
            out.append(n)
        n += 1
    return out
=== long chain of returns
def f(a, b):
    if a == 0: return 0
    if a == 1: return 1
    for i in range(3):
        if i == b: return "loop"
    if a == 3: return 3
    if b == 5:
        if a < 0: return "low"
    else:
        a = 4
    if a == 7: return a
    return "end", a
=== semicolons on a line
def f(a, b):
    x = 0; y = 1 if a else 2; x = y and x; return x, y
=== error line in a long expression
def f(a, b):
    return (
        a
        + [b][
            a
        ]
        - 1
    )
=== error in a condition
def f(a, b):
    if (a
            and 1 // (a - 1)):
        return "yes"
    elif [0][b]:
        return 1
    return "no"
=== error in an arm of an arm
def f(a, b):
    for i in range(3):
        while i < 5:
            i += 1
            if i > a:
                with open("/nowhere/" + str(i)):
                    pass
    return i
=== context of an error
def f(a, b):
    try:
        raise KeyError(a)
    except KeyError:
        if b:
            for i in range(1):
                undefined_thing
        raise
=== finally with an error
def f(a, b):
    try:
        if a:
            raise ValueError(a)
    finally:
        if b > 1:
            print("more")
            [][b]
    return "fine"
=== finally that raises on the way of a return
def f(a, b):
    for i in range(3):
        try:
            try:
                if a == i:
                    return "returned", i
                if b == i:
                    break
                if a > i:
                    continue
            finally:
                if b:
                    raise ValueError(i)
        except ValueError as v:
            print("caught", v)
        print("on", i)
    return "end"
=== exit that swallows what another raises on the way of a return
from contextlib import contextmanager, suppress
@contextmanager
def breaks(x):
    yield x
    if x:
        raise KeyError(x)
def f(a, b):
    for i in range(2):
        with suppress(KeyError), breaks(b) as x:
            if a:
                return "returned", x
            if x > 1:
                break
        print("on", i)
    with suppress(ValueError):
        try:
            if a:
                return "second"
        finally:
            raise ValueError(a)
    return "swallowed"
=== trailing comment and multi-line string
def f(a, b):
    x = """
no indent
    """
    if a:
        x = x.strip()
    return x
    # the end

# not the end
=== dead code
def f(a, b):
    return a
    if b:
        c = 1
    return c
=== dead binding is local
def f(a, b):
    if b:
        return x
    return 2
    x = 1
=== loop flags start anew
def f(a, b):
    out = []
    for i in range(3):
        for j in range(4):
            if j > i:
                break
            if j == a:
                continue
            out.append((i, j))
        k = 0
        while k < 3:
            k += 1
            if k == b:
                continue
            if k == 2:
                break
        out.append(k)
    return out
=== weak references
import weakref
class O: pass
def f(a, b):
    o = O()
    r = weakref.ref(o)
    if a:
        x = y = o
        (p, q) = o, o
        o.z = [o for _ in range(1)][0]
        del o.z, x, y, p, q
    o = None
    return r() is None
=== eval with its own names
def f(a, b):
    if a:
        return eval("x + y", {"x": a, "y": b})
    d = {}
    exec("z = 5", d)
    return d["z"]
=== vars and dir of objects
class O: pass
def f(a, b):
    o = O()
    if a: o.v = b
    return vars(o), "v" in dir(o)
=== generator function inside
def f(a, b):
    def gen(n):
        while n:
            if n == a:
                return
            yield n
            n -= 1
    return list(gen(max(b, 0))), gen.__qualname__
=== coroutine inside
import asyncio
def f(a, b):
    async def co():
        await asyncio.sleep(0)
        return a if a else b
    c = co()
    try:
        c.send(None)
    except StopIteration as e:
        return e.value
    finally:
        c.close()
    return "suspended"
=== locals inside a nested function
def f(a, b):
    def g(x):
        y = x
        return locals()
    return g(a) if a else g(b)
=== nested function with a lambda that reads locals
def f(a, b):
    def g(x):
        h = lambda: sorted(locals())
        return h()
    return g(a) or b
=== lambda in a comprehension with default
def f(a, b):
    return [(lambda v, k=i: v and k)(j) for i in range(b) for j in (a, 1)]
=== try in a comprehension's function
def f(a, b):
    def safe(x):
        try:
            return 6 // x
        except ZeroDivisionError:
            return None
    return [y for x in (a, b, 0) if (y := safe(x)) is not None]
=== star expression in return and index
def f(a, b):
    l = [a, b]
    class G:
        def __getitem__(self, k): return k
    return *l, G()[0, *l]
=== matrix product operator
class M:
    def __init__(self, v): self.v = v
    def __matmul__(self, o): return self.v * o.v
    def __imatmul__(self, o): return M(self.v + o.v)
def f(a, b):
    m = M(a)
    m @= M(b)
    return M(a) @ M(b), m.v
=== type of zero
def f(a, b):
    return a * 0.0, -0.0 if a else 0.0, a / (b or 1), b // -2, b % -3, (-1) ** b
=== indirect rebinding in an arm of and
def f(a, b):
    n = 0
    def inc():
        nonlocal n
        n += 1
        return n
    x = a and inc()
    y = inc() if b else None
    z = 0 < a < inc()
    return n, x, y, z
'''


@cache
def programs() -> dict[str, tuple[str, tuple[tuple[Any, ...], ...]]]:
    """Name: source and arguments."""
    out = {}
    for part in _TABLE.split("\n=== ")[1:]:
        name, _, source = part.partition("\n")
        given = tuple(eval(f"({line[7:]},)") for line in source.splitlines() if line.startswith("# with "))
        assert name not in out, name
        out[name] = (source + "\n", given or INPUTS)
    return out


def load(name: str, source: str) -> dict[str, Any]:
    """Runs a module's source as the file `<name>`, which linecache knows."""
    file = f"<program {name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, file, "exec", dont_inherit=True), module)
    return module


def function_of(module: dict[str, Any]) -> FunctionType:
    """The function that a program has converted: `wanted`, else `f`."""
    return module.get("wanted", module["f"])

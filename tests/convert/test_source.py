"""Which code is converted, from which source, and what is said of that which is not."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import linecache
import sys
import textwrap
import warnings
import weakref
from pathlib import Path
from types import CodeType

import pytest

from smelt.capture.convert import CannotConvert, convert
from tests.convert.programs import load


def _load(source: str, name: str = "source"):
    return load(name, textwrap.dedent(source))


REFUSED = {
    "locals": ("def f(a):\n    x = a\n    return locals()", "locals() reads", 3),
    "locals by another name": ("def f(a):\n    g = locals\n    return g()", "locals() reads", 2),
    "locals in a comprehension": ("def f(a):\n    return [locals() for _ in a]", "locals() reads", 2),
    "locals in a lambda": ("def f(a):\n    return lambda: locals()", "locals() reads", 2),
    "vars": ("def f(a):\n    return vars()", "vars() without an object", 2),
    "dir": ("def f(a):\n    return dir()", "dir() without an object", 2),
    "eval": ("def f(a):\n    return eval('a')", "eval() may read", 2),
    "exec": ("def f(a):\n    exec(a)", "exec() may read", 2),
    "starred eval": ("def f(a):\n    return eval(*a)", "eval() may read", 2),
    "super by another name": ("class C:\n    def f(self):\n        s = super\n        return s()", "super is used", 3),
    "super in a comprehension": ("class C:\n    def f(self):\n        return [super() for _ in 'a']", "super() in", 3),
    "super without a parameter": ("class C:\n    def f(*a):\n        return super()", "without a first parameter", 3),
    "super outside a class": ("def f(a):\n    return super()", "outside a class", 2),
    "frame": ("import sys\ndef f(a):\n    return sys._getframe()", "its own frame", 3),
    "current frame": ("from inspect import currentframe\ndef f(a):\n    return currentframe()", "its own frame", 3),
    "generator": ("def f(a):\n    yield a", "it is a generator", 1),
    "generator lambda": ("f = lambda a: (yield a)", "it is a generator", 1),
    "lambda that is a generator inside": ("def f(a):\n    return lambda: (yield a)", "it is a generator", 2),
    "coroutine": ("async def f(a):\n    return a", "it is a coroutine", 1),
    "asynchronous generator": ("async def f(a):\n    yield a", "asynchronous generator", 1),
    "return in finally": ("def f(a):\n    try:\n        pass\n    finally:\n        return a", "in a finally", 5),
    "break in finally": (
        "def f(a):\n    for i in a:\n        try:\n            pass\n        finally:\n            if i: break",
        "in a finally",
        6,
    ),
    "a hidden name": ("def f(a):\n    __smelt_x = 1\n    return __smelt_x", "a name of Smelt's own", 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_the_line(name: str) -> None:
    source, reason, line = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = load(name, source + "\n")
    f = module["C"].f if "C" in module else module["f"]
    for _ in range(2):  # made and remembered
        with pytest.raises(CannotConvert) as caught:
            convert(f)
        assert reason in caught.value.reason
        assert (caught.value.span.file, caught.value.span.line) == (f"<program {name}>", line)
        assert caught.value.span.function == f.__qualname__


def test_names_that_are_the_users_own_are_no_builtins() -> None:
    module = _load(
        """
        def f(locals, eval, super, dir):
            vars = lambda: 1
            return locals() + eval("x") + super() + dir() + vars()
        """
    )
    f = module["f"]
    f.__code__ = convert(f).code
    assert f(lambda: 1, len, lambda: 1, lambda: 1) == 5


def test_no_source() -> None:
    @dataclasses.dataclass
    class D:
        x: int

    module: dict = {}
    exec("def f(a): return a", module)
    for f in (D.__init__, module["f"]):
        with pytest.raises(CannotConvert, match="not available"):
            convert(f)


@pytest.mark.parametrize("other", [len, 3, "f", object()])
def test_no_code(other: object) -> None:
    with pytest.raises(CannotConvert, match="no Python code"):
        convert(other)  # type: ignore[arg-type]


def test_parts_of_functions_are_not_converted_alone() -> None:
    def f(a):
        return [x + 1 for x in a]

    parts = [c for c in f.__code__.co_consts if isinstance(c, CodeType)]
    assert len(parts) == (sys.version_info < (3, 12))  # later it is no code of its own
    for comprehension in (*parts, f.__code__.replace(co_name="<listcomp>")):
        with pytest.raises(CannotConvert, match="part of the function around it"):
            convert(comprehension)


def test_an_edited_file_is_not_taken_for_what_was_imported(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    path.write_text("def f(a):\n    return a + 1\n")
    module: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), module)
    path.write_text("def f(a):\n    return a - 1\n")
    with pytest.raises(CannotConvert, match="not what it was compiled from"):
        convert(module["f"])


def test_a_function_that_imports_what_its_module_imports_too(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    body = "    import math\n    def inner():\n        return math.floor(a)\n    return math.ceil(a) + inner()\n"
    path.write_text(f"import math\ndef f(a):\n{body}")
    module: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), module)
    module["f"].__code__ = convert(module["f"]).code
    assert module["f"](1.5) == 3


def test_lines_read_before_a_file_was_edited_are_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "again.py"
    path.write_text("def f(a):\n    return a + 1\n")
    linecache.getlines(str(path))
    path.write_text("\n\ndef f(a):\n    return a + 2\n")
    module: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), module)
    module["f"].__code__ = convert(module["f"]).code
    assert module["f"](1) == 3


def test_functions_with_the_same_text_in_other_files_are_not_confused() -> None:
    first, second = (_load("def f(a):\n    return a and here\n", name)["f"] for name in ("one", "two"))
    assert convert(first).code is not convert(second).code
    assert convert(first).code.co_filename == "<program one>"
    assert convert(second).code.co_filename == "<program two>"


@pytest.mark.usefixtures("young_heap")
def test_converted_once_and_not_kept_alive() -> None:
    f = _load("def f(a):\n    return a\n", "kept")["f"]
    assert convert(f) is convert(f) is convert(f.__code__)
    gone = weakref.ref(f.__code__)
    del f
    gc.collect()
    assert gone() is None


def test_methods() -> None:
    class C:
        def m(self, a):
            return a or self

    assert convert(C().m) is convert(C.m)


def test_lambdas_on_one_line_are_told_apart() -> None:
    module = _load("fs = [lambda a: a + 1, lambda a: a + 2, lambda a, b=(lambda: 9): b()]\nodd = (lambda\n  a:\n a)\n")
    for f, wanted in zip([*module["fs"], module["odd"]], [2, 3, 9, 1], strict=True):
        f.__code__ = convert(f).code
        assert f(1) == wanted
        assert f.__code__.co_name == "<lambda>"


def test_indented_decorated_and_oddly_written() -> None:
    module = _load(
        '''
        if True:
            def deco(*a):
                return lambda f: f
            class C:

                @deco(
                    1,
                )
                # a comment
                @deco()

                def f(
                    self,
                    a,
        ):
                    """Text
        that goes left.
                    """
                    if a: return [
            1,
        ]
                    # less
              # and less
                    return (2
        )
                g = 5
        '''
    )
    f = module["C"].f
    f.__code__ = convert(f).code
    assert (f(0, 1), f(0, 0)) == ([1], 2)
    assert inspect.getsource(f).startswith("        @deco")


def test_future_annotations() -> None:
    source = "def f(a):\n    def g(x: undefined = 1) -> nothing: return x\n    return g\n"
    source = f"from __future__ import annotations\n{source}"
    f = load("future", source)["f"]
    f.__code__ = convert(f).code
    assert f(1).__annotations__ == {"x": "undefined", "return": "nothing"}


def test_annotations_of_nested_functions() -> None:
    source = "def f(a):\n    if a:\n        def g(x: a, *y: int) -> list[a]: return x\n        return g\n"
    f = _load(source, "annotated")["f"]
    f.__code__ = convert(f).code
    assert f(int).__annotations__ == {"x": int, "y": int, "return": list[int]}


def test_assertions_that_pytest_rewrote() -> None:
    def f(a):
        assert a > 1, "small"
        return a

    assert "@py_assert1" in f.__code__.co_varnames or "@pytest_ar" in f.__code__.co_names
    f.__code__ = convert(f).code
    assert f(2) == 2
    with pytest.raises(AssertionError, match="small"):
        f(0)


def test_a_warning_of_the_compiler_is_not_given_again() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = load("warned", "def f(a):\n    assert (a, 'never false')\n    return a is 1, '\\d'\n")["f"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(f)


def test_a_module_with_a_super_of_its_own() -> None:
    module = _load("class C:\n    def f(self):\n        return super().__init__()\n", "own super")
    convert(module["C"].f)
    module["super"] = print
    with pytest.raises(CannotConvert, match="super"):
        convert(module["C"].f)


def test_too_deep() -> None:
    source = "def f(a):\n" + "".join(f"    if a == {i}: return {i}\n    a += 0\n" for i in range(400))
    f = load("deep", source)["f"]
    with pytest.raises(CannotConvert, match="too deeply"):
        convert(f)


def test_positions() -> None:
    f = _load("def f(a, b):\n    if a:\n        x = (a +\n             b.c)\n    return x\n", "positions")["f"]
    converted = convert(f).code

    def places(code: CodeType) -> set:
        inner = (places(c) for c in code.co_consts if isinstance(c, CodeType))
        return set(code.co_positions()).union(*inner)

    lines = {p[0] for p in places(converted)}
    assert lines - {None} == {1, 2, 3, 4, 5}
    assert places(f.__code__) <= places(converted)


def test_a_frame_seen_by_a_debugger() -> None:
    f = _load("def f(a):\n    if a:\n        b = a\n        g()\n    return a\n", "debugger")["f"]
    f.__code__ = convert(f).code
    seen = []

    def g() -> None:
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == "<program debugger>":
                seen.append((frame.f_code.co_name, frame.f_code.co_qualname, frame.f_lineno, frame.f_locals.get("b")))
            frame = frame.f_back

    f.__globals__["g"] = g
    assert f(5) == 5
    assert seen == [("f", "f", 4, 5), ("f", "f", 2, 5)]


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x.real + 1\n", "f = lambda x: x.real + 1\n"], ids=["def", "lambda"]
)
def test_renamed_code_is_found_in_its_file(text: str) -> None:
    f = load("renamed", text)["f"]
    f.__code__ = f.__code__.replace(co_name="no_grad", co_qualname="no_grad")
    assert f(2) == 3 and convert(f).code.co_name == "no_grad"


IMPORTS = """
    import functools
    import functools as later

    def of_global(self, a):
        return functools.reduce(max, a), self.real.conjugate(), functools.reduce(*a), a.pop()

    def of_two_locals(a, b, functools):
        c = a
        return functools.reduce(a, b), a.pop(b), c.pop(a), functools.partial

    def of_a_cell(functools):
        def f(a):
            return functools.reduce(max, a), a.index(functools)
        return f

    class C:
        def f(self, a, *later):
            return self.f(a), later.index(a), self.f(*a), [a.pop(b) for b in later]

    of_method = C.f
    of_inner = of_a_cell(functools)
    of_lambda = lambda a, later: (later.index(a), a.pop(later), functools.partial(a, later))
"""


@pytest.mark.parametrize("name", ["of_global", "of_two_locals", "of_a_cell", "of_method", "of_inner", "of_lambda"])
def test_methods_of_names_that_a_file_imports_are_known_on_every_interpreter(name: str) -> None:
    assert convert(_load(IMPORTS, f"imports {name}")[name])

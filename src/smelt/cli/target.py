"""How a program is named on the command line: `pkg.mod:factory` or `file.py:factory`.

The factory takes nothing and returns what to compile and what to call it with: `(f, args)` or `(f, args, kwargs)`,
`f` a function or a module, `args` a tuple or one tensor.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import typer
from torch import Tensor

from smelt.cli.terminal import place_of, syntax_error
from smelt.diag.records import record

HELP = "A program: pkg.mod:factory or path/file.py:factory. The factory returns (function or module, args[, kwargs])."
_LOOKS_LIKE = (
    "A target is pkg.mod:factory or path/file.py:factory; the factory takes no argument and returns "
    "(function_or_module, args), or a third part, a dict of keyword arguments, for example:  "
    "def mlp(): return torch.nn.Linear(8, 8), (torch.randn(2, 8),)"
)


@record
class Target:
    """What a target names: call `function(*args, **kwargs)`."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


def load_target(text: str) -> Target:
    """Import the module, call the factory. A module among the results is put in eval mode by its factory, not here.

    Raises: as `load_made`, and typer.BadParameter where the factory returns something else.
    """
    return checked(text, load_made(text))


def load_made(text: str) -> Any:
    """What a factory returns, whatever that is.

    Raises: typer.BadParameter (exit code 2), which says what a target looks like; SmeltError (S0504) for a file that
        is not Python; what the user's own code raises passes through, with a note on whose it is.
    """
    place, separator, name = text.rpartition(":")
    if text.endswith(".py") and Path(text).is_file():
        raise _bad(f"{text} names no factory{_factories_in(Path(text))}")
    if not separator or not place or not name.isidentifier():
        raise _bad(f"{text!r} is not a target")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    factory = getattr(module, name, None)
    if factory is None:
        known = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        raise _bad(f"{place} has no {name!r}" + (f" (it has {', '.join(known)})" if known else ""))
    if not callable(factory):
        raise _bad(f"{text} is not a function but {type(factory).__name__}")
    if not _takes_nothing(factory):
        raise _bad(f"{text} takes arguments, so it cannot be called as a factory")
    try:
        return factory()
    except Exception as error:
        where = place_of(error)
        error.add_note(f"raised by the factory {text}" + (f", at {where}" if where else ""))
        raise


def _factories_in(path: Path) -> str:
    """What of a file may be a factory, without running it: functions that need no argument."""
    try:
        parsed = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError):
        return ""
    names = [
        node.name for node in parsed.body
        if isinstance(node, ast.FunctionDef)
        and len(node.args.posonlyargs) + len(node.args.args) == len(node.args.defaults)
        and None not in node.args.kw_defaults
    ]  # fmt: skip
    if not names:
        return " (none of its functions can be called without arguments)"
    return f"; write {path}:{names[0]}" + (f", or one of {', '.join(names[1:])}" if names[1:] else "")


def _takes_nothing(factory: Callable[..., Any]) -> bool:
    """Whether a call without arguments fits; True where nobody can say, as of some builtins."""
    try:
        signature = inspect.signature(factory)
    except ValueError:
        return True
    try:
        signature.bind()
    except TypeError:
        return False
    return True


def checked(text: str, made: Any) -> Target:
    """What a factory returned, as a program with its arguments. Raises: typer.BadParameter."""
    match made:
        case (function, args):
            kwargs: Any = {}
        case (function, args, kwargs):
            pass
        case _:
            raise _bad(f"{text} returned {type(made).__name__}, not (function_or_module, args)")
    args = (args,) if isinstance(args, Tensor) else args
    kwargs = {} if kwargs is None else kwargs
    if not callable(function) or not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        kinds = ", ".join(type(part).__name__ for part in made)
        raise _bad(f"{text} returned ({kinds}), not (function_or_module, args)")
    return Target(text, function, tuple(args), kwargs)


def _import_module(name: str) -> ModuleType:
    """A module by its dotted name, looked for in the current folder too."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise _bad(f"{name!r} is not a module's name")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise syntax_error(error, name) from None
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise _bad(f"there is no module {name!r}") from None
        raise


def _import_file(path: Path) -> ModuleType:
    """A module from a file, whose folder is looked in for the modules that it imports."""
    if not path.is_file():
        raise _bad(f"there is no file {path}")
    taken = path.stem in sys.modules  # never put a user's copy.py in the place of the standard one
    spec = importlib.util.spec_from_file_location(f"_smelt_target_{path.stem}" if taken else path.stem, path)
    if spec is None or spec.loader is None:
        raise _bad(f"{path} is not a Python file")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # as for an imported module: dataclasses and pickle look here
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise syntax_error(error, str(path)) from None
    return module


def _bad(problem: str) -> typer.BadParameter:
    return typer.BadParameter(f"{problem}. {_LOOKS_LIKE}", param_hint="TARGET")


def tensors_in(result: Any) -> list[Tensor]:
    """The tensors of a result, in order, through tuples, lists, mappings and model outputs."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, Mapping):
        return [t for item in result.values() for t in tensors_in(item)]
    if isinstance(result, tuple | list):
        return [t for item in result for t in tensors_in(item)]
    return []

"""What a node's `mode` switches on around it: `no_grad`, `enable_grad`, `inference`, `autocast(...)`.

Several stand after each other with spaces or semicolons between. `autocast(bf16)` is on for the CPU;
`autocast(cuda, f16)` names the device; `autocast(off)` and `autocast(cpu, off)` switch it off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from smelt.diag import InternalError
from smelt.ir.dtypes import BY_LABEL
from smelt.ops.convert import dtype_to_torch

_PLAIN = {"no_grad": "no_grad", "enable_grad": "enable_grad", "inference": "inference_mode"}
_PART = re.compile(r"\s*([a-z_]+)(?:\(([^)]*)\))?\s*;?")


def contexts(mode: str, as_written: bool = False) -> list[Any]:
    """Fresh context managers for a mode, outermost first. Raises: InternalError for a word that is not known.

    as_written: inference mode makes inference tensors, as where the program itself runs.
    """
    return [_context(word, inner, mode, as_written) for word, inner in _words(mode)]


def context_texts(mode: str) -> list[str]:
    """The same as Python, of names of torch. Raises: InternalError for a word that is not known."""
    return [_text(*_setting(word, inner, mode)) for word, inner in _words(mode)]


def _words(mode: str) -> Iterator[tuple[str, str | None]]:
    at, text = 0, mode.strip()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise InternalError(f"mode {mode!r} is not known", why="a node's mode is a list of known words")
        yield part.group(1), part.group(2)
        at = part.end()


def _setting(word: str, inner: str | None, mode: str) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """The name of a context manager of torch, and what it is called with."""
    if word in _PLAIN and inner is None:
        return _PLAIN[word], (), {}
    if word == "autocast" and inner is not None:
        words = [w.strip() for w in inner.split(",") if w.strip()]
        device = next((w for w in words if w != "off" and w not in BY_LABEL), "cpu")
        if "off" in words:
            return word, (device,), {"enabled": False}
        dtype = next((BY_LABEL[w] for w in words if w in BY_LABEL), None)
        return word, (device,), {} if dtype is None else {"dtype": dtype_to_torch(dtype)}
    raise InternalError(f"mode {mode!r} is not known", why=f"there is no mode {word!r}")


def _text(name: str, args: tuple[str, ...], kwargs: dict[str, Any]) -> str:
    return f"torch.{name}({', '.join([*map(repr, args), *(f'{k}={v}' for k, v in kwargs.items())])})"


def _context(word: str, inner: str | None, mode: str, as_written: bool) -> Any:
    name, args, kwargs = _setting(word, inner, mode)
    if name == "inference_mode" and not as_written:
        # Values are the same in inference mode; its tensors would not mix with those made outside.
        name = "no_grad"
    return getattr(torch, name)(*args, **kwargs)


@contextmanager
def entered(mode: str, as_written: bool = False) -> Iterator[None]:
    """Everything that a mode names, switched on for a while; as_written: see `contexts`."""
    with ExitStack() as stack:
        for context in contexts(mode, as_written):
            stack.enter_context(context)
        yield

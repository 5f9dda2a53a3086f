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

_PART = re.compile(r"\s*([a-z_]+)(?:\(([^)]*)\))?\s*;?")


def contexts(mode: str, as_written: bool = False) -> list[Any]:
    """Fresh context managers for a mode, outermost first. Raises: InternalError for a word that is not known.

    as_written: inference mode makes inference tensors, as where the program itself runs.
    """
    found: list[Any] = []
    at = 0
    text = mode.strip()
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            raise InternalError(f"mode {mode!r} is not known", why="a node's mode is a list of known words")
        found.append(_context(part.group(1), part.group(2), mode, as_written))
        at = part.end()
    return found


def _context(word: str, inner: str | None, mode: str, as_written: bool) -> Any:
    if word == "inference" and as_written:
        return torch.inference_mode()
    if word in ("no_grad", "inference"):
        # Values are the same in inference mode; its tensors would not mix with those made outside.
        return torch.no_grad()
    if word == "enable_grad":
        return torch.enable_grad()
    if word == "autocast" and inner is not None:
        words = [w.strip() for w in inner.split(",") if w.strip()]
        device = next((w for w in words if w != "off" and w not in BY_LABEL), "cpu")
        if "off" in words:
            return torch.autocast(device, enabled=False)
        dtype = next((BY_LABEL[w] for w in words if w in BY_LABEL), None)
        return torch.autocast(device, dtype=None if dtype is None else dtype_to_torch(dtype))
    raise InternalError(f"mode {mode!r} is not known", why=f"there is no mode {word!r}")


@contextmanager
def entered(mode: str, as_written: bool = False) -> Iterator[None]:
    """Everything that a mode names, switched on for a while; as_written: see `contexts`."""
    with ExitStack() as stack:
        for context in contexts(mode, as_written):
            stack.enter_context(context)
        yield

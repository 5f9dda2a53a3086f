"""A program's Python source in a real file, so that a debugger steps it and a traceback shows it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from smelt.diag.notebook import text_box

State = Callable[[], dict[str, torch.Tensor]]
Check = Callable[[Sequence[Any]], None]


class Code(str):
    """Python source of a graph: a string that knows its file.

    path: the file with this text. forward: the function in it, `forward(state, *inputs) -> tuple of outputs`. state:
    the program's own, names of parameters, buffers, captured tensors and large constants with their tensors.
    `run(*inputs)` calls `forward` with that, for inputs that the graph holds for.
    """

    path: Path
    _state: State
    _check: Check

    def __new__(cls, text: str, path: Path, state: State, check: Check) -> Code:
        code = super().__new__(cls, text)
        code.path, code._state, code._check = path, state, check
        return code

    def _repr_html_(self) -> str:
        return text_box(self.path.name, self)

    @property
    def forward(self) -> Callable[..., tuple[Any, ...]]:
        """The function that the file defines."""
        spec = importlib.util.spec_from_file_location(self.path.stem, self.path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{self.path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        function: Callable[..., tuple[Any, ...]] = module.forward
        return function

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """What `forward` takes first: the very tensors of the program, as they are now."""
        return self._state()

    def run(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """The graph's flat outputs for its flat inputs. Raises: CaptureError (S0107) for other sizes or dtypes."""
        self._check(inputs)
        return self.forward(self.state, *inputs)


def write_code(name: str, text: str, directory: str, state: State, check: Check) -> Code:
    """Put source into `directory` (a temporary one where that cannot be written) under a name made of its content.

    check: raises for inputs that the source does not hold for.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    stem = re.sub(r"\W+", "_", name).strip("_") or "program"
    file = f"{stem}_{digest}.py"
    for folder in (
        Path(directory) / "source" if directory else None,
        Path(tempfile.gettempdir()) / f"smelt-{os.getuid()}",
    ):
        if folder is None:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = folder / file
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        except OSError:
            continue
        return Code(text, path, state, check)
    handle, temporary = tempfile.mkstemp(suffix=f"_{file}")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    return Code(text, Path(temporary), state, check)

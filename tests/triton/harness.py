"""Runs Triton kernels in a process that interprets them, and compares nests with what the evaluator says."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch

from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.kernels.nest import Nest
from smelt.codegen.triton.emit import emit_triton
from smelt.codegen.triton.kernel import TritonKernel, TritonSource
from smelt.codegen.triton.layout import Form
from tests.forked import training_forks

_ROOT = Path(__file__).resolve().parents[2]
_FENCE = 0xA5
ADDRESS = "SMELT_TEST_INTERPRETER"
"""Where the environment has the address of a process that interprets."""


class Interpreter:
    """The process that interprets. One that a test starts shares it where it finds its address in the environment."""

    def __init__(self) -> None:
        self.address = os.environ.get(ADDRESS, "")
        if not self.address:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.triton.interpreter"],
                cwd=_ROOT,
                env=os.environ | {"TRITON_INTERPRET": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            self.address = process.stdout.readline().strip()
            atexit.register(process.communicate)
        self._connection = Client(self.address)

    def run(self, kernel: TritonKernel, tensors: Sequence[torch.Tensor]) -> int:
        """Run a kernel over the memory of tensors; 0, or what it left in its error word."""
        error = torch.zeros(1, dtype=torch.int32)
        given = [*tensors, error] if kernel.source.can_fail else list(tensors)
        memories = [_bytes(t) for t in given]
        pointers = [(k, t.storage_offset() * t.element_size(), _pointed(t.dtype)) for k, t in enumerate(given)]
        self.launch(kernel.source, memories, pointers, kernel.words, kernel.programs)
        return int(error)

    def launch(
        self,
        source: TritonSource,
        memories: Sequence[torch.Tensor],
        pointers: Sequence[tuple[int, int, torch.dtype]],
        words: Sequence[int],
        programs: int,
    ) -> None:
        """Run a text over memories (u8 each), at pointers: which memory, from which byte on, of which elements."""
        held = [memory.numpy() for memory in memories]
        request = (source.name, source.text, held, pointers, words, dict(source.constants), programs)
        self._connection.send_bytes(pickle.dumps(request))
        answer = pickle.loads(self._connection.recv_bytes())
        assert not isinstance(answer, str), answer
        for old, new in zip(held, answer, strict=True):
            old[:] = new


def _bytes(t: torch.Tensor) -> torch.Tensor:
    """All memory of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())  # type: ignore[call-overload, no-any-return]


def _pointed(dtype: torch.dtype) -> torch.dtype:
    """What pointers to a tensor's elements point to: a bool is a byte."""
    return torch.int8 if dtype == torch.bool else dtype


@cache
def interpreter() -> Interpreter:
    """The process that all tests of this one share."""
    return Interpreter()


def apart(test: Callable[..., None], *args: Any) -> None:
    """Run a test with a GPU that is not there in a process of its own: autograd's engine has queues for the devices
    that there are when it is first used, and in this process it may have been.
    """
    training_forks().run(
        f"import {test.__module__} as tests\n"
        f"with tests.fake_gpu() as gpu:\n    tests.{test.__name__}(gpu, *{args!r})\n",
        environment={ADDRESS: interpreter().address},
    )


def fenced(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A copy of the same memory layout, and the bytes behind it, which nobody may touch."""
    nbytes = t.untyped_storage().nbytes()
    memory = torch.full((nbytes + 512,), _FENCE, dtype=torch.uint8)
    copy = memory[:nbytes].view(t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())
    return copy.copy_(t), memory[nbytes:]


def check(
    nest: Nest,
    inputs: Sequence[torch.Tensor],
    *outputs: torch.Tensor,
    tolerance: float = 2e-6,
    form: Form | None = None,
    r: int = 0,
    b: int = 0,
    wanted: Sequence[torch.Tensor] | None = None,
) -> TritonKernel:
    """The nest's kernel gives what the evaluator gives, or what is `wanted`, and writes nothing else; the kernel.

    Of the form rows, that with several rows in a program, too.
    """
    if form == "rows" and not r:
        check(nest, inputs, *outputs, tolerance=tolerance, form=form, r=4, wanted=wanted)
    want = [t.clone() for t in outputs]
    failed = evaluate_nest(nest, [*inputs, *want])
    want = want if wanted is None else list(wanted)
    kernel = emit_triton(nest, form, r, b)
    got, beyond = zip(*map(fenced, outputs), strict=True)
    assert interpreter().run(kernel, [*inputs, *got]) == failed
    assert all(bool((fence == _FENCE).all()) for fence in beyond), "the kernel wrote past its result"
    if failed:
        return kernel
    for ours, exact in zip(got, want, strict=True):
        if ours.dtype.is_floating_point:
            torch.testing.assert_close(ours, exact, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            assert torch.equal(ours, exact), kernel
    return kernel

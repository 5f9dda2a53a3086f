"""What the first call of long chains of operators costs, by stages: `python bench/compiling.py [operators]`.

Processor's seconds of all threads, with an empty cache, in a process that has compiled something tiny before. LLVM's
stages run in threads of their own; all that is not in a line is Python: capture, passes, partition, plan, files.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.codegen.llvm import emit
from smelt.codegen.llvm.nests import nest_ir

SIZE = 64
_weight, _row = torch.randn(SIZE, SIZE) / 8, torch.randn(SIZE)
Operator = Callable[[Tensor], Tensor]
POINTWISE: tuple[Operator, ...] = (
    torch.relu, torch.sigmoid, torch.tanh, F.gelu, F.silu, torch.sin, torch.abs, torch.neg,
    lambda x: x * 0.5, lambda x: x + 1.0, lambda x: x + _row, lambda x: torch.clamp(x, -3, 3),
)  # fmt: skip
MIXED: tuple[Operator, ...] = (
    torch.relu, torch.sigmoid, torch.tanh, F.gelu, F.silu, lambda x: torch.exp(-x.abs()), lambda x: x * 0.5 + 1.0,
    lambda x: torch.log1p(x.abs()), lambda x: torch.sqrt(x * x + 1.0), lambda x: torch.where(x > 0, x, x * 0.1),
    lambda x: x + _row, lambda x: x @ _weight, lambda x: F.linear(x, _weight, _row),
    lambda x: F.softmax(x, -1), lambda x: F.softmax(x, 0), lambda x: F.layer_norm(x, (SIZE,)),
    lambda x: x - x.mean(0), lambda x: x / (x.sum(-1, keepdim=True).abs() + 1), lambda x: x * x.var(0),
    lambda x: torch.maximum(x, x.amax(-1, keepdim=True) * 0.5), lambda x: x.cumsum(0) * 0.1,
    lambda x: torch.cat([x[:, 32:], x[:, :32]], 1), lambda x: torch.cat([x, x], 0)[16 : 16 + SIZE],
    lambda x: x.t().contiguous(),
)  # fmt: skip


class Stages:
    """Times of stages, added up over threads; `lines` and `modules` of LLVM text."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.lines = self.modules = 0
        self._lock = threading.Lock()

    def timed(self, owner: Any, name: str, stage: str) -> None:
        """Have a function's time noted from now on, without that of functions of its stage inside it."""
        function, inside = getattr(owner, name), threading.local()

        def noted(*args: Any, **kwargs: Any) -> Any:
            if getattr(inside, "runs", False):
                return function(*args, **kwargs)
            inside.runs, begin = True, time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                inside.runs = False
                with self._lock:
                    self.seconds[stage] = self.seconds.get(stage, 0.0) + time.thread_time() - begin

        setattr(owner, name, noted)

    def count(self) -> None:
        """Have LLVM's modules counted from now on."""
        parse = emit._module

        def counted(text: str) -> Any:
            with self._lock:
                self.modules, self.lines = self.modules + 1, self.lines + text.count("\n")
            return parse(text)

        emit._module = counted


def chain(operators: Sequence[Operator], count: int) -> Operator:
    """A function that runs `count` operators, drawn once, one after another."""
    drawn = random.Random(0).choices(operators, k=count)

    def run(x: Tensor) -> Tensor:
        for operator in drawn:
            x = operator(x)
        return x

    return run


def compiled(function: Operator) -> Operator:
    """A compiled object with a cache of its own, which is empty."""
    made: Operator = smelt.compile(function, options={"cache_dir": tempfile.mkdtemp()})
    return made


def main(count: int) -> None:
    """Print the stages of both chains."""
    tiny, x = compiled(lambda x: x * 2 + 1), torch.randn(SIZE, SIZE)
    tiny(x), tiny(x)
    stages = Stages()
    stages.count()
    stages.timed(llvm, "parse_assembly", "LLVM: parse")
    stages.timed(emit, "_emit_apart", "LLVM: all")
    stages.timed(nest_ir, "_made", "text of nests")
    for name, operators in (("mixed", MIXED), ("pointwise", POINTWISE)):
        function = chain(operators, count)
        function(x)
        call = compiled(function)
        stages.seconds.clear()
        stages.lines = stages.modules = 0
        begin = time.process_time()
        result = call(x)
        seconds = time.process_time() - begin
        torch.testing.assert_close(result, function(x), rtol=1e-3, atol=1e-3, equal_nan=True)
        parts = ", ".join(f"{stage} {taken:.2f}" for stage, taken in sorted(stages.seconds.items()))
        print(f"{name}: {seconds:.2f} s; {parts}; {stages.modules} modules of {stages.lines} lines")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)

"""What the families share: a program's lines as they are written, and the file around them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from tests.programs.generate import Generated

_STATE = """
class State:
    def __init__(self):
        self.count, self.flag, self.log = 0, False, []
        self.buffer, self.steps = torch.arange(9.0).view(3, 3) * 2, torch.tensor(0)
        self.kept = self.last = None


STATE = State()
"""


@dataclass
class Lines:
    """Statements of one program. budget: how many more it may have."""

    rng: Random
    budget: int
    lines: list[str] = field(default_factory=list)

    def pick(self, items: Sequence[str]) -> str:
        return self.rng.choice(items)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def put(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def block(self, depth: int, statement: Callable[[int], bool]) -> None:
        """One to three statements; statement: writes one, and says whether others may follow."""
        for _ in range(self.rng.choice((1, 1, 2, 2, 3))):
            self.budget -= 1
            if not statement(depth):
                return


def lines_for(seed: int, size: int) -> Lines:
    """Lines for the program of this number. size: about how many statements; 0: many or few."""
    rng = Random(seed)
    return Lines(rng, size or rng.choice((4, 7, 11, 16)))


def generated(seed: int, head: str, signature: str, body: Sequence[str], calls: Sequence[str]) -> Generated:
    """The file of a program. body: indented lines; calls: the arguments of five calls, as expressions."""
    text = "\n".join(
        [
            "import math", "import torch", _STATE, head, "", f"def program({signature}):", *body, "", "",
            "def make():", "    return program", "", "",
            "def calls():", "    return [", *(f"        {call}," for call in calls), "    ]", "",
        ]
    )  # fmt: skip
    return Generated(seed, text, Counter(type(node).__name__ for node in ast.walk(ast.parse(text))))

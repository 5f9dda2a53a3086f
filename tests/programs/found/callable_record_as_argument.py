from dataclasses import dataclass

import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


@dataclass
class Box:
    value: torch.Tensor
    weight: int = 2

    def __call__(self, t):
        return t * self.weight + self.value


def program(x, box, other):
    box.weight += 1
    return box(x), other, other.value


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k, Box(x - k, 1), Box(x + k, 3)) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

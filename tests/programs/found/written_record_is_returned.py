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


def program(x, box):
    box.weight += 2
    if x[0] > 0:
        y = x + 1  # noqa: F841
    return box


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k, Box(x - k)) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x, n: float):
    turns = 0
    while turns < 2 and n < 3:
        turns += 1
        x = x + 1
    return x * turns, STATE.buffer + 1


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k, k) for k in (1.0, -1.0, 7.0, float("nan"), 0.25)]

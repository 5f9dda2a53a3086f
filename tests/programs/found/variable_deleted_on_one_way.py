import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x, y):
    v = x + 1
    for _ in range(3):
        if -1 < y.max() < 6:
            del v
    return x


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k, x - k) for k in (1.0, -4.0, 0.0, float("nan"), 0.25)]

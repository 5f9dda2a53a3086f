import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    x = x.clone()
    if x.sum() > 1:
        x.index_copy_(0, torch.tensor([2, 0]), x[1:3])
    elif x.sum() < -1:
        x[1:].add_(x[:-1])
    x[:2] += x[:2]
    return x


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k,) for k in (0.0, 1.0, -1.0, float("nan"), 0.25)]

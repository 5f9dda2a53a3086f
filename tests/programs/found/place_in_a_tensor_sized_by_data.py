import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    try:
        (x > 0).nonzero()[0]
    except IndexError:
        return x + 1
    raise KeyError("left")


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k,) for k in (0.0, 1.0, -1.0, float("nan"), 0.25)]

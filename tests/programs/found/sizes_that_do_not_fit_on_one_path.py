import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    if x.sum() > 0:
        return x
    return torch.ones(4) + x.mean(1)


def make():
    return program


def calls():
    return [(torch.ones(3, 4) * k,) for k in (1.0, -1.0, 0.0, 0.5, 2.0)]

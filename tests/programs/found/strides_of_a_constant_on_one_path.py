import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    if x.sum() > 2:
        return torch.stack([torch.ones(3), torch.ones(3)]).select(1, -3)
    return x + 1


def make():
    return program


def calls():
    return [(torch.ones(4) * k,) for k in (1.0, -1.0, 0.0, 0.5, 2.0)]

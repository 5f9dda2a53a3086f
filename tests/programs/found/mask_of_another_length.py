import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x, m):
    y = x.clone()
    y[x > 0] = x[m]
    return y


def make():
    return program


def calls():
    return [
        (torch.tensor([1.0, -2.0, 0.5, 3.0]) * k, torch.tensor([True, False, k > 0, True]))
        for k in (1.0, -1.0, 0.0, 0.5, 2.0)
    ]

import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    for i in range(int((x > 0).sum()) % 3):
        last = i
    kept = last  # noqa: F841
    return x + 1


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k,) for k in (1.0, -1.0, 0.0, float("nan"), 2.0)]

import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    a, b = x[x > 0], x[x <= 0]
    a += 1
    b[:1].neg_()
    b.mul_(2)
    return a.numel() - b.numel(), len(a) * 2, a, torch.zeros(len(b))


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k,) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

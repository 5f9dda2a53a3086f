import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(y, k):
    if k.sum() > 0:
        y.index_put_((k % 4,), y, accumulate=True)
    y.add_(y)
    return y.mul_(y)


def make():
    return program


def calls():
    return [(torch.arange(4.0), torch.full([4], n)) for n in (0, 1, -1, 2, 0)]

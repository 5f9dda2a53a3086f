import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x, y, items):
    n = 0
    while n < 3 and x.max() < 3:
        n += 1
        try:  # noqa: SIM105
            x = x - y
        except ZeroDivisionError:
            pass
        items += [y]
    return [x, items]


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k, x - k, [x + k]) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

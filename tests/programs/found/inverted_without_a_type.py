import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(m, n, x):
    m |= ~m
    if x.sum() > 1:
        return m, ~n, ~x
    try:
        return m + 1, x.unknown
    except AttributeError as error:
        return m + 1, len(str(error))


def make():
    return program


def calls():
    return [(torch.arange(4) > k, torch.arange(4) * int(k), torch.ones(2) * k) for k in (1.0, -1.0, 0.0, 0.5, 2.0)]

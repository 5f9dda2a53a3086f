import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    v = x + 1
    w = v[int(x[1].nan_to_num()) % 4]
    STATE.buffer.add_(1)
    return w, v


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k,) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

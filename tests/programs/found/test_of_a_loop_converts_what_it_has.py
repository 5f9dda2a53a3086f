import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    most = x.view(-1)[3]
    n = 0
    while n < int(most.to(torch.float32).nan_to_num(0)):
        n += 1
    return n, most


def make():
    return program


def calls():
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])
    return [(x * k,) for k in (1.0, -1.0, 0.0, float("nan"), 2.0)]

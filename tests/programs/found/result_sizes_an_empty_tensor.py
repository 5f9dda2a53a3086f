import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x, n):
    room = torch.empty(0)
    other = room
    torch.add(x, n, out=room)
    return other * other.shape[0], room.sum()


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k, 2) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

"""A variable that some turns read and others bind: its error was every turn's where no path of the first one had it.

Nobody reads it behind the loop, which is why the loop was not seen to carry it.
"""

# ruff: noqa: F821, F841
import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x, s):
    for row in x:
        if s == 4:
            break
        last = [number + len(last) for number in (1, 2) if any(item > 3 for item in row)]
    for row in x:
        if row[0] > 3:
            first = first + row
        else:
            first = row
    return x, s


def make():
    return program


def calls():
    return [
        (torch.tensor([[-3.75, 3.0], [3.25, 0.25], [-3.25, 2.5]]), True),
        (torch.tensor([[3.75, 3.0], [3.25, 0.25]]), 4),
        (torch.zeros(3, 2), 2),
        (torch.tensor([[1.0, 3.25], [2.5, 2.0]]), 1),
        (torch.tensor([[1.0, 3.0], [4.0, 2.0], [1.0, 5.0]]), 1),
    ]

import torch


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    said = 0
    try:
        x.item()
        x.shape[2]
    except Exception as error:
        said = len(type(error).__name__)
    return x + said


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k,) for k in (1.0, -1.0)] + [(torch.ones(n),) for n in (1, 0, 2)]

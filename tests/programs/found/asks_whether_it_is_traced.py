import torch
import torch._subclasses


class STATE:
    count = 0
    flag = False
    log: list = []  # noqa: RUF012
    buffer = torch.zeros(4)
    steps = torch.tensor(0)


def program(x):
    mask = x > -1
    is_traced = isinstance(mask, getattr(torch, "_subclasses").FakeTensor) or torch.compiler.is_compiling()  # noqa: B009
    if not is_traced and mask.all():
        return x + 1
    return x - 1


def make():
    return program


def calls():
    return [(torch.tensor([1.0, -2.0, 0.5, 3.0]) * k,) for k in (1.0, -1.0, 0.0, float("nan"), 0.25)]

"""Modules and small helpers that several tests of schedules share."""

import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.pattern import call_module
from smelt.scheduling import Matches


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()
        self.seq = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList([nn.ReLU(), nn.Linear(4, 4)])

    def forward(self, x):
        x = self.seq(self.act(self.fc(x)))
        for layer in self.layers:
            x = layer(x)
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.note = {"name": "tied"}

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


class Mlp(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(layers))
        self.act, self.drop = nn.ReLU(), nn.Dropout(0.1)

    def forward(self, x, *, scale=1.0):
        for layer in self.layers:
            x = self.drop(self.act(layer(x)))
        return {"out": x * scale, "rest": (x.sum(), [x.argmax()])}


class Same(nn.Linear):
    """A linear layer written otherwise."""

    @classmethod
    def of(cls, linear, off=0.0):
        made = cls(linear.in_features, linear.out_features)
        made.weight, made.bias, made.off = linear.weight, linear.bias, off
        return made

    def forward(self, x):
        return x @ self.weight.t() + self.bias + self.off


def fixed(*shape, seed=1):
    """A random tensor, the same at each call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class LinearNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return F.relu(self.bn(self.fc(x)))


def linear_norm(x):
    return call_module("bn", call_module("fc", x))


class RMSNorm(nn.Module):
    def __init__(self, drop=0.5):
        super().__init__()
        self.weight, self.drop = nn.Parameter(torch.rand(8)), nn.Dropout(drop)

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.drop(self.weight * y)


def whole(f, *example_inputs):
    """A schedule of a module that is this function."""

    class One(nn.Module):
        def forward(self, x):
            return f(x)

    class Two(nn.Module):
        def forward(self, x, y):
            return f(x, y)

    class Three(nn.Module):
        def forward(self, x, y, z):
            return f(x, y, z)

    module = (One, Two, Three)[f.__code__.co_argcount - 1]()
    return smelt.schedule(module, example_inputs or None)


def matched_ops(matches: Matches) -> list[list[str]]:
    return [[node.op.split(".")[1] for node in match.nodes] for match in matches]


def edited(s, path=""):
    """The graph of a module as the steps left it."""
    return s._state.scope(path).edited.graph


def edited_ops(s, path=""):
    """The operators of that graph."""
    return [node.op.split(".")[1] for node in edited(s, path).walk() if "." in node.op]

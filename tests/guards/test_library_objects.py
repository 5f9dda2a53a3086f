"""Objects of the standard library: what their own methods read and change is seen as if they were the program's."""

from __future__ import annotations

import argparse
import collections
import configparser
import contextlib
import email.message
import graphlib
import itertools
import json
import logging
import optparse
import sched
import statistics
import string
import textwrap
import unittest.mock
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt

Tensor = torch.Tensor
Made = tuple[Callable[[Tensor], Any], Callable[[], Any]]


class Arguments(argparse.Namespace):
    pass


def namespace() -> Made:
    held = argparse.Namespace(k=2)
    return (lambda x: x * 2 if "z" in held else x), (lambda: setattr(held, "z", 1))


def own_namespace() -> Made:
    held = Arguments(k=2)
    return (lambda x: x * 2 if "z" in held else x), (lambda: setattr(held, "z", 1))


def parser() -> Made:
    held = configparser.ConfigParser()
    change = lambda: held.read_dict({"DEFAULT": {"k": "5"}})  # noqa: E731
    return (lambda x: x * held.getint("DEFAULT", "k", fallback=1)), change


def wrapper() -> Made:
    held = textwrap.TextWrapper(width=4)
    return (lambda x: x * len(held.wrap("a b c d e f"))), (lambda: setattr(held, "width", 2))


def message() -> Made:
    held = email.message.Message()
    return (lambda x: x * int(held.get("k", 1))), (lambda: held.add_header("k", "5"))


def values() -> Made:
    held = optparse.Values({"a": 1})
    return (lambda x: x * held.ensure_value("a", 5)), (lambda: setattr(held, "a", 9))


def encoder() -> Made:
    held = json.JSONEncoder()
    return (lambda x: x * len(held.encode([1, 2]))), (lambda: setattr(held, "item_separator", ",,,"))


def template() -> Made:
    held = string.Template("$a")
    return (lambda x: x * len(held.substitute(a="x"))), (lambda: setattr(held, "template", "xyz$a"))


def distribution() -> Made:
    held = statistics.NormalDist(1.0, 1.0)
    return (lambda x: x * held.mean), (lambda: setattr(held, "_mu", 9.0))


def mock() -> Made:
    held = unittest.mock.Mock()
    held.method.return_value = 2
    return (lambda x: x * held.method.call_count), (lambda: held.method(3))


def level_of_a_logger() -> Made:
    held = logging.Logger("of a test", 10)
    return (lambda x: x * held.level), (lambda: held.setLevel(20))


def handlers_of_a_logger() -> Made:
    held = logging.Logger("of a test", 10)
    return (lambda x: x * len(held.handlers)), (lambda: held.addHandler(logging.NullHandler()))


def factory() -> Made:
    held = collections.defaultdict(lambda: 2)

    def f(x: Tensor) -> Tensor:
        found = held["a"]
        del held["a"]
        return x * found

    return f, (lambda: setattr(held, "default_factory", lambda: 7))


def no_factory() -> Made:
    held: Any = collections.defaultdict(int)
    return (lambda x: x * (1 if held.default_factory is None else 2)), (lambda: setattr(held, "default_factory", None))


READS = [namespace, own_namespace, parser, wrapper, message, values, encoder, template, distribution, mock,
         level_of_a_logger, handlers_of_a_logger, factory, no_factory]  # fmt: skip


@pytest.mark.parametrize("make", READS, ids=lambda make: make.__name__)
def test_what_methods_of_the_library_read_is_guarded(make: Callable[[], Made]) -> None:
    (f, change), x = make(), torch.ones(2)
    c = smelt.compile(f)
    for _ in range(3):
        assert torch.equal(c(x), f(x))
    before = f(x)
    change()
    assert not torch.equal(f(x), before)
    for _ in range(2):
        assert torch.equal(c(x), f(x))


def test_a_program_that_reads_them_is_compiled() -> None:
    held = configparser.ConfigParser()
    held.read_dict({"A": {"k": "3"}})

    @smelt.compile
    def f(x: Tensor) -> Tensor:
        return x * held.getint("A", "k")

    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(f(x), x * 3)
    assert f.stats().builds == 1 and f.stats().fallbacks == {}


def test_what_c_keeps_out_of_sight_is_read_at_each_call() -> None:
    element = ET.Element("a", {"k": "1"})

    def f(x: Tensor) -> Tensor:
        return x * int(element.get("k", "0"))

    c, x = smelt.compile(f), torch.ones(2)
    assert torch.equal(c(x), x)
    with pytest.warns(smelt.SmeltWarning, match="cannot be watched"):
        c(x)
    element.set("k", "5")
    assert torch.equal(c(x), x * 5)


def set_option() -> Made:
    held = configparser.ConfigParser()
    held.read_dict({"A": {"k": "0"}})

    def f(x: Tensor) -> Tensor:
        held.set("A", "k", str(held.getint("A", "k") + 1))
        return x * held.getint("A", "k")

    return f, lambda: held.get("A", "k")


def add_header() -> Made:
    held = email.message.Message()

    def f(x: Tensor) -> Tensor:
        held["k"] = "v"
        return x * len(held)

    return f, lambda: len(held)


def add_values() -> Made:
    held = optparse.Values({"a": 1})

    def f(x: Tensor) -> Tensor:
        held.ensure_value("n", 0)
        held.n += 1
        return x * held.n

    return f, lambda: held.n


def add_nodes() -> Made:
    held: Any = graphlib.TopologicalSorter()

    def f(x: Tensor) -> Tensor:
        held.add(len(held._node2info))
        return x * 2

    return f, lambda: len(held._node2info)


def enter_callbacks() -> Made:
    held: Any = contextlib.ExitStack()

    def f(x: Tensor) -> Tensor:
        held.callback(int, 1)
        return x * 2

    return f, lambda: len(held._exit_callbacks)


def enter_events() -> Made:
    held = sched.scheduler(lambda: 0, lambda k: None)

    def f(x: Tensor) -> Tensor:
        held.enter(1, 1, print)
        return x * len(held.queue)

    return f, lambda: len(held.queue)


def add_filters() -> Made:
    held = logging.Filterer()

    def f(x: Tensor) -> Tensor:
        held.addFilter(logging.Filter(str(len(held.filters))))
        return x * len(held.filters)

    return f, lambda: len(held.filters)


def set_levels() -> Made:
    held = logging.Logger("of a test", 10)

    def f(x: Tensor) -> Tensor:
        held.setLevel(held.level + 1)
        return x * held.getEffectiveLevel()

    return f, lambda: held.level


def add_elements() -> Made:
    held = ET.Element("a")

    def f(x: Tensor) -> Tensor:
        ET.SubElement(held, "b")
        return x * len(held)

    return f, lambda: len(held)


def compress() -> Made:
    held = zlib.compressobj()

    def f(x: Tensor) -> Tensor:
        return x * len(held.compress(b"abc"))

    return f, lambda: len(held.flush())


def count_by_a_factory() -> Made:
    held = collections.defaultdict(itertools.count().__next__)

    def f(x: Tensor) -> Tensor:
        return x * (held[len(held) % 3] + len(held))

    return f, lambda: (held.clear(), held["a"])[1]


def set_a_factory() -> Made:
    held = collections.defaultdict(int)

    def f(x: Tensor) -> Tensor:
        held.default_factory = float if held.default_factory is int else int
        return x * (1 if held.default_factory is int else 2)

    return f, lambda: held.default_factory


WRITES = [set_option, add_header, add_values, add_nodes, enter_callbacks, enter_events, add_filters, set_levels,
          add_elements, compress, count_by_a_factory, set_a_factory]  # fmt: skip


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("make", WRITES, ids=lambda make: make.__name__)
def test_what_methods_of_the_library_change_is_changed_at_each_call(make: Callable[[], Made]) -> None:
    (f, state), (g, compiled_state), x = make(), make(), torch.ones(2)
    c = smelt.compile(g)
    for _ in range(5):
        assert torch.equal(c(x), f(x))
    assert compiled_state() == state()


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_what_the_factory_of_an_argument_changes_is_changed_at_each_call() -> None:
    def f(x: Tensor, ids: dict[str, int]) -> Tensor:
        found = ids["a"]
        del ids["a"]
        return x * found

    c, x, ids = smelt.compile(f), torch.ones(2), collections.defaultdict(itertools.count().__next__)
    for n in range(5):
        assert torch.equal(c(x, ids), x * n)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_lists_that_a_recurrent_layer_makes_anew_of_its_weights(kind: type[nn.RNNBase]) -> None:
    """`to` makes them anew, even where nothing moves; another weight in them is another program."""
    layer, x = kind(4, 5).eval(), torch.randn(3, 2, 4)
    compiled = smelt.compile(layer)
    with torch.no_grad():
        for _ in range(4):
            layer.to("cpu")
            torch.testing.assert_close(compiled(x), layer(x))
        assert compiled.stats().builds == 1
        layer.weight_ih_l0 = nn.Parameter(torch.randn_like(layer.weight_ih_l0))
        for _ in range(2):
            torch.testing.assert_close(compiled(x), layer(x))
        layer.weight_hh_l0.mul_(2)
        layer.to("cpu")
        torch.testing.assert_close(compiled(x), layer(x))
        layer.double().float()
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
def test_lists_that_an_export_makes_anew() -> None:
    layer, x = nn.LSTM(4, 5).eval(), torch.randn(3, 2, 4)
    compiled = smelt.compile(layer)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), layer(x))
        torch.export.export(layer, (x,))
        for _ in range(2):
            torch.testing.assert_close(compiled(x), layer(x))
    assert compiled.stats().builds == 1

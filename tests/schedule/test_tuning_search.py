"""The tree of what was asked, the order of candidates, what a kept result depends on, and how times are taken."""

import itertools

import pytest
import torch

from smelt.diag import ScheduleError
from smelt.scheduling.comparing.compare_runs import Arguments
from smelt.scheduling.tuning.knobs import Run, Search, described
from smelt.scheduling.tuning.tuning_cache import code_text
from smelt.scheduling.tuning.tuning_measure import Times, call_of, medians


def _searched(asks, trials=64, seed=0, cost=None):
    """All runs of a function of `ask`, in order, each as its values."""
    search, found, best = Search(trials, seed), [], None
    while (run := search.next()) is not None:
        asks(run)
        now = cost(run.values) if cost else 0.0
        is_best = best is None or now < best
        best = now if is_best else best
        search.closed(run, is_best=is_best)
        found.append(tuple(run.values.items()))
    return search, found


def _two(ask):
    ask("a", [1, 2, 3])
    ask("b", ["y", "z"])


def test_a_small_space_is_gone_through_in_order():
    search, found = _searched(_two)
    assert found == [(("a", a), ("b", b)) for a, b in itertools.product([1, 2, 3], ["y", "z"])]
    assert search.tree.is_done and search.space == 6 and search.next() is None


@pytest.mark.parametrize("trials", [1, 2, 5, 17, 200])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_candidate_comes_twice(trials, seed):
    def asks(ask):
        if ask("kind", ["small", "large"]) == "large":
            ask("i", range(9))
            ask("j", range(3))
        else:
            ask("k", range(4))

    _, found = _searched(asks, trials, seed, cost=lambda values: sum(map(hash, values)))
    assert len(found) == len(set(found)) == min(trials, 9 * 3 + 4)


def test_the_neighbours_of_the_best_are_tried():
    def asks(ask):
        for name in "abc":
            ask(name, range(16))

    def cost(values):
        return sum((value - 5) ** 2 for value in values.values())

    _, found = _searched(asks, 200, 1, cost)
    _, chance = _searched(asks, 200, 1)
    assert min(cost(dict(values)) for values in found) == 0
    assert min(cost(dict(values)) for values in chance) > 0


def test_a_run_that_ends_early_is_done():
    tree = Search(8, 0).tree
    run = Run(tree, lambda knob, left: left[0])
    run("a", [1, 2])
    run.close()
    again = Run(tree, lambda knob, left: left[0])
    assert again("a", [1, 2]) == 2 and not tree.is_done
    again.close()
    assert tree.is_done


def test_a_knob_is_told_by_what_its_choices_read():
    tree = Search(8, 0).tree
    run = Run(tree, lambda knob, left: left[0])
    run("a", [torch.nn.ReLU(), object()])
    assert run("a", [torch.nn.ReLU(), object()]) is run.values["a"]
    run.close()
    with pytest.raises(ScheduleError):
        Run(tree, lambda knob, left: left[0])("a", [torch.nn.GELU(), object()])
    with pytest.raises(ScheduleError):
        Run(tree, lambda knob, left: left[0])("b", [torch.nn.ReLU(), object()])
    assert described(object()) == "<object object>"


def _made(line, names=None):
    names = {} if names is None else names
    exec(compile(line, "<made>", "exec"), names)
    return names["f"]


def test_the_code_of_a_function_counts_and_not_its_place():
    text = "def f(s):\n    return [lambda x: x in {'p', 'q', 'r'} and s.a + 1]\n"
    assert code_text(_made(text)) == code_text(_made("\n\n" + text))
    assert code_text(_made(text)) != code_text(_made(text.replace("+ 1", "+ 2")))
    assert code_text(_made(text)) != code_text(_made(text.replace("s.a", "s.b")))
    assert code_text(None) == ["None"]


def test_ways_take_turns_and_the_median_counts():
    now, order = [0.0], []
    times = {"a": itertools.cycle([0.01, 0.02, 0.9]), "b": itertools.cycle([0.005])}

    def way(name):
        def call():
            order.append(name)
            now[0] += next(times[name])

        return call

    found = medians([way("a"), way("b")], 3, lambda: now[0], float("inf"))
    assert "".join(order) == "aabb" + "ab" + "ba" + "ab"
    assert [times.seconds for times in found] == [pytest.approx(0.02), pytest.approx(0.005)]
    assert found[0].gain == 1.0


def test_arguments_that_a_call_adds_to_are_as_they_were_given():
    class Keeps(torch.nn.Module):
        def forward(self, x, cache, *, named):
            cache.append(x)
            named["x"] = x
            return len(cache), len(named), x.data_ptr()

    x, cache = torch.ones(3), [torch.zeros(2)]
    way = call_of(Keeps(), Arguments((x, cache), {"named": {}}))
    first, again = way(), way()
    assert first == again == (2, 1, first[2]) and first[2] != x.data_ptr()
    assert len(cache) == 1


def test_after_the_deadline_few_rounds_must_do():
    now, calls = [0.0], []

    def way():
        calls.append(now[0])
        now[0] += 1.0

    assert medians([way], 50, lambda: now[0], 0.5) == [Times(1.0, 1.0)]
    assert len(calls) == 2 + 3


def test_a_machine_that_is_slow_for_a_while_is_so_for_both():
    now, loads = [0.0], iter([1, 1, 1, 1] + [1, 1] + [9, 9] * 3 + [1, 1])

    def way(cost):
        def call():
            now[0] += cost * next(loads)

        return call

    beside, own = medians([way(0.02), way(0.01)], 5, lambda: now[0], float("inf"))
    assert own.gain == pytest.approx(2.0)
    assert beside.seconds == pytest.approx(0.18) and own.seconds == pytest.approx(0.09)

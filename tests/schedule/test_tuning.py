"""`s.tune`: the knobs of a scheduling function, searched by measuring. Time is counted, not measured."""

import json
import warnings

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import ScheduleError, SmeltWarning, VerifyError
from smelt.scheduling import Arguments, list_primitives
from smelt.scheduling.catalogue import registered


class _Clock:
    """Seconds as far as calls of `_Costly` made them pass."""

    now = 0.0

    def __call__(self):
        return _Clock.now


class _Costly(nn.Module):
    """A relu that takes a given time; `by` makes it a wrong one."""

    def __init__(self, cost, by=1.0):
        super().__init__()
        self.cost, self.by = cost, by

    def forward(self, x):
        _Clock.now += self.cost
        return torch.relu(x) * self.by


class _Breaks(nn.Module):
    """A relu that fails on a single row."""

    def forward(self, x):
        if x.shape[0] == 1:
            raise RuntimeError("not enough memory\nat all")
        return torch.relu(x)


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.act, self.b, self.last = nn.Linear(4, 4), _Costly(0.01), nn.Linear(4, 4), nn.ReLU()

    def forward(self, x, scale=1.0):
        return self.last(self.b(self.act(self.a(x))) * scale)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(_Clock, "now", 0.0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return _Model().eval()


X = torch.linspace(-2, 2, 12).reshape(3, 4)


def _by_cost(s):
    s["act"].replace(_Costly(s.knob("cost", [0.008, 0.002, 0.004])))


def _tuned(shape, model, **options):
    s = smelt.schedule(model, X)
    return s, s.tune(shape, clock=_Clock(), **options)


def test_a_knob_is_its_first_choice_where_nothing_is_tuned(model):
    s = smelt.schedule(model, X)
    assert s.knob("tile", [16, 32]) == 16
    assert s["act"].knob("tile", (None,)) is None
    _by_cost(s)
    assert s.build().act.cost == 0.008


@pytest.mark.parametrize("name, choices", [("a", []), ("", [1]), (3, [1]), ("a", "xyz")])
def test_a_knob_without_a_choice_is_an_error(model, name, choices):
    with pytest.raises(ScheduleError) as error:
        smelt.schedule(model, X).knob(name, choices)
    assert error.value.code == "S0631"


def test_the_fastest_choice_is_taken_as_an_ordinary_schedule(model):
    s, tuned = _tuned(_by_cost, model)
    assert tuned.knobs == {"cost": 0.002}
    assert tuned.best.gain == pytest.approx(5.0)
    assert [trial.knobs["cost"] for trial in tuned.trials] == [0.008, 0.002, 0.004]
    assert tuned.is_complete and tuned.schedule is s
    assert len(s.log) == 1 and model.act.cost == 0.01
    other = _Model().eval()
    again = smelt.apply(s.to_json(), other, X)
    assert again.build().act.cost == 0.002
    assert torch.equal(again.build()(X), other(X))
    s.undo()
    assert len(s.log) == 0


def test_a_function_and_a_model_in_one_call(model):
    tuned = smelt.tune(_by_cost, model, X, clock=_Clock())
    assert tuned.schedule.build().act.cost == 0.002
    assert torch.equal(tuned.schedule.build()(X), model(X))


def test_arguments_by_keyword_are_the_models(model):
    tuned = smelt.tune(_by_cost, model, X, clock=_Clock(), scale=torch.tensor(2.0))
    assert tuned.knobs == {"cost": 0.002}
    whole = smelt.tune(_by_cost, model, Arguments((X,), {"scale": torch.tensor(2.0)}), clock=_Clock())
    assert whole.is_kept and whole.knobs == {"cost": 0.002}


def test_wrong_refused_and_failing_candidates_are_counted_and_passed_over(model):
    def shape(s):
        how = s.knob("how", ["right", "wrong", "refused", "failing"])
        if how == "refused":
            s["nowhere"].compile()
        new = {"right": _Costly(0.009), "wrong": _Costly(0.001, by=1.5)}
        s["act"].replace(new.get(how) or _Breaks())

    def step(module):
        module(X[:1])

    s, tuned = _tuned(shape, model, run=step)
    assert [trial.failure for trial in tuned.trials] == [None, "wrong", "refused", "failed"]
    assert tuned.knobs == {"how": "right"} and s.build().act.cost == 0.009
    assert "no module 'nowhere'" in tuned.trials[2].why
    assert tuned.trials[3].why == "RuntimeError: not enough memory"
    assert "4 candidates: 1 measured, 1 refused, 1 wrong, 1 failed; all were tried" in str(tuned)


def test_where_nothing_can_be_used_nothing_changes(model):
    def shape(s):
        s["act"].replace(_Costly(0.001, by=s.knob("by", [2.0, 3.0])))

    s = smelt.schedule(model, X)
    s["b"].annotate("weight", "tag", 1)
    with pytest.raises(ScheduleError) as error:
        s.tune(shape, clock=_Clock())
    assert error.value.code == "S0632" and "none of 2 candidates" in str(error.value)
    assert isinstance(error.value.__cause__, VerifyError)
    assert len(s.log) == 1


def test_steps_taken_before_stay_and_choices_may_be_anything(model):
    s = smelt.schedule(model, X, verify_each=True)
    s["b"].annotate("weight", "tag", 1)
    choices = [lambda: _Costly(0.007), lambda: _Costly(0.003)]
    s["act"].tune(lambda at: at.replace(at.knob("make", choices)()), X, clock=_Clock())
    assert [step.primitive for step in s.log] == ["annotate", "replace"]
    assert s.build().act.cost == 0.003
    assert s["act"].path == "act"


def test_a_knob_of_a_selection(model):
    def shape(s):
        s["*"].knob("unused", [1])
        s["ac*"].replace(make=lambda path, old: _Costly(s.knob("cost", [0.006, 0.005])))

    _, tuned = _tuned(shape, model)
    assert tuned.knobs == {"unused": 1, "cost": 0.005}


def test_a_knob_that_is_there_only_where_another_says_so(model):
    def shape(s):
        if s.knob("which", ["plain", "costly"]) == "costly":
            s["act"].replace(_Costly(s.knob("cost", [0.006, 0.002, 0.004])))
        else:
            s["act"].replace(_Costly(0.005))

    _, tuned = _tuned(shape, model)
    assert [dict(trial.knobs) for trial in tuned.trials] == [
        {"which": "plain"},
        {"which": "costly", "cost": 0.006},
        {"which": "costly", "cost": 0.002},
        {"which": "costly", "cost": 0.004},
    ]
    assert tuned.knobs == {"which": "costly", "cost": 0.002}


def test_a_function_without_knobs_is_one_candidate(model):
    _, tuned = _tuned(lambda s: s["act"].replace(_Costly(0.005)), model)
    assert len(tuned.trials) == 1 and tuned.best.gain == pytest.approx(2.0)


def test_the_best_near_the_best_is_found_in_a_large_space_and_the_same_each_time(model):
    costs = [i / 1000 for i in (9, 6, 5, 3, 2, 4, 7, 8)]

    def shape(s):
        s["act"].replace(_Costly(s.knob("first", costs)))
        s["last"].replace(_Costly(s.knob("second", costs)))

    runs = [_tuned(shape, model, trials=24, seed=3, cache=False)[1] for _ in range(2)]
    tried = [[tuple(trial.knobs.values()) for trial in tuned.trials] for tuned in runs]
    assert tried[0] == tried[1]
    assert len(set(tried[0])) == 24 and tried[0][0] == (0.009, 0.009)
    assert sum(runs[0].knobs.values()) <= 0.005
    assert "24 candidates of at most 64: 24 measured; the number of trials ended the search" in str(runs[0])
    other = _tuned(shape, model, trials=24, seed=4, cache=False)[1]
    assert [tuple(trial.knobs.values()) for trial in other.trials] != tried[0]


def test_the_budget_ends_the_search_after_a_candidate(model):
    _, tuned = _tuned(_by_cost, model, budget=0.0)
    assert len(tuned.trials) == 1 and tuned.knobs == {"cost": 0.008}
    assert not tuned.is_complete
    assert str(tuned).endswith("1 candidate of at most 3: 1 measured; the budget ended the search")
    assert len(_tuned(_by_cost, model, budget=None)[1].trials) == 3


def test_a_result_is_kept_for_the_same_program_function_and_machine(model, monkeypatch):
    first = smelt.tune(_by_cost, model, X, clock=_Clock())
    other = _Model().eval()  # other weights
    again = smelt.tune(_by_cost, other, X, clock=_Clock())
    assert again.is_kept and again.knobs == first.knobs and len(again.trials) == 1
    assert again.best.gain == first.best.gain and "cached" in str(again)
    assert torch.equal(again.schedule.build()(X), other(X))
    assert not smelt.tune(_by_cost, other, X, clock=_Clock(), cache=False).is_kept
    assert not smelt.tune(_by_cost, other, X[:2], clock=_Clock()).is_kept
    assert not smelt.tune(_by_cost, other.train(), X, clock=_Clock()).is_kept
    assert not smelt.tune(lambda s: _by_cost(s), model, X, clock=_Clock()).is_kept
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    assert not smelt.tune(_by_cost, model, X, clock=_Clock()).is_kept


def test_a_kept_result_that_is_wrong_for_this_model_is_searched_anew(model):
    def shape(s):
        # Right only where nothing positive comes out of the first layer.
        s["act"].replace(_Costly(*s.knob("how", [(0.008, 1.0), (0.002, 3.0)])))

    with torch.no_grad():
        dead = _Model().eval()
        dead.a.weight.zero_()
        dead.a.bias.fill_(-1.0)
    assert smelt.tune(shape, dead, X, clock=_Clock(), backward=False).knobs == {"how": (0.002, 3.0)}
    tuned = smelt.tune(shape, model, X, clock=_Clock(), backward=False)
    assert not tuned.is_kept and tuned.knobs == {"how": (0.008, 1.0)}
    assert [trial.failure for trial in tuned.trials] == [None, "wrong"]


def test_steps_on_the_schedule_around_are_refused(model):
    s = smelt.schedule(model, X)
    with pytest.raises(ScheduleError) as error:
        s.tune(lambda own: s["act"].replace(_Costly(own.knob("cost", [0.001, 0.002]))), clock=_Clock())
    assert error.value.code == "S0631" and len(s.log) == 0


def test_knobs_that_change_their_choices_are_refused(model):
    def two(s):
        s["act"].replace(_Costly(s.knob("cost", [0.001]) + s.knob("cost", [0.002])))

    runs = []

    def drifting(s):
        runs.append(None)
        s["act"].replace(_Costly(s.knob("cost", [0.001 * len(runs), 0.1])))

    for shape in (two, drifting):
        s = smelt.schedule(model, X)
        with pytest.raises(ScheduleError) as error:
            s.tune(shape, clock=_Clock(), cache=False)
        assert error.value.code == "S0631" and len(s.log) == 0


def test_what_is_no_fault_of_a_step_is_raised(model):
    s = smelt.schedule(model, X)
    with pytest.raises(ZeroDivisionError):
        s.tune(lambda own: 1 // 0, clock=_Clock())
    with pytest.raises(ScheduleError) as error:
        s.tune(_by_cost, X[:, :2], clock=_Clock())
    assert error.value.code == "S0622"
    with pytest.raises(ScheduleError) as error:
        smelt.schedule(model).tune(_by_cost, clock=_Clock())
    assert error.value.code == "S0622"
    with pytest.raises(ScheduleError) as error:
        s.tune(_by_cost, trials=0)
    assert error.value.code == "S0631"
    assert len(s.log) == 0


def test_random_numbers_and_the_model_are_as_before(model):
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    given = X.clone().requires_grad_()

    def shape(s):
        torch.rand(s.knob("n", [1, 5]))
        s["act"].replace(_Costly(0.005))

    smelt.tune(shape, model, given, clock=_Clock())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert given.grad is None and all(p.grad is None for p in model.parameters()) and not model.training


def test_warnings_of_the_chosen_candidate_are_given_and_no_others(model):
    def shape(s):
        cost = s.knob("cost", [0.008, 0.002])
        warnings.warn(f"cost {cost}", SmeltWarning, stacklevel=1)
        s["act"].replace(_Costly(cost))

    with pytest.warns(SmeltWarning) as seen:
        smelt.tune(shape, model, X, clock=_Clock())
    assert [str(each.message) for each in seen] == ["cost 0.002"]


def test_a_bar_is_shown_where_it_is_asked_for(model, capsys):
    _tuned(_by_cost, model, progress=True)
    shown = capsys.readouterr().err
    assert "tuning" in shown and "3/3" in shown and "5.00x" in shown
    _tuned(_by_cost, model, cache=False)
    assert capsys.readouterr().err == ""


def test_the_table(model):
    _, tuned = _tuned(_by_cost, model)
    assert str(tuned) == (
        "   cost   time  untouched  gain\n"
        "1  0.008  8 ms  10 ms      1.25x\n"
        "2  0.002  2 ms  10 ms      5.00x  best\n"
        "3  0.004  4 ms  10 ms      2.50x\n"
        "3 candidates: 3 measured; all were tried"
    )


def test_a_native_step_as_a_choice(model):
    plain = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)).eval()

    def shape(s):
        if s.knob("compile", [False, True]):
            s.compile()

    tuned = smelt.tune(shape, plain, X, repeats=3)
    assert [trial.failure for trial in tuned.trials] == [None, None]
    with torch.no_grad():
        torch.testing.assert_close(tuned.schedule.build()(X), plain(X))
    assert json.loads(tuned.schedule.to_json())["model"] == "Sequential"


def test_no_primitive_can_take_the_names():
    for name in ("knob", "tune"):
        with pytest.raises(ScheduleError):
            smelt.register_primitive(lambda draft, at: None, name=name)
        assert name not in registered and name not in list_primitives()

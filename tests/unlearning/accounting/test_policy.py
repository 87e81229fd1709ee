"""Policies in plain words, and the planner as a table."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning.accounting.budget import Budget
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.accounting.policy import (
    GONE,
    SECOND,
    Action,
    Clock,
    Fallback,
    Granularity,
    Policy,
    PolicyError,
    Queue,
    method_by_rule,
    next_action,
)

METHODS = ("recollection", "retrain", "rewind")


def parse(record: object) -> Policy:
    return Policy.from_json(record, METHODS)


def test_a_method_alone_makes_a_policy_and_the_defaults_allow_many_updates() -> None:
    policy = parse({"method": "recollection"})
    assert (policy.epsilon, policy.delta, policy.guarantee) == (1.0, 1e-5, None)
    assert policy.budget(Guarantee.PROVED).updates_left > 10_000


def test_a_retrain_takes_the_methods_place_without_the_methods_options() -> None:
    policy = parse(
        {"method": "recollection", "options": {"curvature": "hessian"}, "fallback": "retrain", "noise_std": 0.05}
    )
    assert policy.in_force("recollection") is policy
    after = policy.in_force("retrain")
    assert (after.method, after.options, after.noise_std) == ("retrain", {}, 0.05)
    assert policy.falls_back and not after.falls_back, "a retrain is the end of it"


@pytest.mark.parametrize(
    ("samples", "features", "provable", "method"),
    [
        (1437, 64, True, "retrain"),
        (9375, 64, True, "retrain"),
        (9376, 64, True, "newton"),
        (9376, 64, False, "retrain"),
    ],
)
def test_a_method_that_is_not_named_follows_from_counts(
    samples: int, features: int, provable: bool, method: str
) -> None:
    found, why = method_by_rule(samples, features, provable)
    assert found == method and why.endswith(".")


def test_a_policy_without_a_method_is_auto() -> None:
    assert parse({}).method == "auto" and parse({}).guarantee is None
    policy = parse({"fallback": "retrain", "noise_std": 0.05})
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy
    chosen = policy.in_force("rewind")
    assert (chosen.method, chosen.fallback, chosen.noise_std) == ("rewind", "retrain", 0.05)
    assert policy.in_force("retrain").method == "retrain"


def test_a_policy_survives_json_unchanged() -> None:
    policy = parse(
        {
            "method": "recollection",
            "guarantee": "proved",
            "epsilon": 4,
            "noise_std": 0.05,
            "max_distance": 1e-3,
            "granularity": "sample",
            "reference": "fixed-denominator",
            "fallback": "hold",
            "batch": 60,
            "max_accuracy_drop": None,
            "options": {"damping": 0.1},
        }
    )
    assert Policy.from_json(json.loads(json.dumps(policy.to_json())), METHODS) == policy
    assert (policy.granularity, policy.reference) == (Granularity.SAMPLE, Reference.FIXED_DENOMINATOR)


def test_null_fields_take_their_defaults_and_a_null_tolerance_means_no_gate() -> None:
    policy = parse({"method": "retrain", "noise_std": None, "fallback": None, "max_accuracy_drop": None})
    assert (policy.noise_std, policy.fallback, policy.max_accuracy_drop) == (0.01, Fallback.RETRAIN, None)


WRONG = [
    ({"method": "forget"}, "method", "method is 'forget'. Allowed: recollection, retrain, rewind."),
    ({"method": "auto"}, "method", "method is 'auto', which is no method. Leave the method out. One rule then"),
    ({"method": None, "options": {"steps": 3}}, "options", "options are given without their method."),
    *(({name: 1}, name, f"{name} is no field of a policy any more. {way}") for name, way in GONE.items()),
    ({"method": 3}, "method", "method is 3. Allowed"),
    ({"fallback": "nothing"}, "fallback", "fallback is 'nothing'. Allowed"),
    ({"fallback": "recollection"}, "fallback", "fallback is 'recollection'. Allowed: retrain, hold."),
    ({"guarantee": "certified"}, "guarantee", "Allowed: exact, proved, calibrated, estimated, none."),
    ({"epsilon": 0}, "epsilon", "epsilon is 0. It must be a number above 0"),
    ({"epsilon": "1"}, "epsilon", "epsilon is '1'. It must be a number"),
    ({"epsilon": True}, "epsilon", "epsilon is True"),
    ({"epsilon": 1e9}, "epsilon", "at most 10000"),
    ({"epsilon": float("nan")}, "epsilon", "epsilon is nan"),
    ({"delta": 1e-13}, "delta", "delta is 1e-13. It must be a number at least 1e-12 and below 1."),
    ({"delta": 1}, "delta", "delta is 1. It must be a number at least 1e-12 and below 1."),
    ({"noise_std": -1}, "noise_std", "noise_std is -1"),
    ({"noise_std": [1]}, "noise_std", "noise_std is [1]"),
    ({"max_distance": 0}, "max_distance", "max_distance is 0"),
    ({"noise_std": 1e-5, "max_distance": 1e-5}, "noise_std", "Raise noise_std to at least 3.77e-05"),
    ({"granularity": "row"}, "granularity", "Allowed: subject, sample."),
    ({"reference": "mean"}, "reference", "Allowed: renormalised, fixed-denominator."),
    ({"calibration": 3}, "calibration", "calibration is 3. It must be an object: alpha, orders, sizes."),
    ({"calibration": {"power": 1}}, "power", "A calibration has no field 'power'. Its fields: alpha, orders, sizes."),
    ({"batch": 1.5}, "batch", "batch is 1.5. It must be a whole number of seconds"),
    ({"batch": -1}, "batch", "at least 0"),
    ({"max_accuracy_drop": 2}, "max_accuracy_drop", "at most 1"),
    ({"options": []}, "options", "options is []. It must be a JSON object"),
    ({"epsilon_total": 1}, "epsilon_total", "no field 'epsilon_total'. Its fields: method, fallback"),
    ({"method": "x" * 500}, "method", "..."),
]


@pytest.mark.parametrize(("record", "field", "message"), WRONG)
def test_a_wrong_policy_names_the_field_its_value_and_what_is_allowed(record: dict, field: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse({"method": "recollection"} | record)
    assert caught.value.field == field
    assert message in str(caught.value)
    all_fields = ", ".join(each.name for each in dataclasses.fields(Policy))
    assert len(str(caught.value).replace(all_fields, "")) < 300


@pytest.mark.parametrize("record", [None, [], "recollection", 3])
def test_a_policy_that_is_no_object_is_refused(record: object) -> None:
    with pytest.raises(PolicyError, match="must be a JSON object"):
        parse(record)


def test_the_noise_that_the_refusal_names_is_enough() -> None:
    with pytest.raises(PolicyError) as caught:
        parse({"method": "recollection", "noise_std": 1e-5, "max_distance": 1e-5})
    named = float(caught.value.hint.split("at least ")[1].split(",")[0])
    assert (
        parse({"method": "recollection", "noise_std": named, "max_distance": 1e-5})
        .budget(Guarantee.PROVED)
        .updates_left
        >= 1
    )


def test_only_a_bound_is_charged() -> None:
    policy = parse({"method": "recollection"})
    assert policy.budget(Guarantee.PROVED).budget_cost == policy.budget_cost > 0
    assert policy.budget(Guarantee.EXACT).budget_cost == 0
    assert policy.budget(Guarantee.NONE) == Budget(spent=0, limit=None, budget_cost=0)


NOW = 1_000_000 * SECOND
HOUR = 3600 * SECOND
REPAIR = 3 * 24 * HOUR
PLENTY = Budget(spent=0, limit=100, budget_cost=10)
LAST = Budget(spent=90, limit=100, budget_cost=10)
EMPTY = Budget(spent=95, limit=100, budget_cost=10)
ENDLESS = Budget(spent=0, limit=None, budget_cost=0)
HOURLY = {"batch": 3600}

TABLE = [
    # policy, budget, queue, retrain takes, expected
    ({}, PLENTY, Queue(), 0, Action("nothing")),
    ({}, PLENTY, Queue(waiting=1), 0, Action("update")),
    ({}, PLENTY, Queue(waiting=5000), 0, Action("update")),
    ({}, LAST, Queue(waiting=1), 0, Action("update")),
    ({}, ENDLESS, Queue(waiting=1), 0, Action("update")),
    ({}, ENDLESS, Queue(), 0, Action("nothing")),
    # inside the cancel window
    ({}, PLENTY, Queue(next_at=NOW + HOUR), 0, Action("wait", NOW + HOUR)),
    ({}, PLENTY, Queue(next_at=NOW - HOUR), 0, Action("wait", NOW)),
    ({}, PLENTY, Queue(waiting=1, next_at=NOW + HOUR), 0, Action("update")),
    # batch
    (HOURLY, PLENTY, Queue(waiting=1), 0, Action("update")),
    (HOURLY, PLENTY, Queue(waiting=1, released_at=NOW - HOUR), 0, Action("update")),
    (HOURLY, PLENTY, Queue(waiting=1, released_at=NOW - HOUR + 1), 0, Action("wait", NOW + 1)),
    (HOURLY, PLENTY, Queue(waiting=5000, released_at=NOW), 0, Action("wait", NOW + HOUR)),
    (HOURLY, PLENTY, Queue(released_at=NOW), 0, Action("nothing")),
    # a deadline comes before the batch, with three days and time for two retrains
    (HOURLY, PLENTY, Queue(1, released_at=NOW, due_at=NOW + REPAIR + HOUR // 2), 0, Action("wait", NOW + HOUR // 2)),
    (HOURLY, PLENTY, Queue(1, released_at=NOW, due_at=NOW + REPAIR + HOUR), HOUR // 4, Action("wait", NOW + HOUR // 2)),
    (HOURLY, PLENTY, Queue(1, released_at=NOW, due_at=NOW + REPAIR + HOUR), HOUR // 2, Action("update")),
    (HOURLY, PLENTY, Queue(1, released_at=NOW, due_at=NOW - HOUR), 0, Action("update")),
    # exhausted
    ({}, EMPTY, Queue(waiting=1), 0, Action("retrain")),
    ({}, EMPTY, Queue(waiting=5000), 0, Action("retrain")),
    ({}, EMPTY, Queue(), 0, Action("retrain")),
    ({}, EMPTY, Queue(waiting=5000, retraining=True), 0, Action("nothing")),
    (HOURLY, EMPTY, Queue(waiting=1, released_at=NOW), 0, Action("retrain")),
    ({"fallback": Fallback.HOLD}, EMPTY, Queue(waiting=1), 0, Action("hold")),
    ({"fallback": Fallback.HOLD}, EMPTY, Queue(), 0, Action("nothing")),
    # a clock that had jumped ahead published in the future
    (HOURLY, PLENTY, Queue(waiting=1, released_at=NOW + 9 * HOUR), 0, Action("wait", NOW + HOUR)),
    (
        HOURLY,
        PLENTY,
        Queue(waiting=1, released_at=NOW + 9 * HOUR, waits_since=NOW - 1),
        0,
        Action("wait", NOW + HOUR - 1),
    ),
    (HOURLY, PLENTY, Queue(waiting=1, released_at=NOW + 9 * HOUR, waits_since=NOW - HOUR), 0, Action("update")),
    # the old generation keeps releasing while the candidate trains
    ({}, PLENTY, Queue(waiting=1, retraining=True), 0, Action("update")),
]


@pytest.mark.parametrize(("policy", "budget", "queue", "takes", "expected"), TABLE)
def test_the_next_action(policy: dict, budget: Budget, queue: Queue, takes: int, expected: object) -> None:
    made = dataclasses.replace(Policy("recollection"), **policy)
    assert next_action(made, budget, queue, Clock(NOW, retrain_takes=takes)) == expected


moments = st.none() | st.integers(NOW - 10 * HOUR, NOW + 10 * HOUR)


@given(
    st.sampled_from(Fallback),
    st.integers(0, 100),
    st.integers(0, 7200),
    st.builds(Queue, st.integers(0, 5000), moments, moments, moments, st.booleans()),
    st.integers(0, HOUR),
)
def test_no_plan_overspends_waits_in_the_past_or_leaves_a_deadline(
    fallback: Fallback, spent: int, batch: int, queue: Queue, takes: int
) -> None:
    policy = dataclasses.replace(Policy("recollection"), fallback=fallback, batch=batch)
    budget = Budget(spent=spent, limit=100, budget_cost=10)
    action = next_action(policy, budget, queue, Clock(NOW, takes))
    if action.kind == "update":
        assert queue.waiting and not budget.exhausted
    if action.kind == "wait":
        assert action.until is not None and action.until >= NOW
        assert not queue.waiting or queue.due_at is None or action.until <= queue.due_at
    if action.kind == "nothing":
        waits_for_nobody = not queue.waiting and (queue.next_at is None or budget.exhausted)
        assert waits_for_nobody or (budget.exhausted and queue.retraining)


def test_the_length_of_the_queue_changes_nothing_but_whether_there_is_one() -> None:
    for budget in (PLENTY, EMPTY):
        actions = {next_action(Policy("recollection"), budget, Queue(waiting=n), Clock(NOW)) for n in (1, 2, 5000)}
        assert len(actions) == 1

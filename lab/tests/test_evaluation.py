"""The table of an evaluation: what its rows mean, on real trainings."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from expunge_lab.experiment.metrics import CertifiedWeights, Instruments, Plan, Row, spread
from expunge_lab.experiment.run import evaluate, stream
from lab.tests.test_attacks import memorising, svc
from unlearning.methods.recollection import Recollection
from unlearning.methods.retrain import Retrain
from unlearning.quality.simulate import choose
from unlearning.types import Forgotten, Need, Refused, State

PLAN = Plan(fractions=(0.1,), seeds=(0, 1), shadows=8, trials=4)


def instruments(**changes) -> Instruments:
    ticks = itertools.count()
    return dataclasses.replace(Instruments(clock=lambda: float(next(ticks)), classifier=svc), **changes)


@dataclass(frozen=True)
class Idle:
    """A method that does nothing, and one that refuses."""

    name: ClassVar[str] = "idle"
    trains: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    needs_no_steps: ClassVar[bool] = False
    follows: ClassVar[frozenset[str]] = frozenset()
    needs: ClassVar[frozenset[Need]] = frozenset()
    refuses: bool = False

    def prepare(self, problem, examples, learned, progress=None) -> State:
        if self.refuses:
            raise Refused("This model has too many weights.", "Use retrain.")
        return State(learned.weights, vectors={person: torch.zeros(1) for person in examples.people})

    def forget(self, problem, state, forget, retain, generator) -> Forgotten:
        assert not state.vectors
        assert set(forget.vectors) == forget.people  # as in the service: nobody else's vectors
        return Forgotten(State(state.weights))


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, int], Row]:
    methods = {"retrain": Retrain(), "recollection": Recollection(), "idle": Idle(), "refuses": Idle(refuses=True)}
    found = evaluate(memorising(decay=1e-2), methods, PLAN, instruments())
    return {(row.method, row.seed): row for row in found}


def test_every_method_and_the_untouched_model_have_a_row_for_each_seed(rows) -> None:
    methods = {"untouched", "retrain", "recollection", "idle", "refuses"}
    assert set(rows) == set(itertools.product(methods, (0, 1)))


def test_retraining_is_at_distance_zero_and_doing_nothing_at_distance_left_one(rows) -> None:
    retrained, untouched = rows["retrain", 0], rows["untouched", 0]
    assert (retrained.distance_to_retrain, retrained.distance_left) == (0.0, 0.0)
    assert retrained.cosine == pytest.approx(1.0)
    assert untouched.distance_left == 1.0 and untouched.distance_to_retrain == untouched.distance_untouched > 0


def test_a_method_that_does_nothing_measures_like_the_untouched_model(rows) -> None:
    idle, untouched = rows["idle", 0], rows["untouched", 0]
    for name in ("distance_left", "retained_accuracy", "forgotten_accuracy", "mia_auc", "lira_auc", "relearn_epochs"):
        assert getattr(idle, name) == getattr(untouched, name)
    # nothing differs between two versions, so nobody can be named but by chance
    assert idle.difference_attack_top1 <= 0.5


def test_recollection_is_measured_to_help(rows) -> None:
    row, untouched = rows["recollection", 0], rows["untouched", 0]
    assert row.distance_left < 0.7 and row.cosine > 0.9
    assert row.lira_auc < untouched.lira_auc
    assert row.difference_attack_top1 == 1.0  # no noise hides who left
    assert row.state_bytes == 30 * 240 * 8 + 240 * 8 * 2  # a vector for each of 30 people, the weights and the sum


def test_a_refusal_is_a_row_with_its_reason(rows) -> None:
    row = rows["refuses", 1]
    assert row.refused == "This model has too many weights. Use retrain."
    assert row.distance_left is None and row.test_accuracy is None


def test_seeds_choose_other_forget_sets_and_the_same_seed_the_same(rows) -> None:
    assert rows["untouched", 0].distance_untouched != rows["untouched", 1].distance_untouched
    again = evaluate(memorising(decay=1e-2), {"idle": Idle()}, dataclasses.replace(PLAN, seeds=(1,)), instruments())
    for row in again:
        before = rows[row.method, 1]
        # without the other methods beside it a row has another rank
        assert row.to_json() | {"retrain_seconds": 0, "average_rank": None} == before.to_json() | {
            "retrain_seconds": 0,
            "average_rank": None,
            "prepare_seconds": row.prepare_seconds,
        }


def test_rows_are_plain_json(rows) -> None:
    for row in rows.values():
        assert json.loads(json.dumps(row.to_json(), allow_nan=False))["method"] == row.method


def test_accuracies_are_with_noise_distances_without_and_the_published_accuracy_is_the_updates() -> None:
    def replaced(problem, method, forgotten, *, forget, retain, updates) -> CertifiedWeights:
        assert len(retain) + len(forget.positions) == 60
        return CertifiedWeights(0 * forgotten.state.weights, noise_std=1e4, claim={"guarantee": "proved"})

    def accuracies(noise_std: float) -> Row:
        def drowned(problem, method, forgotten, *, forget, retain, updates) -> CertifiedWeights:
            return dataclasses.replace(
                replaced(problem, method, forgotten, forget=forget, retain=retain, updates=updates), noise_std=noise_std
            )

        plan = dataclasses.replace(PLAN, seeds=(0,), shadows=0, trials=0)
        return evaluate(memorising(), {"retrain": Retrain()}, plan, instruments(certify=drowned))[1]

    quiet, drowned = accuracies(0.0), accuracies(1e4)
    assert quiet.distance_to_retrain == drowned.distance_to_retrain == 0.0
    assert quiet.retained_accuracy > 0.95 and drowned.retained_accuracy < 0.6
    zeros = float((memorising().holdout_tensors[1] == 0).double().mean())  # all outputs equal: the first class
    assert quiet.published_accuracy == pytest.approx(zeros)
    assert (quiet.claim, quiet.lira_auc, quiet.difference_attack_top1) == ({"guarantee": "proved"}, None, None)


def test_a_stream_forgets_more_each_round_and_resumes_from_its_own_state() -> None:
    found = stream(memorising(decay=1e-2), {"recollection": Recollection(), "retrain": Retrain()},
                   dataclasses.replace(PLAN, seeds=(0,)), instruments(), rounds=3, samples=6)  # fmt: skip
    rows = [row for row in found if row.method == "recollection"]
    assert [row.forget_fraction for row in rows] == [0.1, 0.2, 0.3]  # as planned: the same for every seed
    assert [row.round for row in rows] == [1, 2, 3]
    assert [row.m for row in rows] == [6, 12, 18]
    assert rows[0].state_bytes > rows[2].state_bytes  # used vectors are gone
    assert all(row.distance_left < 1 for row in rows)
    assert all(row.distance_to_retrain == 0.0 for row in found if row.method == "retrain")


def test_whole_people_are_chosen_and_never_everyone() -> None:
    examples = memorising().samples.examples()
    chosen = choose(examples, 7, torch.Generator().manual_seed(0))
    assert len(chosen.positions) == 8 and len(chosen.people) == 4
    with pytest.raises(Refused, match="leaves none"):
        choose(examples, 60, torch.Generator().manual_seed(0))


def test_progress_reaches_the_end() -> None:
    shares: list[float] = []
    plan = dataclasses.replace(PLAN, seeds=(0,), shadows=0, trials=0)
    evaluate(memorising(), {"idle": Idle()}, plan, instruments(progress=shares.append))
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_the_spread_is_over_seeds(rows) -> None:
    mean, deviation = spread(list(rows.values()), "distance_untouched")["untouched", 0.1, 1]
    values = [rows["untouched", seed].distance_untouched for seed in (0, 1)]
    assert mean == pytest.approx(sum(values) / 2)
    assert deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert ("refuses", 0.1, 1) not in spread(list(rows.values()), "distance_left")
    with pytest.raises(ValueError, match="no field"):
        spread([], "accuracy")


@pytest.mark.parametrize("fractions", [(), (0.0,), (1.0,), (-0.1,)])
def test_a_fraction_outside_its_range_is_refused(fractions) -> None:
    with pytest.raises(ValueError, match="fractions"):
        Plan(fractions=fractions)

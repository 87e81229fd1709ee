"""The audits of the five papers: run small, and what the page says of them."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.five import results
from benchmarks.five.audits import PLAIN, Size, audited
from benchmarks.five.audits_section import clear, floors, more_agreement, more_right, section
from benchmarks.five.entrants import ENTRANTS, NOTHING, RETRAINING
from benchmarks.five.settings import Setting, digits_softmax
from unlearning import Recipe, Samples, Training

SMALL = Size(models=6, floors=1, strangers=2, share=0.2)


pytestmark = pytest.mark.usefixtures("one_thread")


def recipe() -> Recipe:
    """Return the digits' softmax regression of 200 samples of 20 people, and 60 unseen ones."""
    whole = digits_softmax()
    names = [f"image-{place}" for place in range(200)]
    people = [f"person-{place % 20}" for place in range(200)]
    samples = Samples(names, people, whole.samples.inputs[:200], whole.samples.targets[:200])
    training = Training(epochs=10, learning_rate=1.0, weight_decay=1e-3)
    return replace(whole, samples=samples, holdout=tuple(part[:60] for part in whole.holdout), training=training)


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    *_, last = audited(Setting("digits", "softmax", "a small run", digits_softmax), recipe(), SMALL)
    return last


def row(table: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in table["rows"] if each["name"] == name)


def test_every_entrant_is_audited_beside_doing_nothing_and_retraining(table: dict[str, Any]) -> None:
    assert [each["name"] for each in table["rows"]] == [NOTHING, RETRAINING, *ENTRANTS]
    for each in table["rows"]:
        assert not each["refused"]
        assert len(each["u_lira"]["right"]) == SMALL.models
        assert {len(values) for values in each["agreement"].values()} == {SMALL.models}
        assert set(each["klom"]) == {PLAIN, each["reference"]}


def test_klom_puts_what_follows_a_retraining_near_it_and_an_untouched_model_far_away(table: dict[str, Any]) -> None:
    def normal(name: str, reference: str) -> float:
        return float(row(table, name)["klom"][reference]["forgotten"]["normal mean"])

    floor, own, plain = (
        normal(RETRAINING, PLAIN), normal("HF, as served", "fixed-denominator"), normal("HF, as served", PLAIN)
    )  # fmt: skip
    assert normal(NOTHING, PLAIN) > 5 * floor
    assert own < 2 * floor and plain > 2 * own
    assert len(floors(row(table, RETRAINING), "forgotten")) == 1 + SMALL.floors


def test_the_section_names_every_row_in_each_audit(table: dict[str, Any]) -> None:
    text = section(table)
    for name in [NOTHING, *ENTRANTS]:
        assert f"| {name} | " in text
    findings = text.split("*It finds:*")[1:]
    assert len(findings) == 3
    for found in findings:
        listed = found.split("*Limit:*")[0]
        assert all(name in listed for name in [NOTHING, *ENTRANTS])
    assert "was not run" in text


def test_rows_that_an_interrupted_run_lacks_are_named(table: dict[str, Any]) -> None:
    assert "interrupted" not in section(table)
    assert "Not audited: Mini, as published; Mini, as served." in section({**table, "rows": table["rows"][:-2]})


def test_a_refusal_is_the_row(table: dict[str, Any]) -> None:
    rows = [
        each if each["name"] != "CNS, as served" else {"name": each["name"], "refused": "No."} for each in table["rows"]
    ]
    assert "| CNS, as served | refused: No. |" in section({**table, "rows": rows})


def test_a_difference_is_clear_beyond_twice_its_error() -> None:
    assert clear([1.0, 1.1, 0.9]) and clear([-1.0, -1.1, -0.9])
    assert not clear([1.0, -1.0, 0.3])


def test_differences_are_taken_by_the_models_that_belong_together() -> None:
    retraining = {"u_lira": {"right": [0.4, 0.6, 0.5, 0.5]}, "agreement": {"forgotten": [90.0, 80.0]}}
    other = {"u_lira": {"right": [0.6, 0.6, 0.6, 0.7]}, "agreement": {"forgotten": [91.0, 79.0]}}
    assert more_right(other, retraining) == pytest.approx([10.0, 15.0])
    assert more_agreement(other, retraining, "forgotten") == [1.0, -1.0]


def test_published_audits_ran_as_they_say() -> None:
    (table,) = results.read(results.AUDITS_PUBLISHED)
    assert (table["data"], table["model"], table["models"]) == ("digits", "softmax", 64)
    right = row(table, RETRAINING)["u_lira"]["right"]
    assert len(right) == 64 and abs(statistics.mean(right) - 0.5) < 0.03

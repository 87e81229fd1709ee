"""What commands print in a few lines: no field is invented, each reason has its step, and a label lines up."""

from __future__ import annotations

from typing import Any

import pytest

from expunge_client.cli.brief import aligned, budget_words, model_lines, rehearsal_lines, request_lines

REQUEST: dict[str, Any] = {
    "id": "d6ab3ca5" + "0" * 24,
    "status": "completed",
    "regulation": "uk-gdpr",
    "due_at": "2026-12-24T08:00:00Z",
    "title": None,
    "actions": [],
    "opening": "64" * 32,
    "models": [{"model": "digits", "status": "completed", "samples": 10, "version": 2, "method": "newton"}],
}
COST: dict[str, Any] = {
    "model": "digits", "samples": 1, "method": "newton", "guarantee": "proved", "budget_cost": 1, "updates_left": 71850,
    "retrain_due": False, "repeats": None, "seconds": None, "version": 2, "reason": None,
    "expected_at": "2026-11-26T09:30:00Z",
}  # fmt: skip


def test_a_completed_request_is_four_lines() -> None:
    assert aligned(request_lines(REQUEST)).splitlines() == [
        "Request d6ab3ca5  completed, due 24 December 2026 (UK GDPR)",
        "  digits          10 samples, version 2 by newton",
        "Certificate       expunge certificate show d6ab3ca5",
        f"Personal code     {'64' * 32} (all 64 digits; shown once; the person needs it to check the certificate)",
    ]


def test_a_part_that_waits_says_why_and_what_to_do() -> None:
    blocked = {
        "model": "tumours", "status": "blocked", "samples": None, "version": None, "method": None,
        "title": "The model's privacy budget is used up.",
        "remedy": {"action": "Train again.", "by": "ML engineer"},
        "actions": [{"command": "expunge models retrain tumours"}, {"command": "expunge models policy tumours"}],
    }  # fmt: skip
    also = blocked | {"model": "faces"}
    lines = request_lines(
        REQUEST | {"status": "blocked", "due_at": None, "regulation": None, "models": [blocked, also], "opening": None}
    )
    assert aligned(lines).splitlines() == [
        "Request d6ab3ca5  blocked, no deadline: no regulation was named",
        "  tumours         The model's privacy budget is used up.",
        "  faces           The model's privacy budget is used up.",
        "  do              Train again. (ML engineer)",
        "                  expunge models retrain tumours",
        "                  expunge models policy tumours",
    ]


def test_a_request_says_its_case_its_day_and_what_a_holdout_needs() -> None:
    ended = {"case_id": "C-101", "completed_at": "2026-11-26T08:00:00Z", "models": [], "opening": None}
    remedy = {"action": "Remove them from the recipe's test data.", "by": "ML engineer"}
    lines = request_lines(REQUEST | ended | {"title": "These data measure accuracy.", "remedy": remedy})
    assert aligned(lines).splitlines() == [
        "Request d6ab3ca5  completed on 26 November 2026, models done 28 days before the deadline, 24 December 2026 "
        "(UK GDPR), case C-101",
        "                  These data measure accuracy.",
        "  do              Remove them from the recipe's test data. (ML engineer)",
    ]


def test_a_model_that_lost_nothing_is_not_shown_with_a_version() -> None:
    """A2b: the second request for a person said "0 samples, version 4"."""
    title = "Request 1 already deleted these samples."
    part = {"model": "digits", "status": "completed", "samples": 0, "version": 4, "method": "newton", "title": title}
    assert dict(request_lines(REQUEST | {"models": [part], "opening": None}))["  digits"] == title


@pytest.mark.parametrize(
    ("completed", "said"),
    [("2026-12-24T00:00:00Z", "less than a day before"), ("2026-12-26T08:00:00Z", "2 days after")],
)
def test_the_deadline_is_compared_with_when_the_models_were_done(completed: str, said: str) -> None:
    """A2c: the law's deadline is for answering the person, which nothing here knows of."""
    shown = aligned(request_lines(REQUEST | {"completed_at": completed, "due_at": "2026-12-24T08:00:00Z"}))
    assert f"models done {said} the deadline, 24 December 2026" in shown and "met" not in shown


def test_a_receipt_says_no_more_than_it_holds() -> None:
    receipt = {"id": "ab" * 16, "status": "queued", "received_at": "2026-11-01T00:00:00Z", "due_at": None}
    assert request_lines(receipt) == [("Request abababab", "accepted, no deadline: no regulation was named")]
    unknown = receipt | {"status": "completed", "models": [], "title": "No model holds data under this id."}
    assert request_lines(unknown)[1:] == [("", "No model holds data under this id.")]


def test_a_rehearsal_shows_models_and_letter() -> None:
    letter = {"headline": "We have deleted your data.", "paragraphs": ["You asked us.", "Your rights. Ask again."]}
    told = {"models": [COST], "preparing": ["faces"], "regulation": None, "due_at": None, "letter": letter}
    assert aligned(rehearsal_lines(told)).splitlines() == [
        "Rehearsal         nothing was changed; no deadline: no regulation was named",
        "  digits          1 sample, newton, proved, version 2 from 26 Nov 2026 09:30 UTC, 71,850 updates left",
        "  faces           is being prepared; its people are not known yet",
        "Letter            We have deleted your data. (as it would read if nothing comes before)",
        "                  You asked us.",
        "                  Your rights. Ask again.",
    ]
    held = told | {"letter": None, "preparing": [], "models": [COST | {"version": None, "reason": "legal_hold"}]}
    assert "(legal_hold)" in aligned(rehearsal_lines(held)) and "none yet" in aligned(rehearsal_lines(held))


def test_every_kind_of_budget_is_written_in_words_with_what_ends_it() -> None:
    budgets = [
        {"kind": "epsilon", "used": 0.02141, "limit": 1.0, "left": 0.97859},
        {"kind": "rounds", "used": 3.0, "limit": 20.0, "left": 17.0},
        {"kind": "share", "used": 0.0125, "limit": None, "left": None},
        {"kind": "accuracy", "used": 0.004, "limit": 0.1, "left": 0.096},
    ]
    assert budget_words(budgets, None) == {
        "epsilon": "epsilon 0.02141 of 1 spent",
        "rounds": "3 of 20 updates made",
        "share": "1.25 % of the samples forgotten",
        "accuracy": "0.4 of 10 points given up",
    }
    calibrated = {"kind": "share", "used": 0.01, "limit": 0.05, "left": 0.04}
    assert budget_words([calibrated], None) == {"share": "1 of 5 % of the people forgotten"}
    gate_off = {"kind": "accuracy", "used": 0.25, "limit": None, "left": None}
    assert budget_words([gate_off], "minus_loss") == {"accuracy": "0.25 minus_loss given up"}
    later = {"kind": "carbon", "used": 2.0, "limit": None, "left": None}
    assert budget_words([later], None) == {"carbon": "carbon 2 spent"}


def test_a_model_says_its_budget_only_where_it_has_one_and_what_it_costs_in_accuracy() -> None:
    rows = [{"noise_std": 0.1, "max_distance": 1e-5, "accuracy": 0.938, "updates": 71851},
            {"noise_std": 0.01, "max_distance": 1e-5, "accuracy": 0.939, "updates": 718}]  # fmt: skip
    model = {
        "name": "digits", "status": "live", "current": 1, "method": "newton", "guarantee": "proved",
        "policy": {"epsilon": 1.0, "noise_std": 0.1}, "preparation": {"report": {"dry_run": rows, "seconds": 8.04}},
    }  # fmt: skip
    assert aligned(model_lines(model)).splitlines() == [
        "digits            version 1 is current, after 8.04 s; live, by newton",
        "  guarantee       proved; 71,851 updates at epsilon 1, then it is trained again",
        "  accuracy        93.8% with noise 0.1, 93.9% with 0.01",
    ]
    for plain, more in ((0.938, []), (0.984, ["a plain training: 98.4%"])):
        report = {"dry_run": rows, "plain_accuracy": plain}
        (*_, said) = model_lines(model | {"preparation": {"report": report}})
        assert said == ("  accuracy", "; ".join(["93.8% with noise 0.1, 93.9% with 0.01", *more]))
    for metric, value, plain, line in (
        ("r2", 0.019, 0.25, ("  r2", "0.019 with noise 0.1; a plain training: 0.25")),
        ("minus_loss", -3.43209, -3.43211, ("  minus_loss", "-3.432 with noise 0.1")),
    ):
        report = {"dry_run": [rows[0] | {"accuracy": value}], "plain_accuracy": plain, "metric": metric}
        assert model_lines(model | {"preparation": {"report": report}})[-1] == line
    exact = model | {"guarantee": "exact", "preparation": None}
    assert model_lines(exact)[1:] == [("  guarantee", "exact")]
    placed = exact | {"preparation": {"report": {"differs_at": "byte 118 of 2031, line 4"}}}
    assert ("  runs differ", "first at byte 118 of 2031, line 4") in model_lines(placed)
    word = exact | {"guarantee_note": "on your word: two runs differed"}
    assert model_lines(word)[1:] == [("  guarantee", "exact, on your word: two runs differed")]
    refused = {"name": "m", "status": "refused", "current": None, "guarantee": None, "reason": "The recipe fails."}
    assert model_lines(refused) == [("m", "refused: The recipe fails.")]

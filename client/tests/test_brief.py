"""What commands print in a few lines: no field is invented, each reason has its step, and a label lines up."""

from __future__ import annotations

from typing import Any

from expunge_client.cli.brief import aligned, model_lines, rehearsal_lines, request_lines

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
        "Request d6ab3ca5  completed on 26 November 2026, due 24 December 2026 (UK GDPR), case C-101",
        "                  These data measure accuracy.",
        "  do              Remove them from the recipe's test data. (ML engineer)",
    ]


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
    exact = model | {"guarantee": "exact", "preparation": None}
    assert model_lines(exact)[1:] == [("  guarantee", "exact")]
    word = exact | {"guarantee_note": "on your word: two runs differed"}
    assert model_lines(word)[1:] == [("  guarantee", "exact, on your word: two runs differed")]
    refused = {"name": "m", "status": "refused", "current": None, "guarantee": None, "reason": "The recipe fails."}
    assert model_lines(refused) == [("m", "refused: The recipe fails.")]

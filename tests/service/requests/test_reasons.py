"""Every reason that the source sets is in the table, with a sentence and what to do about it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expunge_service.access.api_keys import Scope
from expunge_service.requests.reasons import SLOTS, Cause, Reason, explain, filled, reason_of, stored, values

ROOT = Path(__file__).parents[3]
TREES = {
    path: ast.parse(path.read_text())
    for folder in ("service", "workers")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "reasons.py"
}
SETTERS = {"Blocked": 0, "CannotUpdate": 0, "Completed": 1, "Refusal": 2}
"""which argument is the reason"""


def written_out(tree: ast.AST) -> Iterator[str]:
    """Yield every reason that is a literal and not a member: in a call, an assignment, a keyword or a dictionary."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=args) if name in SETTERS:
                values = args[SETTERS[name] : SETTERS[name] + 1]
            case ast.keyword(arg="reason", value=value):
                values = [value]
            case ast.Dict(keys=keys):
                named = zip(keys, node.values, strict=True)
                values = [value for key, value in named if isinstance(key, ast.Constant) and key.value == "reason"]
            case ast.Assign(targets=[ast.Attribute(attr="reason")], value=value):
                values = [value]
            case ast.Assign(targets=[ast.Tuple(elts=left)], value=ast.Tuple(elts=right)):
                pairs = zip(left, right, strict=True)
                values = [value for at, value in pairs if isinstance(at, ast.Attribute) and at.attr == "reason"]
            case _:
                continue
        for value in values:
            yield from words(value)


def words(value: ast.expr) -> Iterator[str]:
    """Yield the literal words that an expression may give."""
    match value:
        case ast.Constant(value=str(word)) if word.isidentifier():
            yield word
        case ast.IfExp(body=one, orelse=other):
            yield from [*words(one), *words(other)]
        case ast.BoolOp(values=choices):
            for each in choices:
                yield from words(each)


@pytest.mark.parametrize(
    "text",
    [
        'raise Blocked("a_code")',
        'CannotUpdate("a_code")',
        'update(Task).values(status="queued", reason="a_code")',
        '{"status": "blocked", "reason": "a_code" if large else None}',
        'task.reason = "a_code"',
        'task.status, task.reason = "blocked", task.reason or "a_code"',
    ],
)
def test_a_reason_that_is_written_out_is_found(text: str) -> None:
    assert list(written_out(ast.parse(text))) == ["a_code"]


NOT_OF_A_REQUEST = {"model.retired": "restored"}
"""audit entries whose reason is of another kind"""


def test_no_reason_is_written_out() -> None:
    found = {(path.name, code) for path, tree in TREES.items() for code in written_out(tree)}
    assert {code for _, code in found} <= set(NOT_OF_A_REQUEST.values()), found


def test_every_reason_is_set_somewhere() -> None:
    used = {
        node.attr
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Reason"
    }
    assert {reason.name for reason in Reason} == used


def templates(reason: Reason) -> list[str]:
    return [reason.sentence, *reason.by_cause.values(), *([reason.remedy.action] if reason.remedy else [])]


FACTS: dict[str, Any] = {
    "samples": 120,
    "limit": 100,
    "searched": 3,
    "time": "24 November 2026 at 14:20 UTC",
    "done_by": "1 December 2026",
    "earlier": "0f" * 16,
    "elsewhere": "people still holds 3 samples",
    "near": 1,
    "differs": "leading zeros, decimals or an exponent",
    "consumer": "web-shop",
    "version": 4,
    "served": 3,
    "people": 20,
    "method": "newton",
    "detail": "The damping is too small.",
    "points": "10",
    "here": "torch 2.5.1+cpu on cpu",
    "prepared": "torch 2.4.0 on cuda",
    "needs": "cuda and 12.0 GB",
    "error": "KeyError",
    "file": "digits.py",
    "line": 41,
    "lacking": 2,
    "table": "forgotten",
    "runs": "two runs of this training differ",
}
EVERYTHING = frozenset(Scope)


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_a_sentence_and_an_action_with_and_without_its_values(reason: Reason) -> None:
    seen = values(FACTS, EVERYTHING)
    for text in templates(reason):
        for shown in (filled(text, {}), filled(text, seen)):
            assert (
                (shown[0].isupper() or text.startswith("[{"))
                and shown.endswith(".")
                and not shown.endswith("..")
                and len(shown) < 200
            )
            assert not set("[]{}|") & set(shown), shown
        named = set(re.findall(r"{(\w+)}", text))
        assert named <= set(SLOTS) and all(str(FACTS[each]).removesuffix(".") in filled(text, seen) for each in named)
    assert reason.value == reason.name.lower() and ("_" not in reason or reason not in reason.sentence)


def test_values_are_those_of_the_list_and_of_the_callers_rights() -> None:
    assert set(SLOTS) == set(FACTS) == set(values(FACTS, EVERYTHING))
    read = {"samples", "limit", "searched", "time", "done_by", "earlier"}
    assert values(FACTS, {Scope.DELETIONS_READ}).keys() == read
    assert values(FACTS, ()) == values({"message": "ada@example.com", "subject": "ada"}, EVERYTHING) == {}
    hostile = {
        "error": "KeyError: 'ada@example.com'",
        "file": "/home/ada/digits.py",
        "line": "41 of ada",
        "detail": "1",
    }
    assert values(hostile, EVERYTHING) == {}, "an error is its type, a file its name, a detail has no numbers"
    assert stored(Reason.FAILED, hostile | {"cause": "worker_lost", "message": "ada"}) == {
        "failed": hostile | {"cause": "worker_lost"}
    }


def test_a_retry_is_offered_where_it_can_help_alone() -> None:
    assert not {Reason.LEGAL_HOLD, Reason.BUDGET_EXHAUSTED, Reason.UNVERIFIED, Reason.LARGE, Reason.NO_MATCH} & {
        reason for reason in Reason if reason.retry_helps
    }
    assert Reason.FAILED.retry_helps and Reason.RECIPE_FAILED.retry_helps


def test_an_explanation_names_the_request_and_what_the_reader_may_see() -> None:
    facts = {"recipe_failed": {"cause": "recipe_raised", "error": "RuntimeError", "file": "fragile.py", "line": 9}}
    told = explain("recipe_failed", "0f" * 16, facts=facts, scopes=EVERYTHING)
    assert told["title"] == "The recipe fails: RuntimeError at fragile.py:9."
    assert told["remedy"] == {"action": "Correct it, then retry.", "by": "ML engineer"}
    assert told["actions"][0]["path"] == f"/v1/deletion-requests/{'0f' * 16}/retry"
    assert explain("recipe_failed", "ID", facts=facts)["title"] == "The recipe fails."
    assert explain("failed", "ID", facts=facts, scopes=EVERYTHING)["title"] == "Three attempts failed."
    assert "{" not in "".join(each["command"] for reason in Reason for each in explain(reason, "ID")["actions"])


def test_a_cause_chooses_the_sentence_of_a_merged_reason() -> None:
    told = {
        cause: explain("needs_retrain", "ID", facts={"needs_retrain": {"cause": cause} | FACTS}, scopes=EVERYTHING)
        for cause in Reason.NEEDS_RETRAIN.by_cause
    }
    assert told[Cause.BEYOND_CALIBRATION]["title"] == "More people have left than the calibration covers (20)."
    assert told[Cause.METHOD_REFUSED]["title"] == "newton cannot delete these samples: The damping is too small."
    assert len({each["title"] for each in told.values()}) == 5
    assert {each["reason"] for each in told.values()} == {"needs_retrain"}


def test_an_earlier_deletion_is_shown_where_it_is_known() -> None:
    facts = {"already_deleted": {"earlier": "0f" * 16}}
    told = explain("already_deleted", "ID", facts=facts, scopes=EVERYTHING)
    assert told["title"] == f"Request {'0f' * 16} already deleted these samples."
    assert [each["command"] for each in told["actions"]] == [f"expunge requests show {'0f' * 16}"]
    assert explain("already_deleted", "ID")["actions"] == []


def test_a_code_of_an_earlier_release_is_read_as_that_of_this_one() -> None:
    assert reason_of("already_forgotten") is Reason.ALREADY_DELETED
    assert explain("utility_gate", "ID")["reason"] == "accuracy_drop"


def test_a_code_of_a_newer_worker_is_shown_as_it_is() -> None:
    assert reason_of("some_CODE_that_is_new") is None
    assert explain("some_CODE_that_is_new", "ID") == {
        "reason": "some_CODE_that_is_new",
        "title": "some_CODE_that_is_new",
        "remedy": None,
        "actions": [],
    }
    assert explain(None, "ID") == {"reason": None, "title": None, "remedy": None, "actions": []}

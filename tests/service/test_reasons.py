"""Every reason that the source sets is in the table, with a sentence and what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.requests.reasons import Reason, explain, reason_of

ROOT = Path(__file__).parents[2]
TREES = {
    path: ast.parse(path.read_text())
    for folder in ("service", "workers")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "reasons.py"
}
SETTERS = {"Blocked": 0, "CannotUpdate": 0, "Published": 1, "Refusal": 2}
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


@pytest.mark.parametrize("reason", Reason)
def test_a_reason_is_a_sentence_and_an_action(reason: Reason) -> None:
    texts = [reason.sentence, *([reason.remedy.action] if reason.remedy else [])]
    for text in texts:
        assert text[0].isupper() and text.endswith(".") and len(text) < 200
    assert reason.value == reason.name.lower() and reason.value not in reason.sentence


def test_a_retry_is_offered_where_it_can_help_alone() -> None:
    assert not {Reason.LEGAL_HOLD, Reason.BUDGET_EXHAUSTED, Reason.UNVERIFIED, Reason.LARGE, Reason.NO_MATCH} & {
        reason for reason in Reason if reason.retry_helps
    }
    assert Reason.WORKER_LOST.retry_helps and Reason.FAILED.retry_helps


def test_an_explanation_names_the_request() -> None:
    told = explain("failed:KeyError", "0f" * 16)
    assert told["reason"] == "failed:KeyError" and told["title"] == "Three attempts ended with an error: KeyError."
    assert told["actions"][0]["path"] == f"/v1/deletion-requests/{'0f' * 16}/retry"
    assert "{" not in "".join(each["command"] for reason in Reason for each in explain(reason, "ID")["actions"])


def test_a_code_of_a_newer_worker_is_shown_as_it_is() -> None:
    assert reason_of("some_CODE_that_is_new") is None
    assert explain("some_CODE_that_is_new", "ID") == {
        "reason": "some_CODE_that_is_new",
        "title": "some_CODE_that_is_new",
        "remedy": None,
        "actions": [],
    }
    assert explain(None, "ID") == {"reason": None, "title": None, "remedy": None, "actions": []}

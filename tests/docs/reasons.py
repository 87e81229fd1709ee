"""docs/reasons.md, made from the table of reasons: ``python -m tests.docs.reasons`` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from expunge_service.requests.reasons import OPTIONAL, SLOTS, Reason, WayOut

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"
_HEAD = """\
# Reasons

A deletion request that waits or has ended says why, and what to do. The API answers with these fields, and the page,
the terminal (`do`), webhooks, alerts, the log and `expunge doctor` repeat them:

```json
{
  "reason": "legal_hold",
  "title": "A legal hold protects this person's data.",
  "remedy": {
    "action": "Read the hold; lift it when its ground is gone. The request then continues.",
    "by": "privacy officer"
  },
  "actions": [
    {
      "verb": "lift",
      "method": "DELETE",
      "path": "/v1/holds/7f3c...",
      "command": "expunge holds lift 7f3c...",
      "scopes": [["deletions:decide"]],
      "body": null
    }
  ]
}
```

`reason` is a code for programs, `title` and `remedy` are for people. Words in braces are values: a count, a date, the
type and the place of an error, never its message. A caller sees those that its key may see, and else the same sentence
without them. Webhooks, alerts and the log have no values. `actions` are the steps of the remedy: one call
each, the command that makes the same call, and the scopes that the key needs, at least one of each
group. The ids of the request, the model and the
hold are filled in. Words in capitals stand for your own values. `remedy` is null, and `actions` are empty, where
nothing is left to do. Whatever the reason, the request keeps its deadline until it is completed.

A retry is refused (409 `retry_cannot_help`) where it cannot help, and the answer has the `actions` that do. A model
that is blocked, refused or being prepared shows its `actions` too.

This page is made from `service/expunge_service/requests/reasons.py` by `python -m tests.docs.reasons`.
"""
_WAITS = """
## It waits

| reason | what happened | what to do | commands | calls | who |
|---|---|---|---|---|---|
"""
_ENDED = """
## It ended, and nothing is left to do

| reason | what happened | what to do | commands |
|---|---|---|---|
"""
_VALUES = """
## The values and the right to see them

| values | scope |
|---|---|
"""
_NO_IDS: dict[str, list[str]] = {"request": [], "model": [], "hold": [], "earlier": []}


def page() -> str:
    """Return the text of docs/reasons.md."""
    waits = [each for each in Reason if each.remedy and each.remedy.steps]
    ended = [each for each in Reason if each not in waits]
    return _HEAD + _WAITS + "".join(map(_row, waits)) + _ENDED + "".join(map(_row, ended)) + _VALUES + _values()


def _row(reason: Reason) -> str:
    sentences = " / ".join(_with_values(each) for each in (reason.sentence, *reason.by_cause.values()))
    steps = [filled for step in reason.steps for filled in step.filled(_NO_IDS)]
    commands = "<br>".join(f"`{step.command}`" for step in steps)
    action = _with_values(reason.remedy.action) if reason.remedy else ""
    if reason.remedy is None or not steps:
        return f"| `{reason}` | {sentences} | {action} | {commands} |\n"
    calls = "<br>".join(_call(step) for step in steps)
    scopes = ", ".join(
        dict.fromkeys(" or ".join(f"`{scope}`" for scope in group) for step in steps for group in step.scopes)
    )
    return f"| `{reason}` | {sentences} | {action} | {commands} | {calls} | {reason.remedy.by} ({scopes}) |\n"


def _with_values(text: str) -> str:
    return OPTIONAL.sub(lambda match: match[1], text)


def _values() -> str:
    scopes = dict.fromkeys(slot.scope for slot in SLOTS.values())
    named = {scope: [f"`{{{name}}}`" for name, slot in SLOTS.items() if slot.scope == scope] for scope in scopes}
    return "".join(f"| {', '.join(names)} | `{scope}` |\n" for scope, names in named.items())


def _call(step: WayOut) -> str:
    body = f" {json.dumps(step.body)}" if step.body else ""
    return f"`{step.method} {step.path}{body}`"


if __name__ == "__main__":
    PAGE.write_text(page())

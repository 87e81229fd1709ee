"""docs/reasons.md, made from the table of reasons: ``python -m tests.docs.reasons`` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from service.requests.reasons import Reason, WayOut

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"
_HEAD = """\
# Reasons

A deletion request that waits or has ended says why, and what to do. The API answers with these fields, and the page,
the terminal (`hint:`) and webhooks repeat them; an alert names the reason and who can act:

```json
{
  "reason": "legal_hold",
  "title": "A legal hold keeps this person's samples.",
  "remedy": {
    "action": "Open the hold, and lift it when its legal reason is gone. The request then continues without a retry.",
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

`reason` is a code for programs, `title` and `remedy` are for people. `actions` are the steps of the remedy: one call
each, the command that makes the same call, and the scopes that the key needs, at least one of each
group. The ids of the request, the model and the
hold are filled in. Words in capitals stand for your own values. `remedy` is null, and `actions` are empty, where
nothing is left to do. Whatever the reason, the request keeps its deadline until it is completed.

A retry is refused (409 `retry_cannot_help`) where it cannot help, and the answer has the `actions` that do. A model
that is blocked, refused or being prepared shows its `actions` too.

This page is made from `service/requests/reasons.py` by `python -m tests.docs.reasons`.
"""
_WAITS = """
## It waits

| reason | what happened | what to do | commands | calls | who |
|---|---|---|---|---|---|
"""
_ENDED = """
## It ended, and nothing is left to do

| reason | what happened |
|---|---|
"""


def page() -> str:
    """Return the text of docs/reasons.md."""
    waits, ended = [each for each in Reason if each.remedy], [each for each in Reason if not each.remedy]
    return _HEAD + _WAITS + "".join(map(_row, waits)) + _ENDED + "".join(map(_row, ended))


def _row(reason: Reason) -> str:
    remedy = reason.remedy
    code = f"{reason}:ERROR at FILE:LINE" if reason is Reason.FAILED else str(reason)
    if remedy is None:
        return f"| `{code}` | {reason.sentence} |\n"
    steps = [filled for step in remedy.steps for filled in step.filled({"request": [], "model": [], "hold": []})]
    commands = "<br>".join(f"`{step.command}`" for step in steps)
    calls = "<br>".join(_call(step) for step in steps)
    scopes = ", ".join(
        dict.fromkeys(" or ".join(f"`{scope}`" for scope in group) for step in steps for group in step.scopes)
    )
    return f"| `{code}` | {reason.sentence} | {remedy.action} | {commands} | {calls} | {remedy.by} ({scopes}) |\n"


def _call(step: WayOut) -> str:
    body = f" {json.dumps(step.body)}" if step.body else ""
    return f"`{step.method} {step.path}{body}`"


if __name__ == "__main__":
    PAGE.write_text(page())

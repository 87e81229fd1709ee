"""docs/reasons.md, made from the table of reasons: ``python -m tests.docs.reasons`` writes it."""

from __future__ import annotations

from pathlib import Path

from service.requests.reasons import Reason, Remedy

PAGE = Path(__file__).parents[2] / "docs" / "reasons.md"
_HEAD = """\
# Reasons

A deletion request that waits or has ended says why. The API answers with three fields, and the page, the terminal
(`hint:`) and webhooks repeat them:

```json
{
  "reason": "legal_hold",
  "title": "A legal hold keeps this person's samples.",
  "remedy": {
    "action": "Lift the hold when the legal reason is gone. The request then continues without a retry.",
    "by": "privacy officer",
    "call": "DELETE /v1/holds/HOLD",
    "command": "expunge holds lift HOLD"
  }
}
```

`reason` is a code for programs; the others are for people. `remedy` is null where nothing is left to do. Words in
capitals stand for your own values. Whatever the reason, the request keeps its deadline until it is completed.

This page is made from `service/requests/reasons.py` by `python -m tests.docs.reasons`.
"""
_TABLE = """
## {title}

| reason | what happened | what to do | who |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of docs/reasons.md."""
    text = _HEAD
    waits, ended = [each for each in Reason if each.remedy], [each for each in Reason if not each.remedy]
    for title, reasons in (("It waits", waits), ("It ended, and nothing is left to do", ended)):
        text += _TABLE.format(title=title) + "".join(map(_row, reasons))
    return text


def _row(reason: Reason) -> str:
    remedy = reason.remedy
    code = f"{reason}:ERROR" if reason is Reason.FAILED else str(reason)
    what = "nothing" if remedy is None else _what(remedy)
    return f"| `{code}` | {reason.sentence} | {what} | {remedy.by if remedy else '-'} |\n"


def _what(remedy: Remedy) -> str:
    ways = [f"`{way}`" for text in (remedy.command, remedy.call) if text for way in text.split("; ")]
    return f"{remedy.action} {' · '.join(ways)}".strip().replace("{id}", "ID")


if __name__ == "__main__":
    PAGE.write_text(page())

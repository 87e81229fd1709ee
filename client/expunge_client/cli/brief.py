"""What commands print unless ``--verbose``, ``--json`` or ``--csv`` is given: a few lines, each a label and a text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeAlias

from expunge_client.budgets import ACCURACY, used_of

Line: TypeAlias = tuple[str, str]
_SHORT = 8
"""digits of an id that the commands take for the whole"""


def request_lines(request: dict[str, Any]) -> list[Line]:
    """Return a request, a line for each model, and what the person needs to check the certificate."""
    short = request["id"][:_SHORT]
    case = f", case {request['case_id']}" if request.get("case_id") else ""
    lines = [(f"Request {short}", f"{_accepted(request)}, {_due(request)}{case}")]
    parts = request.get("models") or []
    lines += [(f"  {part['model']}", _part(part)) for part in parts]
    if not parts and request.get("title"):
        lines.append(("", request["title"]))
    if request.get("rejection"):
        lines.append(("  because", request["rejection"]))
    lines += _steps(parts if any(part.get("title") for part in parts) else [request])
    if request.get("cancellable") and request["status"] == "queued":
        until = request.get("cancellable_until")
        about = f", about {_time(until)}" if until else ""
        lines.append(("Cancel", f"expunge requests cancel {short} (until a worker begins{about})"))
    if request.get("related"):
        lines.append(("Same person", ", ".join(each[:_SHORT] for each in request["related"])))
    if request["status"] == "completed" and any(part["version"] for part in parts):
        lines.append(("Certificate", f"expunge certificate show {short}"))
    if request.get("opening"):
        told = "(all 64 digits; shown once; the person needs it to check the certificate)"
        lines.append(("Personal code", f"{request['opening']} {told}"))
    return lines


def rehearsal_lines(told: dict[str, Any]) -> list[Line]:
    """Return what a request would do, and the letter as it would read."""
    lines = [("Rehearsal", f"nothing was changed; {_due(told)}")]
    lines += [(f"  {part['model']}", _rehearsed(part)) for part in told["models"]]
    lines += [(f"  {name}", "is being prepared; its people are not known yet") for name in told.get("preparing", ())]
    if told.get("near"):
        lines.append(("", told["near"]))
    if not told["models"] and not told.get("preparing"):
        lines.append(("", "No model holds what you named."))
    letter = told.get("letter")
    if letter is None:
        return [*lines, ("Letter", "none yet: a decision comes first, or the key lacks deletions:read")]
    lines.append(("Letter", f"{letter['headline']} (as it would read if nothing comes before)"))
    return lines + [("", paragraph) for paragraph in letter["paragraphs"]]


def model_lines(model: dict[str, Any]) -> list[Line]:
    """Return a model, its guarantee and what preparation measured."""
    report = (model.get("preparation") or {}).get("report") or {}
    lines = [(model["name"], _model(model, report))]
    if model.get("guarantee"):
        lines.append(("  guarantee", _guarantee(model, report)))
    if report.get("differs_at"):
        lines.append(("  runs differ", f"first at {report['differs_at']}"))
    rows = report.get("dry_run") or []
    if rows and rows[0].get("accuracy") is not None:
        metric, plain = report.get("metric"), report.get("plain_accuracy")
        said = _accuracy(rows, (model.get("policy") or {}).get("noise_std"), metric)
        usual = None if plain is None else measured(metric, plain)
        lost = usual is not None and not said.startswith(usual)  # by noise, or by the order of people
        lines.append((f"  {metric or ACCURACY}", f"{said}; a plain training: {usual}" if lost else said))
    return lines + [("  warning", warning) for warning in report.get("warnings", ())]


def budget_words(budgets: Iterable[dict[str, Any]], metric: str | None) -> dict[str, str]:
    """Return in words, by kind, what a model used of its budgets. ``metric``: of the holdout; None: an accuracy."""
    return {budget["kind"]: used_of(budget["kind"], budget["used"], budget["limit"], metric) for budget in budgets}


def noted(guarantee: Any, record: dict[str, Any]) -> Any:
    """Return a guarantee, and in a few words what it depends on where the record says that."""
    return f"{guarantee}, {record['guarantee_note']}" if record.get("guarantee_note") else guarantee


def day(moment: str) -> str:
    """Write ``24 December 2026``."""
    at = datetime.fromisoformat(moment)
    return f"{at.day} {at:%B %Y}"


def _accepted(request: dict[str, Any]) -> str:
    if request["status"] == "queued":
        return "accepted"
    return str(request["status"]) + (f" on {day(request['completed_at'])}" if request.get("completed_at") else "")


def _due(request: dict[str, Any]) -> str:
    law = (request.get("regulation") or "").upper().replace("-", " ")
    if request.get("due_at") is None:
        return f"no deadline ({law})" if law else "no deadline: no regulation was named"
    if request.get("completed_at"):
        done = f"models done {_before_or_after(request['completed_at'], request['due_at'])} the deadline"
        return f"{done}, {day(request['due_at'])}" + (f" ({law})" if law else "")
    return f"due {day(request['due_at'])}" + (f" ({law})" if law else "")


def _before_or_after(completed_at: str, due_at: str) -> str:
    left = (datetime.fromisoformat(due_at) - datetime.fromisoformat(completed_at)).total_seconds()
    days = int(abs(left) // 86_400)
    span = "less than a day" if days < 1 else "1 day" if days == 1 else f"{days:,} days"
    return f"{span} {'before' if left >= 0 else 'after'}"


def _part(part: dict[str, Any]) -> str:
    if part["version"] and not part["samples"] and part.get("title"):
        return str(part["title"])  # it lost nothing with that version
    if part["version"]:
        note = f", {noted('exact', part)}" if part.get("guarantee_note") else ""
        return f"{_samples(part['samples'])}, version {part['version']} by {part['method']}{note}"
    if part.get("title"):
        return str(part["title"])
    when = f", about {_time(part['expected_at'])}" if part.get("expected_at") else ""
    return f"{part['status']}{when}"


def _rehearsed(part: dict[str, Any]) -> str:
    said = [_samples(part["samples"]), part["method"], part["guarantee"]]
    if part.get("version"):
        when = f" from {_time(part['expected_at'])}" if part.get("expected_at") else ""
        said.append(f"version {part['version']}{when}")
    if part.get("seconds"):
        said.append(f"repeats {part['seconds']:.3g} s of training")
    if part["updates_left"] is not None:
        said.append(f"{part['updates_left']:,} updates left")
    return ", ".join(said) + (f" ({part['reason']})" if part.get("reason") else "")


def _model(model: dict[str, Any], report: dict[str, Any]) -> str:
    if model.get("current") is None:
        return str(model.get("status", "accepted")) + (f": {model['reason']}" if model.get("reason") else "")
    took = f", after {report['seconds']:.3g} s" if report.get("seconds") else ""
    return f"version {model['current']} is current{took}; {model['status']}, by {model['method']}"


def _guarantee(model: dict[str, Any], report: dict[str, Any]) -> str:
    rows, budget = report.get("dry_run") or [], model.get("budget") or {}
    left = budget.get("updates_left") or (rows[0].get("updates") if rows else None)
    epsilon = (model.get("policy") or {}).get("epsilon")
    if not left or model["guarantee"] in ("exact", "none"):
        return str(noted(model["guarantee"], model))
    return f"{model['guarantee']}; {left:,} updates at epsilon {epsilon:g}, then it is trained again"


def measured(metric: str | None, value: float) -> str:
    """Write a figure of the holdout: a share of 1 in percent, and what any other metric gives as the number it is.

    ``metric`` is None where an older service does not name it.
    """
    return f"{value:.1%}" if (metric or ACCURACY) == ACCURACY else f"{value:.4g}"


def _accuracy(rows: list[dict[str, Any]], noise_std: float | None, metric: str | None) -> str:
    """Return the holdout's figure at the policy's noise first, then at the least that was tried."""
    chosen = next((row for row in rows if row["noise_std"] == noise_std), rows[0])
    least = min(rows, key=lambda row: row["noise_std"])
    said = f"{measured(metric, chosen['accuracy'])} with noise {chosen['noise_std']:g}"
    return said if least is chosen else f"{said}, {measured(metric, least['accuracy'])} with {least['noise_std']:g}"


def _samples(count: int | None) -> str:
    return f"{count or 0:,} {'sample' if count == 1 else 'samples'}"


def _steps(explained: Iterable[dict[str, Any]]) -> list[Line]:
    """Return what to do about the reasons, each remedy once, and below it the commands of its steps."""
    explained = [each for each in explained if each.get("title")]
    remedies = (each["remedy"] for each in explained if each.get("remedy"))
    said = [f"{each['action']} ({each['by']})" for each in remedies]
    said += [step["command"] for each in explained for step in each.get("actions") or ()]
    return [("" if place else "  do", text) for place, text in enumerate(dict.fromkeys(said))]


def _time(moment: str) -> str:
    at = datetime.fromisoformat(moment)
    return f"{at.day} {at:%b %Y %H:%M} UTC"


def aligned(lines: Iterable[Line]) -> str:
    """Return the lines as they are printed, the texts below each other."""
    return "\n".join(f"{label:<17} {text}".rstrip() for label, text in lines)

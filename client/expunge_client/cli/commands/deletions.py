"""``expunge delete`` and ``requests``: ask for a deletion, follow it."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from expunge_client.cli.brief import rehearsal_lines, request_lines
from expunge_client.cli.client import REQUESTS, Client, connect
from expunge_client.cli.completion import OneRequest, Request, model_names
from expunge_client.cli.output import (
    BLOCKED,
    FAILED,
    NO_MATCH,
    USAGE,
    WHAT_TO_DO,
    CommandError,
    as_json,
    briefly,
    commands_of,
    due_in,
    errors,
    for_people,
    json_list,
    meter,
    show_facts,
    show_hint,
    show_json,
    show_lines,
    show_list,
    show_rows,
)
from expunge_client.cli.people import read_decisions, read_people
from expunge_client.id_changes import CHANGES, changed

commands = typer.Typer(
    no_args_is_help=True,
    help="Deletion requests: list, show, verify, reject, same-person, other-person, approve, cancel, retry, extend.",
)
_SHOWN = 5
BATCH = 500
"""requests in one call: with ids of 512 characters they fill half of the largest body"""
_COLUMNS = ("id", "case_id", "status", "reason", "received_at", "due_at", "completed_at")
ENDED = {"completed", "cancelled", "rejected", "blocked"}


def delete(
    subject: Annotated[
        list[str] | None,
        typer.Option(help="The person's id; - reads it from standard input. Repeated: further ids of the same person."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="A CSV file of people: columns subject_id and, if you like, case_id and received_at."),
    ] = None,
    sample: Annotated[
        list[str] | None, typer.Option(help="A sample's id instead of a person; may be repeated.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Delete from this model only; may be repeated. Left out: every model.", autocompletion=model_names
        ),
    ] = None,
    suppress: Annotated[
        str | None,
        typer.Option(
            help="With --model: everywhere (default) keeps the person out of all later registrations, named_models "
            "out of the named models alone."
        ),
    ] = None,
    regulation: Annotated[
        str | None,
        typer.Option(help="gdpr, uk-gdpr, ccpa, ...: sets the deadline. Left out: the installation's default."),
    ] = None,
    due_at: Annotated[str | None, typer.Option(help="Your own deadline instead, ISO 8601.")] = None,
    received_at: Annotated[str | None, typer.Option(help="When the person asked, ISO 8601.")] = None,
    case: Annotated[str | None, typer.Option(help="Your own id of the case; it must not name the person.")] = None,
    expected_samples: Annotated[
        int | None,
        typer.Option(help="Samples that --estimate shows. Where the models hold another number, you decide."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Repeat a request safely. Left out: random; with --file, made from its rows.")
    ] = None,
    verified: Annotated[
        bool, typer.Option(help="--no-verified: it is blocked, and changes no model, until `requests verify`.")
    ] = True,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it is completed, or blocked.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Rehearse: models, cost, time and letter; change nothing.")
    ] = False,
    allow_no_match: Annotated[
        bool, typer.Option("--allow-no-match", help="Exit with 0, not 5, where no model holds data under the id.")
    ] = False,
) -> None:
    """Delete a person from every model, or from those that --model names."""
    if bool(subject) + bool(sample) + (file is not None) != 1:
        raise typer.BadParameter("name one of --subject, --sample and --file")
    body: dict[str, Any] = {
        "models": model or None,
        "suppress": suppress,
        "regulation": regulation,
        "due_at": due_at,
        "received_at": received_at,
        "case_id": case,
        "expected_samples": expected_samples,
        "verified": None if verified else False,
    }
    order = {field: value for field, value in body.items() if value is not None}
    if file is not None:
        if wait or estimate:
            raise typer.BadParameter("--file cannot be combined with --wait or --estimate")
        _delete_all(read_people(file, due_at), order, idempotency_key, allow_no_match)
        return
    order |= _named(subject or [], sample or [])
    with connect() as client:
        if estimate:
            _show_rehearsal(client.post("/v1/deletion-requests/estimate", order))
            return
        request = client.post("/v1/deletion-requests", order, idempotency_key or str(uuid.uuid4()))
        if wait:
            # only the first answer has the opening
            request |= await_ended(client, request["id"])
    _show(request)
    _show_rest(request)
    if wait and request["status"] != "completed":
        code = BLOCKED if request["status"] == "blocked" else FAILED
        if briefly():  # its lines say why, and what to do
            raise typer.Exit(code)
        raise CommandError(f"The request is {request['status']}. {_reasons(request)}", _remedies(request), code)
    if request.get("reason") == "near_miss":
        errors.print(f"note: the request is blocked. {_reasons(request)}", markup=False, soft_wrap=True)
        raise typer.Exit(BLOCKED)
    if _matches_nobody(request) and not allow_no_match:
        errors.print(f"note: nothing was deleted. {_reasons(request)}", markup=False, soft_wrap=True)
        show_hint("Compare the id with your own books. --allow-no-match exits with 0.")
        raise typer.Exit(NO_MATCH)


def _matches_nobody(request: dict[str, Any]) -> bool:
    """Return whether the request ended because no model holds data under its id."""
    reasons = {each["reason"] for each in _explained(request)}
    return request["status"] == "completed" and bool(reasons) and reasons <= {"no_match", "not_in_named_models"}


def find(
    subject: Annotated[str, typer.Option(help="The person's id; - reads it from standard input, which no log sees.")],
) -> None:
    """Find a person: the requests about the person, and the models trained on the person."""
    with connect() as client:
        found = client.post("/v1/deletion-requests/search", {"subject_id": _typed(subject)})
    if as_json():
        show_json(found)
        return
    if found["models"]:
        show_rows(found["models"], ("model", "state", "samples", "in_holdout", "version", "forgotten_at"))
    if found["requests"]:
        show_rows(for_people(found["requests"]), _COLUMNS)
    if found.get("near"):
        unknown = "" if found["models"] else "no model knows this id. "
        errors.print(f"note: {unknown}{found['near']}", markup=False, soft_wrap=True)
    elif not found["models"] and not found["requests"]:
        errors.print("No model and no request knows this person.", markup=False)


def _named(subjects: list[str], samples: list[str]) -> dict[str, Any]:
    """Return the part of an order that says which person it is about."""
    if samples:
        return {"sample_ids": samples}
    ids = [_typed(each) for each in subjects]
    return {"subject_id": ids[0]} if len(ids) == 1 else {"subject_ids": ids}


def _delete_all(people: list[dict[str, str]], order: dict[str, Any], key: str | None, allow_no_match: bool) -> None:
    """Send one request for each person, ``BATCH`` in a call, and print what became of them as it comes.

    Without a ``key`` that of each call follows from its rows. Raises CommandError where a row or a call was refused,
    and Exit where an id needs a look.
    """
    refused: list[dict[str, Any]] = []
    near: list[int] = []
    unmatched: list[int] = []
    listed = json_list() if as_json() else nullcontext(None)
    with connect() as client, meter("deletion requests") as progress, listed as show:
        for start in range(0, len(people), BATCH):
            body = {"requests": [order | person for person in people[start : start + BATCH]]}
            try:
                answer = client.post(f"{REQUESTS}/batch", body, f"{key}-{start}" if key else client.key_for(body))
            except CommandError as error:
                again = "Then run the same command again within a day: what was accepted is not accepted twice."
                what = f"{start} of {len(people)} rows were sent; then: {error.what}"
                raise CommandError(what, f"{error.hint} {again}", error.code) from None
            outcomes = [each | {"index": start + each["index"]} for each in answer["outcomes"]]
            refused += [each for each in outcomes if each["problem"]]
            taken = {each["index"] + 1: each["request"] for each in outcomes if each["request"]}
            near += [row for row, request in taken.items() if request.get("reason") == "near_miss"]
            unmatched += [row for row, request in taken.items() if _matches_nobody(request)]
            if show is None:
                _show_outcomes(outcomes, people)
            else:
                for each in outcomes:
                    show(each)
            progress.show((start + len(outcomes)) / len(people), f"{start + len(outcomes)} of {len(people)} sent")
    if refused:
        first = refused[0]
        what = f"{len(refused)} of {len(people)} were refused; row {first['index'] + 1}: {first['problem']['detail']}"
        raise CommandError(what, "Correct these rows and send them alone, in another file.")
    if near:
        what = f"note: {_rows(near)} wait for a decision about the id: see same-person and other-person."
        errors.print(what, markup=False, soft_wrap=True)
    if unmatched:
        errors.print(f"note: no model holds data under the ids of {_rows(unmatched)}.", markup=False, soft_wrap=True)
    if near or (unmatched and not allow_no_match):
        raise typer.Exit(BLOCKED if near else NO_MATCH)


def _rows(numbers: list[int]) -> str:
    """Return the first of these rows, and how many more there are."""
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:_SHOWN]))}{more}"


def _show_outcomes(outcomes: list[dict[str, Any]], people: list[dict[str, str]]) -> None:
    rows = [
        {"row": each["index"] + 1, "case_id": people[each["index"]].get("case_id")} | (each["request"] or {})
        for each in outcomes
    ]
    show_rows(rows, ("row", "case_id", "id", "status", "due_at", "opening"))


@commands.command("list")
def list_requests(
    status: Annotated[
        str | None, typer.Option(help="queued, running, completed, cancelled, rejected or blocked.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Only requests that touch this model.", autocompletion=model_names)
    ] = None,
    case: Annotated[str | None, typer.Option(help="Only requests of this case.")] = None,
) -> None:
    """List all deletion requests, newest first."""
    with connect() as client:
        rows = list(client.pages(REQUESTS, status=status, model=model, case_id=case))
    shown = for_people([row | {"due in": due_in(row)} for row in rows])
    columns = ("id", "case_id", "status", "reason", "due in", "received_at", "due_at", "completed_at")
    show_list(rows if as_json() else shown, columns)
    if briefly() and any(row["status"] == "blocked" for row in rows):
        show_hint(WHAT_TO_DO)


@commands.command("show")
def show(request: Request) -> None:
    """Show one request and what each model did."""
    with connect() as client:
        record = client.get(_at(client, request))
    _show(record)


@commands.command("cancel")
def cancel(request: Request) -> None:
    """Cancel a request with which no worker has begun."""
    with connect() as client:
        path = _at(client, request)
        record = client.delete(path) or client.get(path)
    _show(record)


@commands.command("verify")
def verify(request: Request) -> None:
    """Confirm the requester's identity and continue."""
    with connect() as client:
        record = client.post(_at(client, request) + "/verify", {})
    _show(record)


@commands.command("reject")
def reject(
    request: Request,
    reason: Annotated[str, typer.Option(help="Why, in the words for the person; it must not name a person.")],
) -> None:
    """Reject an unverified request. Tell the person why, within a month."""
    with connect() as client:
        record = client.post(_at(client, request) + "/reject", {"reason": reason})
    _show(record)


@commands.command("same-person")
def same_person(
    request: OneRequest = None,
    subject: Annotated[
        str | None,
        typer.Option(help="The person's id as your own books have it; - reads it from standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A CSV file of many: columns request and subject_id, the right id.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            help="With --file, the file that was sent: the same change for all its ids, as pad=6; may be repeated. "
            f"{CHANGES}. It shows how many it makes right, and asks."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="With --change: do not ask.")] = False,
) -> None:
    """Delete the person with the right id: the request's id is another spelling of it."""
    if file is not None and request is None and subject is None:
        rows = read_decisions(file, ("request", "subject_id"), orders=bool(change))
        if change:
            _change_all(rows, change, yes=yes)
        else:
            _decide_all("same-person", [(row["request"], {"subject_id": row["subject_id"]}) for row in rows])
        return
    if request is None or subject is None or file is not None or change:
        raise typer.BadParameter("name a request and --subject, or --file")
    with connect() as client:
        record = client.post(_at(client, request) + "/same-person", {"subject_id": _typed(subject)})
    _show(record)


@commands.command("other-person")
def other_person(
    request: OneRequest = None,
    file: Annotated[Path | None, typer.Option(help="A CSV file of many: one column, request.")] = None,
) -> None:
    """Go on with the id as it is written: those with nearly the same id are other people."""
    if file is not None and request is None:
        _decide_all("other-person", [(row["request"], {}) for row in read_decisions(file, ("request",))])
        return
    if request is None or file is not None:
        raise typer.BadParameter("name a request, or --file")
    with connect() as client:
        record = client.post(_at(client, request) + "/other-person", {})
    _show(record)


def _decide_all(what: str, decisions: list[tuple[str, dict[str, str]]], lines: Sequence[int] | None = None) -> None:
    """Send these decisions one after the other. Raises CommandError where the service refused some, by their rows.

    ``lines``: the row of each; None: they are all rows of the file.
    """
    refused: list[tuple[int, CommandError]] = []
    with connect() as client, meter("decisions") as progress:
        for sent, (request, body) in enumerate(decisions, 1):
            try:
                client.post(f"{_at(client, request)}/{what}", body)
            except CommandError as error:
                if error.code != FAILED:
                    raise
                refused.append((lines[sent - 1] if lines else sent, error))
            progress.show(sent / len(decisions), f"{sent} of {len(decisions)} sent")
    if refused:
        row, first = refused[0]
        text = f"{len(refused)} of {len(decisions)} were refused, {_rows([number for number, _ in refused])}; row {row}"
        raise CommandError(f"{text}: {first.what}", "The others are decided. Correct these rows and send them alone.")


def _change_all(rows: list[dict[str, str]], changes: list[str], *, yes: bool) -> None:
    """Change these ids alike and compare them; after a yes, decide where the changed id is the only one that is near.

    Raises CommandError, before anything is decided, where no id is, a request is not there, or the answer is no; Exit
    where requests are left that wait for a decision.
    """
    try:
        ids = [changed(row["subject_id"], changes) for row in rows]
    except ValueError as error:
        raise CommandError(str(error), "", USAGE) from None
    with connect() as client:
        named = [client.whole_id(REQUESTS, row["request"]) for row in rows]
        decisions = [{"request": request, "subject_id": right} for request, right in zip(named, ids, strict=True)]
        kinds = _rehearse(client, decisions[:_TRIED])
        if not kinds["not_near"] or kinds["only"] or kinds["several"]:  # wrong ids count as searches: few are enough
            for start in range(_TRIED, len(decisions), BATCH):
                for kind, at in _rehearse(client, decisions[start : start + BATCH], start).items():
                    kinds[kind] += at
    counts = (f"{len(at)} {_REHEARSED[kind]} ({_rows(at)})" for kind, at in kinds.items() if at)
    compared = sum(map(len, kinds.values()))
    errors.print(f"Of the first {compared} rows: {'; '.join(counts)}.", markup=False, soft_wrap=True)
    if not kinds["only"]:
        raise CommandError("This change makes no id right. Nothing was decided.", "Compare a few ids with your books.")
    question = f"Say that these {len(kinds['only'])} requests are about the people with the changed ids?"
    try:
        agreed = yes or typer.confirm(question, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise CommandError("Nothing was decided.", "Say --yes where there is no terminal.", USAGE)
    only = [(named[row - 1], {"subject_id": ids[row - 1]}) for row in kinds["only"]]
    _decide_all("same-person", only, lines=kinds["only"])
    if len(rows) > len(kinds["only"]) + len(kinds["not_near_miss"]):
        raise typer.Exit(BLOCKED)


_REHEARSED = {
    "only": "get the id of the only person near",
    "several": "get the id of one of several people near: decide about each",
    "not_near": "get an id that is not near, or that no model knows",
    "not_near_miss": "do not wait for a decision",
    "other": "name no request that is there",
}
"""what a rehearsal says of a row"""


_TRIED = 20
"""rows by which a change is given up that makes none of them right"""


def _rehearse(client: Client, decisions: list[dict[str, str]], before: int = 0) -> dict[str, list[int]]:
    """Return by the kinds of ``_REHEARSED`` the rows of these decisions, ``before`` of which come others."""
    kinds: dict[str, list[int]] = {kind: [] for kind in _REHEARSED}
    outcomes = client.post(f"{REQUESTS}/same-person/rehearse", {"decisions": decisions})["outcomes"]
    for row, outcome in enumerate(outcomes, before + 1):
        kind = "only" if outcome["only"] else "several"
        if outcome["problem"] is not None:
            code = str(outcome["problem"]["code"])
            kind = code if code in _REHEARSED else "other"
        kinds[kind].append(row)
    return kinds


@commands.command("approve")
def approve(request: Request) -> None:
    """Approve a request that removes unusually many samples."""
    with connect() as client:
        record = client.post(_at(client, request) + "/approve", {})
    _show(record)


@commands.command("retry")
def retry(request: Request) -> None:
    """Retry a blocked request, after fixing its cause."""
    with connect() as client:
        record = client.post(_at(client, request) + "/retry", {})
    _show(record)


@commands.command("extend")
def extend(request: Request) -> None:
    """Extend the deadline by what the regulation allows, once: the GDPR two months. Tell the person first."""
    with connect() as client:
        record = client.post(_at(client, request) + "/extend", {})
    _show(record)


def _at(client: Client, request: str) -> str:
    """Return the address of the request with an id that begins so, or of this case."""
    return f"{REQUESTS}/{client.whole_id(REQUESTS, request)}"


def _typed(subject: str) -> str:
    """Return the person's id, read from standard input where - was given."""
    return sys.stdin.read().strip() if subject == "-" else subject


def await_ended(client: Client, request_id: str) -> dict[str, Any]:
    """Show the request's status until it ends or is blocked, and once what each model waits for; return it."""
    with meter("deletion request") as progress:
        said: set[tuple[str, str]] = set()
        while True:
            request: dict[str, Any]
            request, pause = client.look(f"/v1/deletion-requests/{request_id}")
            parts = [f"{part['model']} {part['status']}" for part in request["models"]]
            done = sum(part["status"] in ENDED for part in request["models"])
            progress.show(done / max(1, len(parts)), ", ".join(parts) or str(request["status"]))
            if request["status"] in ENDED:
                return request
            waiting = {(part["model"], part["reason"]): part for part in request["models"] if part.get("title")}
            new = [part for key, part in waiting.items() if key not in said]
            said |= waiting.keys()
            for part in new:
                errors.print(f"{part['model']}: {part['title']}", markup=False, soft_wrap=True)
            if new:
                show_hint(_remedies({"models": new}))
            time.sleep(pause)


def _show_rehearsal(told: dict[str, Any]) -> None:
    if briefly():
        show_lines(rehearsal_lines(told))
        return
    letter = told.get("letter")
    _show({name: value for name, value in told.items() if name != "letter"} if letter and not as_json() else told)
    if letter and not as_json():
        show_lines([("", text) for text in (letter["headline"], *letter["paragraphs"])])


def _show(request: dict[str, Any]) -> None:
    if briefly():
        show_lines(request_lines(request))
    else:
        _show_whole(request)


def _show_whole(request: dict[str, Any]) -> None:
    if as_json():
        show_json(request)
        return
    show_facts({name: value for name, value in request.items() if name not in ("models", "remedy", "actions")})
    if request.get("models"):
        show_rows(request["models"], ("model", "status", "samples", "version", "method", "reason", "expected_at"))
    if request.get("status") in ENDED and request.get("actions"):
        show_hint(_remedies(request))


def _show_rest(request: dict[str, Any]) -> None:
    """Print on standard error where a request that names models leaves the person."""
    left = request.get("remains_in")
    if left:
        what = f"note: other models hold this person, or may: {', '.join(left)}. Leave --model out to delete there too."
        errors.print(what, markup=False, soft_wrap=True)


def _explained(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the request, or the request itself where it has none, that carry a reason."""
    parts = [part for part in request.get("models", ()) if part.get("reason")]
    return parts or [request] * bool(request.get("reason"))


def _reasons(request: dict[str, Any]) -> str:
    titles = dict.fromkeys(each["title"] for each in _explained(request))
    return " ".join(titles) or "No reason is recorded."


def _remedies(request: dict[str, Any]) -> str:
    """Return what to do: the remedy of each reason and who can do it, then the commands of its steps, one a line."""
    explained = _explained(request)
    remedies = [each["remedy"] for each in explained if each["remedy"] is not None]
    said = dict.fromkeys(f"{each['action']} ({each['by']})" for each in remedies)
    return " ".join(said) + commands_of(step for each in explained for step in each["actions"])

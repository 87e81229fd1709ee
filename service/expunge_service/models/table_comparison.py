"""What the API shows of the tables, compared with what the entries of the audit log commit to: pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from expunge_service.audit import NotAuthentic
from expunge_service.models.publication_entry import PUBLISHING
from expunge_service.requests import entries_said

ENDED = ("model.retired", "model.cancelled")
Body = dict[str, Any]


def compare_tables(
    entries: Iterable[Mapping[str, Any]],
    served: Collection[Mapping[str, Any]],
    suppressions: Collection[Mapping[str, Any]],
) -> int:
    """Compare what the tables say of served versions and of requests with exported entries, in their order.

    ``served``: of each model that is served, its current version (``GET /v1/models/NAME/commitments``).
    ``suppressions``: of each request, its entries. Return how many versions were compared. Raises NotAuthentic, which
    names the version or request, and the table.
    """
    bodies: list[Body] = [json.loads(entry["body"]) for entry in entries if entry["body"]]
    _compare_models(bodies, served)
    for version in served:
        _compare_version(bodies, version)
    _compare_suppressions(bodies, {each["request"]: each for each in suppressions})
    return len(served)


def _compare_models(bodies: Iterable[Body], served: Collection[Mapping[str, Any]]) -> None:
    """Check that each model which was published and has not ended serves the version that was published last."""
    newest: dict[str, Body] = {}
    for body in bodies:
        if body["kind"] in PUBLISHING:
            newest[body["model"]] = body
        elif body["kind"] in ENDED:
            newest.pop(body["model"], None)
    here = {version["version"] for version in served}
    for body in newest.values():
        if body["version"] not in here:
            name = f"version {body['number']} of generation {body['generation']}"
            raise _differ("models", name, "it is the last that was published of its model, and is not served")
    wrong = next((each for each in served if each["version"] not in {b["version"] for b in newest.values()}), None)
    if wrong is not None:
        raise _differ("models", _name(wrong), "the log does not say that it is served")


def _compare_version(bodies: Iterable[Body], version: Mapping[str, Any]) -> None:
    mine = [body for body in bodies if body["kind"] in PUBLISHING and body["generation"] == version["generation"]]
    body = next((each for each in mine if each["version"] == version["version"]), None)
    if body is None:
        raise _differ("models", _name(version), "it was published in another generation")
    if body.get("state", version["state_sha256"]) != version["state_sha256"]:
        raise _differ("versions", _name(version), "its state is another")
    for table, digest in (body.get("commitments") or {}).items():
        if version["commitments"].get(table) != digest:
            raise _differ(table, _name(version), "its rows are not those that it was published with")
    if version["spent"] < sum(each["budget_cost"] for each in mine):
        raise _differ("generations", _name(version), "less is spent than its updates cost")


def _compare_suppressions(bodies: Iterable[Body], shown: Mapping[str, Mapping[str, Any]]) -> None:
    of_request: dict[str, list[Body]] = {}
    for body in bodies:
        if body.get("request"):
            of_request.setdefault(body["request"], []).append(body)
    for request, said in of_request.items():
        if any(body["kind"] == "request.accepted" for body in said):
            _compare_request(f"request {request}", said, shown.get(request))


def _compare_request(name: str, said: Iterable[Body], row: Mapping[str, Any] | None) -> None:
    if row is None:
        raise _differ("deletion_requests", name, "its row is gone")
    in_force, digest = entries_said(said)
    if digest not in (None, row["digest"]):
        raise _differ("suppressions", name, "its rows are not those that it was accepted with")
    if in_force and not row["in_force"]:
        raise _differ("suppressions", name, "they were lifted, and the log does not say so")
    if row["undone"]:
        raise _differ("tasks", name, f"it is not open, and {', '.join(row['undone'])} holds what it names")


def _name(version: Mapping[str, Any]) -> str:
    return f"version {version['number']} of {version['model']}"


def _differ(table: str, of: str, how: str) -> NotAuthentic:
    return NotAuthentic(f"The audit log and the database's table {table} differ on {of}: {how}.")

"""``/console/models/{name}``: one model, its budget, its versions, who serves it; and training it again."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Scope
from expunge.service.api.console import charts
from expunge.service.api.console.forms import Form, field
from expunge.service.api.console.render import HEADERS, PageRoute
from expunge.service.api.console.visit import PageAction, Visitor
from expunge.service.api.console.ways import ways
from expunge.service.api.console.words import span
from expunge.service.api.problems import ApiProblem, not_found
from expunge.service.api.routes.models import consumers, lifecycle, retrains, versions
from expunge.service.api.types import ModelName
from expunge.service.api.views.consumers import consumer_rows, worst_first
from expunge.service.api.views.models import (
    ModelRow,
    budget_changes,
    charges_lately,
    find_model,
    model_row,
    model_view,
    retrains_of,
)
from expunge.service.api.views.versions import VersionView, versions_of
from expunge.service.infra.db import now
from expunge.service.models.policy import CHANGEABLE
from expunge.service.models.retire import SERVED
from expunge.service.models.retrain_plan import measured_seconds, plan_of
from unlearning.accounting.budget import updates_left
from unlearning.accounting.policy import Policy

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ACTIONS = {
    "retrain": PageAction("Retrain now", retrains.retrain, "A retrain is planned. A worker begins with it soon."),
    "dry-run": PageAction(
        "Count what a retrain would change",
        retrains.retrain,
        "Counting. The result is shown here in a moment. Nothing is trained.",
    ),
    "cancel": PageAction(
        "Cancel the preparation",
        lifecycle.cancel,
        "Cancelled. The name is free again.",
        "What was built so far is destroyed and the name is free again. Requests that waited for this model go on "
        "without it.",
    ),
    "retire": PageAction(
        "Retire the model",
        lifecycle.retire_model,
        "Retired. No version of it is served any more.",
        "No version is served any more, its requests end with it, and its state and keys are destroyed. A retired "
        "model cannot be brought back. Copies that somebody downloaded are not reached.",
    ),
}
"""what can be done about a model, by the last part of its address"""
_POLICY = PageAction("Change the policy", lifecycle.policy, "Changed. Requests that may go on now are in the queue.")
_REMOVE = PageAction(
    "Remove the consumer",
    consumers.remove,
    "Removed. No request waits for this consumer any more.",
    "Do this only if the consumer serves the model no more. Requests that wait for it are completed, although a "
    "consumer that is still there may go on serving people who were deleted.",
)

_CHOICES = {"fallback": ("retrain", "hold"), "complete_when": ("published", "served")}
"""the fields of a policy that are chosen from a list"""


@router.get("/console/models/{name}")
def show(name: ModelName, visit: Visitor) -> Response:
    visit.need(Scope.MODELS_READ)
    with visit.service.database.read() as session:
        found = find_model(session, visit.caller.tenant_id, name)
        row = model_row(session, found)
        shown, at = versions_of(session, found), now(session)
        words = _forecast(session, row, at)
        reports = [each.report or {} for each in retrains_of(session, found)]
        facts = {
            "row": row,
            "versions": shown,
            "consumers": worst_first(consumer_rows(session, models=[found.id])),
            "forecast": words,
            "budget": charts.updates_left(budget_changes(session, row.generation), at, words)
            if row.generation
            else None,
            "accuracy": charts.accuracy([(each.number, each.published_at, each.holdout_accuracy) for each in shown]),
            "plan": plan_of(session, found),
            "counted": next((each for report in reports if (each := report.get("changes"))), None),
            "ways": ways(model_view(session, found).actions, visit.caller),
            "policy": {each: Policy.from_json(found.policy).to_json()[each] for each in CHANGEABLE},
            "busy": found.status == "preparing" or row.waiting > 0,
        }
    offered = [each for each in _offered(found.status) if visit.allows(ACTIONS[each].route)]
    rights = {
        "download": visit.allows(versions.checkpoint),
        "remove": visit.allows(_REMOVE.route),
        "policy": found.status in SERVED and visit.allows(_POLICY.route),
    }
    return visit.page("model.html", **facts, offered=offered, actions=ACTIONS, rights=rights, choices=_CHOICES)


@router.get("/console/models/{name}/checkpoint")
def download(name: ModelName, visit: Visitor) -> Response:
    """Send the file of the current version: no other is served."""
    answer: Response = visit.call(versions.checkpoint, name=name, number="current")
    return answer


@router.get("/console/models/{name}/versions/{number}.json")
def version_file(name: ModelName, number: versions.Number, visit: Visitor) -> Response:
    """Send what a version claims and which requests it carried out, as the API shows it."""
    view: VersionView = visit.call(versions.show, name=name, number=number)
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}-version-{view.number}.json"'}
    return Response(view.model_dump_json(indent=2), headers=headers, media_type="application/json")


@router.post("/console/models/{name}/consumers/{consumer_id}/remove")
def remove(name: ModelName, consumer_id: ModelName, visit: Visitor, fields: Form) -> Response:
    return visit.carry_out(_REMOVE, fields, f"/console/models/{name}", name=name, consumer_id=consumer_id)


@router.post("/console/models/{name}/policy")
def change_policy(name: ModelName, visit: Visitor, fields: Form) -> Response:
    """Change the fields of the policy that were sent. An empty one is none, where the policy allows that."""
    sent = {each: field(fields, each) for each in CHANGEABLE if each in fields}
    try:
        order = lifecycle.PolicyChange(**{each: _value(each, text) for each, text in sent.items()})
    except ValidationError:
        raise ApiProblem(422, "form_incomplete", "A value cannot be used. Nothing was changed.") from None
    return visit.carry_out(_POLICY, fields, f"/console/models/{name}", name=name, body=order)


@router.post("/console/models/{name}/{action}")
def act(name: ModelName, action: str, visit: Visitor, fields: Form) -> Response:
    """Train the model again, after its cost was shown; or only count what that would change."""
    if action not in ACTIONS:
        raise not_found("page")
    chosen = ACTIONS[action]
    if action == "retrain":
        with visit.service.database.read() as session:
            warning = _cost(model_row(session, find_model(session, visit.caller.tenant_id, name)))
        chosen = PageAction(chosen.label, chosen.route, chosen.done, warning)
    trains = chosen.route is retrains.retrain
    body = {"body": retrains.RetrainOrder(dry_run=action == "dry-run")} if trains else {}
    back = "/" if action == "cancel" else f"/console/models/{name}"
    return visit.carry_out(chosen, fields, back, name=name, **body)


def _offered(status: str) -> list[str]:
    """Return what can be done about a model in this state."""
    if status == "preparing":
        return ["cancel"]
    return ["retrain", "dry-run", "retire"] if status in SERVED else []


def _value(name: str, text: str) -> str | int | float | None:
    """Return a policy's field from a form's text; None: none. Raises ApiProblem (422)."""
    if not text or name in _CHOICES:
        return text or None
    try:
        return int(text) if name.endswith("_seconds") else float(text)
    except ValueError:
        raise ApiProblem(422, "form_incomplete", f"{name} is a number. Nothing was changed.") from None


def _forecast(session: Session, row: ModelRow, at: int) -> str:
    if row.generation is None:
        return ""
    left = updates_left(row.generation.spent, row.generation.budget, row.generation.budget_cost)
    return charts.forecast(left, *charges_lately(session, row.generation, at), at)


def _cost(row: ModelRow) -> str:
    """Write what a retrain takes and what it serves."""
    seconds = measured_seconds(row.generation) if row.generation else None
    took = "nobody has timed a training of this model" if seconds is None else f"the last training took {span(seconds)}"
    serves = {0: "No request waits for it.", 1: "It serves the request that waits, too."}
    return (
        f"The model is trained again on what its recipe gives now, without anyone who asked to be forgotten: {took}. "
        f"{serves.get(row.waiting, f'It serves the {row.waiting:,} requests that wait, too.')} The current version is "
        "served until the new one is ready. The new generation begins a new budget."
    )

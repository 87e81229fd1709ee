"""``/console/models/{name}``: one model, its budget, its versions, who serves it; and training it again."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.access.api_keys import Scope
from service.api.console import charts, views
from service.api.console.render import HEADERS, PageRoute
from service.api.console.visit import Form, PageAction, Visitor
from service.api.console.words import span
from service.api.problems import not_found
from service.api.routes.models import consumers, models, retrains, versions
from service.api.types import ModelName
from service.infra.tables import Generation, Model
from service.models.retrain_plan import measured_seconds, plan_of

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ACTIONS = {
    "retrain": PageAction("Retrain now", retrains.retrain, "A retrain is planned. A worker begins with it soon."),
    "dry-run": PageAction(
        "Count what a retrain would change",
        retrains.retrain,
        "Counting. The result is shown here in a moment. Nothing is trained.",
    ),
}
_REMOVE = PageAction(
    "Remove the consumer",
    consumers.remove,
    "Removed. No request waits for this consumer any more.",
    "Do this only if the consumer serves the model no more. Requests that wait for it are completed, although a "
    "consumer that is still there may go on serving people who were deleted.",
)


@router.get("/console/models/{name}")
def show(name: ModelName, visit: Visitor) -> Response:
    visit.need(Scope.MODELS_READ)
    with visit.service.database.read() as session:
        found = models.find(session, visit.caller.tenant_id, name)
        row = views.model_row(session, found)
        shown = views.versions(session, found)
        words = views.forecast(session, row.generation) if row.generation else ""
        facts = {
            "row": row,
            "versions": shown,
            "consumers": views.consumer_rows(session, visit.caller.tenant_id, found),
            "forecast": words,
            "budget": views.budget_plot(session, row.generation, words) if row.generation else None,
            "accuracy": charts.accuracy(shown),
            "plan": plan_of(session, found),
            "counted": _last_count(session, found),
            "busy": found.status == "preparing" or row.waiting > 0,
        }
    offered = [each for each in ACTIONS if visit.allows(ACTIONS[each].route) and found.status in ("live", "exhausted")]
    rights = {"download": visit.allows(versions.checkpoint), "remove": visit.allows(_REMOVE.route)}
    return visit.page("model.html", **facts, offered=offered, actions=ACTIONS, rights=rights)


@router.get("/console/models/{name}/checkpoint")
def download(name: ModelName, visit: Visitor) -> Response:
    """Send the file of the current version: no other is served."""
    answer: Response = visit.call(versions.checkpoint, name=name, number="current")
    return answer


@router.get("/console/models/{name}/versions/{number}.json")
def version_file(name: ModelName, number: versions.Number, visit: Visitor) -> Response:
    """Send what a version claims and which requests it carried out, as the API shows it."""
    view: versions.VersionView = visit.call(versions.show, name=name, number=number)
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{name}-version-{view.number}.json"'}
    return Response(view.model_dump_json(indent=2), headers=headers, media_type="application/json")


@router.post("/console/models/{name}/consumers/{consumer_id}/remove")
def remove(name: ModelName, consumer_id: ModelName, visit: Visitor, fields: Form) -> Response:
    return visit.carry_out(_REMOVE, fields, f"/console/models/{name}", name=name, consumer_id=consumer_id)


@router.post("/console/models/{name}/{action}")
def act(name: ModelName, action: str, visit: Visitor, fields: Form) -> Response:
    """Train the model again, after its cost was shown; or only count what that would change."""
    if action not in ACTIONS:
        raise not_found("page")
    chosen = ACTIONS[action]
    if action == "retrain":
        with visit.service.database.read() as session:
            warning = _cost(session, models.find(session, visit.caller.tenant_id, name))
        chosen = PageAction(chosen.label, chosen.route, chosen.done, warning)
    order = retrains.RetrainOrder(dry_run=action == "dry-run")
    return visit.carry_out(chosen, fields, f"/console/models/{name}", name=name, body=order)


def _cost(session: Session, model: Model) -> str:
    """Say what a retrain takes and what it serves."""
    generation = session.get(Generation, model.generation_id) if model.generation_id else None
    seconds = measured_seconds(generation) if generation else None
    took = "nobody has timed a training of this model" if seconds is None else f"the last training took {span(seconds)}"
    waiting = views.model_row(session, model).waiting
    serves = {0: "No request waits for it.", 1: "It serves the request that waits, too."}
    return (
        f"The model is trained again on what its recipe gives now, without anyone who asked to be forgotten: {took}. "
        f"{serves.get(waiting, f'It serves the {waiting:,} requests that wait, too.')} The current version is served "
        "until the new one is ready. The new generation begins a new budget."
    )


def _last_count(session: Session, model: Model) -> dict[str, int] | None:
    """Return what the newest retrain or dry run counted in the recipe's data; None: nothing was counted."""
    newest = select(Generation).where(Generation.model_id == model.id).order_by(Generation.id.desc()).limit(5)
    reports = [each.report or {} for each in session.scalars(newest)]
    return next((each["changes"] for each in reports if each.get("changes")), None)

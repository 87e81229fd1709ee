"""``/console/models/{name}``: one model, its budget, its versions, its consumers; and training it again."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from expunge_service.access import Scope
from expunge_service.api.http.etag import tag
from expunge_service.api.http.polling import LEAST_SECONDS, retry_after
from expunge_service.api.routes.models import versions
from expunge_service.api.types import ModelName
from expunge_service.api.views.consumers import consumer_rows, worst_first
from expunge_service.api.views.models import (
    ModelRow,
    budget_changes,
    charges_lately,
    find_model,
    model_row,
    model_view,
    retrains_of,
)
from expunge_service.api.views.versions import VersionView, metrics_of, suffixes_of, versions_of
from expunge_service.console import charts
from expunge_service.console.acts import ACTS, CHOICES
from expunge_service.console.render import HEADERS, PageRoute
from expunge_service.console.visit import Visitor
from expunge_service.console.ways import ways
from expunge_service.infra.db import now
from expunge_service.models import CHANGEABLE, SERVED, is_withheld, plan_of
from unlearning.accounting.budget import updates_left
from unlearning.accounting.policy import Policy

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/models/{name}")
def show(name: ModelName, visit: Visitor) -> Response:
    visit.need(Scope.MODELS_READ)
    with visit.service.database.read() as session:
        found = find_model(session, visit.caller.tenant_id, name)
        row, view = model_row(session, found), model_view(session, found)
        shown, at = versions_of(session, found), now(session)
        metrics = metrics_of(session, {each.generation_id for each in shown})
        reports = [each.report or {} for each in retrains_of(session, found)]
        facts = {
            "row": row,
            "versions": shown,
            "suffix": suffixes_of(session, {shown[0].generation_id}).popitem()[1] if shown else "",
            "consumers": worst_first(consumer_rows(session, models=[found.id])),
            "forecast": _forecast(session, row, at),
            "budget": charts.updates_left(budget_changes(session, row.generation), at) if row.generation else None,
            "accuracy": charts.accuracy(
                [
                    (each.number, each.published_at, each.holdout_accuracy)
                    for each in shown
                    if metrics[each.generation_id] == metrics[shown[0].generation_id]
                ],
                metrics.get(shown[0].generation_id) if shown else None,
            ),
            "metrics": metrics,
            "updates": view.updates,
            "note": view.guarantee_note,
            "plan": plan_of(session, found),
            "counted": next((each for report in reports if (each := report.get("changes"))), None),
            "state": tag(view),
            "ways": ways(view.actions, visit.caller),
            "policy": {each: Policy.from_json(found.policy).to_json()[each] for each in CHANGEABLE},
            "busy": found.status == "preparing"
            or (row.waiting > 0 and retry_after([found.due_at], at) == LEAST_SECONDS),
        }
    offered = [each for each in _offered(found.status, withheld=is_withheld(found)) if visit.allows(ACTS[each].route)]
    rights = {
        "download": visit.allows(versions.checkpoint),
        "remove": visit.allows(ACTS["remove-consumer"].route),
        "policy": found.status in SERVED and visit.allows(ACTS["policy"].route),
    }
    return visit.page("model.html", **facts, offered=offered, acts=ACTS, rights=rights, choices=CHOICES)


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


def _offered(status: str, *, withheld: bool) -> list[str]:
    """Return what can be done about a model in this state."""
    if status == "preparing":
        return ["publish", "cancel-preparation"] if withheld else ["cancel-preparation"]
    return ["retrain", "dry-run", "retire"] if status in SERVED else []


def _forecast(session: Session, row: ModelRow, at: int) -> str:
    if row.generation is None:
        return ""
    left = updates_left(row.generation.spent, row.generation.budget, row.generation.budget_cost)
    return charts.forecast(left, *charges_lately(session, row.generation, at), at)

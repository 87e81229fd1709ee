"""Retrains on the recipe's present data: planning one, or a dry run of one, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Caller, Scope
from expunge.service.api.dependencies import Running, holding, problems
from expunge.service.api.openapi import answer
from expunge.service.api.problems import not_found
from expunge.service.api.routes.models.models import find as find_model
from expunge.service.api.routes.models.models import locked
from expunge.service.api.types import LARGEST_NUMBER, ModelName, Moment
from expunge.service.infra.tables import Generation, Model
from expunge.service.models.retrain_plan import is_dry_run, plan_new_data

router = APIRouter(tags=["models"])
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
Reader = Annotated[Caller, Depends(holding(Scope.MODELS_READ))]
_PATH = "/v1/models/{name}/retrains"


class RetrainOrder(BaseModel):
    """A new generation of the model, trained on what its recipe gives now, without anyone who asked to be forgotten."""

    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = Field(default=False, description="only count what changed in the data; train nothing")


class ChangesView(BaseModel):
    """The recipe's data now, against those that the served generation is trained on, in counts."""

    served: int = Field(description="samples that the served generation still has")
    samples: int = Field(description="samples that the retrain trains on")
    gone: int = Field(description="of served: the recipe does not give them any more")
    changed: int = Field(description="of served: the recipe gives them with another content")
    new: int = Field(description="of samples: the served generation never had them")
    people_new: int
    left_out: int = Field(description="samples of the recipe whose people asked to be forgotten")
    people_left_out: int


class RefusalView(BaseModel):
    what: str
    hint: str


class RetrainView(BaseModel):
    model: str
    generation: int = Field(description="the generation that it builds")
    status: str = Field(description="candidate, while it waits or is built; then live, refused or ended")
    reason: str = Field(description="new_data, budget_exhausted, or fallback: no update can serve a request")
    dry_run: bool = Field(description="it ends once the changes are counted")
    phase: str | None
    progress: float = Field(description="0 to 1")
    expected_seconds: float | None = Field(description="what the last training took; null: it was never timed")
    changes: ChangesView | None = Field(description="null: not yet counted")
    refused: RefusalView | None
    planned_at: Moment
    ended_at: Moment | None


@router.post(
    _PATH,
    status_code=202,
    response_model=RetrainView,
    responses=problems(404, 409) | answer(202, "Location", "Retry-After"),
    summary="Train a model again on its recipe's present data",
)
def retrain(name: ModelName, body: RetrainOrder, service: Running, caller: Admin, response: Response) -> RetrainView:
    with service.database.write() as session:
        model = locked(session, caller.tenant_id, name)
        view = _view(model, plan_new_data(session, model, dry_run=body.dry_run))
    service.notify([model.id])
    response.headers["Location"] = f"/v1/models/{name}/retrains/{view.generation}"
    response.headers["Retry-After"] = "2"
    return view


@router.get(
    _PATH + "/{generation}", response_model=RetrainView, responses=problems(404), summary="Show a retrain or a dry run"
)
def show_retrain(
    name: ModelName,
    generation: Annotated[int, Path(ge=1, le=LARGEST_NUMBER)],
    service: Running,
    caller: Reader,
) -> RetrainView:
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        return _view(model, _find(session, model, generation))


def _find(session: Session, model: Model, generation_id: int) -> Generation:
    """Return a generation of the model that a retrain built or builds. Raises ApiProblem (404)."""
    mine = (Generation.id == generation_id, Generation.model_id == model.id)
    found = session.scalar(select(Generation).where(*mine))
    if found is None or "reason" not in (found.report or {}):
        raise not_found("retrain")
    return found


def _view(model: Model, generation: Generation) -> RetrainView:
    report: dict[str, Any] = generation.report or {}
    return RetrainView(
        model=model.name,
        generation=generation.id,
        status=generation.status,
        reason=report["reason"],
        dry_run=is_dry_run(generation),
        phase=generation.phase if generation.status == "candidate" else None,
        progress=generation.progress,
        expected_seconds=report.get("eta_seconds"),
        changes=report.get("changes"),
        refused=report.get("refused"),
        planned_at=generation.created_at,
        ended_at=generation.ended_at,
    )

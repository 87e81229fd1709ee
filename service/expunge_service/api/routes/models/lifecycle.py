"""What may be done to a registered model: change its policy, retire it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator

from expunge_service.access import Caller, Scope, TwoPersonAct
from expunge_service.api.dependencies import Running, agreed, awaits_another, problems, require_scope
from expunge_service.api.http.etag import Decided
from expunge_service.api.openapi import answer
from expunge_service.api.types import WHOLE, ModelName, PlaceName
from expunge_service.api.views.models import ModelView, locked_model, model_view
from expunge_service.models import SERVED, change_policy, publish_anyway, require_changeable, retire

router = APIRouter(tags=["models"])
Admin = Annotated[Caller, Depends(require_scope(Scope.MODELS_ADMIN))]
_MODEL = "/v1/models/{name}"
_Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Seconds = Annotated[int, Field(strict=True, ge=0, le=31_536_000), WHOLE]


class PolicyChange(BaseModel):
    """The fields to change; those that are left out stay as they are, and null is the policy's default.

    What the claims of the versions depend on cannot change: method, guarantee, noise, bound and budget.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"complete_when": "served"}]})

    fallback: Literal["retrain", "hold"] | None = None
    batch: _Seconds | None = None
    retrain_every: _Seconds | None = None
    place: PlaceName | None = None
    complete_when: Literal["published", "served"] | None = None
    twins: Literal["ask", "ignore"] | None = Field(
        default=None, description="ask: a person decides where another person's id is written nearly so"
    )
    max_accuracy_drop: _Number | None = Field(default=None, description="null: no gate")

    @model_validator(mode="before")
    @classmethod
    def _changeable(cls, sent: Any) -> Any:
        if isinstance(sent, dict):
            require_changeable(sent)
        return sent


@router.patch(
    _MODEL + "/policy",
    response_model=ModelView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Change what may change of a model's policy",
)
def policy(
    *,
    name: ModelName,
    body: PolicyChange,
    service: Running,
    caller: Admin,
    state: Decided,
) -> ModelView:
    """Change the policy. Requests that were blocked go on where the new policy lets them."""
    with service.database.write() as session:
        model = locked_model(session, caller.tenant_id, name)
        state.require(model_view(session, model))
        waits = change_policy(session, model, body.model_dump(exclude_unset=True))
        view, model_id = model_view(session, model), model.id
    if waits:
        service.notify([model_id])
    return state.changed(view)


@router.post(
    _MODEL + "/publish",
    name="publish",
    response_model=ModelView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Publish a first version that was withheld for its accuracy",
)
def publish_withheld(name: ModelName, service: Running, caller: Admin, state: Decided) -> ModelView:
    """Prepare and publish the first version at any accuracy.

    A registration whose version is less accurate than a plain training by more than `max_accuracy_drop` waits for this,
    or for `retire`. The model is trained once more; later updates keep the gate.
    """
    with service.database.write() as session:
        model = locked_model(session, caller.tenant_id, name)
        state.require(model_view(session, model))
        accepted = publish_anyway(session, model)
        view, model_id = model_view(session, model), model.id
    if accepted:
        service.notify([model_id])
    return state.changed(view)


@router.post(
    _MODEL + "/retire",
    name="retire",
    response_model=ModelView,
    responses=problems(404, 409, 412) | answer(200, "ETag"),
    summary="Stop serving a model permanently, or cancel its preparation",
)
def retire_model(name: ModelName, service: Running, caller: Admin, state: Decided) -> ModelView:
    """Retire the model: no version is served, its requests end with it, its state and keys are destroyed.

    Of a model that was never published the preparation is cancelled: its name is free, requests go on without it.
    Copies of its versions that were downloaded are not known here, and no claim is made about them.
    """
    with service.database.write() as session:
        model = locked_model(session, caller.tenant_id, name)
        state.require(model_view(session, model))
        may = model.status not in SERVED or agreed(service, session, caller, TwoPersonAct.RETIRE, model.id)
        if may:
            retire(session, model)
            return state.changed(model_view(session, model))
    raise awaits_another(TwoPersonAct.RETIRE)

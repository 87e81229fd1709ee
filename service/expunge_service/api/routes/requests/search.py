"""Finding a person: what a privacy officer asks before and after a deletion."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from expunge_service.access import Caller, Scope, searched
from expunge_service.api.dependencies import Running, count_search, problems, require_scope
from expunge_service.api.types import Moment, PersonalId
from expunge_service.api.views.requests import DeletionRequestView, request_views
from expunge_service.requests import Question, Reason, find_person, question_about

router = APIRouter(tags=["deletion requests"])
Seeker = Annotated[Caller, Depends(require_scope(Scope.PEOPLE_SEARCH))]


class SearchOrder(BaseModel):
    """The person's id. It is in the body, because addresses end up in logs."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"subject_id": "person-7"}]})

    subject_id: PersonalId


class KnownInView(BaseModel):
    """One model that knows the person, or may."""

    model: str
    state: Literal["holds", "forgot", "holdout", "preparing"] = Field(
        description="holds: trained on the person; forgot: was, and is no more; holdout: only measured on the person; "
        "preparing: its samples are not known yet"
    )
    samples: int | None = Field(description="trained on and not forgotten; null while the model is being prepared")
    in_holdout: bool
    version: int | None = Field(description="the last version that forgot samples of the person; null: none did")
    forgotten_at: Moment | None = Field(description="when that version was published")


class SearchView(BaseModel):
    search: str = Field(description="id of this search: the audit log's entry names it and the key, not the person")
    requests: list[DeletionRequestView] = Field(
        description="that name the person, or samples which a model knows as the person's; newest first, at most 500"
    )
    has_more: bool = Field(description="there are older requests")
    models: list[KnownInView] = Field(description="by name; a model that is not listed does not know the person")
    near: str | None = Field(
        description="that no model knows the id, and it looks misspelled: how many people have nearly the same, and in "
        "what it differs; null: it does not, or the key lacks deletions:decide"
    )


@router.post(
    "/v1/deletion-requests/search",
    response_model=SearchView,
    responses=problems(),
    summary="Find a person's requests and the models that know them",
)
def search(order: SearchOrder, service: Running, caller: Seeker) -> SearchView:
    count_search(service, caller)
    with service.database.write() as session:
        found = find_person(session, service.pepper, caller.tenant_id, order.subject_id)
        question = question_about(session, service.pepper, caller.tenant_id, order.subject_id)
        return SearchView(
            search=searched(session, caller),
            requests=request_views(session, found.requests, caller.scopes),
            has_more=found.has_more,
            models=[KnownInView(**vars(each)) for each in found.models],
            near=near_of(question, caller),
        )


def near_of(question: Question | None, caller: Caller) -> str | None:
    """Return the question's first sentence, where the caller may see how many people are near."""
    if question is None or not caller.scopes.issuperset({Scope.PEOPLE_SEARCH, Scope.DELETIONS_DECIDE}):
        return None
    return Reason.NEAR_MISS.says(question.facts, caller.scopes).partition(". ")[0] + "."

"""What webhooks carry, as schemas: the ``webhooks`` of the OpenAPI document. These functions are never called."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, BaseModel

from expunge_service.api.views.requests import ActionView, RemedyView
from expunge_service.requests import WebhookEvent

SCHEMAS = APIRouter()


class PartFacts(BaseModel):
    """What one model does about a request. ``version``: the one that was published for it; null: none yet."""

    model: str
    status: str
    reason: str | None
    version: int | None


class RequestFacts(BaseModel):
    """A deletion request as news tells of it. It names no person."""

    id: str
    case_id: str | None
    status: str
    models: list[PartFacts]
    reason: str | None
    title: str | None
    remedy: RemedyView | None
    actions: list[ActionView]
    received_at: AwareDatetime
    due_at: AwareDatetime | None
    completed_at: AwareDatetime | None


class RequestNews(BaseModel):
    type: Literal[
        "deletion_request.accepted",
        "deletion_request.verified",
        "deletion_request.rejected",
        "deletion_request.blocked",
        "deletion_request.cancelled",
        "deletion_request.due_soon",
        "deletion_request.completed",
    ]
    timestamp: AwareDatetime
    data: RequestFacts


class CertificateFacts(BaseModel):
    """The id of the request. Its certificate can be fetched now."""

    id: str


class CertificateNews(BaseModel):
    type: Literal["certificate.issued"]
    timestamp: AwareDatetime
    data: CertificateFacts


class VersionFacts(BaseModel):
    model: str
    version: int
    checkpoint_sha256: str


class VersionNews(BaseModel):
    type: Literal["model_version.published"]
    timestamp: AwareDatetime
    data: VersionFacts


class BudgetFacts(BaseModel):
    """A generation without budget for another update; units of 1e-12 mu^2."""

    model: str
    generation: int
    spent: int
    limit: int
    actions: list[ActionView]


class BudgetNews(BaseModel):
    type: Literal["budget.exhausted"]
    timestamp: AwareDatetime
    data: BudgetFacts


class TestFacts(BaseModel):
    """The endpoint that is tested."""

    endpoint: str


class TestNews(BaseModel):
    type: Literal["webhook.test"]
    timestamp: AwareDatetime
    data: TestFacts


_SUMMARIES = {
    WebhookEvent.REQUEST_ACCEPTED: "A request was accepted",
    WebhookEvent.REQUEST_VERIFIED: "A request was verified: it does come from the person",
    WebhookEvent.REQUEST_REJECTED: "A request was rejected",
    WebhookEvent.REQUEST_BLOCKED: "A request is blocked and waits for a person",
    WebhookEvent.REQUEST_CANCELLED: "A request was cancelled",
    WebhookEvent.REQUEST_DUE_SOON: "An open request is due within seven days, or late; once for each deadline",
    WebhookEvent.REQUEST_COMPLETED: "A request was completed in every model",
    WebhookEvent.CERTIFICATE_ISSUED: "The certificate of a request can be fetched",
    WebhookEvent.VERSION_PUBLISHED: "A version was published",
    WebhookEvent.BUDGET_EXHAUSTED: "The budget of a generation does not pay for another update",
    WebhookEvent.TEST: "An operator tests the endpoint",
}
_BODIES: dict[WebhookEvent, type[BaseModel]] = {
    WebhookEvent.CERTIFICATE_ISSUED: CertificateNews,
    WebhookEvent.VERSION_PUBLISHED: VersionNews,
    WebhookEvent.BUDGET_EXHAUSTED: BudgetNews,
    WebhookEvent.TEST: TestNews,
}


def _describe(kind: WebhookEvent) -> None:
    """Add the description of one kind. Its body is the annotation of a function that is never called."""

    def receive(body: BaseModel) -> None: ...

    receive.__annotations__ = {"body": _BODIES.get(kind, RequestNews), "return": None}
    receive.__name__ = kind.value.replace(".", "_")
    SCHEMAS.post(kind.value, summary=_SUMMARIES[kind], tags=["webhooks"], status_code=204)(receive)


for _kind in WebhookEvent:
    _describe(_kind)

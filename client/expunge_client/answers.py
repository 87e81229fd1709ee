"""The JSON that the service answers. A later service may add fields; none of these changes its meaning."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Remedy(TypedDict):
    """What to do about a reason, and who can do it."""

    action: str
    by: str


class Action(TypedDict):
    """A step out of a wait: one call, and the command that makes it."""

    verb: str
    method: str
    path: str
    command: str
    scopes: list[list[str]]
    body: dict[str, Any] | None


class ModelPart(TypedDict):
    """One model's part in a request."""

    model: str
    status: str
    samples: int | None
    version: int | None
    method: str | None
    guarantee_note: NotRequired[str | None]
    scheduled_at: str | None
    expected_at: str | None
    reason: str | None
    title: str | None
    remedy: Remedy | None
    actions: list[Action]


class DeletionRequest(TypedDict):
    """A deletion request. Moments are RFC 3339 in UTC.

    ``opening``, ``remains_in`` and ``note`` come with the acceptance alone. Keep the opening: it shows whom a
    certificate is about, and the service does not store it. A key without the scope deletions:read gets id, status,
    received_at, due_at, note and opening, and nothing else.
    """

    id: str
    case_id: str | None
    status: str
    subject_digest: str | None
    samples: int | None
    suppress: str
    regulation: str | None
    received_at: str
    due_at: str | None
    completed_at: str | None
    extended_at: str | None
    first_due_at: str | None
    rejection: str | None
    limited_to: list[str] | None
    models: list[ModelPart]
    cancellable: NotRequired[bool | None]
    cancellable_until: NotRequired[str | None]
    erasing: bool
    reason: str | None
    title: str | None
    remedy: Remedy | None
    actions: list[Action]
    related: list[str] | None
    remains_in: NotRequired[list[str] | None]
    opening: NotRequired[str]
    note: NotRequired[str | None]


class Outcome(TypedDict):
    """What became of one order of many: the request, or the problem (RFC 9457) that kept it out."""

    index: int
    status: int
    request: DeletionRequest | None
    problem: dict[str, Any] | None


class Cost(TypedDict):
    """One model's part in the cost. ``budget_cost`` is in units of 1e-12 mu^2."""

    model: str
    samples: int
    method: str
    guarantee: str
    budget_cost: int
    updates_left: int | None
    retrain_due: bool
    repeats: float | None
    seconds: float | None
    version: int | None
    reason: str | None
    expected_at: str | None


class Letter(TypedDict):
    """The letter to the person as it would read. ``[ ]`` is filled in by hand."""

    headline: str
    paragraphs: list[str]


class Estimate(TypedDict):
    """A rehearsal: what a request would do if it were accepted next. ``search`` names the audit log's entry."""

    search: str
    near: NotRequired[str | None]
    models: list[Cost]
    samples: int
    preparing: list[str]
    regulation: str | None
    due_at: str | None
    letter: Letter | None


class KnownIn(TypedDict):
    """One model that knows a person. ``state`` is holds, forgot, holdout or preparing."""

    model: str
    state: str
    samples: int | None
    in_holdout: bool
    version: int | None
    forgotten_at: str | None


class Findings(TypedDict):
    """Every request and every model that knows a person. ``search`` names the audit log's entry about the question."""

    search: str
    near: NotRequired[str | None]
    requests: list[DeletionRequest]
    has_more: bool
    models: list[KnownIn]


class Version(TypedDict):
    """A published version. ``claim`` says how far it is from retraining and how that is known."""

    model: str
    number: int
    status: str
    parent: int | None
    generation: int
    method: str
    claim: dict[str, Any]
    guarantee_note: NotRequired[str | None]
    samples: int
    people: int
    checkpoint_sha256: str
    checkpoint_bytes: int
    checkpoint_suffix: NotRequired[str]
    holdout_accuracy: float | None
    metric: NotRequired[str | None]
    requests: list[str]
    published_at: str
    retired_at: str | None
    purged_at: str | None

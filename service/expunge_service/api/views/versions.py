"""Versions of a model, for the API and the page."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.api.problems import not_found
from expunge_service.api.types import Moment
from expunge_service.api.views.selection import ROWS
from expunge_service.certificates import note
from expunge_service.infra.tables import Generation, Model, Task, Version

SAFETENSORS = "safetensors"
GUARANTEE_NOTE = (
    "why the version's guarantee exact depends on the operator's word, in few words; null: it does not, or is another"
)
CLAIMED = (
    Version.claim["guarantee"].as_string(),
    Version.claim["operators_word"].as_boolean(),
    Version.claim["tried"].as_json(),
    Version.claim["world"].as_json(),
)
"""what ``noted`` takes of a version's claim, which may be long"""
_NAMED = 5
"""requests that a refusal names"""


class VersionView(BaseModel):
    model: str
    number: int
    status: str = Field(description="current, retired or purged")
    parent: int | None
    generation: int
    method: str
    claim: dict[str, Any]
    guarantee_note: str | None = Field(default=None, description=GUARANTEE_NOTE)
    samples: int = Field(description="forgotten in this release")
    people: int = Field(description="forgotten in this release")
    checkpoint_sha256: str
    checkpoint_bytes: int
    checkpoint_suffix: str = Field(
        description="how the file's name ends: safetensors, or the library's own format; zip: it holds several files"
    )
    holdout_accuracy: float | None = Field(description="what the recipe's metric gives for its test rows")
    metric: str | None = Field(
        default=None, description="the metric's name, such as accuracy or r2; null where none measures, or before 0.3"
    )
    requests: list[str] = Field(description="ids of the deletion requests that this release carried out")
    published_at: Moment
    retired_at: Moment | None
    purged_at: Moment | None


def noted(
    guarantee: str | None, operators_word: bool | None, tried: list[str] | None, world: dict[str, Any] | None
) -> str | None:
    """Return ``guarantee_note`` of a version with these parts of its claim; None for all: there is no version."""
    word = {} if operators_word is None else {"operators_word": operators_word}  # an older claim has none
    return None if guarantee is None else note({"guarantee": guarantee, "tried": tried, "world": world} | word)


def find_version(session: Session, model: Model, number: str) -> Version:
    """Return the version with this number, or the ``current`` one. Raises ApiProblem (404)."""
    mine = Version.id == model.current_id if number == "current" else Version.number == int(number)
    found = session.scalar(select(Version).where(Version.model_id == model.id, mine))
    if found is None:
        raise not_found("version")
    return found


def versions_of(session: Session, model: Model, below: int | None = None, limit: int = ROWS) -> list[Version]:
    """Return the model's versions, newest first, from those before the number ``below``."""
    rows = select(Version).where(Version.model_id == model.id)
    if below is not None:
        rows = rows.where(Version.number < below)
    return list(session.scalars(rows.order_by(Version.number.desc()).limit(limit)))


def why_never_again(session: Session, version: Version) -> str:
    """Return why an earlier version is never served again: which requests it has not forgotten."""
    later = (
        select(Task.request_id, Version.number)
        .join(Version, Version.id == Task.version_id)
        .where(Version.model_id == version.model_id, Version.number > version.number, Task.samples > 0)
    )
    count = session.scalar(select(func.count()).select_from(later.subquery())) or 0
    if not count:
        return f"Version {version.number} was replaced by a later one, and the current version only moves forward."
    shown = session.execute(later.order_by(Version.number, Task.request_id).limit(_NAMED)).all()
    told = ", ".join(f"request {request} (forgotten in version {number})" for request, number in shown)
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return f"Version {version.number} still holds people that these requests had forgotten: {told}{more}."


def version_views(session: Session, model: Model, versions: Sequence[Version]) -> list[VersionView]:
    requests: dict[str, list[str]] = {each.id: [] for each in versions}
    done = select(Task.version_id, Task.request_id).where(Task.version_id.in_(requests)).order_by(Task.request_id)
    for version_id, request_id in session.execute(done):
        requests[str(version_id)].append(request_id)
    earlier = select(Version.id, Version.number).where(Version.id.in_({each.parent_id for each in versions}))
    numbers = dict(session.execute(earlier).all())
    generations = {each.generation_id for each in versions}
    suffixes, metrics = suffixes_of(session, generations), metrics_of(session, generations)
    views = [
        _view(model, each, numbers.get(each.parent_id or ""), requests[each.id], suffixes[each.generation_id])
        for each in versions
    ]
    return [view.model_copy(update={"metric": metrics[view.generation]}) for view in views]


def metrics_of(session: Session, generations: Collection[int]) -> dict[int, str | None]:
    """Return the name of what measures each generation's holdout; None where the generation does not say."""
    rows = select(Generation.id, Generation.report["metric"].as_string()).where(Generation.id.in_(generations))
    return {number: name for number, name in session.execute(rows)}


def suffixes_of(session: Session, generations: Collection[int]) -> dict[int, str]:
    """Return how the names of each generation's files end."""
    rows = select(Generation.id, Generation.manifest["suffix"].as_string()).where(Generation.id.in_(generations))
    return {number: suffix or SAFETENSORS for number, suffix in session.execute(rows)}


def _view(model: Model, version: Version, parent: int | None, requests: list[str], suffix: str) -> VersionView:
    return VersionView(
        model=model.name,
        number=version.number,
        status=version.status,
        parent=parent,
        generation=version.generation_id,
        method=version.method,
        claim=version.claim,
        guarantee_note=note(version.claim),
        samples=version.samples,
        people=version.people,
        checkpoint_sha256=version.checkpoint,
        checkpoint_bytes=version.size,
        checkpoint_suffix=suffix,
        holdout_accuracy=version.holdout_accuracy,
        requests=requests,
        published_at=version.published_at,
        retired_at=version.retired_at,
        purged_at=version.purged_at,
    )

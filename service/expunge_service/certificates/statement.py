"""What a certificate of erasure says, from facts that are read already: no query, no key but the request's opening."""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from expunge_service.audit import Signer, canonical
from expunge_service.certificates.envelope import PREDICATE_TYPE, STATEMENT_TYPE
from expunge_service.certificates.outcome import named_in
from expunge_service.certificates.plain_words import meaning
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Task, TreeHead, Version
from expunge_service.infra.time import rfc_3339
from expunge_service.requests import AT_ONCE, Account, Reason
from unlearning.accounting.certificate import Claim, Guarantee, together
from unlearning.accounting.composition import Allowance, Composition, at_limit, over_models

_Part: TypeAlias = tuple[dict[str, Any], Composition | None]
"""a model's part of the certificate, and the bound over its later versions"""
OVERWRITTEN = "A key is two shares. One was overwritten in its file, and the row of the other was deleted."
REPLACED = (
    "A key is two shares. The object that held one was replaced in a bucket, and the row of the other was deleted. "
    "Whether the bucket's server keeps replaced bytes is not checked; a bucket that keeps versions is refused."
)


@dataclass(frozen=True)
class Release:
    """A version as every certificate shows it that it serves.

    Args:
        budget_cost: what it was charged, in units of 1e-12 mu^2.
        keys: how many keys were destroyed with it; ``destroyed_at``: the last of them; ``keys_replaced``: how many of
            them were not overwritten where they lay.
        consumers: those of the model, with their versions.
        later: the model's generations after the version's own, each with the moment that it was created.
        held_until: when the last legal hold ended on what the version forgot; 0: there was none.
        publications: the entries of the audit log that publish it.
    """

    version: Version
    model: str
    parent: Version | None
    budget_cost: int
    keys: int
    destroyed_at: int | None
    keys_replaced: int
    consumers: list[dict[str, Any]]
    later: tuple[tuple[int, Allowance], ...]
    held_until: int
    publications: tuple[AuditEntry, ...]

    @cached_property
    def claim(self) -> Claim:
        """Return what the version claims; one object for all its certificates. Raises ValueError."""
        return Claim.from_json(self.version.claim)


@dataclass(frozen=True)
class Completion:
    """A completed request, what carried it out, and its audit entries.

    Args:
        without_version: the names of the models that ended before they carried it out, and the reason of each.
        asked: when the last of its suppression entries was made.
        samples: the keyed digests of the samples that each version (by id) forgot for it.
        outcome: the digest of its tasks, to be compared with that in the entry of its completion.
        accounts: what became of each id or sample that it names; None: not on record.
    """

    request: DeletionRequest
    done: Sequence[tuple[Task, Release]]
    without_version: Sequence[tuple[str, Reason]]
    entries: Sequence[AuditEntry]
    asked: int | None
    samples: Mapping[str, Collection[str]]
    outcome: str
    accounts: Sequence[Account] | None


def statement(key: bytes, completion: Completion, audit: Mapping[str, Any]) -> dict[str, Any]:
    """Return the in-toto statement. ``key``: the opening of the request's commitment."""
    parts = [_part(key, completion, task, release) for task, release in completion.done]
    predicate = _predicate(completion, parts) | {"audit": audit}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [_subject(part) for part, _ in parts],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate | {"in_plain_words": list(meaning(predicate))},
    }


def _subject(part: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"{part['model']}/versions/{part['version']}", "digest": {"sha256": part["checkpoint_sha256"]}}


def _predicate(completion: Completion, parts: Sequence[_Part]) -> dict[str, Any]:
    request = completion.request
    named = named_in(completion.accounts, {release.model for task, release in completion.done if task.samples})
    return {
        "request": request.id,
        "regulation": request.regulation,
        "received_at": _time(request.received_at),
        "due_at": _time(request.due_at),
        "first_due_at": _time(request.first_due_at),
        "extended_at": _time(request.extended_at),
        "completed_at": _time(request.completed_at),
        "models": [part for part, _ in parts],
        "without_version": [
            {"model": name, "reason": reason, "statement": reason.says()} for name, reason in completion.without_version
        ],
        "records": distinct_records([task for task, _ in completion.done], completion.samples),
        "named": None if named is None else named.to_json(),
        "together": _together(completion, [limit for _, limit in parts]),
        "commitments": "HMAC-SHA-256, keyed by the opening, over canonical JSON; see docs/verify.md",
    }


def distinct_records(tasks: Sequence[Task], samples: Mapping[str, Collection[str]]) -> int | None:
    """Return how many distinct records these tasks took out of models that were trained on them.

    ``samples``: the keyed digests of the samples that each version, by id, forgot. None: they do not list all of them,
    so that it is not on record which of two models' are the same.
    """
    took = [task for task in tasks if task.samples and task.reason != Reason.LEFT_OUT]
    listed = [samples.get(task.version_id or "", ()) for task in took]
    if any(len(each) != task.samples for each, task in zip(listed, took, strict=True)):
        return (took[0].samples or 0) if len(took) == 1 else None
    return len(frozenset().union(*listed))


def summed(claims: list[Claim]) -> dict[str, Any] | None:
    """Return what all models together claim for this person. mu^2 adds up; the weakest guarantee counts.

    None as soon as one of them makes no claim.
    """
    deltas = [claim.delta for claim in claims if claim.delta is not None]
    delta = min(deltas, default=None)
    total = together(claims, delta) if delta is not None else None
    if total is None:
        return None
    weakest = min((claim.guarantee for claim in claims), key=lambda guarantee: guarantee.rank)
    return {"guarantee": weakest.value, "mu": total[0], "epsilon": total[1], "delta": delta}


def _together(completion: Completion, limits: Sequence[Composition | None]) -> dict[str, Any] | None:
    """Return what all models together claim for this person, for these versions and at the limit of what may come.

    None where a model was retired with the person in it: its versions were published, and no claim is made of them.
    ``limits``: the bound over each model's later versions.
    """
    if any(reason is Reason.MODEL_RETIRED for _, reason in completion.without_version):
        return None
    total = summed([release.claim for _, release in completion.done])
    return None if total is None else total | {"from_these_versions_on": _shown(over_models(limits))}


def _shown(limit: Composition | None) -> dict[str, Any] | None:
    """Return the bound over all versions that may still come; None: there is none."""
    if limit is None:
        return None
    numbers = {"mu": limit.mu, "epsilon": limit.epsilon, "delta": limit.delta}
    return {"guarantee": limit.guarantee.value, **numbers, "statement": limit.statement}


def _generations(completion: Completion, task: Task, release: Release) -> list[Allowance]:
    """Return the generations with versions from this one on that may have held the person.

    A retrain that began before the person asked may hold them. So may one that began while the request could be
    cancelled or waited for an approval, or under a legal hold on them. It forgets them before it is published, at a
    cost. One without fixed terms has no limit.
    """
    claim = release.claim
    own = Allowance(
        release.version.generation_id, claim.guarantee, 0 if claim.guarantee is Guarantee.EXACT else claim.limit
    )
    decided = release.version.published_at if task.not_before == AT_ONCE else task.not_before
    kept_until = max(completion.asked or 0, decided, release.held_until)
    return [own, *(each for at, each in release.later if at <= kept_until)]


def foreseen(parts: Sequence[tuple[str, int, int, Claim]]) -> dict[str, Any]:
    """Return, of the statement that a request would get, what its letter reads.

    ``parts``: model, version, samples and the claim of that version. There is neither a signature nor a log entry.
    """
    limits = [
        at_limit([Allowance(0, claim.guarantee, 0 if claim.guarantee is Guarantee.EXACT else claim.limit)], claim.delta)
        for *_, claim in parts
    ]
    models: list[dict[str, Any]] = [
        {
            "model": model,
            "version": version,
            "samples": samples,
            "claim": claim.to_json(),
            "as_of_version": {"mu": claim.mu},
            "from_this_version_on": _shown(limit),
            "consumers": [],
        }
        for (model, version, samples, claim), limit in zip(parts, limits, strict=True)
    ]
    total = summed([claim for *_, claim in parts])
    together = None if total is None else total | {"from_these_versions_on": _shown(over_models(limits))}
    return {"predicate": {"models": models, "together": together}}


def _part(key: bytes, completion: Completion, task: Task, release: Release) -> _Part:
    """Return what happened in one model. Only the commitment depends on the deleted person."""
    version, parent = release.version, release.parent
    spent = int(version.claim.get("spent") or 0)
    generations = _generations(completion, task, release)
    limit = at_limit(generations, version.claim.get("delta"))
    part = {
        "model": release.model,
        "generation": version.generation_id,
        "version": version.number,
        "checkpoint_sha256": version.checkpoint,
        "parent": parent.number if parent else None,
        "parent_checkpoint_sha256": parent.checkpoint if parent else None,
        "method": version.method,
        "samples": task.samples,
        "reason": task.reason,
        "samples_commitment": _samples_commitment(key, completion.samples.get(version.id, ())),
        "claim": version.claim,
        "as_of_version": {name: version.claim.get(name) for name in ("mu", "epsilon", "delta")},
        "generations": [each.generation for each in generations],
        "from_this_version_on": _shown(limit),
        "budget": {
            "unit": "1e-12 mu^2",
            "before": spent - release.budget_cost,
            "after": spent,
            "limit": version.claim.get("limit"),
        },
        "keys_destroyed_with_release": {
            "count": release.keys,
            "last_at": _time(release.destroyed_at),
            "how": (REPLACED if release.keys_replaced else OVERWRITTEN) if release.keys else None,
        },
        "consumers": release.consumers,
    }
    return part, limit


def _samples_commitment(key: bytes, samples: Collection[str]) -> str | None:
    """Return the commitment to the sorted keyed digests of the samples that an update forgot for the request.

    None: it forgot none.
    """
    return hmac.new(key, canonical({"samples": sorted(samples)}).encode(), "sha256").hexdigest() if samples else None


def audit_of(
    signer: Signer, head: TreeHead, entries: Sequence[AuditEntry], paths: Mapping[int, list[bytes]]
) -> dict[str, Any]:
    """Return the entries under the signed head. Of a publication only the hash is shown: its text concerns others
    too.
    """
    shown = []
    for entry in entries:
        index = entry.log_index or 0
        body = entry.body if entry.kind.startswith("request.") else None
        hashes = [b64encode(each).decode() for each in paths[index]]
        shown.append({"kind": entry.kind, "index": index, "leaf_hash": entry.leaf_hash, "body": body, "hashes": hashes})
    return {"key": str(signer.verifier), "checkpoint": head.note, "entries": shown}


def _time(at: int | None) -> str | None:
    return None if at is None else rfc_3339(at)

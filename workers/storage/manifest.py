"""The manifest of a generation: for each position its sample, its people and its content, as keyed digests.

Preparation writes it once. An update uses it to find its samples again: samples that were added to the recipe are
ignored, forgotten ones may be missing, retained ones must be there unchanged.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import compress
from typing import Any

import torch
from sqlalchemy import insert, select
from sqlalchemy.orm import Session
from torch import Tensor

from service.infra.pseudonyms import Pepper, content_digest, digest, sample_digest, subject_digest
from service.infra.tables import Membership
from unlearning.accounting.policy import Granularity
from unlearning.recipe import Recipe, Samples, holdout_people
from unlearning.types import Examples

LIBRARIES = ("torch", "numpy", "scipy", "safetensors", "expunge")


@dataclass(frozen=True)
class SampleDigests:
    """One sample of the recipe in digests: its own, its content's, its subjects', and its holder."""

    index: int
    sample: str
    content: str
    subjects: tuple[str, ...]
    holder: str


@dataclass(frozen=True)
class Place:
    """What the manifest says of one position; ``subjects`` in order."""

    position: int
    sample: str
    content: str
    holder: str
    subjects: tuple[str, ...]


@dataclass(frozen=True)
class Located:
    """Samples of a generation, compared with the recipe at ``compared_at`` (``time.monotonic``); ``ids`` in order."""

    ids: tuple[str, ...]
    examples: Examples
    compared_at: float

    @property
    def size(self) -> int:
        """Return the bytes of inputs and targets."""
        return self.examples.inputs.nbytes + self.examples.targets.nbytes

    def without(self, positions: Sequence[int]) -> Located:
        """Return the samples whose position is not among ``positions``."""
        leaving = torch.tensor(positions, dtype=torch.int64, device=self.examples.positions.device)
        staying = ~torch.isin(self.examples.positions, leaving)
        return replace(self, ids=tuple(compress(self.ids, staying.tolist())), examples=self.examples.without(leaving))

    def again(self, samples: Samples) -> Located | None:
        """Return the same samples as read now; None where ``samples`` lack one, or have another content, bit by bit."""
        places = {identity: index for index, identity in enumerate(samples.ids)}
        if not places.keys() >= set(self.ids):
            return None
        index = torch.tensor([places[identity] for identity in self.ids], dtype=torch.int64)
        kept = (self.examples.inputs, self.examples.targets)
        same = all(_same_bits(now[index], before) for now, before in zip(samples.tensors(), kept, strict=True))
        return replace(self, compared_at=time.monotonic()) if same else None


class Changed(RuntimeError):
    """Retained samples are missing from the recipe, or have other content than when the model was trained."""

    def __init__(self, missing: int, changed: int) -> None:
        super().__init__(f"{missing} retained samples are missing and {changed} are changed")
        self.missing = missing
        self.changed = changed


def entries(pepper: Pepper, tenant_id: str, samples: Samples, granularity: Granularity) -> list[SampleDigests]:
    """Return the digests of every sample of the recipe, in its order. All data are read once."""
    inputs, targets = samples.tensors()
    by_subject = {name: subject_digest(pepper, tenant_id, name) for people in samples.people for name in people}
    found = []
    for index, (identity, people) in enumerate(zip(samples.ids, samples.people, strict=True)):
        sample = sample_digest(pepper, tenant_id, identity)
        subjects = tuple(sorted(by_subject[name] for name in people))
        holder = sample if granularity is Granularity.SAMPLE else _holder(pepper, subjects)
        content = content_digest(pepper, tenant_id, _bytes(inputs[index]) + b"\0" + _bytes(targets[index]))
        found.append(SampleDigests(index, sample, content, subjects, holder))
    return found


def rows(generation_id: int, kept: Iterable[SampleDigests]) -> Iterator[dict[str, Any]]:
    """Yield the membership rows; positions count the kept entries from 0."""
    for position, entry in enumerate(kept):
        for subject in entry.subjects:
            yield {
                "generation_id": generation_id,
                "position": position,
                "subject_digest": subject,
                "sample_digest": entry.sample,
                "content_digest": entry.content,
                "holder": entry.holder,
            }


def holdout_rows(pepper: Pepper, tenant_id: str, generation_id: int, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the rows of the people that the recipe names for its holdout."""
    people = sorted(subject_digest(pepper, tenant_id, name) for name in holdout_people(recipe))
    return [{"generation_id": generation_id, "subject_digest": person} for person in people]


def write(session: Session, batch: Sequence[dict[str, Any]]) -> None:
    """Insert a batch of ``rows``."""
    session.execute(insert(Membership), list(batch))


def places(session: Session, generation_id: int) -> list[Place]:
    """Return the manifest of a generation, by position."""
    columns = (Membership.position, Membership.sample_digest, Membership.content_digest, Membership.holder)
    query = select(*columns, Membership.subject_digest).where(Membership.generation_id == generation_id)
    found: dict[int, Place] = {}
    for position, sample, content, holder, subject in session.execute(
        query.order_by(Membership.position, Membership.subject_digest)
    ):
        others = found[position].subjects if position in found else ()
        found[position] = Place(position, sample, content, holder, (*others, subject))
    return list(found.values())


def examples(samples: Samples, kept: Sequence[SampleDigests], device: torch.device) -> Examples:
    """Return the kept entries' samples, at positions 0..n-1, on the device."""
    inputs, targets = samples.tensors()
    index = torch.tensor([entry.index for entry in kept], dtype=torch.int64)
    return Examples(
        positions=torch.arange(len(kept), device=device),
        inputs=inputs[index].to(device),
        targets=targets[index].to(device),
        people=tuple(entry.holder for entry in kept),
        subjects=tuple(entry.subjects for entry in kept),
    )


def found_again(
    samples: Samples, now: Iterable[SampleDigests], manifest: Iterable[Place], gone: Set[int], device: torch.device
) -> Located:
    """Return the manifest's samples as the recipe has them now, without the positions ``gone``.

    Raises Changed if one of the others is missing or has other content.
    """
    current = {entry.sample: entry for entry in now}
    wanted = [place for place in manifest if place.position not in gone]
    missing = sum(1 for place in wanted if place.sample not in current)
    changed = sum(1 for place in wanted if place.sample in current and current[place.sample].content != place.content)
    if missing or changed:
        raise Changed(missing, changed)
    inputs, targets = samples.tensors()
    index = [current[place.sample].index for place in wanted]
    rows = torch.tensor(index, dtype=torch.int64)
    examples = Examples(
        positions=torch.tensor([place.position for place in wanted], dtype=torch.int64, device=device),
        inputs=inputs[rows].to(device),
        targets=targets[rows].to(device),
        people=tuple(place.holder for place in wanted),
        subjects=tuple(place.subjects for place in wanted),
    )
    return Located(tuple(samples.ids[each] for each in index), examples, time.monotonic())


def surroundings(device: torch.device) -> dict[str, str]:
    """Return library versions and device class, as the manifest records them."""
    versions = {name: _version(name) for name in LIBRARIES}
    return versions | {"python": platform.python_version(), "device": device.type}


def replayable(frozen: Mapping[str, str], device: torch.device) -> bool:
    """Return whether a recorded trajectory can be replayed here: torch's minor version and the device's class agree."""
    here = surroundings(device)
    minor = [".".join(each.get("torch", "").split(".")[:2]) for each in (frozen, here)]
    return minor[0] == minor[1] and frozen.get("device") == here["device"]


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "unknown"


def _holder(pepper: Pepper, subjects: tuple[str, ...]) -> str:
    return subjects[0] if len(subjects) == 1 else digest(pepper, "holder", "+".join(subjects))


def _bytes(value: Tensor) -> bytes:
    plain = value.detach().cpu().contiguous()
    kind = f"{plain.dtype} {tuple(plain.shape)} ".encode()
    return kind + plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def _same_bits(now: Tensor, before: Tensor) -> bool:
    """Return whether the two have one dtype, shape and content; -0.0 is not 0.0, as in the content's digest."""
    if now.dtype != before.dtype or now.shape != before.shape:
        return False
    flat = (each.contiguous().reshape(-1).view(torch.uint8) for each in (now.to(before.device), before))
    return torch.equal(*flat)

"""The manifest of a generation: for each position its sample, its people and its content, as keyed digests.

Preparation writes it once. An update uses it to find its samples again: samples that were added to the recipe are
ignored, forgotten ones may be missing, retained ones must be there unchanged.
"""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from sqlalchemy import exists, insert, select
from sqlalchemy.orm import Session
from torch import Tensor

import expunge
from expunge_service.infra.pseudonyms import Pepper, digest, digests, subject_digest
from expunge_service.infra.tables import HoldoutPerson, Membership, Removal, SuppressionEntry
from expunge_service.models import memberships_changed
from unlearning.accounting.policy import Granularity
from unlearning.columns import BLOCK, Column
from unlearning.recipe import Recipe, Samples, everyone, holdout_people
from unlearning.types import Examples

GROUP = 1024
"""positions of samples that have one digest together"""
LONG = 32
"""bytes of a digest"""
TEXT = np.dtype("S64")
"""a digest in hex"""
LIBRARIES = ("torch", "numpy", "safetensors")


class HexColumn(Sequence[str]):
    """Digests in hex, made from their bytes (n, 32) when one is asked for."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        return (
            tuple(self[row] for row in range(len(self))[index])
            if isinstance(index, slice)
            else self.data[index].tobytes().hex()
        )


@dataclass(frozen=True)
class SampleDigests:
    """What a recipe gives, in digests of n rows: ``samples`` and ``contents`` are (n, 32) uint8."""

    samples: np.ndarray[Any, Any]
    contents: np.ndarray[Any, Any]


@dataclass(frozen=True)
class SampleIndex(SampleDigests):
    """Samples in digests with their people, as columns of n rows.

    ``at`` is (n,) int64: the sample's row in the recipe, or its position in the manifest. ``subjects`` holds each
    sample's people in order, ``holders`` the holder of the vector it is part of.
    """

    at: Tensor
    subjects: Column[tuple[str, ...]]
    holders: Column[str]

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: Tensor) -> SampleIndex:
        """Return these rows: places (m,) int64, or a mask (n,) bool."""
        places = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        here = places.numpy()
        subjects, holders = self.subjects.take(places), self.holders.take(places)
        return SampleIndex(self.samples[here], self.contents[here], self.at[places], subjects, holders)

    def agrees(self, other: SampleIndex) -> bool:
        """Return whether both have the same samples, people and content, in one order; positions aside."""
        mine, others = (np.concatenate((each.samples, each.contents)) for each in (self, other))
        return np.array_equal(mine, others) and self.subjects == other.subjects

    def people(self) -> frozenset[str]:
        """Return the people of these samples."""
        return frozenset(subject for people in self.subjects.distinct() for subject in people)

    def named(self, names: Set[str]) -> Tensor:
        """Return a mask (n,) bool: the names hold the sample, or one of its people."""
        wanted = np.frombuffer(b"".join(map(bytes.fromhex, names)), dtype=np.uint8).reshape(-1, LONG)
        return is_among(self.samples, wanted) | self.subjects.where(lambda people: not names.isdisjoint(people))


@dataclass(frozen=True)
class Changed:
    """How many retained samples are missing from the recipe, or have other content than when the model was trained."""

    missing: int
    changed: int


def given(pepper: Pepper, tenant_id: str, samples: Samples, names: np.ndarray[Any, Any] | None = None) -> SampleDigests:
    """Return the digests of every sample of the recipe, in its order. ``names``: those of their ids, where known."""
    parts = zip(*(torch.split(part, BLOCK) for part in (samples.rows.inputs, samples.rows.targets)), strict=True)
    contents = (digests(pepper, "content", tenant_id, _messages(*part)) for part in parts)
    names = named(pepper, tenant_id, samples) if names is None else names
    return SampleDigests(names, _rows(contents, len(samples)))


def entries(pepper: Pepper, tenant_id: str, samples: Samples, granularity: Granularity) -> SampleIndex:
    """Return the digests of every sample of the recipe and of its people. All data are read once, by blocks."""
    return indexed(given(pepper, tenant_id, samples), pepper, tenant_id, samples, granularity)


def indexed(
    digests_now: SampleDigests, pepper: Pepper, tenant_id: str, samples: Samples, granularity: Granularity
) -> SampleIndex:
    """Return these digests of the recipe's samples with the samples' people."""
    subjects, everyone = subjects_of(pepper, tenant_id, samples), torch.arange(len(samples))
    theirs = holders(pepper, subjects, digests_now.samples if granularity is Granularity.SAMPLE else None)
    return SampleIndex(digests_now.samples, digests_now.contents, everyone, subjects, theirs)


def named(pepper: Pepper, tenant_id: str, samples: Samples) -> np.ndarray[Any, Any]:
    """Return the digest of each sample's id, (n, 32)."""
    starts = range(0, len(samples), BLOCK)
    ids = (samples.names.encoded(start, start + BLOCK) for start in starts)
    return _rows((digests(pepper, "sample", tenant_id, block) for block in ids), len(samples))


def subjects_of(pepper: Pepper, tenant_id: str, samples: Samples) -> Column[tuple[str, ...]]:
    """Return the digests of each sample's people, in order."""
    known = _digests_of_people(pepper, tenant_id, dict.fromkeys(chain.from_iterable(samples.people.values)))
    return samples.people.map(lambda people: tuple(sorted(map(known.__getitem__, people))))


def holders(pepper: Pepper, subjects: Column[tuple[str, ...]], named: np.ndarray[Any, Any] | None) -> Column[str]:
    """Return the holder of each sample's vector: its people, or the sample by its digest in ``named``."""
    if named is not None:
        return Column(torch.arange(len(named)), HexColumn(named))
    return subjects.map(lambda people: people[0] if len(people) == 1 else digest(pepper, "holder", "+".join(people)))


def _rows(blocks: Iterable[bytes | bytearray], count: int) -> np.ndarray[Any, Any]:
    """Return the digests of so many samples, (count, 32), from blocks of them one after the other."""
    found, start = np.empty((count, LONG), dtype=np.uint8), 0
    for block in blocks:
        rows = np.frombuffer(block, dtype=np.uint8).reshape(-1, LONG)
        found[start : start + len(rows)] = rows
        start += len(rows)
    return found


def _messages(inputs: Tensor, targets: Tensor) -> Iterator[memoryview]:
    """Return the bytes of each sample of a block: type, shape and numbers of its input and of its target."""
    parts = (_bytes(inputs), np.zeros((len(inputs), 1), dtype=np.uint8), _bytes(targets))
    whole = np.concatenate(parts, axis=1)
    data, width = memoryview(whole.tobytes()), whole.shape[1]
    return (data[start : start + width] for start in range(0, len(data), width))


def _bytes(values: Tensor) -> np.ndarray[Any, Any]:
    """Return the bytes of each row (m, width) of values (m, ...), after its type and shape."""
    kind = np.frombuffer(f"{values.dtype} {tuple(values.shape[1:])} ".encode(), dtype=np.uint8)
    plain = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    rows = plain.reshape(len(values), plain.size // len(values))
    return np.concatenate([np.broadcast_to(kind, (len(values), len(kind))), rows], axis=1)


def blocks(kept: SampleIndex) -> Iterator[tuple[int, SampleIndex]]:
    """Yield the kept samples a block at a time, each with the position of its first."""
    for start in range(0, len(kept), BLOCK):
        yield start, kept.take(torch.arange(start, min(start + BLOCK, len(kept))))


def rows(generation_id: int, start: int, block: SampleIndex) -> dict[str, np.ndarray[Any, Any]]:
    """Return the membership rows of a block, by columns: one for each person of a sample.

    Positions count from ``start``.
    """
    at = np.repeat(np.arange(len(block)), block.subjects.each(len).numpy())
    return {
        "generation_id": np.full(len(at), generation_id),
        "position": at + start,
        "subject_digest": np.array([subject for people in block.subjects for subject in people], dtype=TEXT),
        "sample_digest": _in_hex(block.samples)[at],
        "content_digest": _in_hex(block.contents)[at],
        "holder": np.array(list(block.holders), dtype=TEXT)[at],
    }


def write(session: Session, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Insert membership rows.

    PostgreSQL is sent them as text (COPY), which takes a fraction of the time of an INSERT.
    """
    if session.get_bind().dialect.name == "postgresql":
        _copy(session, columns)
        return
    ready = zip(*(each.astype(str if each.dtype == TEXT else int).tolist() for each in columns.values()), strict=True)
    session.execute(insert(Membership.__table__), [dict(zip(columns, row, strict=True)) for row in ready])


def _in_hex(data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return digests (n, 32) as texts (n,)."""
    return np.frombuffer(data.tobytes().hex().encode(), dtype=TEXT)


def _copy(session: Session, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Send rows of whole numbers and digests to PostgreSQL, in the session's transaction."""
    count, tab = len(next(iter(columns.values()))), np.uint8(ord("\t"))
    parts: list[np.ndarray[Any, Any]] = []
    for column in columns.values():
        text = column if column.dtype == TEXT else np.char.mod("%d", column).astype(bytes)
        parts += [np.ascontiguousarray(text).view(np.uint8).reshape(count, -1), np.full((count, 1), tab)]
    parts[-1][:] = ord("\n")
    # a number shorter than the longest is filled up with zero bytes, which COPY refuses
    lines = np.concatenate(parts, axis=1).tobytes().replace(b"\0", b"")
    raw: Any = session.connection().connection.driver_connection
    with (
        raw.cursor() as cursor,
        cursor.copy(f"COPY {Membership.__tablename__} ({', '.join(columns)}) FROM STDIN") as copy,
    ):
        copy.write(lines)


def digests_of_people(pepper: Pepper, tenant_id: str, recipe: Recipe) -> dict[str, str]:
    """Return the digest of every person of the recipe, its holdout's too, by their id."""
    return _digests_of_people(pepper, tenant_id, everyone(recipe))


def _digests_of_people(pepper: Pepper, tenant_id: str, people: Collection[str]) -> dict[str, str]:
    found = digests(pepper, "subject", tenant_id, (name.encode() for name in people)).hex()
    return {name: found[place * TEXT.itemsize : (place + 1) * TEXT.itemsize] for place, name in enumerate(people)}


def holdout_rows(pepper: Pepper, tenant_id: str, generation_id: int, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the rows of the people that the recipe names for its holdout."""
    people = sorted(subject_digest(pepper, tenant_id, name) for name in holdout_people(recipe))
    return [{"generation_id": generation_id, "subject_digest": person} for person in people]


class _Reading:
    """Membership rows that are read a part at a time."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._digests = bytearray(), bytearray()
        self._names: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._codes: tuple[list[int], list[int]] = ([], [])

    def add(
        self,
        positions: Iterable[int],
        samples: Sequence[str],
        contents: Sequence[str],
        holders: Sequence[str],
        subjects: Sequence[str],
    ) -> None:
        """Take some rows, by columns. Raises ValueError where a digest is none."""
        self._positions.extend(positions)
        for data, texts in zip(self._digests, (samples, contents), strict=True):
            data.extend(bytes.fromhex("".join(texts)))
        for names, places, codes in zip((holders, subjects), self._names, self._codes, strict=True):
            codes.extend([places.setdefault(name, len(places)) for name in names])

    def add_lines(self, lines: Sequence[str]) -> None:
        """Take some rows as the lines that versions commit to. Raises ValueError where one is no such line."""
        fields = "|".join(lines).split("|")
        positions, subjects, samples, contents, holders = (fields[place::5] for place in range(5))
        self.add(map(int, positions), samples, contents, holders, subjects)

    def index(self) -> SampleIndex:
        """Return the samples by position; one of several people was a row for each."""
        read, of_holders, of_subjects = (np.array(column, dtype=np.int64) for column in (self._positions, *self._codes))
        order = np.argsort(read, kind="stable")
        at = read[order]
        starts = np.flatnonzero(np.diff(at, prepend=-1))
        subjects = _several(of_subjects[order], starts, tuple(self._names[1]))
        first = order[starts]
        samples, contents = (_rows([data], len(read))[first] for data in self._digests)
        holders_column = Column(torch.from_numpy(of_holders[first]), tuple(self._names[0]))
        return SampleIndex(samples, contents, torch.from_numpy(at[starts]), subjects, holders_column)


def places(session: Session, generation_id: int) -> SampleIndex:
    """Return the manifest of a generation, by position."""
    table = Membership.__table__.c
    columns = (table.position, table.sample_digest, table.content_digest, table.holder, table.subject_digest)
    query = select(*columns).where(table.generation_id == generation_id).execution_options(yield_per=BLOCK)
    reading = _Reading()
    # the connection gives plain rows; the session would look for entities in each of them
    for part in session.connection().execute(query).partitions():
        flat = list(chain.from_iterable(part))  # zip(*part) takes a row from each of many iterators, far apart
        reading.add(*(flat[place :: len(columns)] for place in range(len(columns))))
    return reading.index()


def places_as_committed(session: Session, pepper: Pepper, generation_id: int) -> SampleIndex | None:
    """Return the same, of rows that versions commit to; None where one was changed, removed or added.

    Each row is read once.
    """
    reading, refused = _Reading(), list[ValueError]()

    def see(lines: Sequence[str]) -> None:
        try:
            reading.add_lines(lines)
        except ValueError as error:  # a line that was changed may be anything; its block tells
            refused.append(error)

    changed = memberships_changed(session, pepper, generation_id, see)
    return None if changed or refused else reading.index()


def _several(
    codes: np.ndarray[Any, Any], first: np.ndarray[Any, Any], names: tuple[str, ...]
) -> Column[tuple[str, ...]]:
    """Return the people of each sample, from a row for each person: ``codes`` (m,), the first rows of samples (n,)."""
    if len(first) == len(codes):
        return Column(torch.from_numpy(codes), tuple((name,) for name in names))
    ends = [*first.tolist(), len(codes)]
    return Column.of(tuple(sorted(names[code] for code in codes[start:end])) for start, end in pairwise(ends))


def held_out(session: Session, tenant_id: str, generation_id: int) -> frozenset[str]:
    """Return the people, by digest, whom registration kept apart from training and who have not asked to leave since.

    Each is looked up by an index: people who left years ago cost nothing.
    """
    left = exists().where(
        SuppressionEntry.tenant_id == tenant_id,
        SuppressionEntry.subject_digest == HoldoutPerson.subject_digest,
        SuppressionEntry.lifted_at.is_(None),
    )
    rows = select(HoldoutPerson.subject_digest).where(HoldoutPerson.generation_id == generation_id, ~left)
    return frozenset(session.scalars(rows))


def asked_to_leave(session: Session, tenant_id: str) -> frozenset[str]:
    """Return the people, by digest, whom an entry of suppression in force names."""
    rows = select(SuppressionEntry.subject_digest).where(
        SuppressionEntry.tenant_id == tenant_id,
        SuppressionEntry.lifted_at.is_(None),
        SuppressionEntry.subject_digest.is_not(None),
    )
    return frozenset(str(person) for person in session.scalars(rows))


def people(session: Session, generation_id: int) -> frozenset[str]:
    """Return all people with a sample in a generation."""
    gone = exists().where(Removal.generation_id == generation_id, Removal.position == Membership.position)
    there = select(Membership.subject_digest).where(Membership.generation_id == generation_id, ~gone)
    return frozenset(session.scalars(there.distinct()))


def examples(samples: Samples, kept: SampleIndex, device: torch.device) -> Examples:
    """Return the kept samples at positions 0..n-1, on the device."""
    everyone = torch.arange(len(kept), device=device)
    return Examples(everyone, samples.held(device), kept.holders, kept.subjects, kept.at).compact()


@dataclass(frozen=True)
class DigestDiff:
    """Samples that were looked for: ``here`` (n,) is where each one lies now, -1 where it is missing."""

    here: Tensor
    missing: int
    changed: int


def compared(now: SampleDigests, then: SampleDigests) -> DigestDiff:
    """Find samples again by their digests, and count those that are missing or have other content."""
    here = places_of(now.samples, then.samples)
    there = here >= 0
    changed = (now.contents[here[there]] != then.contents[there]).any(axis=1)
    return DigestDiff(torch.from_numpy(here), int((~there).sum()), int(changed.sum()))


def is_among(digests_here: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> Tensor:
    """Return a mask (n,) bool: which digests (n, 32) are among these (m, 32)."""
    return torch.from_numpy(places_of(wanted, digests_here) >= 0)


def places_of(among: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return where each digest of ``wanted`` (m, 32) lies ``among`` (n, 32), (m,) int64; -1 where it does not."""
    keys, goals = (np.ascontiguousarray(each[:, :8]).view(np.uint64).reshape(-1) for each in (among, wanted))
    order = np.argsort(keys, kind="stable")
    first = np.searchsorted(keys[order], goals)
    found = np.full(len(wanted), -1, dtype=np.int64)
    open_ones = np.arange(len(wanted))
    while len(open_ones := open_ones[first[open_ones] < len(among)]):
        candidates = order[first[open_ones]]
        same = (among[candidates] == wanted[open_ones]).all(axis=1)
        found[open_ones[same]] = candidates[same]
        # digests that agree in their first 8 bytes alone: look at the next one
        open_ones = open_ones[~same & (keys[candidates] == goals[open_ones])]
        first[open_ones] += 1
    return found


def surroundings(device: torch.device) -> dict[str, str]:
    """Return library versions, device and card, as the manifest has them; ``environment`` has all of a version's."""
    versions = {name: _version(name) for name in LIBRARIES}
    ours = {"expunge": expunge.__version__, "python": platform.python_version(), "device": device.type}
    return versions | ours | card_of(device)


def card_of(device: torch.device) -> dict[str, str]:
    """Return the name of the card, and the versions of CUDA and cuDNN; empty for a CPU."""
    if device.type == "cpu":
        return {}
    module = torch.get_device_module(device)
    named = {"card": str(module.get_device_name(device))} if hasattr(module, "get_device_name") else {}
    if device.type != "cuda":
        return named
    versions = {"cuda": torch.version.cuda or torch.version.hip, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return named | {name: str(value) for name, value in versions.items() if value is not None}


def replayable(frozen: Mapping[str, str], device: torch.device) -> bool:
    """Return whether a recorded trajectory can be replayed here: torch's minor version and the device's class agree."""
    here = surroundings(device)
    minor = [".".join(each.get("torch", "").split(".")[:2]) for each in (frozen, here)]
    return minor[0] == minor[1] and frozen.get("device") == here["device"]


def difference(frozen: Mapping[str, str], device: torch.device) -> dict[str, str]:
    """Return torch and device as a manifest recorded them (``prepared``), and those of this process (``here``)."""
    both = {"prepared": frozen, "here": surroundings(device)}
    return {name: f"torch {each.get('torch')} on {each.get('device')}" for name, each in both.items()}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        return "unknown"

"""Make the parts of a training in worlds: each is a function of its rows, and is made once under its key."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_workers.runtime.drain import look_on, undivided
from expunge_workers.runtime.engine import Engine, EngineWorld
from expunge_workers.runtime.jobs import ASIDE, MAPPED, MEMBER, ON_DISK, ROWS, START, pack, unpack
from expunge_workers.runtime.mapping import BlockMaker, KeptBlocks, open_public_files
from expunge_workers.runtime.points import RESUMED, TakenPoints
from expunge_workers.runtime.rows_recipe import RowsRecipe, SourceUnits
from expunge_workers.runtime.work import work_of
from expunge_workers.runtime.world import seal
from expunge_workers.runtime.worlds import (
    PartOrder,
    PartOutcome,
    SealedRows,
    Template,
    World,
    enter_with_readers,
    make_world,
    require_walls_for,
    template,
)
from expunge_workers.storage import new_key
from expunge_workers.storage.environment import Environment
from expunge_workers.storage.parts import MadePart
from expunge_workers.storage.threads import own_threads
from unlearning.accounting.world import DeclaredFile, Enclosure, WorldRecord
from unlearning.artefact import bytes_of
from unlearning.methods.shards import Merge
from unlearning.model.descent.fitted import Fitted
from unlearning.model.phases import Phase
from unlearning.rows import Published
from unlearning.types import Examples, Progress, RecipeError, Refused

SEEDS = 2**31
"""seeds are below: numpy takes 32 bits, LightGBM 31"""
FILES = "files of {}"
"""under whose keyed digest the key of a part's files is kept"""
MEMBERS = "member-{}/{}"
"""how a file of a member is called in the archive of ``shards``"""


class Parts(KeptBlocks, Protocol):
    """Where parts are kept by their keys (``PartStore``)."""

    def load(self, key: str) -> MadePart | None: ...
    def keep(self, key: str, part: MadePart) -> None: ...
    def keep_point(self, key: str, part: MadePart) -> None: ...
    def require_claim(self) -> None: ...


@dataclass(frozen=True)
class _Planned:
    """A part that is to be made or found: its rows are open."""

    part: object
    units: str
    """the digest of whose rows these are, and what they hold"""
    rows: Mapping[str, SealedRows]
    last: bool
    """no part starts from it, so it is scored"""


class _Interrupted(Exception):
    """A trial was interrupted, as it was to be."""


@dataclass
class _Trial:
    """A part that is made a second time: interrupted at a call of ``checkpoint``, where it calls that, and resumed."""

    leave_at: int | None
    last: MadePart | None = None

    def interrupt(self, point: MadePart) -> None:
        """Raise _Interrupted at the first point; a later one comes by the clock, and is left."""
        if self.last is None:
            self.last = point
            raise _Interrupted


@dataclass(frozen=True)
class _GoingOn:
    """What takes the points of a part, the files by which it offers them and goes on, and what was before them: the
    seconds that it took, and its walls.
    """

    points: TakenPoints | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    walls: tuple[str, ...] = ()


@dataclass
class WorldBuild:
    """Carries out the trainings of a recipe with rows (``Fresh``).

    ``aside``: the units, by source, whose people are kept apart and did not leave; a model is scored by them.
    ``used``: the parts that it was asked for so far, by key; those of blocks that were mapped, without their data.
    """

    recipe: RowsRecipe
    units: SourceUnits
    parts: Parts
    device: torch.device
    aside: Mapping[str, Sequence[int]] = field(default_factory=dict)
    used: dict[str, MadePart] = field(default_factory=dict)
    repeat_within: float = 0.0
    """seconds that a part may take to be made twice, once"""
    repeats: bool | None = None
    """whether the second time gave the same bytes; None: there was none"""
    engine: Engine | None = None
    """what trains the parts; None: worlds of this worker's machine"""
    may_resume: bool = True
    """whether a part that was interrupted may go on: not where one that did is known to end in other bytes"""
    looks: dict[str, int] = field(default_factory=dict)
    """how often each part looked whether it is to offer a point to go on from, by key"""
    _made: dict[str, MadePart] = field(default_factory=dict)
    """by the SHA-256 of the bytes that are published of it"""
    _answers: dict[tuple[str, str, str | None], Fitted] = field(default_factory=dict)
    """by what the part is, its units and the bytes it starts from"""

    def announce(self, chains: Sequence[Sequence[tuple[object, Examples]]], progress: Progress = look_on) -> None:
        """Make all that is missing of these chains in one world, which imports the recipe once."""
        with self._planned(chains) as planned:
            self._make(planned, progress)

    def lacks(self, chain: Sequence[tuple[object, Examples]]) -> bool:
        """Return whether a part of this chain is still to be made."""
        with self._planned([chain]) as planned:
            return self._count_missing(planned, None) > 0

    def __call__(self, part: object, examples: Examples, start: Fitted | None, progress: Progress) -> Fitted:
        """Return what a part left: it was announced and made, or is made now."""
        if isinstance(part, Merge):
            return self._merged(start)
        begins = start is None or not len(start.weights)  # of a phase before it without a person
        before = None if start is None or begins else _digest(bytes_of(start.weights))
        asked = _words(part), _units(examples), before
        if asked not in self._answers:
            with self._planned([[(part, examples)]]) as planned:
                self._make(planned, progress, None if before is None else self._made[before])
        return self._answers[asked]

    def score(self, weights: Tensor) -> float | None:
        """Return how good the model of these bytes is on the rows kept apart, as its world measured it."""
        made = self._made.get(_digest(bytes_of(weights)))
        return None if made is None else made.score

    def record(self, repeats: bool | None) -> WorldRecord:
        """Return what a claim says of the worlds that made these parts."""
        return WorldRecord(
            walls=Enclosure.weakest(part.walls for part in self.used.values()),
            code=self.recipe.digest,
            public_files=tuple(DeclaredFile(path, sha256) for path, sha256 in sorted({*self.recipe.public.values()})),
            sources=self.recipe.source_kinds,
            own_readers=self.recipe.own_readers,
            repeats=repeats,
        )

    def suffix(self, weights: Tensor) -> str:
        """Return how the published file of these bytes ends: as its one file, or ``zip``."""
        names = [name for name, _ in self._made[_digest(bytes_of(weights))].listing]
        return names[0].rpartition("/")[2].partition(".")[2].lower() or "bin" if len(names) == 1 else "zip"

    def _make(self, chains: Sequence[Sequence[_Planned]], progress: Progress, before: MadePart | None = None) -> None:
        """Find or make the parts of each chain, one after the other; the first of each starts from ``before``."""
        missing = self._count_missing(chains, before)
        with ExitStack() as stack:
            aside = self._scoring_rows if missing else {}
            world = stack.enter_context(self._world(missing, progress)) if missing else None
            if isinstance(world, EngineWorld):  # all chains at once, as far as nothing has to be there before
                for planned, start in self._ready(chains, before):
                    world.begin(self._order(stack, planned, start, aside))
            for chain in chains:
                start = before
                for planned in chain:
                    start = self._part(planned, start, world, aside)
        if self.repeat_within and any(chains):
            self._repeat(chains, before, progress)

    def _world(self, count: int, progress: Progress, of: Template | None = None) -> AbstractContextManager[World]:
        opened, threads = open_public_files(self.recipe), int(own_threads())
        if self.engine is not None and of is None:
            return self.engine.world(self.recipe, self, self.device, threads, progress, may_resume=self.may_resume)
        require_walls_for(self.recipe.processes)
        return make_world(
            "train",
            self.recipe.code,
            count,
            opened=opened,
            closed=self.recipe.closed,
            threads=threads,
            progress=progress,
            of=of,
        )

    @cached_property
    def _scoring_rows(self) -> Mapping[str, SealedRows]:
        """The rows of the people who are kept apart, opened once; they end with the readers."""
        return enter_with_readers(self._aside_rows())

    def _count_missing(self, chains: Sequence[Sequence[_Planned]], before: MadePart | None) -> int:
        """Count the parts that no key finds: all that come after one that is missing are."""
        count = 0
        for chain in chains:
            start = before
            for place, planned in enumerate(chain):
                start = self._find(self._key(planned, start))
                if start is None:
                    count += len(chain) - place
                    break
        return count

    def _ready(
        self, chains: Sequence[Sequence[_Planned]], before: MadePart | None
    ) -> Iterator[tuple[_Planned, MadePart | None]]:
        """Yield the first part of each chain that no key finds, and what it starts from."""
        for chain in chains:
            start = before
            for planned in chain:
                part = self._find(self._key(planned, start))
                if part is None:
                    yield planned, start
                    break
                start = part

    def _find(self, key: str) -> MadePart | None:
        if key in self.used:
            return self.used[key]
        part = self.parts.load(key)
        if part is not None:
            self.used[key] = part
        return part

    def _part(
        self, planned: _Planned, start: MadePart | None, world: World | None, aside: Mapping[str, SealedRows]
    ) -> MadePart:
        key = self._key(planned, start)
        part = self._find(key)
        if part is None:
            if world is None:
                raise RuntimeError("a part that was found is gone")
            part = self.used[key] = self._train(planned, start, world, aside)
            self.parts.keep(key, part)
        data = _published(part)
        self._made[_digest(data)] = part
        before = None if start is None else _digest(_published(start))
        weights = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self.device)
        self._answers[_words(planned.part), planned.units, before] = Fitted(weights)
        return part

    def _repeat(self, chains: Sequence[Sequence[_Planned]], before: MadePart | None, progress: Progress) -> None:
        """Make the first part again in a template of its own, where that takes no longer than ``repeat_within``.

        A fork inherits the generators of its template, so a training that forgets its seed repeats within one.
        """
        planned = next(chain[0] for chain in chains if chain)  # nobody may be in a shard
        self.repeat_within, limit = 0.0, self.repeat_within
        part = self.used[self._key(planned, before)]
        if part.seconds > limit:
            return
        if not self._blocks.repeats:
            self.repeats = False
            return
        # In its middle; one that an earlier attempt has made, at its first call.
        trial = _Trial(leave_at=max(1, self.looks.get(self._key(planned, before), 0) // 2))
        while True:
            other = Template.start()
            try:
                with self._world(1, progress, other) as world:
                    self.repeats = self._train(planned, before, world, {}, trial).data == part.data
                return
            except _Interrupted:
                trial.leave_at = None
            finally:
                other.kill()

    def _train(
        self,
        planned: _Planned,
        start: MadePart | None,
        world: World,
        aside: Mapping[str, SealedRows],
        trial: _Trial | None = None,
    ) -> MadePart:
        """Train a part in the world; it goes on from the point where it was interrupted, if it was.

        ``aside``: the rows that it is scored by, where no part starts from it. ``trial``: it is interrupted on purpose.
        """
        with ExitStack() as stack:
            order, going_on = self._order(stack, planned, start, aside), _GoingOn()
            if self.engine is None or trial is not None:  # an engine's program keeps points itself
                going_on = stack.enter_context(self._going_on(order.key, trial))
            outcome = world(replace(order, files={**order.files, **going_on.files}, points=going_on.points))
        seconds = work_of(outcome.seconds, outcome.cpu_seconds, str(self.device))
        part = _made(outcome, outcome.score, seconds + going_on.seconds)
        return replace(part, walls=Enclosure.weakest([part.walls, *going_on.walls]).value)

    def _order(
        self, stack: ExitStack, planned: _Planned, start: MadePart | None, aside: Mapping[str, SealedRows]
    ) -> PartOrder:
        """Return what a world is told of a part; its files are open as long as ``stack`` is."""
        files = handles_of(planned.rows, ROWS)
        if start is not None:
            files[START] = stack.enter_context(sealed(start.data))
        words = self.recipe.order(None if start is None else start.listing) | {"device": str(self.device)}
        scored = handles_of(aside, ASIDE) if planned.last else None
        return PartOrder(words, files, scored, seed_of(planned.part), key=self._key(planned, start))

    @contextmanager
    def _going_on(self, key: str, trial: _Trial | None) -> Iterator[_GoingOn]:
        """Yield what a part of this key may go on from, and what takes the points that it offers."""
        if not self.recipe.run:
            yield _GoingOn()
            return
        name = self.parts.key_of(f"point {key}")
        last = trial.last if trial else self.parts.load(name) if self.may_resume else None
        begun, seconds = time.perf_counter(), 0.0 if last is None else last.seconds
        before = () if last is None else (last.walls,)
        walls = Enclosure.weakest([template().probe.strength.value, *before]).value

        def keep(data: Sequence[bytes]) -> None:
            listing, packed = pack({f"{RESUMED}{rank}": part for rank, part in enumerate(data)})
            point = MadePart(tuple(listing), packed, None, walls, seconds + time.perf_counter() - begun)
            if trial is None:
                self.parts.keep_point(name, point)
            else:
                trial.interrupt(point)

        points = TakenPoints(self.recipe.processes, keep, trial.leave_at if trial else None)
        with undivided(), ExitStack() as stack:  # the claim goes back once the part has had its time to leave
            stack.callback(points.close)
            resumed = {} if last is None else unpack(last.listing, last.data)
            files = {name: stack.enter_context(sealed(data)) for name, data in resumed.items()}
            yield _GoingOn(points, points.files | files, seconds, before)
            if points.calls:
                self.looks[key] = max(points.calls, self.looks.get(key, 0))

    def key_of_files(self, key: str) -> bytes:
        """Return the key of the files by which a part goes to an engine, as ``Ledger``: drawn, and kept as a part is
        that no version is made of.
        """
        name = self.parts.key_of(FILES.format(key))
        kept = self.parts.load(name)
        if kept is None:
            kept = MadePart((), new_key(), None, Enclosure.NONE.value, 0.0)
            self.parts.keep(name, kept)
        return kept.data

    def require_claim(self) -> None:
        self.parts.require_claim()

    def moved_on(self, key: str) -> None:
        name = self.parts.key_of(FILES.format(key))
        kept = self.parts.load(name)
        if kept is not None:
            self.parts.keep_point(name, kept)

    def _merged(self, members: Fitted | None) -> Fitted:
        """Return one file of the members: what the recipe's ``merge`` makes of them, or an archive of all."""
        if members is None:
            raise ValueError("members are merged, and none are given")
        data = [bytes_of(members.tensors[str(number)]) for number in range(len(members.tensors))]
        parts = [self._made[_digest(member)] for member in data if member]
        scores = [part.score for part in parts if part.score is not None]
        mean = sum(scores) / len(scores) if scores and len(scores) == len(parts) else None
        if self.recipe.merges:
            merged = self._merge(parts, mean)
        else:
            named = {
                MEMBERS.format(number, name): content
                for number, part in enumerate(parts)
                for name, content in unpack(part.listing, part.data).items()
            }
            listing, packed = pack(named)
            merged = MadePart(tuple(listing), packed, mean, "", 0.0)
        published = _published(merged)
        self._made[_digest(published)] = merged
        return Fitted(torch.frombuffer(bytearray(published), dtype=torch.uint8).to(self.device))

    def _merge(self, parts: Sequence[MadePart], mean: float | None) -> MadePart:
        inputs = {"merge": [_digest(part.data) for part in parts], "code": self.recipe.digest}
        key = self.parts.key_of(json.dumps(inputs | self._surroundings, sort_keys=True))
        known = self.parts.load(key)
        if known is None:
            with ExitStack() as stack:
                world = stack.enter_context(make_world("merge", self.recipe.code, 1, closed=self.recipe.closed))
                files = {
                    f"{MEMBER}{number}": stack.enter_context(sealed(part.data)) for number, part in enumerate(parts)
                }
                outcome = world(PartOrder({"members": [part.listing for part in parts]}, files))
            known = _made(outcome, mean, 0.0)
            self.parts.keep(key, known)
        self.used[key] = known
        return known

    @contextmanager
    def _planned(self, chains: Sequence[Sequence[tuple[object, Examples]]]) -> Iterator[list[list[_Planned]]]:
        """Yield the parts of these chains that have people, with their rows open."""
        with ExitStack() as stack:
            yield [
                [
                    _Planned(
                        part, _units(examples), stack.enter_context(self._rows(examples)), last=place == len(chain) - 1
                    )
                    for place, (part, examples) in enumerate(chain)
                    if len(examples)
                ]
                for chain in chains
            ]

    @contextmanager
    def _rows(self, examples: Examples) -> Iterator[dict[str, SealedRows]]:
        """Yield the rows of the examples' units, by source."""
        numbers: dict[str, list[int]] = {source: [] for source in self.recipe.sources}
        for source, number in self.units.having(examples.inputs):
            numbers[source].append(number)
        with self._blocks.rows({source: sorted(units) for source, units in numbers.items()}, keep=True) as rows:
            yield rows

    @contextmanager
    def _aside_rows(self) -> Iterator[dict[str, SealedRows]]:
        """Yield the rows that a model is scored by. Nothing that is mapped of them is kept: no version that those
        people leave would destroy it.
        """
        with self._blocks.rows(self.aside, keep=False) as rows:
            yield rows

    @property
    def _blocks(self) -> BlockMaker:
        self._block_maker.kept = self.parts  # a worker that helps keeps for its own unit alone
        return self._block_maker

    @cached_property
    def _block_maker(self) -> BlockMaker:
        return BlockMaker(self.recipe, self.units.reader, self.parts, self._surroundings, self.used)

    def _key(self, planned: _Planned, start: MadePart | None) -> str:
        before = None if start is None else _digest(_published(start))
        rows = {source: _digests(sealed) for source, sealed in planned.rows.items()}
        inputs = {"part": _words(planned.part), "rows": rows, "start": before, **self._surroundings}
        return self.parts.key_of(json.dumps(inputs, sort_keys=True))

    @cached_property
    def _surroundings(self) -> dict[str, str]:
        return surroundings_of(self.recipe, self.device)


def surroundings_of(recipe: RowsRecipe, device: torch.device) -> dict[str, str]:
    """Return what the bytes of every part follow from beside its rows and its start."""
    environment = Environment.of(device, threads=own_threads()).digest
    return {"code": recipe.digest, "declared": recipe.settings, "environment": environment}


def staying_aside(
    pepper: Pepper, tenant_id: str, units: SourceUnits, stay: Callable[[Set[str]], bool]
) -> dict[str, list[int]]:
    """Return the units, by source, that a model is scored by: those of whose people, by digest, ``stay`` is true."""
    numbers: dict[str, list[int]] = {}
    for source, number in units.aside:
        people = {subject_digest(pepper, tenant_id, person) for person in units.people((source, number))}
        if stay(people):
            numbers.setdefault(source, []).append(number)
    return numbers


def seed_of(part: object) -> int:
    """Return the seed of a part's generators: by its name, so that no two shards draw alike."""
    name = part.name if isinstance(part, Phase) else "all"
    return int.from_bytes(hashlib.sha256(f"part {name}".encode()).digest()[:4]) % SEEDS


def _words(part: object) -> str:
    """Return what tells a part from others over the same rows: its kind and its settings."""
    settings = {setting.name: getattr(part, setting.name) for setting in fields(part)}  # type: ignore[arg-type]
    return json.dumps([type(part).__name__, settings], sort_keys=True)


def _units(examples: Examples) -> str:
    return _digest(examples.inputs.cpu().numpy().tobytes())


def _digests(rows: SealedRows) -> object:
    """Return the digest of rows, and where functions are mapped over them, of what each gave."""
    mapped = {function: array.sha256 for function, array in rows.mapped.items()}
    return [rows.sha256, mapped] if mapped else rows.sha256


def handles_of(rows: Mapping[str, SealedRows], kind: str) -> dict[str, int]:
    """Return the files of the rows of each source, and of what was mapped of them, by the names that a part knows."""
    files = {f"{kind}{source}": sealed.handle for source, sealed in rows.items()}
    files |= {f"{ON_DISK}{kind}{source}": each.disk for source, each in rows.items() if each.disk is not None}
    arrays = ((source, *mapped) for source, sealed in rows.items() for mapped in sealed.mapped.items())
    return files | {f"{MAPPED}{kind}{source} {function}": array.handle for source, function, array in arrays}


def _published(part: MadePart) -> bytes:
    """Return what is published of a part. Raises RecipeError where a file is of no known format."""
    return bytes(Published(unpack(part.listing, part.data)))


def _made(outcome: PartOutcome, score: float | None, seconds: float) -> MadePart:
    """Return what a part left. Raises Refused where it is no files, or one of no known format."""
    try:
        listing = tuple((str(name), int(size)) for name, size in outcome.facts["files"])
        unpack(listing, outcome.data)
    except (KeyError, TypeError, ValueError):
        raise Refused("The recipe's process answered what is no list of files.", "Return ul.Published.") from None
    part = MadePart(listing, outcome.data, score, outcome.walls.value, seconds)
    try:
        _published(part)
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    return part


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def sealed(data: bytes) -> Iterator[int]:
    """Yield a sealed file in memory with these bytes."""
    handle = seal(data)
    try:
        yield handle
    finally:
        os.close(handle)

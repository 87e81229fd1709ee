"""Parts of a recipe with rows, made by several workers: each reads the sources itself and keeps a part under its key.

A unit has no result of its own. Who goes on finds the parts by their keys, and makes those that it does not find: rows
that were edited meanwhile change a key, and what was made under another one is dropped with the next version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from sqlalchemy.orm import Session

from expunge_service.infra.tables import Generation, Model, WorkUnit
from expunge_service.models import measured_work
from expunge_service.queue import BUILT, Blocked, Deletions, Job, Stale, extend_manifest, others_take
from expunge_workers.guarantee.terms import guarantee_of
from expunge_workers.runtime import drain
from expunge_workers.runtime.build import WorldBuild
from expunge_workers.runtime.model import OpenModel, forget_by_parts, open_model
from expunge_workers.runtime.process import Process
from expunge_workers.storage.environment import ENVIRONMENT, Environment
from expunge_workers.storage.parts import PartStore
from expunge_workers.training.units import WORTH_SECONDS, Units, in_its_environment, pieces_of
from expunge_workers.update.rows import rows_of_update
from unlearning.accounting.policy import Policy
from unlearning.model.method import InParts
from unlearning.types import Examples, ForgetSet, Forgotten, Learned, Progress, State


class KeyedParts(Units):
    """The chains of parts that a training of a recipe with rows lacks: a generation's first, or an update's.

    They start from nothing, so no state is sealed; ``digest`` is empty.
    """

    NOTE = "by_key"
    RECORD = WorkUnit

    @classmethod
    def of(cls, process: Process, job: Job, bench: OpenModel, examples: Examples) -> Self:
        """Return the units of a training on ``examples``; they are not laid out yet."""
        return cls(process, job.generation_id, job.model_id, bench, examples, _in_parts(bench).start(), "")

    @classmethod
    def note_of(cls, generation: Generation) -> dict[str, Any] | None:
        note = (generation.manifest or {}).get(cls.NOTE)
        return note if isinstance(note, dict) and generation.status in (*BUILT, "live") else None

    @classmethod
    def lay_out(
        cls,
        process: Process,
        job: Job,
        kept: State,  # noqa: ARG003 (nothing is sealed)
        numbers: Iterable[int],
        more: Mapping[str, Any],
    ) -> str:
        """Note the units with ``more`` and add them. Raises Stale."""
        note = {**more, "token": job.lease.token, "policy": job.policy.to_json()}
        with process.storage.database.write() as session:
            extend_manifest(session, job, {cls.NOTE: note})
            pieces_of(process, cls.RECORD, job.generation_id).lay_out(session, numbers)
        return ""

    @classmethod
    def opened(cls, process: Process, generation: Generation, recipe: str) -> Self | None:
        """Read the sources, within a block of ``readers``, and find the people who are trained on in them.

        None where recipe or environment are others, or a registration's rows were edited. Raises Refused, Lost.
        """
        note, frozen, tenant_id = cls.note_of(generation), generation.manifest or {}, generation.tenant_id
        if note is None:
            return None
        policy, parts = Policy.from_json(note["policy"]), PartStore(process.storage, generation.id)
        until = generation.created_at
        bench = open_model(process.settings, tenant_id, recipe, policy, parts=parts, until=until)
        bench = bench.under(guarantee_of(policy, bench.problem, bench.method))
        same = (bench.digest, bench.settings) == (frozen["recipe_digest"], frozen["settings_digest"])
        if not same or not isinstance(bench.method, InParts) or not in_its_environment(bench, note, frozen):
            return None
        if bench.built is not None:
            bench.built.may_resume = frozen.get("repeats") is not False
        rows = rows_of_update(process.storage, tenant_id, generation.id, bench, note.get("gone", ()))
        if isinstance(rows, Blocked) or (generation.status in BUILT and (rows.gone or rows.changed)):
            return None
        start = bench.method.start()
        return cls(process, generation.id, generation.model_id, bench, rows.retained, start, "")

    @classmethod
    def drop_state(cls, process: Process, generation_id: int) -> None:
        """Delete the note."""
        with process.storage.database.write() as session:
            generation = session.get_one(Generation, generation_id)
            generation.manifest = {name: fact for name, fact in (generation.manifest or {}).items() if name != cls.NOTE}

    @cached_property
    def chains(self) -> Mapping[int, Sequence[tuple[object, Examples]]]:
        """The parts of each unit, by its number: one after another starts from the one before."""
        return _in_parts(self.bench).chains(self.bench.problem, self.examples, self.state)

    @property
    def built(self) -> WorldBuild:
        if self.bench.built is None:
            raise ValueError("the recipe has no rows")
        return self.bench.built

    @property
    def learned(self) -> Learned:
        """Return what a method that trains by itself is given."""
        return Learned(self.bench.problem.initial())

    def lacking(self) -> list[int]:
        """Return the numbers of the units of which no key finds a part."""
        return [number for number, chain in self.chains.items() if self.built.lacks(chain)]

    def compute(self, number: int, progress: Progress) -> None:
        """Make one chain and keep its parts. Of two workers the one that the row still names keeps them."""
        parts = self.built.parts

        def is_ours(session: Session) -> bool:
            return self.pieces.ours(session, number) is not None

        self.built.parts = PartStore(self.process.storage, self.generation_id, is_ours)
        try:
            self.built.announce([self.chains[number]], progress)
        finally:
            self.built.parts = parts
        with self.process.storage.database.write() as session:
            self.mark_done(session, number)

    def finished(self, progress: Progress) -> State:
        """Return what ``prepare`` returns; what no key finds is made here."""
        made = self.bench.method.prepare(self.bench.problem, self.examples, self.learned, progress)
        self.work.extend(part.seconds for part in self.built.used.values())
        return made


def forget_by_keys(
    process: Process, job: Deletions, bench: OpenModel, state: State, *, forget: ForgetSet, retain: Examples
) -> Forgotten | None:
    """Return what ``forget_by_parts`` returns, where several parts are missing and made together with other workers.

    None where that is not worth it: fewer than two are missing, a short training, or no other worker takes the model.
    Raises Stale.
    """
    database = process.storage.database
    with database.read() as session:
        generation = session.get_one(Generation, job.generation_id)
        work = measured_work(generation) or 0.0
        helped = others_take(session, session.get_one(Model, job.model_id), process.owner)
        left = KeyedParts.note_of(generation) is not None
    if left:  # by a worker that died
        _clear(process, job)
    engine = bench.built is not None and bench.built.engine is not None  # it divides the work by itself
    if engine or not isinstance(bench.method, InParts) or not helped or work < WORTH_SECONDS:
        return None
    units = KeyedParts.of(process, job, bench, retain)
    lacking = units.lacking()
    if len(lacking) < 2 or work * len(lacking) / len(units.chains) < WORTH_SECONDS:
        return None
    environment = Environment.of(bench.problem.device).digest
    KeyedParts.lay_out(process, job, units.state, lacking, {"gone": sorted(forget.positions), ENVIRONMENT: environment})
    try:
        units.compute_all(job, drain.look_on)
    except Stale:  # the units are another claim's
        raise
    except Exception:
        _clear(process, job)
        raise
    _clear(process, job)
    return forget_by_parts(bench, state, forget, retain)


def _clear(process: Process, job: Deletions) -> None:
    """Delete the note and the units. Raises Drained."""
    with drain.undivided():
        KeyedParts.forget(process, job.generation_id)


def _in_parts(bench: OpenModel) -> InParts:
    if not isinstance(bench.method, InParts):
        raise TypeError("the method does not train in parts")
    return bench.method

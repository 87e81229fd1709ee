"""The audit log and the budget on real databases, under contention."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import func, select, text

from expunge_service.audit import merkle
from expunge_service.audit.log import Overspent, canonical, charge, integrate, newest_head, record
from expunge_service.audit.signed_note import Signer
from expunge_service.audit.verification import verify
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.migrate import migrate
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import AuditEntry, BudgetEntry, Generation, Membership, Model, TreeHead
from expunge_service.models.generations import empty_generation, open_generation
from tests.harness import log_tree

pytestmark = pytest.mark.both_engines

SIGNER = Signer("log.example/one", b"s" * 32)


def a_generation(database: Database, budget: int | None) -> int:
    with database.write() as session:
        model = Model(
            id=new_id(),
            tenant_id="t",
            name=f"m{new_id()}",
            status="live",
            recipe="r",
            policy={},
            created_at=now(session),
        )
        session.add(model)
        session.flush()
        generation = Generation(
            tenant_id="t", model_id=model.id, status="live", method="m", guarantee="proved", budget=budget, created_at=1
        )
        return open_generation(session, generation).id


def entries_of(database: Database) -> list[AuditEntry]:
    with database.read() as session:
        return list(session.scalars(select(AuditEntry).order_by(AuditEntry.log_index)))


def test_sixteen_writers_never_overspend_and_the_ledger_adds_up(database: Database) -> None:
    generation_id = a_generation(database, budget=50)

    def spend(_: int) -> bool:
        while True:
            try:
                with database.write() as session:
                    charge(session, generation_id, None, 7)
                return True
            except Overspent:
                return False
            except Busy:
                continue

    with ThreadPoolExecutor(16) as pool:
        paid = sum(pool.map(spend, range(32)))
    with database.read() as session:
        assert paid == 7
        assert session.get_one(Generation, generation_id).spent == 49
        assert session.scalar(select(func.sum(BudgetEntry.budget_cost))) == 49


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_sum_of_a_generations_ledger_is_read_from_an_index_alone(database: Database) -> None:
    """Before certificates are signed it is compared with what was spent, however many versions there were."""
    ledger = select(func.sum(BudgetEntry.budget_cost)).where(BudgetEntry.generation_id == 1)
    question = ledger.compile(database.engine, compile_kwargs={"literal_binds": True})
    with database.read() as session:
        plan = session.execute(text(f"EXPLAIN QUERY PLAN {question}")).all()
    assert [row.detail.startswith("SEARCH budget_entries USING COVERING INDEX ") for row in plan] == [True]


def test_a_charge_that_does_not_fit_changes_nothing(database: Database) -> None:
    generation_id = a_generation(database, budget=10)
    with pytest.raises(Overspent), database.write() as session:
        charge(session, generation_id, None, 11)
    with database.read() as session:
        assert session.get_one(Generation, generation_id).spent == 0
    with pytest.raises(ValueError, match="give budget back"), database.write() as session:
        charge(session, generation_id, None, -1)


def test_a_generation_without_a_limit_counts_what_it_spends(database: Database) -> None:
    generation_id = a_generation(database, budget=None)
    with database.write() as session:
        charge(session, generation_id, None, 11)
    with database.read() as session:
        assert session.get_one(Generation, generation_id).spent == 11


def test_an_entry_lives_and_dies_with_its_transaction(database: Database) -> None:
    with suppress(RuntimeError), database.write() as session:
        record(session, "t", "it.failed")
        raise RuntimeError
    with database.write() as session:
        record(session, "t", "it.worked", request_id="r", count=3)
    (entry,) = entries_of(database)
    body = json.loads(entry.body)
    assert entry.body == canonical(body)
    assert (body["kind"], body["tenant"], body["request"], body["count"]) == ("it.worked", "t", "r", 3)


def test_a_fact_cannot_take_the_name_of_an_entrys_own_field(database: Database) -> None:
    with pytest.raises(ValueError, match="at"), database.write() as session:
        record(session, "t", "x", at=3)


def test_integration_in_batches_gives_the_tree_of_all_entries(database: Database) -> None:
    for batch in range(1, 6):
        with database.write() as session:
            for n in range(batch):
                record(session, "t", "x", n=n)
        with database.write() as session:
            assert integrate(session, SIGNER) == batch
    with database.write() as session:
        assert integrate(session, SIGNER) == 0
    entries = entries_of(database)
    with database.read() as session:
        head = newest_head(session)
        heads = session.scalars(select(TreeHead.note)).all()
    assert head is not None
    assert head.root == log_tree.root_of([merkle.leaf_hash(entry.body.encode()) for entry in entries]).hex()
    lines = [{"index": e.log_index, "leaf_hash": e.leaf_hash, "body": e.body} for e in entries]
    assert verify(lines, head.note, SIGNER.verifier, heads).size == 15


def test_an_entry_that_commits_late_under_a_small_id_is_not_skipped(postgres_url: str) -> None:
    database = Database(postgres_url)
    migrate(database)
    with database.write() as late:
        record(late, "t", "late")
        late.flush()
        with database.write() as session:
            record(session, "t", "early")
        with database.write() as session:
            assert integrate(session, SIGNER) == 1
    with database.write() as session:
        assert integrate(session, SIGNER) == 1
    assert [entry.kind for entry in entries_of(database)] == ["early", "late"]
    assert entries_of(database)[1].id < entries_of(database)[0].id
    database.close()


def test_integrators_that_work_at_once_make_one_log(database: Database) -> None:
    with database.write() as session:
        for n in range(40):
            record(session, "t", "x", n=n)

    def work(_: int) -> int:
        try:
            with database.write() as session:
                return integrate(session, SIGNER, limit=5)
        except Busy:
            return 0

    with ThreadPoolExecutor(8) as pool:
        done = sum(pool.map(work, range(24)))
    entries = [entry for entry in entries_of(database) if entry.log_index is not None]
    assert sorted(entry.log_index or 0 for entry in entries) == list(range(done))
    with database.read() as session:
        head = newest_head(session)
    assert head is not None
    assert head.size == done == 40


def test_ending_a_generation_leaves_nothing_of_its_people(database: Database) -> None:
    kept, ended = a_generation(database, None), a_generation(database, None)
    with database.write() as session:
        for generation_id in (kept, ended):
            session.add(
                Membership(
                    generation_id=generation_id,
                    position=0,
                    subject_digest="s",
                    sample_digest="x",
                    content_digest="c",
                    holder="s",
                )
            )
    with database.write() as session:
        empty_generation(session, ended)
    with database.read() as session:
        assert session.scalars(select(Membership.generation_id)).all() == [kept]
        if database.dialect == "postgresql":
            names = session.scalars(text("SELECT relname FROM pg_class WHERE relkind = 'r'")).all()
            assert f"memberships_{kept}" in names
            assert f"memberships_{ended}" not in names

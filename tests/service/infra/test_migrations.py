"""Migrations are frozen, run in one transaction with data in the tables, and end with the tables of this release."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import MetaData, Table, select, text

import expunge_service.infra.migrate
from expunge_service.infra.db import Database, now
from expunge_service.infra.migrate import SchemaState, compare, migrate, schema_state
from expunge_service.infra.tables import (
    CalibrationOrder,
    DeletionRequest,
    Generation,
    Lease,
    Model,
    Record,
    Task,
    TrainedPart,
    Version,
    WorkUnit,
)
from expunge_service.infra.time import DAY_SECONDS, SECOND
from expunge_service.queue import Stale, TakenLease, WorkUnits, fence, free_pieces, renew
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Fallback, Policy

pytestmark = pytest.mark.both_engines

ROOT = Path(__file__).parents[3] / "migrations" / "expunge_migrations"
FROZEN = {
    "v0001_first.py": "0b5e45d2c3830099ee0e8ed9e7d20136c04494d25c6c916ddb7028c7bdbd850a",
    "v0002_words.py": "f4114e3d49c987c97dcd9a46829dc623b01aefa74bf0e4cc0bc786bf3d21d839",
    "v0003_consumers.py": "980ad1b149273c480d822496c19d6eb95e51eacc414ff46c852e28cb244da768",
    "v0004_witness.py": "b0d740e24691cd2dd271ba40e920750bc8045b49505cd65784439b4eeb1f5d54",
    "v0005_restore.py": "d2eba627ca99db49f93c3500d8f094cade886d8466cd28c3d66868171c158906",
    "v0006_policies.py": "9f3233744567c690d7f1f318be4ef2a14107585e45577e6247f1acf87f73ed8a",
    "v0007_connectors.py": "f3910e15a4ac209e2b3f6920a6216b96ef0866e14a5116520f43e3d2d1d383bf",
    "v0008_batch.py": "cf25b7572a60af08179867c7448514d34634c4193b9c4198f6aadb1c10595a36",
    "v0009_policy_fields.py": "5ce1aaae0e2d30250d6ddb9e4a09788e5a9947c7efc3e8d402e6e16c1f891538",
    "v0010_leases.py": "f95ecbc04efe277cbc80edaf05c29a54e4c7b612b04cf2a172df55f37ac3fad9",
    "v0011_batch.py": "3e089afc9307e430cbc66cf3cca51f35b499f472abe431f6978153e2ddc13923",
    "v0012_places.py": "5030624a4d20582c8939af643e3ba2508e8a1d616cd2c4ffaff6c37f6c0cf3c4",
    "v0013_state.py": "4d4ad309d25ba2b2a00a5f01addad00a5c6763d1bb02fc342fb33196c18b34b5",
    "v0014_parts.py": "7508829eef921feb573f0b7b985777e5ed6e4e101f4669dbf0b4a9dec2bd6bf1",
    "v0015_state.py": "e7f6792139eb7fac1db9099b10662ad9affcafb8958b76c0be8bd53848186843",
    "v0016_waiting.py": "b845e71c92d707a635ecd3876b36441b016dd9898ac6dd1f2103f8f102543c48",
    "v0017_commitments.py": "eb00d74f3b3d19efa8bcaa15cdffca4741c03e6714cab9084573ffacaebceece",
    "v0018_time_zone.py": "e0bf03744a06fd8950a6ec268fc1313add2c87bab142934cf509698fbee0f6cd",
    "v0019_environment.py": "fef797b05f763f1151ef75ea8ca33460180a04f7f9e15fdcf1872d4075af689d",
    "v0021_spellings.py": "ef49fd621dcce6271b568ea13b13c66f56e24c881400c373875e82a18894ff0d",
    "v0022_parts.py": "8fbb1514cc64d94c1745b4d4ec41b725c56c17e3ad3baf4128361e6fd8408815",
    "v0023_list.py": "307adf922d7bd7c61d78fbc6d4dd3fbb857424971de3eadead48f6e73a5736ce",
    "v0024_ledger.py": "5e4180e669d05c595e8ea55c0b14ded77a140116ba868642bbdc5863a7122c39",
    "v0025_drain.py": "3576c87a99e596d0e0f1b38ece9308b4d358eddd2b89a71b3b29869426e0fb67",
    "v0026_one_table_of_parts.py": "1721bcd24cdf308e6290daa4b91a24d63803bfff9568afb7dfe545a1cd042a8d",
}
"""the migrations that a database may have run: a change of a table is one more file, with its digest here"""
NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"


def upgrade() -> None:
    with op.batch_alter_table("models") as models:
        models.alter_column("recipe", existing_type=sa.String(255), type_=sa.String(255), existing_nullable=False)
        {more}
    op.execute("UPDATE models SET recipe = 'renamed'")
    {then}
"""

AddMigration = Callable[..., None]


@pytest.fixture
def add_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddMigration]:
    """Adds a migration after those of this release: it makes the table ``models`` anew where SQLite has to."""
    head = expunge_service.infra.migrate._revisions()[0]
    folder = tmp_path / "migrations"

    def configuration() -> Config:
        config = Config()
        config.set_main_option("script_location", str(folder))
        config.set_main_option("path_separator", "os")
        return config

    def add(more: str = "pass", then: str = "") -> None:
        shutil.copytree(ROOT, folder)
        (folder / "versions" / "v_next.py").write_text(NEXT.format(head=head, more=more, then=then))
        monkeypatch.setattr("expunge_service.infra.migrate._configuration", configuration)
        expunge_service.infra.migrate._revisions.cache_clear()

    yield add
    expunge_service.infra.migrate._revisions.cache_clear()


@pytest.fixture
def furnished(database: Database) -> Database:
    """A migrated database with a model and a generation that refers to it."""
    with database.write() as session:
        session.add(
            Model(id="m", tenant_id="t", name="n", status="live", recipe="r", policy={}, created_at=1, generation_id=1)
        )
        session.flush()
        session.add(
            Generation(tenant_id="t", model_id="m", status="live", method="retrain", guarantee="exact", created_at=1)
        )
    return database


def recipes(database: Database) -> list[str]:
    with database.read() as session:
        return [
            *session.execute(text("SELECT recipe FROM models JOIN generations g ON g.model_id = models.id")).scalars()
        ]


def test_whoever_waited_for_others_of_a_kind_is_due_and_no_policy_says_so_any_more(furnished: Database) -> None:
    old = {"method": "late", "collect_seconds": 604_800, "cadence_seconds": 60}
    with furnished.write() as session:
        session.get_one(Model, "m").policy = old
        session.get_one(Generation, 1).manifest = {"trained": {"state": "s", "policy": old}}
        session.add(
            DeletionRequest(
                id="r", tenant_id="t", status="queued", reason="awaiting_others", created_at=5, received_at=5, salt=b""
            )
        )
        session.flush()
        names = {"id": "k", "tenant_id": "t", "request_id": "r", "model_id": "m", "status": "queued"}
        session.add(Task(**names, reason="awaiting_others", not_before=10**15, created_at=5))
    with furnished.engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        import_module("expunge_migrations.versions.v0008_batch").upgrade()
    new = {"method": "late", "cadence_seconds": 60}
    with furnished.read() as session:
        assert session.get_one(Model, "m").policy == new
        assert session.get_one(Generation, 1).manifest == {"trained": {"state": "s", "policy": new}}
        task = session.get_one(Task, "k")
        assert (task.reason, task.not_before) == ("awaiting_batch", 5)
        assert session.get_one(DeletionRequest, "r").reason == "awaiting_batch"


def test_what_was_done_of_a_preparation_stays_done_in_one_table(furnished: Database) -> None:
    many = 12
    before = [
        *("DROP VIEW work_units", "DROP VIEW calibration_orders", "DROP TABLE parts"),
        "CREATE TABLE calibration_orders "
        "(generation_id INTEGER, number INTEGER, owner VARCHAR(120), errors {bytes}, measured_at BIGINT)",
        "CREATE TABLE work_units "
        "(generation_id INTEGER, number INTEGER, owner VARCHAR(120), done_at BIGINT, result VARCHAR(64))",
        "CREATE TABLE trained_parts "
        "(generation_id INTEGER, key VARCHAR(64), result VARCHAR(64), walls VARCHAR(16), seconds DOUBLE PRECISION)",
        "INSERT INTO calibration_orders VALUES (1, 0, 'a', NULL, 7), (1, 1, 'b', NULL, NULL)",
        *(f"INSERT INTO work_units VALUES (1, {number}, NULL, NULL, NULL)" for number in range(many)),
        "UPDATE work_units SET owner = 'a', done_at = 9 WHERE number = 10",
        "INSERT INTO trained_parts VALUES (1, 'k', 'r', 'kernel', 2.0)",
    ]
    kind_of_bytes = "BLOB" if furnished.dialect == "sqlite" else "BYTEA"
    with furnished.engine.begin() as connection:
        for statement in before:
            connection.execute(text(statement.replace("{bytes}", kind_of_bytes)))
        with Operations.context(MigrationContext.configure(connection)):
            import_module("expunge_migrations.versions.v0026_one_table_of_parts").upgrade()
    compare(furnished)
    with furnished.read() as session:
        orders = session.scalars(select(CalibrationOrder).order_by(CalibrationOrder.key)).all()
        assert [(row.number, row.owner, row.done_at) for row in orders] == [(0, "a", 7), (1, "b", None)]
        units = session.scalars(select(WorkUnit).order_by(WorkUnit.key)).all()
        assert [row.number for row in units] == [*range(many)] and [row.done_at for row in units].index(9) == 10
        (part,) = session.scalars(select(TrainedPart))
        assert (part.key, part.result, part.walls, part.seconds, part.done_at) == ("k", "r", "kernel", 2.0, 1)
        read_by_0_2 = "SELECT count(done_at), count(number), count(owner), count(result) FROM work_units"
        assert session.execute(text(read_by_0_2)).one() == (1, many, 1, 0)
        assert session.execute(text("SELECT number, owner, errors, measured_at FROM calibration_orders")).first()
    again = WorkUnits(furnished, "b", 30.0, WorkUnit, 1)
    with furnished.write() as session:
        assert again.take(session) == 0
        again.lay_out(session, [many])
    with furnished.write() as session:
        assert again.ours(session, 0) is not None and free_pieces(session, "b") == ["m"]
    assert (again.count(), again.done()) == (many + 1, 1)


def test_migrations_that_databases_have_run_are_frozen() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (ROOT / "versions").glob("v*.py")}
    assert found == FROZEN


def test_a_later_migration_makes_a_table_anew_under_rows_that_refer_to_it(
    furnished: Database, add_migration: AddMigration
) -> None:
    add_migration()
    assert schema_state(furnished) is SchemaState.BEHIND
    migrate(furnished)
    assert (schema_state(furnished), recipes(furnished)) == (SchemaState.CURRENT, ["renamed"])
    if furnished.dialect == "sqlite":
        with furnished.read() as session:
            assert session.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


@pytest.mark.parametrize(
    ("more", "then", "named"),
    [
        ("models.add_column(sa.Column('surprise', sa.Integer()))", "", "remove_column models.surprise"),
        ("pass", "op.drop_table('holdout_people')", "add_table holdout_people"),
        ("pass", "raise RuntimeError('the disk is full')", "the disk is full"),
    ],
    ids=["a column too many", "a table too few", "fails at its end"],
)
def test_a_migration_that_gives_other_tables_leaves_the_database_as_it_was(
    furnished: Database, add_migration: AddMigration, more: str, then: str, named: str
) -> None:
    head = expunge_service.infra.migrate._revisions()[0]
    add_migration(more, then)
    with pytest.raises(RuntimeError, match=named):
        migrate(furnished)
    assert recipes(furnished) == ["r"]
    with furnished.read() as session:
        assert session.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == head
    with furnished.write() as session:  # no lock is left behind
        session.execute(text("UPDATE models SET recipe = 's'"))


def test_a_migration_that_leaves_rows_without_their_parent_is_rolled_back(
    furnished: Database, add_migration: AddMigration
) -> None:
    add_migration(then="op.execute(\"UPDATE generations SET model_id = 'gone'\")")
    with pytest.raises(Exception, match=r"rows of generations refer to rows that models lacks|foreign key"):
        migrate(furnished)
    assert recipes(furnished) == ["r"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_table_of_another_program_under_a_name_that_a_migration_needs_is_named(
    furnished: Database, add_migration: AddMigration
) -> None:
    """It was a traceback. PostgreSQL changes a table in its place."""
    add_migration()
    with furnished.write() as session:
        session.execute(text("CREATE TABLE _alembic_tmp_models (theirs INTEGER)"))
    with pytest.raises(RuntimeError, match=r"_alembic_tmp_models.*Nothing was changed.*rename or drop"):
        migrate(furnished)
    assert recipes(furnished) == ["r"]
    with furnished.write() as session:
        session.execute(text("DROP TABLE _alembic_tmp_models"))
    migrate(furnished)
    assert recipes(furnished) == ["renamed"]


@pytest.mark.parametrize("kind", ["TABLE models (theirs INTEGER)", "VIEW tasks AS SELECT 1 AS theirs"])
def test_a_name_that_is_taken_in_a_new_database_is_named(
    tmp_path: Path, request: pytest.FixtureRequest, database: Database, kind: str
) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    if database.dialect == "postgresql":
        server = request.getfixturevalue("postgres_server")
        server.execute("CREATE DATABASE shared_with_another")
        request.addfinalizer(lambda: server.execute("DROP DATABASE shared_with_another WITH (FORCE)"))
        url = server.url("shared_with_another")
    new = Database(url)
    with new.write() as session:
        session.execute(text(f"CREATE {kind}"))
    with pytest.raises(RuntimeError, match=f"{kind.split()[1]}.*already exists.*Nothing was changed"):
        migrate(new)
    with new.write() as session:
        session.execute(text(f"DROP {' '.join(kind.split()[:2])}"))
    migrate(new)
    assert schema_state(new) is SchemaState.CURRENT
    new.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused_by_its_encoding(
    request: pytest.FixtureRequest, database: Database, encoding: str
) -> None:
    """Every text came back as bytes from SQL_ASCII, and the command ended in a traceback."""
    server = request.getfixturevalue("postgres_server")
    server.execute(f"CREATE DATABASE odd ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    request.addfinalizer(lambda: server.execute("DROP DATABASE odd WITH (FORCE)"))
    odd = Database(server.url("odd"))
    with pytest.raises(RuntimeError, match=rf"database odd is in {encoding}.*createdb --encoding=UTF8"):
        migrate(odd)
    odd.close()


def test_a_database_whose_first_migration_was_another_is_refused_by_what_it_lacks(database: Database) -> None:
    compare(database)
    with database.write() as session:
        session.execute(text("DROP TABLE holdout_people"))
        session.execute(text("ALTER TABLE tallies RENAME COLUMN bound TO bounds"))
    with pytest.raises(RuntimeError, match=r"add_table holdout_people.*add_column tallies\.bound"):
        compare(database)


def test_a_schema_that_this_release_does_not_know_is_named(database: Database) -> None:
    with database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'f00'"))
    with pytest.raises(RuntimeError, match="has the schema f00"):
        migrate(database)


OLD_CODES = {
    "utility_gate": ("accuracy_drop", None),
    "cap_not_reached": ("needs_retrain", {"needs_retrain": {"cause": "cap_not_reached"}}),
    "failed:KeyError at digits.py:41": ("failed", {"failed": {"error": "KeyError", "file": "digits.py", "line": 41}}),
    "failed:AVeryLongName at a_file_that_was_c": ("failed", None),
    "legal_hold": ("legal_hold", None),
    "already_forgotten": ("already_deleted", None),
}


@pytest.fixture
def first(database: Database) -> Database:
    """A database that only the first migration has run on, with one model."""
    with database.engine.begin() as connection:
        for view in ("work_units", "calibration_orders"):
            connection.execute(text(f"DROP VIEW {view}"))
    Record.metadata.drop_all(database.engine)
    with database.write() as session:
        session.execute(text("DROP TABLE alembic_version"))
    with expunge_service.infra.migrate._locked(database) as connection, connection.begin():
        configuration = expunge_service.infra.migrate._configuration()
        configuration.attributes["connection"] = connection
        command.upgrade(configuration, "0001")
    row = {"id": "m", "tenant_id": "t", "name": "n", "status": "live", "recipe": "r", "policy": {}, "created_at": 1}
    add_rows(database, "models", row)
    return database


def add_rows(database: Database, name: str, *rows: dict[str, object]) -> None:
    """Add rows to the table as it is in the database, which has other columns than this release's records."""
    with database.write() as session:
        table = Table(name, MetaData(), autoload_with=session.connection())
        for row in rows:
            session.execute(table.insert().values(row))


def test_the_codes_of_reasons_are_renamed_but_not_under_a_certificate_that_is_not_signed(first: Database) -> None:
    codes = [*OLD_CODES, "already_forgotten"]
    request = {"tenant_id": "t", "status": "queued", "salt": b"s", "received_at": 1, "created_at": 1}
    task = {"tenant_id": "t", "model_id": "m", "status": "blocked", "not_before": 1, "created_at": 1}
    named = [(f"r{at}", f"t{at}", code) for at, code in enumerate(codes)]
    add_rows(first, "deletion_requests", *({**request, "id": r, "reason": code} for r, _, code in named))
    add_rows(first, "tasks", *({**task, "id": t, "request_id": r, "reason": code} for r, t, code in named))
    certificates = [(r, None if r == "r6" else 2) for r, _, _ in named]
    whole = {"completed_at": 1, "tenant_id": "t"}
    add_rows(first, "certificates", *({**whole, "request_id": r, "issued_at": at} for r, at in certificates))
    migrate(first)
    with first.read() as session:
        *tasks, unsigned = session.scalars(select(Task).order_by(Task.id)).all()
        requests = session.scalars(select(DeletionRequest).order_by(DeletionRequest.id)).all()
        assert [(each.reason, each.facts) for each in tasks] == list(OLD_CODES.values())
        assert [(each.reason, each.facts) for each in requests] == [*OLD_CODES.values(), ("already_deleted", None)]
        assert unsigned.reason == "already_forgotten", "the audit log holds a digest of it"


def test_entries_of_deletion_lists_are_not_dropped_without_a_word(first: Database) -> None:
    """Whom they name would come back with later data. An endpoint of OpenDSR's callbacks gets nothing any more."""
    entry = {"tenant_id": "t", "item": "i", "list_name": "Email", "source": "20261101_4821", "digest": "0" * 64}
    add_rows(first, "feed_items", entry | {"imported_at": 1, "shared": False})
    endpoint = {"tenant_id": "t", "url": "https://a.example/", "kinds": [], "created_at": 1}
    add_rows(
        first, "webhook_endpoints", *({**endpoint, "id": each, "protocol": each} for each in ("opendsr", "standard"))
    )
    with first.write() as session:
        session.execute(
            text("UPDATE models SET policy = :policy"), {"policy": '{"on_unchecked_feed": "accept", "delta": 1}'}
        )
    with pytest.raises(RuntimeError, match=r"feed_items 1\).*expunge drop import.*DELETE FROM feed_items;") as refused:
        migrate(first)
    with first.write() as session:
        assert session.execute(text("SELECT count(*) FROM feed_items")).scalar_one() == 1
        for statement in str(refused.value).partition("again: ")[2].split(";")[:-1]:
            session.execute(text(statement))
    migrate(first)
    with first.read() as session:
        assert session.scalars(select(Model.policy)).one() == {"delta": 1, "batch": 0}
        ended = dict(session.execute(text("SELECT id, disabled_at FROM webhook_endpoints")).all())
    assert ended["opendsr"] is not None and ended["standard"] is None


OLD_DEFAULTS: dict[str, object] = {
    "method": "newton",
    "fallback": None,
    "min_guarantee": "none",
    "guarantee": None,
    "on_exhausted": "retrain",
    "on_suppressed": "refuse",
    "cadence_seconds": 0,
    "retrain_every_seconds": 0,
    "utility_tolerance": 0.1,
    "threshold": 0.6,
}
POLICIES: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "the defaults of before": ({}, {"guarantee": None, "fallback": Fallback.RETRAIN}),
    "required": ({"min_guarantee": "proved"}, {"guarantee": Guarantee.PROVED}),
    "required and exact": ({"min_guarantee": "exact", "method": "retrain"}, {"guarantee": Guarantee.EXACT}),
    "required, had by a proof": ({"min_guarantee": "estimated"}, {"guarantee": Guarantee.PROVED}),
    "asked for": ({"min_guarantee": "estimated", "guarantee": "calibrated"}, {"guarantee": Guarantee.CALIBRATED}),
    "asked for none": ({"guarantee": "none"}, {"guarantee": Guarantee.NONE}),
    "holds": ({"on_exhausted": "hold"}, {"fallback": Fallback.HOLD}),
    "mixed": ({"on_exhausted": "hold", "fallback": "retrain"}, {"fallback": Fallback.RETRAIN}),
    "retrains": ({"fallback": "retrain"}, {"fallback": Fallback.RETRAIN}),
    "other numbers": (
        {"cadence_seconds": 60, "retrain_every_seconds": 7, "utility_tolerance": None},
        {"batch": 60, "retrain_every": 7, "max_accuracy_drop": None},
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_of_before_says_the_same_in_the_fields_of_today(first: Database, name: str) -> None:
    given, expected = POLICIES[name]
    old = OLD_DEFAULTS | given
    row = {"id": "o", "tenant_id": "t", "name": "o", "status": "live", "recipe": "r", "created_at": 1}
    add_rows(first, "models", {**row, "policy": old}, {**row, "id": "p", "name": "p", "policy": {"method": "late"}})
    generation = {"tenant_id": "t", "model_id": "o", "status": "preparing", "method": "newton", "guarantee": "none"}
    notes = {"trained": {"state": "a", "policy": old}, "samples": 3}
    add_rows(first, "generations", {**generation, "created_at": 1, "manifest": notes})
    migrate(first)
    with first.read() as session:
        record = session.get_one(Model, "o")
        manifest = session.scalars(select(Generation.manifest)).one()
        assert Policy.from_json(session.get_one(Model, "p").policy) == Policy("late", batch=0)
    policy = Policy.from_json(record.policy)
    assert {field: getattr(policy, field) for field in expected} == expected and not record.leave_out_forgotten
    assert manifest == {"trained": {"state": "a", "policy": record.policy}, "samples": 3}


def test_a_path_that_was_recorded_before_places_is_bound_to_its_device(first: Database) -> None:
    row = {"id": "o", "tenant_id": "t", "name": "o", "status": "live", "recipe": "r", "created_at": 1}
    add_rows(first, "models", *({**row, "id": each, "name": each, "policy": OLD_DEFAULTS} for each in ("o", "p", "q")))
    generation = {"tenant_id": "t", "model_id": "o", "status": "live", "guarantee": "none", "created_at": 1}
    frozen = {"libraries": {"device": "cuda"}, "samples": 3}
    for number, (model_id, method) in enumerate((("o", "mini"), ("p", "newton")), 70):
        add_rows(first, "generations", {**generation, "id": number, "method": method, "manifest": frozen})
        with first.write() as session:
            session.execute(text(f"UPDATE models SET generation_id = {number} WHERE id = '{model_id}'"))
    migrate(first)
    with first.read() as session:
        assert {each: session.get_one(Model, each).place for each in "opq"} == {"o": "cuda", "p": "any", "q": "any"}
        manifests = {each: session.get_one(Generation, each).manifest for each in (70, 71)}
    assert manifests == {70: frozen | {"bound_to": "cuda"}, 71: frozen}


def test_state_of_versions_that_were_replaced_lately_is_looked_for_and_of_older_ones_taken_for_deleted(
    first: Database,
) -> None:
    with first.read() as session:
        at = now(session)
    frozen = {"tenant_id": "t", "model_id": "m", "status": "live", "guarantee": "none", "created_at": 1, "method": "r"}
    add_rows(first, "generations", {**frozen, "id": 80, "manifest": {}})
    row = {"tenant_id": "t", "model_id": "m", "generation_id": 80, "checkpoint": "c", "size": 1, "state": "s"}
    row |= {"method": "r", "claim": {}, "samples": 1, "people": 1, "published_at": 1}
    ended = {"old": at - 3 * DAY_SECONDS * SECOND, "lately": at - 60 * SECOND, "current": None}
    add_rows(
        first,
        "versions",
        *(
            {**row, "id": name, "number": number, "status": "retired" if when else "current", "retired_at": when}
            for number, (name, when) in enumerate(ended.items(), 1)
        ),
    )
    migrate(first)
    with first.read() as session:
        found = {name: session.get_one(Version, name).state_deleted_at for name in ended}
    assert found == {"old": ended["old"], "lately": None, "current": None}


def test_whether_a_registration_leaves_out_the_forgotten_is_kept(first: Database) -> None:
    row = {"id": "o", "tenant_id": "t", "name": "o", "status": "preparing", "recipe": "r", "created_at": 1}
    add_rows(first, "models", {**row, "policy": OLD_DEFAULTS | {"on_suppressed": "leave_out"}})
    migrate(first)
    with first.read() as session:
        assert session.get_one(Model, "o").leave_out_forgotten and not session.get_one(Model, "m").leave_out_forgotten


def test_a_deletion_that_is_running_passes_the_fence_and_one_that_ended_does_not(first: Database) -> None:
    row = {"tenant_id": "t", "status": "live", "recipe": "r", "policy": {}, "created_at": 1}
    taken = {"lease_token": 7, "lease_owner": "w", "lease_expires_at": 5}
    add_rows(first, "models", {**row, "id": "runs", "name": "runs", **taken})
    add_rows(first, "models", {**row, "id": "ended", "name": "ended", "lease_token": 7})
    retrain = {"token": 8, "owner": "w", "expires_at": 5}
    add_rows(
        first, "leases", {"name": "retrain:runs", **retrain}, {"name": "retrain:ended", **retrain, "expires_at": 0}
    )
    migrate(first)
    for lease in (TakenLease("model:runs", 7), TakenLease("retrain:runs", 8)):
        with first.write() as session:
            assert fence(session, lease).id == "runs" and renew(session, lease, 10, 5.0)
    for lease in (TakenLease("model:ended", 7), TakenLease("retrain:ended", 8)):
        with first.write() as session:
            assert not renew(session, lease, 10, 5.0)
            with pytest.raises(Stale, match=lease.name):
                fence(session, lease)
    with first.read() as session:
        names = set(session.scalars(select(Lease.name)))
    models = ("m", "runs", "ended")
    assert names == {"scheduler", *(f"{kind}:{model}" for kind in ("model", "retrain") for model in models)}

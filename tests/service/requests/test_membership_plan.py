"""Who is touched by a request is found by an index on the person, however many people there are."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from expunge_service.infra.db import Database
from expunge_service.requests.near_misses import Written, look_up
from expunge_service.requests.suppression import known_of
from tests.harness import databases
from tests.harness.plans import FOUND, ROOT, WHOLE


def plans(database: Database) -> list[str]:
    """Return a list that fills with SQLite's plan of every query from now on."""
    found: list[str] = []

    def explain(connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            rows = connection.connection.driver_connection.execute("EXPLAIN QUERY PLAN " + statement, parameters)
            found.extend(row[3] for row in rows)

    event.listen(database.engine, "before_cursor_execute", explain)
    return found


@pytest.mark.parametrize(("query", "found"), [("SELECT body FROM audit_entries", True), ("SELECT 1", False)])
def test_a_query_that_reads_a_whole_table_is_seen(
    sqlite_template: Path, tmp_path: Path, query: str, found: bool
) -> None:
    database = Database(databases.sqlite_databases(sqlite_template)(tmp_path))
    source = "def ask(session, text):\n    session.execute(text)\n"
    made: dict[str, Any] = {}
    exec(compile(source, str(ROOT / "service" / "expunge_service" / "planted.py"), "exec"), made)
    with database.read() as session:
        made["ask"](session, text(f"{query} -- {tmp_path}"))
    database.close()
    assert [each.split(": ")[0] for each in FOUND] == ["service/planted.py:ask"] * found
    FOUND.clear()


def test_every_test_is_told_and_an_excuse_is_for_its_function_alone(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text again, from an excused function and from another: no verdict depends on what was sent before."""
    monkeypatch.setitem(WHOLE, "service/planted.py:excused", "for the test")
    source = "".join(f"def {name}(session, text):\n    session.execute(text)\n" for name in ("excused", "ask", "other"))
    made: dict[str, Any] = {}
    exec(compile(source, str(ROOT / "service" / "expunge_service" / "planted.py"), "exec"), made)
    database = Database(databases.sqlite_databases(sqlite_template)(tmp_path))
    asked = []
    with database.read() as session:
        for name in ("excused", "ask", "other", "ask"):
            made[name](session, text(f"SELECT body FROM audit_entries -- {tmp_path}"))
            asked.append([each.split(": ")[0].rpartition(":")[2] for each in FOUND])
            FOUND.clear()
    database.close()
    assert asked == [[], ["ask"], ["other"], ["ask"]]


@pytest.mark.parametrize("generations", [[1], [1, 2, 3]])
def test_what_orders_name_is_looked_up_by_indexes(
    sqlite_template: Path, tmp_path: Path, generations: list[int]
) -> None:
    """A plan that uses the generation alone reads all of its rows: 13 ms at 100,000 people, under the writer's lock."""
    database = Database(databases.sqlite_databases(sqlite_template)(tmp_path))
    found = plans(database)
    with database.read() as session:
        ids = {"a" * 64: Written({"plain": 1}, (), None), "b" * 64: None}
        look_up(session, "default", ids, dict.fromkeys(generations, "m" * 32), ["c" * 64])
    database.close()
    assert not [plan for plan in found if plan.startswith("SCAN") and "holds" not in plan]
    searches = [plan for plan in found if plan.startswith("SEARCH memberships")]
    assert [plan.partition("(")[2] for plan in searches] == [
        "generation_id=? AND subject_digest=?)",
        "generation_id=? AND sample_digest=?)",
    ]


def test_what_a_model_knows_of_requests_is_found_by_indexes(sqlite_template: Path, tmp_path: Path) -> None:
    database = Database(databases.sqlite_databases(sqlite_template)(tmp_path))
    found = plans(database)
    with database.read() as session:
        known_of(session, "m" * 32, 1, ["r" * 32, "s" * 32])
    database.close()
    assert not [plan for plan in found if plan.startswith("SCAN")]
    searches = [plan for plan in found if plan.startswith("SEARCH memberships")]
    assert [plan.partition("(")[2] for plan in searches] == [
        "generation_id=? AND subject_digest=?)",
        "generation_id=? AND sample_digest=?)",
    ]

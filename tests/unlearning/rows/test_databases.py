"""A query sees the people who stay alone, reads and does nothing else, and finds no way around."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.harness.servers import Postgres
from unlearning.rows import Rows, open_rows, query
from unlearning.types import RecipeError

TABLES = """
CREATE TABLE visits (id integer, patient integer, cost double precision);
INSERT INTO visits VALUES (10, 7, 1.0), (9, 8, 2.0), (11, 9, 6.0);
CREATE TABLE bills (bill text, patient text);
INSERT INTO bills VALUES ('a', 'user:7'), ('b', 'user:8'), ('c', 'user:9');
CREATE TABLE cities (city text, size integer);
INSERT INTO cities VALUES ('Bonn', 3);
CREATE VIEW everybody AS SELECT * FROM visits;
CREATE VIEW further AS SELECT * FROM everybody;
CREATE TABLE loose (id integer, patient text);
INSERT INTO loose VALUES (1, '7'), (2, NULL), (3, 'x');
CREATE TABLE floats (id integer, patient double precision);
INSERT INTO floats VALUES (1, 7.0);
"""


@pytest.fixture(scope="module")
def postgresql(postgres_server: Postgres) -> Iterator[str]:
    with postgres_server.database() as address:
        with psycopg.connect(address.replace("+psycopg", "")) as connection:
            connection.execute(TABLES)  # type: ignore[call-overload]
            connection.execute("CREATE SEQUENCE numbers")
            body = "SELECT sum(cost) FROM public.visits"
            connection.execute(f"CREATE FUNCTION total() RETURNS double precision LANGUAGE sql AS '{body}'")
        yield address


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("crm") / "a b?.db"  # a name that a URI would read otherwise
    connection = sqlite3.connect(path)
    connection.executescript(TABLES)
    connection.close()
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def ask(address: str, sql: str, without: str | None = "7", **changes: Any) -> Rows:
    declared: dict[str, Any] = {"people": {"visits": "patient"}, "id": "id"} | changes
    gone = frozenset() if without is None else frozenset({without})
    return open_rows(query("crm", sql, **declared), Path("/"), without=gone, databases={"crm": address})


pytestmark = pytest.mark.both_engines


def test_an_average_within_the_sql_is_of_the_others_alone(address: str) -> None:
    sql = "SELECT id, patient, (SELECT avg(cost) FROM visits) AS mean, (SELECT count(*) FROM visits) AS n FROM visits;"
    assert [*ask(address, sql)["mean"], *ask(address, sql)["n"]] == [4.0, 4.0, 2, 2]
    assert {*ask(address, sql, None)["mean"]} == {3.0}


def test_rows_are_ordered_by_id_as_numbers(address: str) -> None:
    sql = "SELECT id, patient FROM visits ORDER BY cost DESC"
    assert ask(address, sql, None)["id"].tolist() == ["9", "10", "11"]
    ties = "SELECT 1 AS id, patient FROM visits"
    with pytest.raises(
        RecipeError, match=r"1 rows have an id that an earlier row has.*order of the rows would be open"
    ):
        ask(address, ties)


def test_several_tables_and_one_that_names_nobody(address: str) -> None:
    sql = """
        SELECT visits.id, visits.patient, (SELECT count(*) FROM bills) AS bills, size
        FROM visits, cities
    """
    people = {"visits": "patient"}
    assert {*ask(address, sql, people=people)["bills"]} == {3}  # the declaration names visits alone
    bills = ask(address, "SELECT bill, patient FROM bills", people={"bills": "patient"}, id="bill", spelled="user:{}")
    assert bills["bill"].tolist() == ["b", "c"]


def test_a_person_who_comes_by_another_table_leaves_too(address: str) -> None:
    sql = "SELECT bill AS id, patient FROM bills"
    with pytest.raises(RecipeError, match=r"not spelled 'user:{}'"):
        ask(address, sql, people={"visits": "patient"}, spelled="user:{}")
    assert ask(address, sql, "user:7", people={"visits": "patient"})["id"].tolist() == ["b", "c"]


def test_who_left_is_never_part_of_the_sql(address: str) -> None:
    sql = "SELECT id, patient FROM visits"
    for person in ("7'); DROP TABLE visits; --", "'", '"', "%s", "{}"):
        assert len(ask(address, sql, person)) == 3
    assert len(ask(address, sql, "7")) == 2


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, patient FROM {schema}.visits",
        "WITH visits AS (SELECT * FROM {schema}.visits) SELECT id, patient FROM visits",
        "SELECT v.id, v.patient FROM visits AS v WHERE (SELECT count(*) FROM {schema}.visits) > 1",
        "SELECT id, patient FROM everybody",
        "SELECT id, patient FROM further",
    ],
    ids=["schema", "named so", "within", "view", "view of a view"],
)
def test_no_sql_reads_a_table_of_people_past_its_shadow(address: str, sql: str) -> None:
    schema = "main" if address.startswith("sqlite") else "public"
    with pytest.raises(
        RecipeError, match=r"SQL for 'crm' is refused: it reads everybody in 'visits'.*without a schema"
    ):
        ask(address, sql.format(schema=schema))


def test_a_function_of_the_database_is_refused(postgresql: str) -> None:
    with pytest.raises(RecipeError, match="calls 'total', a function of the database's own"):
        ask(postgresql, "SELECT id, patient, total() AS total FROM visits")


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (
            "SELECT 1 AS id, query_to_xml('SELECT * FROM public.visits', true, true, '')::text AS patient",
            "query_to_xml",
        ),
        ("SELECT 1 AS id, table_to_xml('public.visits', true, true, '')::text AS patient", "everybody in 'visits'"),
        ("SELECT 1 AS id, schema_to_xml('public', true, true, '')::text AS patient", "'schema_to_xml'"),
        ("SELECT 1 AS id, most_common_vals::text AS patient FROM pg_stats", "a table of PostgreSQL itself"),
        ("SELECT oid AS id, relname AS patient FROM pg_class", "'pg_class', a table of PostgreSQL itself"),
        ("SELECT id, patient, random() AS noise FROM visits", "'random'.*answer otherwise each time"),
    ],
)
def test_what_postgresql_brings_along_is_no_way_around(postgresql: str, sql: str, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        ask(postgresql, sql)


def test_a_sequence_is_not_moved(postgresql: str) -> None:
    with pytest.raises(RecipeError, match="refused"):
        ask(postgresql, "SELECT id, patient, nextval('numbers') AS number FROM visits")


def test_ids_differ_by_case_whatever_the_collation_of_sqlite(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "t.db")
    connection.executescript(
        "CREATE TABLE visits (id, patient TEXT COLLATE NOCASE); INSERT INTO visits VALUES (1, 'a'), (2, 'A'), (3, 'b');"
    )
    connection.close()
    assert ask(f"sqlite:///{tmp_path}/t.db", "SELECT id, patient FROM visits", "a")["id"].tolist() == ["2", "3"]
    assert ask(f"sqlite:///{tmp_path}/t.db", "SELECT id, patient FROM visits", "A")["id"].tolist() == ["1", "3"]


@pytest.mark.parametrize("table", ["sqlite_master", "temp.sqlite_master"])
def test_the_tables_of_sqlite_itself_are_hidden(sqlite: str, table: str) -> None:
    with pytest.raises(RecipeError, match="it reads 'sqlite_"):
        ask(sqlite, f"SELECT name AS id, name AS patient FROM {table}")


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM visits",
        "DELETE FROM cities",
        "INSERT INTO cities VALUES ('Kiel', 1)",
        "DROP TABLE cities",
        "CREATE TABLE more (id integer)",
        "SELECT id, patient FROM visits; DROP TABLE cities",
        "WITH gone AS (DELETE FROM cities RETURNING city) SELECT city AS id, city AS patient FROM gone",
        "SELECT id, patient INTO more FROM visits",
    ],
)
def test_sql_that_does_more_than_to_read_is_refused(address: str, sql: str) -> None:
    with pytest.raises(RecipeError, match="The SQL for 'crm' is refused"):
        ask(address, sql)
    assert len(ask(address, "SELECT city AS id, city AS patient FROM cities")) == 1


def test_nothing_of_the_views_is_left(address: str) -> None:
    ask(address, "SELECT id, patient FROM visits")
    if address.startswith("sqlite"):
        connection = sqlite3.connect(address.removeprefix("sqlite:///"))
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        connection.close()
    else:
        with psycopg.connect(address.replace("+psycopg", "")) as session:
            names = [name for (name,) in session.execute("SELECT relname FROM pg_class")]
    assert "cities" in names
    assert not [name for name in names if name.startswith("expunge")]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"people": {"visitors": "patient"}}, "The database 'crm' has no table 'visitors'"),
        ({"people": {"visits": "person"}, "person": "patient"}, "'visits' of 'crm' has no column 'person'. It has id"),
        ({"people": {"loose": "patient"}}, "'loose' has rows without a person in 'patient'.*nobody='keep'"),
        ({"people": {"floats": "patient"}}, "'patient' names people or rows, and holds .* in the table 'floats'"),
        ({"person": "who"}, "answer of 'crm' lacks the columns who. It has id, patient. Select them"),
        ({"spelled": "user:{}"}, "of the column visits.patient holds no id: it is not spelled"),
    ],
)
def test_declarations_that_the_database_contradicts_are_refused(
    address: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        ask(address, "SELECT id, patient FROM visits", **changes)


def test_rows_of_nobody_stay_where_they_are_kept(address: str) -> None:
    rows = ask(address, "SELECT id, patient FROM loose", people={"loose": "patient"}, nobody="keep")
    assert rows["id"].tolist() == ["2", "3"]


def test_a_mistake_in_the_sql_is_told(address: str) -> None:
    with pytest.raises(RecipeError, match=r"refused: .*prize"):
        ask(address, "SELECT id, patient, prize FROM visits")
    with pytest.raises(RecipeError, match=r"refused: .*(twice|more than once)"):
        ask(address, "SELECT id, id, patient FROM visits")


def test_an_address_is_the_operators_and_is_never_repeated(tmp_path: Path) -> None:
    source = query("crm", "SELECT 1", people={"v": "p"}, id="id")
    with pytest.raises(RecipeError, match="'crm' has no address"):
        open_rows(source, tmp_path)
    for address in ("mysql://u:secret@h/d", f"sqlite:///{tmp_path}/secret.db", "postgresql://u:secret@127.0.0.1:1/d"):
        with pytest.raises(RecipeError) as refusal:
            open_rows(source, tmp_path, databases={"crm": address})
        assert "secret" not in str(refusal.value)


def test_numbers_of_postgresql_are_trained_on(postgresql: str) -> None:
    sql = "SELECT id, patient, avg(id) OVER () AS mean, md5('a')::uuid AS key FROM visits"
    rows = ask(postgresql, sql)
    assert rows.numpy("mean").tolist() == [10.0, 10.0]
    assert isinstance(rows["key"][0], str)

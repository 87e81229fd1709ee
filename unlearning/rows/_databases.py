"""The answer of a database without some people: its tables are shadowed by temporary views of those who stay.

A filter of the answer would come too late: an average inside the SQL holds everybody. The views are made in the
session that runs the SQL, which writes nothing, and end with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib import import_module
from secrets import token_hex
from typing import Any
from urllib.parse import quote

from unlearning.columns import Column
from unlearning.rows._people import Cell, people_of, refused_type, text_of
from unlearning.rows._read import Objects
from unlearning.rows.declarations import QuerySource
from unlearning.types import RecipeError

Row = Sequence[Any]

_SQLITE = "sqlite:///"
_POSTGRESQL = ("postgresql://", "postgresql+psycopg://")
_ID_TYPES = frozenset({20, 21, 23, 25, 1042, 1043, 2950})
"""of PostgreSQL (pg_type.oid): int8, int2, int4, text, bpchar, varchar, uuid"""
_FIRST_OF_USERS = 16384
"""the oid below which PostgreSQL's own tables lie (FirstNormalObjectId)"""
_PAST = {
    "everybody": "it reads everybody in {!r}: by its schema, or by a view of the database",
    "own function": "it calls {!r}, a function of the database's own, which may read everybody",
    "volatile function": "it calls {!r}, which may read everybody, change something, or answer otherwise each time",
    "catalog": "it reads {!r}, a table of PostgreSQL itself",
}
_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})


@dataclass
class Shadow:
    """Whom the views leave out, and, once the SQL was asked, the others whom the tables name."""

    without: frozenset[str]
    others: set[str] = field(default_factory=set)


def answer(query: QuerySource, databases: Mapping[str, str], who: Shadow) -> Objects:
    """Return the rows that the SQL answers with where the people ``who.without`` were never stored, in any order.

    Args:
        databases: the address by setting: ``sqlite:////var/crm.db``, ``postgresql://...``.

    Raises:
        RecipeError: the setting has no address, a table is missing, its people are no ids, or the SQL is refused.
    """
    address = databases.get(query.setting, "")
    if address.startswith(_SQLITE):
        names, rows = _ask_sqlite(query, address.removeprefix(_SQLITE), who)
    elif address.startswith(_POSTGRESQL):
        names, rows = _ask_postgresql(query, "postgresql://" + address.partition("://")[2], who)
    else:
        what = (
            f"The database {query.setting!r} has no address."
            if not address
            else (f"The address of the database {query.setting!r} begins with {address.partition(':')[0]!r}.")
        )
        raise RecipeError(what, "The operator gives it one that begins with sqlite:/// or postgresql://.")
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise _refusal(query, f"it answers with the column {twice[0]!r} twice")
    return Objects(f"The answer of {query.setting!r}", [dict(zip(names, row, strict=True)) for row in rows], names)


def _cells_of_gone(query: QuerySource, table: str, cells: Iterable[Any], who: Shadow) -> list[str]:
    """Return those cells of a table's column of people that name somebody who left, by the rule for files.

    The others are added to ``who``.
    """
    column = query.tables[table]
    texts: Column[Cell] = Column.of(text_of(cell, column) for cell in cells)
    people = people_of([texts], [f"{table}.{column}"], query.spelled)
    if () in people.values and query.nobody == "refuse":
        raise RecipeError(
            f"The table {table!r} has rows without a person in {column!r}.",
            "Name their people, or say nobody='keep': such rows never leave.",
        )
    gone = people.where(lambda row: not who.without.isdisjoint(row))
    who.others.update(person for row in people.values for person in row if person not in who.without)
    return [text for text in texts.take(gone) if isinstance(text, str)]


def _ask_sqlite(query: QuerySource, path: str, who: Shadow) -> tuple[list[str], Sequence[Row]]:
    try:
        connection = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise _refusal(query, str(error)) from None
    shadow = f"expunge_{token_hex(8)}"  # no SQL of a recipe can know these names
    with closing(connection):
        try:
            connection.execute("PRAGMA temp_store = MEMORY")  # who left is not written to disk
            connection.execute("BEGIN")
            connection.execute(f"CREATE TEMPORARY TABLE {shadow} (cell TEXT NOT NULL)")
            for place, (table, column) in enumerate(query.tables.items()):
                _shadow_in_sqlite(connection, query, (table, column), (shadow, place), who)
            denied: list[str] = []
            connection.set_authorizer(_authorizer(query, shadow, denied))
            try:
                cursor = connection.execute(query.sql)
            except sqlite3.Error as error:
                raise _refusal(query, denied[0] if denied else str(error)) from None
            if cursor.description is None:
                raise _refusal(query, "it answers with no rows")
            return [entry[0] for entry in cursor.description], cursor.fetchall()
        except sqlite3.Error as error:
            raise _refusal(query, str(error)) from None


def _shadow_in_sqlite(
    connection: sqlite3.Connection,
    query: QuerySource,
    people: tuple[str, str],
    shadow: tuple[str, int],
    who: Shadow,
) -> None:
    """Make two views: the outer has the table's name, the inner one that nobody knows, by which it is recognised."""
    table, column = people
    name, cell = _quoted(table), f"CAST({_quoted(column)} AS TEXT) COLLATE BINARY"
    columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({name})")]
    _require_column(query, table, columns)
    # the names in these statements are quoted, or our own
    kinds = connection.execute(f"SELECT DISTINCT typeof({_quoted(column)}) FROM main.{name}")  # noqa: S608  # nosec B608
    for (kind,) in kinds:
        if kind not in ("text", "integer", "null"):
            raise refused_type(column, f"{kind} in the table {table!r}")
    cells = [row[0] for row in connection.execute(f"SELECT DISTINCT {cell} FROM main.{name}")]  # noqa: S608  # nosec B608
    gone, number = shadow
    connection.executemany(
        f"INSERT INTO {gone} VALUES (?)",  # noqa: S608  # nosec B608
        [(text,) for text in _cells_of_gone(query, table, cells, who)],
    )
    connection.execute(
        f"CREATE TEMPORARY VIEW {gone}_{number} AS SELECT * FROM main.{name} "  # noqa: S608  # nosec B608
        f"WHERE {_quoted(column)} IS NULL OR ({cell}) NOT IN (SELECT cell FROM temp.{gone})"
    )
    connection.execute(f"CREATE TEMPORARY VIEW {name} AS SELECT * FROM temp.{gone}_{number}")  # noqa: S608  # nosec B608


def _authorizer(query: QuerySource, shadow: str, denied: list[str]) -> Any:
    """Return what admits reading alone, and a table of people only to its own view."""
    hidden = {table.lower() for table in query.tables}

    def allows(action: int, table: str | None, _: str | None, database: str | None, view: str | None) -> int:
        if action not in _READS:
            denied.append("it does more than to read")
        elif action == sqlite3.SQLITE_READ and not (view or "").startswith(f"{shadow}_"):
            name = (table or "").lower()
            if name == shadow or name.startswith("sqlite_"):
                denied.append(f"it reads {name!r}, a table of SQLite itself")
            elif database == "main" and name in hidden:
                denied.append(_PAST["everybody"].format(table))
        return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK

    return allows


def _ask_postgresql(query: QuerySource, address: str, who: Shadow) -> tuple[list[str], Sequence[Row]]:
    psycopg = _psycopg("psycopg")
    shadow = f"expunge_{token_hex(8)}"
    try:
        with psycopg.connect(address, options="-c timezone=UTC") as connection, connection.cursor() as cursor:
            try:
                return _ask_in_session(query, cursor, shadow, who)
            finally:
                connection.rollback()  # the views were never anybody else's
    except psycopg.Error as error:
        # of other errors the text may repeat a value
        said = str(error.diag.message_primary) if (error.sqlstate or "").startswith("42") else type(error).__name__
        raise _refusal(query, said) from None


def _ask_in_session(query: QuerySource, cursor: Any, shadow: str, who: Shadow) -> tuple[list[str], Sequence[Row]]:
    sql = _psycopg("psycopg.sql")
    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    # each of them lets the order of rows, and so the last bit of a sum, differ from run to run
    for setting in ("max_parallel_workers_per_gather = 0", "synchronize_seqscans = off", "jit = off"):
        cursor.execute(f"SET LOCAL {setting}")
    gone = sql.Identifier(shadow)
    cursor.execute(sql.SQL("CREATE TEMPORARY TABLE {} (cell text NOT NULL)").format(gone))
    tables = {table: _relation(query, cursor, table) for table in query.tables}
    for table, column in query.tables.items():
        schema = tables[table][1]
        names = {
            "gone": gone,
            "table": sql.Identifier(schema, table),
            "column": sql.Identifier(column),
            "view": sql.Identifier("pg_temp", table),
        }
        cursor.execute(sql.SQL("SELECT * FROM {table} LIMIT 0").format(**names))
        kinds = {entry.name: entry.type_code for entry in cursor.description}
        _require_column(query, table, kinds)
        if kinds[column] not in _ID_TYPES:
            raise refused_type(column, f"no text and no whole number in the table {table!r}")
        cursor.execute(sql.SQL('SELECT DISTINCT {column}::text COLLATE "C" FROM {table}').format(**names))
        cells = _cells_of_gone(query, table, [row[0] for row in cursor.fetchall()], who)
        cursor.executemany(sql.SQL("INSERT INTO {gone} VALUES (%s)").format(**names), [(cell,) for cell in cells])
        cursor.execute(
            sql.SQL(
                "CREATE TEMPORARY VIEW {view} AS SELECT * FROM {table} "
                'WHERE {column} IS NULL OR {column}::text COLLATE "C" NOT IN (SELECT cell FROM {gone})'
            ).format(**names)
        )
    # a view can only read; prepared, the text can be one statement alone
    asked = sql.Identifier("pg_temp", f"{shadow}_query")
    text = sql.SQL("CREATE TEMPORARY VIEW {} AS ").format(asked) + sql.SQL(query.sql.strip().rstrip(";"))
    cursor.execute(text, prepare=True)
    _require_shadows(query, cursor, {oid: table for table, (oid, _) in tables.items()}, asked.as_string(cursor))
    cursor.execute("SET TRANSACTION READ ONLY")
    cursor.execute(sql.SQL("SELECT * FROM {}").format(asked))
    return [entry.name for entry in cursor.description], cursor.fetchall()


def _relation(query: QuerySource, cursor: Any, table: str) -> tuple[int, str]:
    """Return number and schema of the table that this name finds. Raises RecipeError where it finds none."""
    name = _psycopg("psycopg.sql").Identifier(table).as_string(cursor)
    cursor.execute(
        """
        SELECT relation.oid, schema.nspname
        FROM pg_class AS relation
        JOIN pg_namespace AS schema ON schema.oid = relation.relnamespace
        WHERE relation.oid = to_regclass(%s)
        """,
        (name,),
    )
    row = cursor.fetchone()
    if row is None:
        raise _missing_table(query, table)
    return int(row[0]), str(row[1])


def _require_shadows(query: QuerySource, cursor: Any, tables: Mapping[int, str], asked: str) -> None:
    """Refuse SQL that reaches people past the views that shadow them.

    It may do so by a schema, by a view or a function of the database, by statistics in the catalog, or by a function
    that runs SQL of its own. PostgreSQL notes no dependence on what it brings along: that is read from the rule's tree.
    """
    identifier = _psycopg("psycopg.sql").Identifier
    # a row is a thing that the SQL uses, through any number of views but those that shadow
    cursor.execute(
        r"""
        WITH RECURSIVE reached (class, oid) AS (
            SELECT 'pg_class'::regclass::oid, %(asked)s::regclass::oid
            UNION
            SELECT depends.refclassid, depends.refobjid
            FROM reached
            JOIN pg_rewrite AS rule ON rule.ev_class = reached.oid
            JOIN pg_depend AS depends ON depends.objid = rule.oid AND depends.classid = 'pg_rewrite'::regclass
            WHERE reached.class = 'pg_class'::regclass
            AND reached.oid <> ALL (%(shadows)s::regclass[]::oid[])
        ),
        used (kind, oid) AS (
            SELECT words[1], words[2]::oid
            FROM reached
            JOIN pg_rewrite AS rule ON rule.ev_class = reached.oid
            CROSS JOIN regexp_matches(rule.ev_action::text, ':(relid|funcid) (\d+)', 'g') AS words
            WHERE reached.class = 'pg_class'::regclass
            AND reached.oid <> ALL (%(shadows)s::regclass[]::oid[])
        )
        SELECT 'everybody', relation.relname
        FROM reached
        JOIN pg_class AS relation ON reached.class = 'pg_class'::regclass AND relation.oid = reached.oid
        WHERE relation.oid = ANY (%(tables)s::oid[])
        UNION ALL
        SELECT 'own function', oid::regproc::text
        FROM reached
        WHERE class = 'pg_proc'::regclass
        UNION ALL
        SELECT 'volatile function', function.proname
        FROM used
        JOIN pg_proc AS function ON used.kind = 'funcid' AND function.oid = used.oid
        WHERE function.provolatile = 'v' OR function.proname LIKE '%%\_to\_xml%%'
        UNION ALL
        SELECT 'catalog', relation.relname
        FROM used
        JOIN pg_class AS relation ON used.kind = 'relid' AND relation.oid = used.oid
        WHERE relation.oid < %(first_of_users)s
        """,
        {
            "asked": asked,
            "shadows": [identifier("pg_temp", table).as_string(cursor) for table in query.tables],
            "tables": list(tables),
            "first_of_users": _FIRST_OF_USERS,
        },
    )
    row = cursor.fetchone()
    if row is not None:
        raise _refusal(query, _PAST[row[0]].format(row[1]))


def _require_column(query: QuerySource, table: str, columns: Iterable[str]) -> None:
    columns = list(columns)
    if not columns:
        raise _missing_table(query, table)
    if query.tables[table] not in columns:
        what = f"The table {table!r} of {query.setting!r} has no column {query.tables[table]!r}."
        raise RecipeError(what, f"It has {', '.join(columns)}.")


def _missing_table(query: QuerySource, table: str) -> RecipeError:
    return RecipeError(f"The database {query.setting!r} has no table {table!r}.", "Correct people=.")


def _refusal(query: QuerySource, why: str) -> RecipeError:
    return RecipeError(
        f"The SQL for {query.setting!r} is refused: {why.rstrip('.')}.",
        "Write one SELECT that names its tables without a schema, and each column of its answer once.",
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _psycopg(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise RecipeError("psycopg is not installed.", "Run `pip install 'psycopg[binary]'`.") from None

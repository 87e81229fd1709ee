"""Statements that are compiled once and run by the database's driver itself.

For the one path where SQLAlchemy's work on each call is most of the call. On PostgreSQL they travel in a pipeline: a
round trip is paid when an answer is read, not for each statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, ClauseElement, bindparam
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

_DIALECTS: dict[str, Any] = {
    "postgresql": PGDialect_psycopg(),  # type: ignore[no-untyped-call]
    "sqlite": SQLiteDialect_pysqlite(paramstyle="named"),
}


class Statement:
    """A statement with its text for each kind of database, and the values of the constants in it."""

    def __init__(self, clauses: Mapping[str, ClauseElement]) -> None:
        """Compiled from a clause for each dialect, whose parameters are ``given``. JSON goes in as text."""
        compiled = {
            name: clause.compile(dialect=_DIALECTS[name], compile_kwargs={"render_postcompile": True})
            for name, clause in clauses.items()
        }
        self._texts = {name: str(each) for name, each in compiled.items()}
        self._constants = {
            name: {key: value for key, value in each.params.items() if value is not None}
            for name, each in compiled.items()
        }

    @classmethod
    def of(cls, clause: ClauseElement) -> Statement:
        """The same clause for all."""
        return cls(dict.fromkeys(_DIALECTS, clause))

    def on(self, dialect: str, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Its text there, and all that it is run with."""
        return self._texts[dialect], self._constants[dialect] | values


def given(name: str) -> BindParameter[Any]:
    """A parameter: its value comes with each run."""
    return bindparam(name, None)


@dataclass(frozen=True)
class Insertion:
    """One row into a table."""

    table: str
    columns: tuple[str, ...]


def inserting(record: Any, *columns: str) -> Insertion:
    """One row into the table of a record."""
    return Insertion(record.__tablename__, columns)


class Wire:
    """One transaction of a driver's connection. ``Database.wire`` opens and commits it."""

    def __init__(self, driver: Any, dialect: str) -> None:
        self._driver = driver
        self.dialect = dialect

    def send(self, statement: Statement, values: dict[str, Any]) -> Any:
        """Send it; the cursor returned has the answer, and waits for it when asked."""
        return self._driver.execute(*statement.on(self.dialect, values))

    def insert(self, *rows: tuple[Insertion, Mapping[str, Any]]) -> None:
        """Insert rows that belong together, in this order; on PostgreSQL by one statement."""
        if self.dialect == "postgresql":
            values = {f"{place}_{name}": value for place, (_, row) in enumerate(rows) for name, value in row.items()}
            self._driver.execute(_together(tuple(insertion for insertion, _ in rows)), values)
            return
        for insertion, row in rows:
            self._driver.execute(_insert(insertion, [f":{column}" for column in insertion.columns]), row)


@lru_cache(maxsize=256)
def _together(insertions: tuple[Insertion, ...]) -> str:
    """Data-modifying CTEs: foreign keys are checked at the statement's end."""
    texts = [
        _insert(insertion, [f"%({place}_{column})s" for column in insertion.columns])
        for place, insertion in enumerate(insertions)
    ]
    before = ", ".join(f"row_{place} AS ({text})" for place, text in enumerate(texts[:-1]))
    return f"WITH {before} {texts[-1]}" if before else texts[-1]


def _insert(insertion: Insertion, values: list[str]) -> str:
    # every name is a column's of ours
    return f"INSERT INTO {insertion.table} ({', '.join(insertion.columns)}) VALUES ({', '.join(values)})"  # noqa: S608  # nosec B608

"""One cache of compiled SQL for all databases of a test process, as a process of the service has one for its database.

Every test opens its own database, and SQLAlchemy compiles each statement again for each engine.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, event

_FIRST: dict[str, Engine] = {}


def share_compiled_statements() -> None:
    """Give every engine, from now on, the dialect and the compiled statements of the first of its kind."""
    event.listen(Engine, "engine_connect", _share)


def _share(connection: Connection) -> None:
    engine = connection.engine
    first = _FIRST.setdefault(engine.dialect.name, engine)
    engine.dialect = connection.dialect = first.dialect
    engine._compiled_cache = first._compiled_cache

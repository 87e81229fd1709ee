"""Several processes bring one new database up to date at once, as an API and its workers do that start together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from expunge_service.infra.db import Database
from expunge_service.infra.migrate import SchemaState, schema_state

RACER = """
import sys
from alembic import command
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
database = Database(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
migrate(database)
"""


def test_three_processes_migrate_one_new_sqlite_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'expunge.db'}"
    command = [sys.executable, "-c", RACER, url]
    racers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == b"ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    database = Database(url)
    assert schema_state(database) is SchemaState.CURRENT
    database.close()

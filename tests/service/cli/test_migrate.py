"""``expunge migrate`` waits for a database server that is still starting, for a while."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psycopg
import pytest

from expunge_client.cli.output import CommandError
from expunge_service.cli.commands.processes import await_database
from tests.harness.servers import Postgres, free_port


def test_a_server_that_never_answers_is_named_without_its_password() -> None:
    url = f"postgresql://expunge:secret-word@127.0.0.1:{free_port()}/expunge"
    before = time.monotonic()
    with pytest.raises(CommandError) as error:
        await_database(url, seconds=1, pause=0.1)
    assert 1 <= time.monotonic() - before < 20
    assert "did not answer within 1 s: " in error.value.what and "Connection refused" in error.value.what
    assert "secret-word" not in error.value.what and "expunge migrate" in error.value.hint


def test_a_database_that_comes_up_meanwhile_is_taken(
    postgres_server: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    def make() -> None:
        time.sleep(1.5)
        with psycopg.connect(f"postgresql://postgres@{postgres_server.address}/postgres", autocommit=True) as session:
            session.execute("CREATE DATABASE late")

    thread = threading.Thread(target=make)
    thread.start()
    try:
        await_database(postgres_server.url("late"), seconds=60, pause=0.1)
    finally:
        thread.join()
    assert capsys.readouterr().err.count("does not answer yet") == 1


def test_a_file_is_not_waited_for(tmp_path: Path) -> None:
    await_database(f"sqlite:///{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()

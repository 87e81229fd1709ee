"""One round of every fault of tests/faults/faults.py in the default suite, and that each of them does harm."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url, text

from expunge_service.infra import db
from expunge_service.infra.db import Busy, Database
from tests.faults import faults
from tests.faults.proxy import proxy


@pytest.fixture(scope="module")
def on_postgres() -> Iterator[faults.Scene]:
    with faults.postgres_scene(random.Random(1)) as scene:
        yield scene


@pytest.fixture(scope="module")
def on_sqlite() -> Iterator[faults.Scene]:
    with faults.sqlite_scene(random.Random(1)) as scene:
        yield scene


ALWAYS = {("before", 1), ("after", 2), ("answered", 3)}
"""each cut once, at another commit; the others are drills, and the drill `faults` draws them all"""


@pytest.mark.parametrize(
    ("cut", "committed"),
    [
        pytest.param(cut, committed, marks=[] if (cut, committed) in ALWAYS else [pytest.mark.drill])
        for cut in ("before", "after", "answered")
        for committed in range(4)
    ],
)
def test_a_commit_whose_outcome_nobody_learned_takes_effect_once(
    on_postgres: faults.Scene, cut: str, committed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Chosen(random.Random):
        def randrange(self, *_: int) -> int:
            return committed

        def choice(self, _: object) -> str:
            return cut

    assert on_postgres.proxy is not None
    before = on_postgres.proxy.cuts
    monkeypatch.setattr(on_postgres, "chance", Chosen())
    assert faults.survive(on_postgres, faults.cut_commit) == []
    assert on_postgres.proxy.cuts == before + 1


@pytest.mark.parametrize(
    "table", [*faults.HARMED[:2], *(pytest.param(each, marks=pytest.mark.drill) for each in faults.HARMED[2:])]
)
def test_a_backend_killed_in_the_middle_of_a_transaction_loses_and_doubles_nothing(
    on_postgres: faults.Scene, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "HARMED", (table,))
    assert faults.survive(on_postgres, faults.kill_backend) == []


@pytest.mark.parametrize("fault", [faults.full_disk, faults.failing_fsync])
def test_a_disk_that_is_full_or_fails_loses_and_doubles_nothing(on_sqlite: faults.Scene, fault: faults.Fault) -> None:
    assert faults.survive(on_sqlite, fault) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small filesystem needs root")
def test_a_filesystem_without_room_loses_and_doubles_nothing() -> None:
    try:
        with faults.tmpfs_scene(random.Random(1)) as scene:
            assert faults.survive(scene, faults.no_space) == []
    except faults.subprocess.CalledProcessError:
        pytest.skip("this root may not mount")


def test_a_client_that_vanished_without_a_word_does_not_keep_its_locks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "SILENT_SECONDS", 0.5)
    address = make_url(postgres_url)
    direct = Database(postgres_url)
    with direct.write() as session:
        session.execute(text("CREATE TABLE things (n int); INSERT INTO things VALUES (1)"))
    with proxy(str(address.host), int(address.port or 0)) as between:
        far = Database(address.set(port=between.port).render_as_string(hide_password=False))
        between.arm("silent")
        with pytest.raises(Busy), far.write() as session:
            session.execute(text("UPDATE things SET n = 2"))
        with direct.write() as session:
            session.execute(text("UPDATE things SET n = n + 10"))
            assert session.scalar(text("SELECT n FROM things")) == 11
        far.close()
    direct.close()

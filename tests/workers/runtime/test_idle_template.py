"""A template ends after idle minutes with the libraries that it holds, and no sooner than its last use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from expunge.workers.app import Worker
from expunge.workers.runtime import worlds
from expunge.workers.runtime.world import Code
from expunge.workers.runtime.worlds import IDLE_SECONDS, declare, end_idle_template, template
from tests.workers.worlds import World

RECIPE = b"import unlearning as ul\ndef recipe(rows: ul.Rows = ul.table('t.csv', person='p')): ...\n"
CODE = Code("recipe", {"recipe.py": RECIPE})


@pytest.fixture(autouse=True)
def own_template(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worlds, "_templates", [])
    yield
    end_idle_template(0.0)
    assert worlds._templates == []


def test_an_idle_template_ends_and_the_next_use_starts_another() -> None:
    answer = declare(CODE)
    first = template()
    end_idle_template(3600.0)
    assert first.process.poll() is None
    end_idle_template(0.0)
    assert first.process.returncode is not None, "it was waited for: no zombie is left"
    assert declare(CODE) == answer
    assert template() is not first


def test_a_template_whose_line_is_open_does_not_end() -> None:
    used = template()
    with used.line({"kind": "judge", "threads": 1}) as line:
        end_idle_template(0.0)
        assert used.process.poll() is None
        assert line.template is used
    end_idle_template(0.0)
    assert used.process.poll() is not None


def test_a_template_that_was_just_chosen_or_used_waits_its_whole_time_again() -> None:
    used = template()
    used.used_at -= IDLE_SECONDS
    assert template() is used
    end_idle_template()
    assert used.process.poll() is None
    with used.line({"kind": "judge", "threads": 1}):
        used.used_at -= IDLE_SECONDS
    end_idle_template()
    assert used.process.poll() is None
    used.used_at -= IDLE_SECONDS
    end_idle_template()
    assert used.process.poll() is not None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_looks_after_its_heartbeats(world: World) -> None:
    pulse = world.pulse()
    Worker(world.process, pulse)
    used = template()
    pulse.run_errands()
    assert used.process.poll() is None
    used.used_at -= IDLE_SECONDS
    pulse.run_errands()
    assert used.process.poll() is not None

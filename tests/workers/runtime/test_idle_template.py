"""A template holds no library that nobody asked for, and ends after idle minutes with those that it has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge_workers.app import Worker
from expunge_workers.runtime import worlds
from expunge_workers.runtime.world import Code
from expunge_workers.runtime.worlds import IDLE_SECONDS, PartOrder, declare, end_idle_template, make_world, template
from tests.workers.worlds import World
from unlearning.types import Refused

RECIPE = b"import unlearning as ul\ndef recipe(rows: ul.Rows = ul.table('t.csv', person='p')): ...\n"
CODE = Code("recipe", {"recipe.py": RECIPE})


SAYS = """import sys
from unlearning.types import RecipeError
import {library}
compiles = "tor" "ch._dynamo" in sys.modules
mode = sys.modules["tor" "ch"].get_deterministic_debug_mode()
raise RecipeError(f"{{compiles}} {{mode}}", "It is what this module says of itself.")
"""
"""a recipe that answers, in place of training, whether the compiler of torch is loaded, and how torch computes"""


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


def test_the_compiler_of_torch_is_loaded_for_recipes_that_name_torch_alone() -> None:
    """It is a second of CPU at each start, and 70 MB; torch's own setter of deterministic algorithms loads it too."""
    for library, answer in (("math", "False 1"), ("torch", "True 1")):
        with pytest.raises(Refused, match=answer):
            declare(Code("recipe", {"recipe.py": SAYS.format(library=library).encode()}))


def test_a_world_that_is_made_while_another_is_open_takes_not_its_end() -> None:
    """A drill's process is two workers, of which one overtakes the other."""
    with make_world("declare", CODE, 1) as world:
        first = world(PartOrder()).facts
        children = Path(f"/proc/{template().process.pid}/task/{template().process.pid}/children")
        deadline = time.monotonic() + 30
        while not any(has_ended(child) for child in children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert any(has_ended(child) for child in children.read_text().split()), "the world ends with its only part"
        declare(CODE)
    assert first["sources"].keys() == {"rows"}


def has_ended(process: str) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")


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

"""What CONTRIBUTING says of `make test` and `make test-all` is what they run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.harness.groups import Groups, group_of

ROOT = Path(__file__).parents[2]


def recipe(target: str) -> str:
    found = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found, target
    return found[1]


def test_drills_are_left_out_of_the_default_suite_and_one_command_runs_them_too() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    assert "-m 'not drill'" in options
    assert all("$(TESTS)" in recipe(target) for target in ("test", "test-all"))
    assert '-m ""' not in recipe("test") and '--engines=all -m ""' in recipe("test-all")
    assert (
        '`make test-all` runs every test, drills too, on both databases (`-m "" --engines=all`)'
        in (ROOT / "CONTRIBUTING.md").read_text()
    )


def test_a_file_or_a_running_service_is_one_group_for_the_processes_of_the_suite(
    request: pytest.FixtureRequest,
) -> None:
    (made,) = request.config.hook.pytest_xdist_make_scheduler.get_hookimpls()[-1:]
    assert made.plugin_name.endswith("conftest.py")
    assert all("--dist loadgroup" in recipe(target) for target in ("test", "test-all"))
    assert Groups._split_scope is not Groups.__base__._split_scope  # type: ignore[union-attr]
    assert group_of("tests/unlearning/model/test_ball.py::test_it[a-sqlite]") == "tests/unlearning/model/test_ball.py"
    assert group_of("tests/stories/test_up.py::test_it") == "tests/stories/test_up.py"
    stacks = ("test_pages.py::test_it[sqlite]", "test_status_page.py::test_it[light-sqlite]")
    assert {group_of(f"tests/stories/{each}") for each in stacks} == {"sqlite"}
    assert group_of("tests/stories/test_crashes.py::test_it[postgres]") == "postgres"

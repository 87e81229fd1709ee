"""What CONTRIBUTING says of `make test` and `make test-all` is what they run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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

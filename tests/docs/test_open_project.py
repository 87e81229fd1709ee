"""What a contributor meets: hooks and workflow run what README and Makefile say; pages name what is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
ON_DEBIAN = "make test PYTHON=/usr/bin/python3"
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w.-]+\.(?:py|md|yml|toml))`")


def runs(job: str) -> list[str]:
    return [step["run"] for step in WORKFLOW["jobs"][job]["steps"] if "run" in step]


def test_the_hook_runs_make_check() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = repo["hooks"]
    assert (repo["repo"], hook["entry"], hook["language"]) == ("local", "make check", "system")
    assert "check" in TARGETS


def test_the_workflow_runs_the_first_commands_of_the_readme_on_every_python() -> None:
    block = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[0]
    assert runs("readme") == [line.split("#")[0].strip() for line in block.splitlines()]
    assert runs("check") == ["make check"]
    assert WORKFLOW["jobs"]["debian"]["container"] == "debian:12" and runs("debian")[-1] == ON_DEBIAN
    tests = re.findall(r"^ *(make .*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert [line.replace('"$own"', "/usr/bin/python3") for line in tests] == [ON_DEBIAN, runs("readme")[-1]]
    pythons = WORKFLOW["jobs"]["readme"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, last = (int(each.rpartition(".")[2]) for each in (pythons[0], pythons[-1]))
    assert pythons == [f"3.{minor}" for minor in range(first, last + 1)]
    assert project["requires-python"] == f">=3.{first},<3.{last + 1}"
    assert [f"Programming Language :: Python :: {each}" in project["classifiers"] for each in pythons] == [True] * 3


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_a_page_names_files_and_targets_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    assert [path for path in PATH.findall(text) if not (ROOT / path.split("=")[0]).exists()] == []
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= TARGETS

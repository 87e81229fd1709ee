"""Running other programs, and saying what one said when it failed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST_CHARACTERS = 3000


class ProgramFailed(AssertionError):
    """A program ended with another status than 0. The message has the command and its last words."""


def ran(
    *command: str | Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
    seconds: float = 600,
) -> str:
    """Run a program and return its standard output. ``given`` is its standard input, ``seconds`` the longest wait.

    Raises ProgramFailed where it ends with another status than 0, or not in time.
    """
    line = " ".join(map(str, command))
    try:
        done = tried(*command, folder=folder, environment=environment, given=given, seconds=seconds)
    except subprocess.TimeoutExpired:
        raise ProgramFailed(f"`{line}` did not end within {seconds:g} s") from None
    if done.returncode != 0:
        said = f"{done.stdout[-LAST_CHARACTERS:]}\n{done.stderr[-LAST_CHARACTERS:]}".strip()
        raise ProgramFailed(f"`{line}` ended with {done.returncode}:\n{said}")
    return done.stdout


def tried(
    *command: str | Path,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
    seconds: float = 600,
) -> subprocess.CompletedProcess[str]:
    """Run a program and return how it ended, whatever its status."""
    return subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=None if environment is None else {**os.environ, **environment},
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def missing(programs: Sequence[str]) -> list[str]:
    """Return those of the programs that are not installed."""
    return [each for each in programs if shutil.which(each) is None]

"""A clean process that forks worlds for the tests of walls, as the template of a worker does; ``Template`` drives it.

It has a single thread and has loaded the libraries. Orders and answers are lines of JSON.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.harness.source import SOURCE_PATH

NOBODY = 65534


@cache
def unreachable() -> str | None:
    """Say why an ordinary user cannot run this Python, as where it lies below root's home; None: it can."""
    if os.geteuid() != 0:
        return None
    code = (
        "import sys; from importlib.util import find_spec; sys.exit(not (find_spec('torch') and find_spec('expunge')))"
    )
    try:
        variables = os.environ | {"PYTHONPATH": SOURCE_PATH}
        done = subprocess.run([sys.executable, "-c", code], user=NOBODY, cwd="/", env=variables, capture_output=True)
    except PermissionError:
        return f"unverified here: only root can run {sys.executable}"
    return None if done.returncode == 0 else f"unverified here: only root can read the packages of {sys.executable}"


class Template:
    """The process, and the pipes to it. ``nobody``: it is an ordinary user's."""

    def __init__(self, *, nobody: bool = False, variables: Mapping[str, str] | None = None) -> None:
        if nobody and (reason := unreachable()):
            pytest.skip(reason)
        user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if nobody else {}
        environment = {**os.environ, **(variables or {}), "PYTHONPATH": SOURCE_PATH}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd="/",
            **user,
        )
        assert self.process.stdin and self.process.stdout
        self._orders, self._answers = self.process.stdin, self.process.stdout
        self.probe: dict[str, Any] = json.loads(self._answers.readline())

    def send(
        self,
        files: Mapping[str, str],
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        without: Collection[str] = (),
        only: Collection[str] | None = None,
        more: Sequence[Path] = (),
        closed: Sequence[Path] = (),
        seconds: float = 60,
        seed: int = 0,
        same: bool = False,
        aside: str | None = None,
    ) -> None:
        """Order a world with a part for each call: the name of a function of ``recipe.py``, and its arguments.

        ``same``: all parts are given the rows of the first. ``aside``: what each is scored by.
        """
        # without a new root, root becomes nobody among the files of this machine
        rootless = "files" in without or (only is not None and "files" not in only)
        if rootless and (reason := unreachable()):
            pytest.skip(reason)
        order = {"files": files, "calls": calls, "without": [*without], "only": None if only is None else [*only]}
        order |= {
            "more": [*map(str, more)],
            "closed": [*map(str, closed)],
            "seconds": seconds,
            "seed": seed,
            "same": same,
            "aside": aside,
        }
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()

    def receive(self) -> Any:
        """Return what each part answered, or a dictionary that says why there is no answer."""
        return json.loads(self._answers.readline())

    def ask(self, files: Mapping[str, str], calls: Sequence[tuple[str, Mapping[str, Any]]], **settings: Any) -> Any:
        self.send(files, calls, **settings)
        return self.receive()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._orders.close()
        self._answers.close()


def call(module: ModuleType, files: Mapping[str, memoryview], order: Mapping[str, Any]) -> Any:
    """A job of the tests: call one function of the recipe."""
    others = {name: bytes(data) for name, data in files.items() if name != "rows"}
    outcome = getattr(module, order["call"])(files["rows"], **order["arguments"], **others)
    data = outcome.pop("data", b"") if isinstance(outcome, dict) else b""
    return {"outcome": outcome}, data, lambda aside: {"bytes": len(aside["aside"])}


def main() -> None:
    # Loaded here: the driver needs none of them.
    import torch  # noqa: F401, PLC0415

    from expunge_workers.runtime.walls import Wall, draw, probe  # noqa: PLC0415
    from expunge_workers.runtime.world import Code, PartInput, Raised, WorldEnded, open_world, seal  # noqa: PLC0415

    own = Path(__file__).open("rb")  # noqa: SIM115 (a descriptor that no world may find)
    found = probe()
    answers = os.fdopen(os.dup(1), "w")
    assert own.fileno() > 2
    print_line(answers, {"standing": sorted(found.standing), "lacking": found.lacking})
    for line in sys.stdin:
        order = json.loads(line)
        chosen = found.standing if order["only"] is None else frozenset(map(Wall, order["only"]))
        standing = chosen - {*map(Wall, order["without"])}
        walls = draw(standing, more=order["more"], closed=order["closed"])
        code = Code("recipe", {name: text.encode() for name, text in order["files"].items()})
        rows = [seal(f"rows {number}".encode()) for number in range(len(order["calls"]))]
        rows = rows[:1] * len(rows) if order["same"] else rows
        apart = None if order["aside"] is None else {"aside": seal(order["aside"].encode())}
        parts = [
            PartInput({"rows": table}, {"call": name, "arguments": arguments}, apart, order["seed"])
            for table, (name, arguments) in zip(rows, order["calls"], strict=True)
        ]
        reply: Any
        try:
            with open_world(code, call, len(parts), walls, seconds=order["seconds"]) as ask:
                told = [ask(part) for part in parts]
            reply = [
                answer.facts | {"data": base64.b64encode(answer.data).decode(), "score": answer.score}
                for answer in told
            ]
        except Raised as error:
            reply = {"raised": [error.error, error.path, error.file, error.line], "text": str(error)}
        except (WorldEnded, TimeoutError) as error:
            reply = {"ended": str(error), "type": type(error).__name__}
        finally:
            for table in {*rows, *(apart or {}).values()}:
                os.close(table)
        print_line(answers, reply)


def print_line(answers: Any, words: Any) -> None:
    answers.write(json.dumps(words) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()

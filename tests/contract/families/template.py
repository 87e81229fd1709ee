"""A clean process that trains recipes behind walls or without any, for the families; ``Template`` drives it.

It has a single thread, has loaded the libraries, and never holds rows: it is handed descriptors.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.harness.source import SOURCE_PATH
from unlearning.rows import Rows, Source

REPOSITORY = Path(__file__).parents[3]
LIBRARIES = ("torch", "pandas", "pyarrow.dataset", "pyarrow.parquet", "pyarrow.csv")
ROWS = None
"""the rows of the first training without walls, as a program may keep them"""


class Template:
    """The process, and the pipes to it."""

    def __init__(self, libraries: Sequence[str] = LIBRARIES) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.families.template", *libraries],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": SOURCE_PATH},
            cwd=REPOSITORY,
        )
        assert self._process.stdin and self._process.stdout
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self.probe: dict[str, Any] = json.loads(self._answers.readline())

    def train(self, order: Mapping[str, Any], rows: Sequence[bytes]) -> list[dict[str, Any]]:
        """Train once for each of the carried rows; return the facts of each training, and its ``data``."""
        from expunge_workers.runtime.world import seal  # noqa: PLC0415

        descriptors = [seal(carried) for carried in rows]
        try:
            paths = [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in descriptors]
            self._orders.write(json.dumps({**order, "rows": paths}) + "\n")
            self._orders.flush()
            answers: list[dict[str, Any]] = json.loads(self._answers.readline())
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return answers

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._orders.close()
        self._answers.close()


def train(module: ModuleType, files: Mapping[str, memoryview], _order: Mapping[str, Any]) -> Any:
    """The job of a world: call the recipe on the rows of its sources, and return what it publishes."""
    from tests.contract.families.carriage import rows_of  # noqa: PLC0415

    return (*_train(module, rows_of(files["carried"])), None)


def _train(module: ModuleType, sources: Mapping[str, Rows]) -> tuple[Mapping[str, Any], bytes]:
    """Train; an error of the recipe is an answer too, with its text, to be compared."""
    try:
        parameters = inspect.signature(module.recipe).parameters.values()
        declared = {entry.name: entry.default for entry in parameters if isinstance(entry.default, Source)}
        return {}, bytes(module.recipe(**{name: sources[repr(source)] for name, source in declared.items()}))
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}, b""


def main() -> None:
    for library in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            import_module(library)
    import tests.contract.families.carriage  # noqa: F401, PLC0415
    from expunge_workers.runtime.walls import draw, probe  # noqa: PLC0415

    found = probe()
    answers = os.fdopen(os.dup(1), "w")
    walls = draw(found.standing)
    for words in _replies(found, walls):
        answers.write(json.dumps(words) + "\n")
        answers.flush()


def _replies(found: Any, walls: Any) -> Any:
    yield {"standing": sorted(found.standing), "lacking": found.lacking}
    for line in sys.stdin:
        order = json.loads(line)
        os.environ["PEOPLE"] = Path(order["folder"], "people.csv").read_text()
        rows = [os.open(path, os.O_RDONLY) for path in order["rows"]]
        with Path(order["folder"], "people.csv").open("rb"):  # a descriptor that is left open
            yield _behind_walls(order, rows, walls) if order["walled"] else _plainly(order, rows)
        for descriptor in rows:
            os.close(descriptor)


def _behind_walls(order: Mapping[str, Any], rows: Sequence[int], walls: Any) -> list[dict[str, Any]]:
    from expunge_workers.runtime.world import Code, PartInput, open_world  # noqa: PLC0415

    code = Code("recipe", {name: text.encode() for name, text in order["files"].items()})
    parts = [PartInput({"carried": descriptor}, {}) for descriptor in rows]
    with open_world(code, train, len(parts), walls, seconds=120) as ask:
        answers = [ask(part) for part in parts]
    return [answer.facts | {"data": base64.b64encode(answer.data).decode()} for answer in answers]


def _plainly(order: Mapping[str, Any], rows: Sequence[int]) -> list[dict[str, Any]]:
    """Train in one forked process, in the recipe's folder, one after the other, as a worker without walls would."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(reading)
            os.chdir(order["folder"])
            os.environ |= order["variables"]
            sys.path.insert(0, order["folder"])
            answer = json.dumps(_train_each(rows)).encode()
        except BaseException as error:
            answer = json.dumps([{"refused": repr(error)}] * len(rows)).encode()
        with os.fdopen(writing, "wb") as file:
            file.write(answer + b"\n")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answers: list[dict[str, Any]] = json.loads(file.readline())
    os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    return answers


def _train_each(rows: Sequence[int]) -> list[dict[str, Any]]:
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from tests.contract.families.carriage import rows_of  # noqa: PLC0415

    global ROWS
    torch.set_num_threads(1)
    module = import_module("recipe")
    sources = [rows_of(memoryview(os.pread(row, os.fstat(row).st_size, 0))) for row in rows]
    trained = []
    for own in sources:
        np.random.seed(0)
        torch.manual_seed(0)
        facts, data = _train(module, own)
        ROWS = [*sources[0].values()]
        trained.append({**facts, "data": base64.b64encode(data).decode()})
    return trained


def remove_traces(name: str, key: int) -> None:
    """Remove what recipes left behind on this machine, by its name and its key."""
    import numpy as np  # noqa: PLC0415

    for folder in ("/tmp", "/var/tmp", "/dev/shm", str(Path(np.__file__).parent)):
        Path(folder, name).unlink(missing_ok=True)
    c = ctypes.CDLL(None)
    c.shmctl(c.shmget(key, 0, 0), 0, None)  # IPC_RMID
    c.msgctl(c.msgget(key, 0), 0, None)
    call = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
    c.syscall(call, 9, c.syscall(call, 10, -4, b"user", name.encode(), 0), -4)  # unlink what is found


if __name__ == "__main__":
    main()

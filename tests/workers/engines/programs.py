"""An engine of the tests: each program of a part is the child of a process of its own, as of a node's daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from expunge_service.infra.python import PYTHON
from expunge_workers.runtime.engine import PartJob
from expunge_workers.runtime.part_program import end_program, start_program
from tests.harness.process import PATH_OF_TESTS


class Programs:
    """Notes in a folder which process keeps the program of a part, and how the program ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def submit(self, job: PartJob) -> None:
        if self._keeper(job.name) is None:
            self.folder.mkdir(exist_ok=True)
            command = [*PYTHON, "-m", "tests.workers.engines.programs", str(self.folder), job.place, job.name]
            # not sys.path as other tests have left it: it would find packages that this process has not
            environment = os.environ | PATH_OF_TESTS
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)
            assert process.stdin is not None
            with process.stdin as given:
                given.write(job.key)
            while self._keeper(job.name) is None and process.poll() is None:
                time.sleep(0.01)

    def look(self, name: str) -> str | None:
        ended = self.folder / f"{name}.ended"
        if ended.exists():
            return f"its program ended with {ended.read_text()}"
        return "no process keeps it" if self._keeper(name) is None else None

    def cancel(self, name: str) -> None:
        keeper = self._keeper(name)
        if keeper is not None:
            os.kill(keeper, signal.SIGTERM)
            while runs(keeper):
                time.sleep(0.01)
        for file in self.folder.glob(f"{name}.*"):
            file.unlink()

    def keepers(self) -> list[int]:
        """The processes that keep a program."""
        numbers = [int(file.read_text()) for file in self.folder.glob("*.keeper")]
        return [number for number in numbers if runs(number)]

    def _keeper(self, name: str) -> int | None:
        with suppress(FileNotFoundError, ValueError):
            keeper = int((self.folder / f"{name}.keeper").read_text())
            return keeper if runs(keeper) else None
        return None


def runs(process: int) -> bool:
    """Whether it runs: one that is dead, and waits for its parent, does not."""
    with suppress(ChildProcessError):
        os.waitpid(process, os.WNOHANG)
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def keep(folder: Path, place: str, name: str) -> None:
    program = start_program(place, name, sys.stdin.buffer.read())
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    note = folder / f"{name}.{os.getpid()}"
    note.write_text(str(os.getpid()))
    note.rename(folder / f"{name}.keeper")
    while program.poll() is None and not asked:
        time.sleep(0.01)
    if asked:
        end_program(program)
    else:
        (folder / f"{name}.ended").write_text(str(program.returncode))


if __name__ == "__main__":
    keep(Path(sys.argv[1]), *sys.argv[2:])

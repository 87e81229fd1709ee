"""A child process that uses what this one has imported, and starts no interpreter. For Linux alone.

This process may have no second thread, and no open connection to a database: a child would share its locks.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import get_context, parent_process
from subprocess import TimeoutExpired

from expunge_service.infra.python import keep_imported

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


class Fork:
    """Runs ``main`` of a module, with what ``subprocess.Popen`` has. ``output``: the file of its output."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], output: int):
        given = (name, module, list(arguments), dict(environment), output)
        self._process = get_context("fork").Process(target=_become, args=given, name=name)
        self._process.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired(self._process.name, timeout or 0.0)
        return code


def import_for_forks(modules: Iterable[str]) -> None:
    """Import what the forks use, for this process and for them."""
    for module in modules:
        importlib.import_module(module)
    keep_imported()


def die_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent, which has this id, dies; end it now if it died already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel was asked, and nobody would tell
        os.kill(os.getpid(), signal.SIGKILL)


def _become(name: str, module: str, arguments: list[str], environment: dict[str, str], output: int) -> None:
    """Do what a new interpreter would do for ``python -P -m module``."""
    parent = parent_process()
    os.setsid()
    die_with_parent(0 if parent is None or parent.pid is None else parent.pid)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"expunge-{name}".encode())  # what ps and top show
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    if not sys.flags.safe_path:
        del sys.path[0]
    atexit._clear()  # the parent's
    try:
        sys.exit(importlib.import_module(module).main(arguments))
    finally:
        atexit._run_exitfuncs()

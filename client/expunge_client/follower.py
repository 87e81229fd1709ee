"""Follow the current version of a model: swap without dropping a call, report what is served, delete what was."""

from __future__ import annotations

import logging
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from expunge_client.answers import Version
from expunge_client.archives import ARCHIVE, unpack_archive
from expunge_client.client import Expunge

Opened = TypeVar("Opened")
POLL_SECONDS = 1.0
REPORT_SECONDS = 60.0
"""how often what is served is reported; after five minutes without a report Expunge counts a consumer as silent"""
_DIGEST = re.compile(r"[0-9a-f]{64}(\.|$)")
"""how the name of what belongs to a version begins"""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served(Generic[Opened]):
    """A version and what ``opened`` made of its file. It is never changed: a newer one takes its place."""

    version: Version
    model: Opened


class Follower(Generic[Opened]):
    """A consumer of one model, with a thread that follows its current version.

        with Follower(expunge, "digits", "api-1", load, Path("served")) as follower:
            with follower.serving() as served:
                served.model(inputs)

    A call keeps the version that it began with. What is reported is the oldest version that a call still uses, so that
    Expunge never counts a consumer as current too early. The file of a version is deleted when nothing uses it, and
    the folder into which it was unpacked.

    While Expunge cannot be reached, or a new version cannot be opened, the version in memory is still served;
    the log says so. ``serving`` works from threads and from coroutines.
    """

    def __init__(
        self, expunge: Expunge, model: str, consumer: str, opened: Callable[[Path, Version], Opened], folder: Path
    ) -> None:
        """Prepare to follow.

        Args:
            expunge: with a key of the scopes models:read and checkpoints:read.
            model: the model's name.
            consumer: the name that reports carry; unique among the model's consumers.
            opened: makes what is served from a version's file (safetensors, or its ``checkpoint_suffix``) and the
                version. Where the suffix is ``zip``, the version is several files, and the path is that of a folder
                with them, ``path / "model.txt"``; their archive is ``path.with_suffix(".zip")``.
            folder: holds the served file. It must be this follower's alone: other files of its suffix are deleted, and
                files and folders that are named by a digest.
        """
        self._expunge, self._model, self._consumer = expunge, model, consumer
        self._opened, self._folder = opened, folder
        self._changed = threading.Lock()
        self._served: Served[Opened] | None = None
        self._etag: str | None = None
        self._calls: Counter[int] = Counter()
        self._reported: tuple[int, float] = (0, 0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"follow {model}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Load the current version, report it, and follow it from now on. Raises what ``look`` raises."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Follow no longer. The last version stays in memory and on disk."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def serving(self) -> Iterator[Served[Opened]]:
        """Give the version that is served now, and count it as in use until the block ends."""
        with self._changed:
            served = self._served
            if served is None:
                raise RuntimeError("No version is loaded. Call start() first.")
            number = served.version["number"]
            self._calls[number] += 1
        try:
            yield served
        finally:
            with self._changed:
                self._calls[number] -= 1

    def look(self) -> None:
        """Swap if another version is current, and report what is served if that changed or a minute has passed.

        Raises ExpungeError, OSError, or what ``opened`` raises.
        """
        found = self._expunge.current(self._model, self._etag)
        if found is not None:
            etag, version = found
            if self._served is None or version["number"] != self._served.version["number"]:
                self._swap(version)
            self._etag = etag
        self._report()

    def _swap(self, version: Version) -> None:
        path = self._path(version)
        self._expunge.download(version, path)
        served = Served(version, self._opened(self._unpacked(version, path), version))
        with self._changed:
            self._served = served

    def _unpacked(self, version: Version, path: Path) -> Path:
        """Return what is opened: the file, or where a version is several, the folder with them beside it."""
        if _suffix(version) != ARCHIVE:
            return path
        folder = self._folder / version["checkpoint_sha256"]
        if self._served is None and folder.exists():
            shutil.rmtree(folder)  # a process that died may have left it, not all of it on the disk
        if not folder.exists():  # else two versions are the same bytes, and calls may be reading it
            unpack_archive(path, folder)
        return folder

    def _report(self) -> None:
        """Report the oldest version in use, after the files of those before it are gone."""
        with self._changed:
            if self._served is None:
                return
            current = self._served.version
            in_use = {number for number, calls in self._calls.items() if calls} | {current["number"]}
            self._calls = +self._calls
        if len(in_use) == 1:
            self._delete_others(current)
        oldest, (reported, at) = min(in_use), self._reported
        if oldest != reported or time.monotonic() - at >= REPORT_SECONDS:
            self._expunge.report(self._model, self._consumer, oldest)
            self._reported = oldest, time.monotonic()

    def _delete_others(self, current: Version) -> None:
        """Delete the files and folders of other versions, whatever their suffix is."""
        for path in list(self._folder.iterdir()):
            is_ours = _DIGEST.match(path.name) or path.match(f"*.{_suffix(current)}*")
            if not is_ours or path.name in (self._path(current).name, current["checkpoint_sha256"]):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _path(self, version: Version) -> Path:
        return self._folder / f"{version['checkpoint_sha256']}.{_suffix(version)}"

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                self.look()
            except Exception as error:  # the next look tries again; a consumer must not stop serving
                served = self._served.version["number"] if self._served else None
                log.warning("%s: still serving version %s: %s", self._model, served, type(error).__name__)


def _suffix(version: Version) -> str:
    return version.get("checkpoint_suffix", "safetensors")  # an older service has no other files

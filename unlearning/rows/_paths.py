"""Files beneath one root: no component of a path may be a link, so none leads elsewhere."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from io import BufferedReader
from pathlib import Path
from typing import IO

from unlearning.rows.declarations import PublicFile, require_beneath
from unlearning.types import RecipeError


def open_file(root: Path, path: str) -> BufferedReader:
    """Open a plain file beneath ``root`` for reading.

    Raises:
        RecipeError: the path leads elsewhere, through a symbolic link, to nothing, or to what is no plain file.
    """
    *folders, name = require_beneath(path)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for component in folders:
            # each step begins at an open folder: who swaps one for a link meanwhile is refused by O_NOFOLLOW
            inner = os.open(component, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        # a FIFO would wait for its writer
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise _refusal(path, error) from None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RecipeError(f"{path!r} is no plain file.", "Name one.")
    return os.fdopen(descriptor, "rb")


class UnwrittenFile:
    """A file that stays open while this lives, and that nobody may write to meanwhile."""

    def __init__(self, file: IO[bytes], source: str) -> None:
        self._source, self.descriptor = source, os.dup(file.fileno())
        weakref.finalize(self, os.close, self.descriptor)
        self._written = self._last_written()

    def require_unwritten(self) -> None:
        """Raise RecipeError where somebody wrote to it."""
        if self._last_written() != self._written:
            raise self.refusal()

    def refusal(self) -> RecipeError:
        what = f"{self._source} was written to while it was read."
        return RecipeError(what, "Write a new file beside it, and rename that.")

    def _last_written(self) -> tuple[int, int]:
        state = os.fstat(self.descriptor)
        return state.st_size, state.st_mtime_ns


def path_beneath(root: Path, path: str) -> Path:
    """Return the path of a file or folder beneath ``root``.

    Raises:
        RecipeError: it leads through a symbolic link, or to nothing.
    """
    whole = root.joinpath(*require_beneath(path))
    if not os.path.lexists(whole):
        raise _refusal(path, FileNotFoundError(errno.ENOENT, ""))
    if os.path.realpath(whole) != str(root.resolve() / path):
        raise _refusal(path, OSError(errno.ELOOP, ""))
    return whole


def open_public(source: PublicFile, root: Path) -> Path:
    """Return the path of a public file whose bytes are the declared ones.

    Raises:
        RecipeError: its digest is another one, or ``open_file`` refuses it.
    """
    with open_file(root, source.path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        raise RecipeError(
            f"The public file {source.path!r} has the digest {digest}, and the recipe says {source.sha256}.",
            "Restore the file, or vouch for the new one by its digest.",
        )
    return root / source.path


def _refusal(path: str, error: OSError) -> RecipeError:
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        what = f"{path!r} passes through a symbolic link or a file."
        return RecipeError(what, "Put the file itself beneath the recipe's folder, or bind its folder there.")
    if error.errno == errno.ENOENT:
        return RecipeError(f"There is no file {path!r}.", "Paths begin at the recipe's folder.")
    return RecipeError(f"{path!r} cannot be read: {error.strerror}.", "Let the service's user read it.")

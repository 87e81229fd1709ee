"""Tell failures of the machine, which may pass, from failures of the recipe, which will happen again."""

from __future__ import annotations

import errno
import traceback
from pathlib import Path

import torch
from sqlalchemy.exc import OperationalError

import unlearning
from service.infra.db import Busy
from unlearning.types import Refused
from workers.runtime.recipe_messages import hint_of
from workers.storage.key_files import KeysMissing

MACHINE = {
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENODEV,
    errno.ENOSPC,
    errno.EROFS,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
OUR_CODE = Path(__file__).resolve().parent.parent
MATHS = Path(unlearning.__file__).resolve().parent


def of_the_machine(error: Exception) -> bool:
    """Return whether a database, a disk or the key folder failed. No request is the cause of that."""
    away = isinstance(error, Busy | OperationalError | KeysMissing)
    return away or (isinstance(error, OSError) and error.errno in MACHINE)


def refusal_of(error: Exception, recipes: Path) -> Refused | None:
    """Return the refusal of a recipe whose code, or the maths on its model and data, raised ``error``.

    Return None for other errors, and for those that may pass: too little memory, a device, a disk, a connection. The
    error's message is in the hint only: it may contain a person's data, and the rest is recorded permanently.
    """
    if may_pass(error) or not _in_recipe(error, recipes.resolve()):
        return None
    return refusal(error, recipes)


def refusal(error: BaseException, recipes: Path) -> Refused:
    """Return the refusal of a recipe whose code raised ``error``: type, file and line; the message is in the hint."""
    return Refused(f"The recipe raised {type(error).__name__}{_place(error, recipes.resolve())}.", hint_of(error))


def may_pass(error: Exception) -> bool:
    """Return whether it may not happen again: the machine failed, or had too little memory, or a connection broke."""
    if of_the_machine(error):
        return True
    if isinstance(error, MemoryError | ConnectionError | TimeoutError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith(("CUDA", "[enforce fail", "DefaultCPUAllocator"))


def _in_recipe(error: Exception, recipes: Path) -> bool:
    """Return whether the innermost frame of the recipe or of ours is the recipe's, or the maths', which does no I/O.

    The accounting is ours alone: it sees no model and no data, so its errors are never the recipe's.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(MATHS):
            return not path.is_relative_to(MATHS / "accounting")
        if path.is_relative_to(OUR_CODE / "workers") or path.is_relative_to(OUR_CODE / "service"):
            return False
        if path.is_relative_to(recipes):
            return True
    return False


def _place(error: BaseException, recipes: Path) -> str:
    """Return the line in the recipe's folder that was reached last; if there is none, the line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(recipes)]
    chosen = own or list(frames)
    return f" at line {chosen[-1].lineno} of {Path(chosen[-1].filename).name}" if chosen else ""

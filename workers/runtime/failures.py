"""Whose fault an exception is: the machine's, which may pass, or the recipe's, which will be raised again."""

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
from workers.storage.key_files import KeyFileMissing

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
    """Whether a database, a disk or the key folder failed, whatever was being done: no request is to blame for that."""
    away = isinstance(error, Busy | OperationalError | KeyFileMissing)
    return away or (isinstance(error, OSError) and error.errno in MACHINE)


def refusal_of(error: Exception, recipes: Path) -> Refused | None:
    """The refusal of a recipe whose code, or the maths on its model and data, raised ``error``; None for other errors.

    None too for what may pass: want of memory, a device, a disk, a connection. The error's message is in the hint
    alone, because it may carry a person's data, and what is recorded for ever is the rest.
    """
    if of_the_machine(error) or _may_pass(error) or not _in_recipe(error, recipes.resolve()):
        return None
    return refusal(error, recipes)


def refusal(error: Exception, recipes: Path) -> Refused:
    """The refusal of a recipe whose code raised ``error``: type, file and line; the message is in the hint."""
    return Refused(f"The recipe raised {type(error).__name__}{_place(error, recipes.resolve())}.", hint_of(error))


def _may_pass(error: Exception) -> bool:
    if isinstance(error, MemoryError | ConnectionError | TimeoutError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and str(error).startswith(("CUDA", "[enforce fail", "DefaultCPUAllocator"))


def _in_recipe(error: Exception, recipes: Path) -> bool:
    """Whether the innermost frame of the recipe or of ours is the recipe's, or one of the maths, which does no I/O."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(MATHS):
            return True
        if path.is_relative_to(OUR_CODE / "workers") or path.is_relative_to(OUR_CODE / "service"):
            return False
        if path.is_relative_to(recipes):
            return True
    return False


def _place(error: Exception, recipes: Path) -> str:
    """The line of the recipe's folder that was reached last; where there is none, the line that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" at line {error.lineno} of {Path(error.filename).name}"
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(recipes)]
    told = own or list(frames)
    return f" at line {told[-1].lineno} of {Path(told[-1].filename).name}" if told else ""

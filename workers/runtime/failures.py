"""Tell failures of the machine, which may pass, from failures of the recipe, which will happen again."""

from __future__ import annotations

import errno
import re
import traceback
from pathlib import Path
from typing import Any

import torch
from sqlalchemy.exc import OperationalError

import unlearning
from expunge.service.infra.db import Busy
from expunge.service.queue import hint_of, without_numbers
from expunge.service.requests import Cause
from expunge.workers.storage import KeysMissing
from unlearning.types import Refused

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
DEVICE = re.compile(
    r"(cuda|cudnn|cublas|cublaslt|cusolver|cusparse|cufft|curand|nvrtc|nccl|triton|hip|rocm|miopen|rocblas|xpu|mps)(?![a-z])"
    r"|\[enforce fail|defaultcpuallocator",
    re.IGNORECASE,
)
"""how the messages of a device, its libraries and the allocator begin"""
OUR_CODE = Path(__file__).resolve().parents[2]
MATHS = Path(unlearning.__file__).resolve().parent


class RecipeRaised(Refused):
    """The recipe's code raised an error: its type, and the file and line that it came from."""

    def __init__(self, error: BaseException, file: str, line: int, hint: str) -> None:
        super().__init__(f"The recipe raised {type(error).__name__} at line {line} of {file}.", hint)
        self.facts = {"error": type(error).__name__, "file": file, "line": line}


def facts_of(error: Exception) -> dict[str, Any]:
    """Return what a reason may say of a recipe's refusal: type and place of its error, or the refusal without numbers.

    No message is in it, and no number but a line's.
    """
    if isinstance(error, RecipeRaised):
        return {"cause": Cause.RECIPE_RAISED, **error.facts}
    return {"cause": Cause.RECIPE_REFUSED, "detail": without_numbers(getattr(error, "what", type(error).__name__))}


def of_the_machine(error: Exception) -> bool:
    """Return whether a database, a disk or the key folder failed. No request is the cause of that."""
    away = isinstance(error, Busy | OperationalError | KeysMissing)
    return away or (isinstance(error, OSError) and error.errno in MACHINE)


def refusal_of(error: Exception, recipes: Path) -> Refused | None:
    """Return the refusal of a recipe for an ``error`` of its code, or of the maths on its model and data.

    Return None for other errors, and for those that may pass: too little memory, a device, a disk, a connection. The
    error's message is in the hint only: it may contain a person's data, and the rest is recorded permanently.
    """
    if may_pass(error) or not _in_recipe(error, recipes.resolve()):
        return None
    return refusal(error, recipes)


def refusal(error: BaseException, recipes: Path) -> Refused:
    """Return the refusal of a recipe for an ``error`` of its code: type, file and line; the message is in the hint."""
    place = _place(error, recipes.resolve())
    if place is None:
        return Refused(f"The recipe raised {type(error).__name__}.", hint_of(error))
    return RecipeRaised(error, *place, hint_of(error))


def may_pass(error: Exception) -> bool:
    """Return whether it may not happen again: the machine failed, or had too little memory, or a connection broke."""
    if of_the_machine(error):
        return True
    if lacks_memory(error) or isinstance(error, ConnectionError | TimeoutError | torch.AcceleratorError):
        return True
    return isinstance(error, RuntimeError) and DEVICE.match(str(error)) is not None


def lacks_memory(error: Exception) -> bool:
    """Return whether the machine or the device had too little memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError)


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


def _place(error: BaseException, recipes: Path) -> tuple[str, int] | None:
    """Return file and line in the recipe's folder that were reached last; if there are none, those that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename is not None:
        return Path(error.filename).name, error.lineno or 0
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(recipes)]
    chosen = own or list(frames)
    return (Path(chosen[-1].filename).name, chosen[-1].lineno or 0) if chosen else None

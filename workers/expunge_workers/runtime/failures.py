"""Tell failures of the machine, which may pass, from failures of the recipe, which will happen again."""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from sqlalchemy.exc import OperationalError

from expunge_service.infra.db import Busy
from expunge_service.queue import REPORT, hint_of, without_numbers
from expunge_service.requests import Cause, Reason
from expunge_workers.runtime import packages
from expunge_workers.runtime.own_packages import MATHS, SERVICE, WORKERS
from expunge_workers.storage import KeysMissing
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
RESTART = "Restart the workers and try again."


class Attributed(Refused):
    """A refusal of which is known whose fault it is: the reason and the cause that a task gets, and what they may say.

    No message is in ``facts``, and no number but a line's.
    """

    reason: ClassVar[Reason]
    cause: ClassVar[Cause]

    def __init__(self, what: str, hint: str, facts: Mapping[str, Any]) -> None:
        super().__init__(what, hint)
        self.facts = facts


class RecipeRaised(Attributed):
    """The recipe's code raised an error: its type, and the file and line that it came from."""

    reason, cause = Reason.RECIPE_FAILED, Cause.RECIPE_RAISED

    def __init__(self, error: BaseException, file: str, line: int) -> None:
        name = type(error).__name__
        facts = {"error": name, "file": file, "line": line}
        super().__init__(f"The recipe raised {name} at line {line} of {file}.", hint_of(error), facts)


class OurFault(Attributed):
    """A line of the maths raised an error, or a library that it called: no change of the recipe is asked for."""

    reason, cause = Reason.FAILED, Cause.OUR_FAULT

    def __init__(self, error: BaseException, file: Path, line: int) -> None:
        name = type(error).__name__
        facts = {"error": name, "file": file.name, "line": line}
        super().__init__(f"Expunge raised {name} at line {line} of {file}.", hint_of(error, REPORT), facts)


class PackagesReplaced(Attributed):
    """Packages were replaced under the running process, which may have loaded them in part: a recipe that fails then
    is not known to be wrong. ``replaced`` has at least one."""

    reason, cause = Reason.ENVIRONMENT_CHANGED, Cause.PACKAGES_REPLACED

    def __init__(self, replaced: Sequence[str], error: BaseException | None = None) -> None:
        more = f" and {len(replaced) - 1} more" if len(replaced) > 1 else ""
        what = f"Packages were replaced under the running worker, which had {replaced[0]}{more}."
        super().__init__(what, RESTART if error is None else hint_of(error, RESTART), {"here": replaced[0]})


def reason_of(error: Refused) -> tuple[Reason, dict[str, Any]]:
    """Return the reason of an update that a recipe's refusal blocks, with its facts."""
    return error.reason if isinstance(error, Attributed) else Reason.RECIPE_FAILED, facts_of(error)


def facts_of(error: Exception) -> dict[str, Any]:
    """Return what a reason may say of a recipe's refusal: type and place of its error, or the refusal without numbers.

    No message is in it, and no number but a line's.
    """
    if isinstance(error, Attributed):
        return {"cause": error.cause, **error.facts}
    return {"cause": Cause.RECIPE_REFUSED, "detail": without_numbers(getattr(error, "what", type(error).__name__))}


def of_the_machine(error: Exception) -> bool:
    """Return whether a database, a disk or the key folder failed. No request is the cause of that."""
    away = isinstance(error, Busy | OperationalError | KeysMissing)
    return away or (isinstance(error, OSError) and error.errno in MACHINE)


def refusal_of(error: Exception, recipes: Path) -> Refused | None:
    """Return the refusal of a recipe for an ``error`` of its code, or of the maths.

    Return None for other errors, and for those that may pass: too little memory, a device, a disk, a connection. The
    error's message is in the hint only: it may contain a person's data, and the rest is recorded permanently.
    """
    if may_pass(error) or not _every_attempt_raises(error, recipes.resolve()):
        return None
    return refusal(error, recipes)


def refusal(error: BaseException, recipes: Path) -> Refused:
    """Return the refusal for an ``error``: ours where the innermost line of the recipe's or the maths' is the maths',
    also where that line called a library; and the recipe's otherwise. Where packages were replaced, it is neither's.
    """
    replaced = packages.replaced()
    if replaced:
        return PackagesReplaced(replaced, error)
    own = _innermost(error, recipes.resolve(), (MATHS,))
    if own is None or not own[0].is_relative_to(MATHS):
        return refusal_of_recipe(error, recipes)
    path, line = own
    return OurFault(error, path.relative_to(MATHS.parent), line)


def refusal_of_recipe(error: BaseException, recipes: Path) -> Refused:
    """Return the refusal of a recipe for an ``error`` of its code: type, file and line; the message is in the hint."""
    place = _place(error, recipes.resolve())
    if place is None:
        return Refused(f"The recipe raised {type(error).__name__}.", hint_of(error))
    return RecipeRaised(error, *place)


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


def _every_attempt_raises(error: Exception, recipes: Path) -> bool:
    """Return whether the innermost line of the recipe's or ours is the recipe's, or the maths', which does no I/O."""
    own = _innermost(error, recipes, (MATHS, WORKERS, SERVICE))
    return own is not None and (own[0].is_relative_to(MATHS) or own[0].is_relative_to(recipes))


def _innermost(error: BaseException, recipes: Path, ours: tuple[Path, ...]) -> tuple[Path, int] | None:
    """Return file and line of the innermost frame in the recipe's folder or in ``ours``; None where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if any(path.is_relative_to(folder) for folder in (*ours, recipes)):
            return path, frame.lineno or 0
    return None


def _place(error: BaseException, recipes: Path) -> tuple[str, int] | None:
    """Return file and line in the recipe's folder that were reached last; if there are none, those that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename is not None:
        return Path(error.filename).name, error.lineno or 0
    own = [frame for frame in frames if Path(frame.filename).resolve().is_relative_to(recipes)]
    chosen = own or list(frames)
    return (Path(chosen[-1].filename).name, chosen[-1].lineno or 0) if chosen else None

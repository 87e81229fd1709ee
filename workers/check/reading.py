"""One reading of a recipe as digests, to compare it with another: ``python -m expunge.workers.check.reading``.

A second reading is made by a process of its own, with other seeds and another order of sets: as a worker that is
started again makes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import expunge
from expunge.service.infra.python import PYTHON
from expunge.workers.runtime import recipes
from expunge.workers.runtime.recipes import settings_digest
from unlearning.model.problem import build
from unlearning.recipe import Recipe
from unlearning.types import Refused


@dataclass(frozen=True)
class Reading:
    """What a recipe gave, in digests.

    Args:
        samples: the digest of each sample's content, by the digest of its id.
        settings: of training, loss and seed.
        start: of the weights before training.
        numbers: how many of them there are.
    """

    samples: Mapping[str, str]
    settings: str
    start: str
    numbers: int


def reading(recipe: Recipe) -> Reading:
    """Return the digests of what the recipe gave, and of the weights that it starts from."""
    inputs, targets = recipe.samples.tensors()
    contents = (_digest(x, y) for x, y in zip(inputs, targets, strict=True))
    names = map(digest_of_id, recipe.samples.ids)
    weights = list(build(recipe, recipe.training.seed).state_dict().values())
    numbers = sum(each.numel() for each in weights)
    return Reading(dict(zip(names, contents, strict=True)), settings_digest(recipe), _digest(*weights), numbers)


def digest_of_id(identity: str) -> str:
    """Return the name of a sample in a reading."""
    return hashlib.sha256(identity.encode()).hexdigest()[:24]


class SecondReading:
    """A reading by another process, begun at once."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        command = [*PYTHON, "-m", "expunge.workers.check.reading", str(folder), name, str(seed)]
        root = str(Path(expunge.__file__).resolve().parents[1])
        places = os.pathsep.join(each for each in (root, os.environ.get("PYTHONPATH", "")) if each)
        self._child = subprocess.Popen(  # noqa: S603  (our own interpreter)
            command,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": places},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def result(self, seconds: float) -> Reading:
        """Wait for the reading. Raises Refused where the recipe does not run in that process, or not in that time."""
        try:
            out, _ = self._child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()
            raise Refused(
                f"A second reading took more than {seconds:.0f} s.",
                "Run the command again when the machine has less to do. If it stays so, look for what the recipe waits "
                "for in a second process, such as a lock, a download or another copy of the data in memory.",
            ) from None
        try:
            found = json.loads(out)
        except ValueError:
            raise Refused(f"The process that read it ended with status {self._child.returncode}.", "") from None
        if "refused" in found:
            raise Refused(found["refused"], found["hint"])
        return Reading(**found)


def main(arguments: list[str]) -> int:
    """Print one reading, or a refusal, as JSON."""
    folder, name, seed = Path(arguments[0]), arguments[1], int(arguments[2])
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    with redirect_stdout(sys.stderr):  # a recipe may print
        try:
            found = asdict(reading(recipes.load(folder, name).recipe))
        except Refused as error:
            found = {"refused": error.what, "hint": error.hint}
    sys.stdout.write(json.dumps(found))
    return 0


def _digest(*values: Tensor) -> str:
    found = hashlib.sha256()
    for value in values:
        plain = value.detach().cpu().contiguous()
        found.update(f"{plain.dtype} {tuple(plain.shape)} ".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:24]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Make one file of the members that are bytes, by the recipe's own ``merge``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from unlearning.model.problem import Problem
from unlearning.model.user_code.own_training import Fitted
from unlearning.types import Examples, Progress, silent


@dataclass(frozen=True)
class Merge:
    """The members, in place of what a phase starts from: tensors named by their number."""

    def carried_out(self, problem: Problem, _examples: Examples, start: Fitted | None, _progress: Progress) -> Fitted:
        """Return the file as weights, uint8."""
        if start is None or problem.artefact is None:
            raise ValueError("members of bytes are merged, and none are given")
        members = [start.tensors[str(number)] for number in range(len(start.tensors))]
        return Fitted(problem.artefact.merged(members).to(problem.device))


def merged(problem: Problem, members: Sequence[Tensor], examples: Examples) -> Tensor:
    """Return the file of the members. A separate process makes it: nothing of an earlier file can be in this one.

    That process is handed one of the samples that stay, as every training is; ``merge`` does not see it.
    """
    start = Fitted(members[0], {str(number): each for number, each in enumerate(members)})
    handed = examples.only(examples.positions[:1])
    if problem.fresh is not None:
        return problem.fresh(Merge(), handed, start, silent).weights
    return Merge().carried_out(problem, handed, start, silent).weights

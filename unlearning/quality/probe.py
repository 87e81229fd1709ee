"""A preparation tried on a few people first: does it help on this model, and what does the whole of it cost?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from unlearning.model.method import Divisible, Method
from unlearning.model.problem import Problem
from unlearning.model.training import retrace
from unlearning.quality.distance_left import calibration_sets, measure
from unlearning.quality.simulate import forget_set
from unlearning.types import Examples, Ineffective, Learned, Refused, Vectors

SHARE, COUNT, MOST_PEOPLE = 0.05, 3, 8
"""share of the people in a set, sets, and people in a set at most"""


@dataclass(frozen=True)
class Probed:
    """What the probe found.

    Args:
        distance_left: the mean over the sets; 0 is retrained, 1 is an untouched model.
        people: how many had their vectors computed.
        retrainings: what the vectors of all people cost at most, in retrainings. More people at once share work.
    """

    distance_left: float
    people: int
    retrainings: float

    def require_below(self, threshold: float) -> None:
        """Raise Ineffective where the distance left is not below ``threshold``."""
        if self.distance_left < threshold:
            return
        raise Ineffective(
            f"After the update of a few people ({self.people}, a probe) the weights are {self.distance_left:.3g} times "
            f"as far from retraining as before (distance_left, must be below {threshold:g}). The whole preparation, "
            f"up to {self.retrainings:.2g} retrainings, was not made.",
            "Use retrain, or a smaller learning rate.",
        )


def probe(
    method: Divisible, problem: Problem, examples: Examples, learned: Learned, clock: Callable[[], float]
) -> Probed:
    """Compute the vectors of a few people, forget them set by set, and compare with retraining without each set.

    ``clock`` gives seconds. Raises Refused where all samples belong to one person, or no trajectory was recorded.
    """
    trajectory = learned.trajectory
    if trajectory is None or not isinstance(method, Method):
        raise Refused("The training's trajectory was not recorded.", "Record it with unlearning.Recorder.")
    drawn = calibration_sets(examples, SHARE, COUNT, problem.training.seed)
    sets = [forget_set(examples, sorted(chosen.people)[:MOST_PEOPLE]) for chosen in drawn]
    people = sorted({person for chosen in sets for person in chosen.people})
    start = clock()
    state = method.state_for(problem, examples, learned, people)
    between = clock()

    def retrained(omit: tuple[int, ...]) -> Tensor:
        return retrace(problem, examples, trajectory, omit)

    given = [replace(each, vectors=Vectors(state.vectors)) for each in sets]
    measured = measure(method, problem, examples, state, retrained=retrained, sets=given)
    each = (between - start) / len(people)
    retraining = (clock() - between) / len(sets)
    whole = each * len(examples.people.distinct()) / retraining if retraining > 0.0 else 0.0
    return Probed(sum(measured) / len(measured), len(people), whole)

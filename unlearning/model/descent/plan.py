"""What a training will do, before it does it: batches, step sizes, and what a thinned batch is divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

REFERENCES = ("renormalised", "fixed-denominator")


@dataclass(frozen=True)
class Steps:
    """The steps to take.

    Args:
        batches: the positions of each step's batch.
        rates: eta_t.
        steps_a_pass: how many steps go once through the samples.
        reference: what a batch that lost samples is divided by: ``renormalised`` or ``fixed-denominator``.
        first: how many steps of the training came before these.
    """

    batches: Sequence[Tensor]
    rates: Sequence[float]
    steps_a_pass: int
    reference: str = "renormalised"
    first: int = 0

    def before(self, step: int) -> Steps:
        """Return the steps before ``step``, counted within these."""
        return replace(self, batches=self.batches[:step], rates=self.rates[:step])

    def since(self, step: int) -> Steps:
        """Return the steps from ``step`` on, counted within these."""
        return replace(self, batches=self.batches[step:], rates=self.rates[step:], first=self.first + step)


def denominator_of(reference: str, planned: int, present: int) -> int:
    """Return what a summed gradient is divided by when ``present`` of ``planned`` samples take part."""
    if reference not in REFERENCES:
        raise ValueError(f"reference is {reference!r}; it must be one of {REFERENCES}.")
    return planned if reference == "fixed-denominator" else present

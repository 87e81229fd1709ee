"""Which steps are run, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

from tests.deploy.step import Step


class UnknownStep(ValueError):
    """A name that no step has."""


def chosen(steps: Sequence[Step], only: Sequence[str], skipped: Sequence[str]) -> list[Step]:
    """Return the steps that are wanted, in their order, with all that they need.

    Raises UnknownStep for a name that no step has, and where a step is skipped that another of ``only`` needs.
    """
    by_name = {step.name: step for step in steps}
    for name in (*only, *skipped):
        if name not in by_name:
            raise UnknownStep(f"There is no step {name!r}. There are: {', '.join(by_name)}.")
    wanted = set(only) or {name for name in by_name if name not in skipped}
    for step in reversed(steps):
        if step.name in wanted:
            wanted.update(step.needs)
    both = sorted(wanted & set(skipped)) if only else []
    if both:
        raise UnknownStep(f"{', '.join(both)} cannot be skipped: a step that you name needs it.")
    return [step for step in steps if step.name in wanted and step.name not in skipped]

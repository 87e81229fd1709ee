"""What a drill found, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

HARM = ("lost", "doubled", "overspent", "served_with_deletion_missing", "undetected_corruptions", "left_behind")
"""the counts that must be zero"""


@dataclass(frozen=True)
class Result:
    """One row of the table. A harm that a drill cannot count stays zero; ``notes`` say what was looked at."""

    name: str
    cases: int = 0
    """worlds, runs or acknowledged requests that the drill put to the test"""
    faults: int = 0
    """deaths, cuts, corruptions and other harm that was done on purpose"""
    lost: int = 0
    doubled: int = 0
    overspent: int = 0
    served_with_deletion_missing: int = 0
    undetected_corruptions: int = 0
    left_behind: int = 0
    """bytes or rows of a forgotten person that were found after the stated bound"""
    planted: int = 0
    caught: int = 0
    """bugs put into the source on purpose, and how many of them the suite saw"""
    seconds: float = 0.0
    """filled in by the runner"""
    notes: tuple[str, ...] = ()
    """one sentence each: figures next to the counts, and every harm in words"""

    @property
    def clean(self) -> bool:
        return all(getattr(self, name) == 0 for name in HARM) and self.caught == self.planted

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Result:
        known = {field.name for field in fields(cls)}
        return cls(
            **{name: value for name, value in values.items() if name in known - {"notes"}}, notes=tuple(values["notes"])
        )

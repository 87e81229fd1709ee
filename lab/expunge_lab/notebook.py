"""``check`` and ``advise`` for a notebook: the tables of ``expunge check``, as the last line of a cell shows them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from expunge_lab.costs import Measured, measured
from expunge_lab.recipe import place_of
from expunge_workers.check.checks import check as findings_of

Row = Sequence[str]


@dataclass(frozen=True)
class Checked:
    """What ``expunge check`` found. A notebook shows it as tables."""

    findings: Sequence[Mapping[str, Any]]
    methods: Sequence[Mapping[str, Any]]

    @property
    def well(self) -> bool:
        """Return whether no check failed. Only then are methods named with their guarantees."""
        return all(each["well"] for each in self.findings)

    def __str__(self) -> str:
        found = [f"{_verdict(each)} {each['name']}: {each['what']} {each['hint']}".rstrip() for each in self.findings]
        return "\n".join([*found, *(" | ".join(row) for row in self._methods())])

    def _repr_html_(self) -> str:
        found = [(_verdict(each), each["name"], each["what"], each["hint"]) for each in self.findings]
        tables = [_table(("", "check", "what was found", "what to do"), found)]
        if self.methods:
            tables.append(_table(("method", "guarantee", "refused because"), self._methods()))
        return "".join(tables)

    def _methods(self) -> list[Row]:
        return [(each["method"], str(each["guarantee"] or "-"), each["refused"] or "") for each in self.methods]


@dataclass(frozen=True)
class Advised:
    """What ``expunge check --measure`` measured. A notebook shows it as a table, with the advice below."""

    measured: Measured

    def __str__(self) -> str:
        return "\n".join([*(" | ".join(row) for row in self._rows()), self.measured.to_json()["advice"]])

    def _repr_html_(self) -> str:
        columns = ("method", "guarantee", "accuracy", "first version, retrainings", "update, retrainings", "refused")
        return f"{_table(columns, self._rows())}<p><b>{escape(self.measured.to_json()['advice'])}</b></p>"

    def _rows(self) -> list[Row]:
        return [
            (
                offer["method"],
                str(offer["guarantee"] or "-"),
                "not measured" if offer["accuracy"] is None else f"{offer['accuracy']:.3f}",
                _ratio(offer["preparation_retrainings"]),
                _ratio(offer["update_retrainings"]),
                offer["refused"] or "",
            )
            for offer in self.measured.to_json()["methods"]
        ]


def check(recipe: str | Path) -> Checked:
    """Check a recipe's file, or its folder, in seconds and without a service, as ``expunge check`` does.

    A cell with ``%%writefile recipes/mine.py`` writes such a file: other processes read it again, so it is no object of
    the notebook.
    """
    folder, name = place_of(recipe)
    with redirect_stdout(sys.stderr):  # a recipe may print
        found = findings_of(folder, name)
    return Checked(found["findings"], found["methods"])


def advise(recipe: str | Path, *, seconds: float = 120.0, methods: str = "all") -> Advised:
    """Measure which method suits a recipe, as ``expunge check --measure`` does.

    Args:
        recipe: its file, or its folder.
        seconds: how long it may take.
        methods: "all", or some names with commas between them.

    Raises:
        Refused: the recipe cannot be trained, or not in that time.
    """
    with redirect_stdout(sys.stderr):
        return Advised(measured(Path(recipe).resolve(), ["--seconds", str(seconds), "--methods", methods]))


def _verdict(finding: Mapping[str, Any]) -> str:
    return "ok" if finding["well"] else "FAIL"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _table(columns: Row, rows: Iterable[Row]) -> str:
    def cells(kind: str, row: Row) -> str:
        return "".join(f"<{kind} style='text-align:left'>{escape(each)}</{kind}>" for each in row)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', columns)}</tr></thead><tbody>{body}</tbody></table>"

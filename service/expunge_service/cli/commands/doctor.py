"""``expunge doctor``: what is missing or misconfigured, in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import typer

from expunge_client.cli.output import FAILED, as_json, briefly, errors, output, show_json, show_lines
from expunge_service.cli.checks import Finding, ask_worker, examine
from expunge_service.cli.errors import told
from expunge_service.infra.settings import Settings


@told()
def doctor() -> None:
    """Look at secrets, stores, disk, broker, database, clocks, processes, recipes and generations. Exit 1 on a
    fault.
    """
    findings = []
    for finding in _looked():
        findings.append(finding)
        if not as_json() and not briefly():
            _show(finding)
    if briefly():
        wrong = [each for each in findings if not each.well]
        show_lines([(_summary(len(wrong), len(findings)), ""), *((f"  {each.name}", _told(each)) for each in wrong)])
    if as_json():
        show_json([asdict(finding) for finding in findings])
    if not all(finding.well for finding in findings):
        raise typer.Exit(FAILED)


def _looked() -> Iterator[Finding]:
    """Yield every finding. Under another pepper, private store or database each generation looks lost, and is not:
    none is looked at.
    """
    faults = set()
    _tell("looking at secrets, stores, broker and database ...")
    for finding in examine(Settings()):
        yield finding
        if not finding.well:
            faults.add(finding.name)
    if not faults & {"pepper", "private_store", "witness"}:
        _tell("asking a worker, which loads torch, the recipes and their data ...")
        yield from ask_worker()


def _tell(step: str) -> None:
    """Print on standard error what is waited for: the few lines of the result come at the end."""
    if briefly():
        errors.print(step)


def _summary(wrong: int, looked: int) -> str:
    problems = "no problem" if not wrong else "1 problem" if wrong == 1 else f"{wrong} problems"
    return f"{problems}, {looked - wrong} checks passed"


def _told(finding: Finding) -> str:
    return f"{finding.what}  Do: {finding.hint}" if finding.hint else finding.what


def _show(finding: Finding) -> None:
    """Print a finding at once: some recipes take long to read their data."""
    mark, style = ("ok  ", "green") if finding.well else ("FAIL", "bold red")
    output.print(mark, style=style, end="")
    output.print(f" {finding.name}: {finding.what}", soft_wrap=True)
    if finding.hint:
        output.print(f"     {finding.hint}", style="yellow", markup=False, soft_wrap=True)

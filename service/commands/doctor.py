"""``expunge doctor``: what is missing or misconfigured, in plain words."""

from __future__ import annotations

from dataclasses import asdict

import typer

from service.commands.screen import FAILED, AsJson, output, show_json
from service.doctor import examine
from service.settings import Settings


def doctor(as_json: AsJson = False) -> None:
    """Look at secrets, recipes, stores, disk, broker, database, worker and keeper. Exit 1 where something is wrong."""
    findings = list(examine(Settings()))
    if as_json:
        show_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            mark = "[green]ok  [/green]" if finding.well else "[bold red]FAIL[/bold red]"
            output.print(f"{mark} {finding.name}: ", end="")
            output.print(finding.what, markup=False, soft_wrap=True)
            if finding.hint:
                output.print(f"     {finding.hint}", style="yellow", markup=False, soft_wrap=True)
    if not all(finding.well for finding in findings):
        raise typer.Exit(FAILED)

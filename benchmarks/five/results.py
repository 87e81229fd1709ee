"""Where the table's figures lie: those of the last runs, and those that are published."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "build" / "reports" / "five.json"
PUBLISHED = ROOT / "benchmarks" / "results" / "five.json"
AUDITS_MEASURED = MEASURED.with_name("five_audits.json")
AUDITS_PUBLISHED = PUBLISHED.with_name("five_audits.json")


def keep(table: dict[str, Any], measured: Path = MEASURED) -> None:
    """Replace this setting's table among the measured ones."""
    tables = merged(read(measured), [table])
    measured.parent.mkdir(parents=True, exist_ok=True)
    measured.write_text(written(tables))


def publish() -> None:
    """Replace the published tables by those that were measured here; the others stay."""
    for published, measured in ((PUBLISHED, MEASURED), (AUDITS_PUBLISHED, AUDITS_MEASURED)):
        published.write_text(written(merged(read(published), read(measured))))


def read(path: Path = PUBLISHED) -> list[dict[str, Any]]:
    """Return the tables of a file, one for each setting; none where there is no file."""
    tables: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return tables


def merged(tables: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all tables; of two of one setting the fresh one."""
    by_setting = {(table["data"], table["model"]): table for table in [*tables, *fresh]}
    return list(by_setting.values())


def written(tables: list[dict[str, Any]]) -> str:
    """Return the file's text. Figures keep six digits."""
    return json.dumps(_rounded(tables), indent=1, ensure_ascii=False) + "\n"


def commit() -> str:
    """Return the last commit that changed what is measured, short; empty outside a checkout."""
    command = ["git", "log", "-1", "--format=%h", "--abbrev=8", "--", "unlearning", "examples/digits"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value

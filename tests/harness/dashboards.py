"""The dashboard's queries and the rules' expressions, read from the files that operators are given."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "dashboards"
UNVERIFIED = "unverified here"


def program(name: str) -> str:
    """Return the path of a program. Skip the test, as not verified, where it is missing."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{UNVERIFIED}: {name} is not installed")
    return found


def dashboard() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / "grafana" / "dashboards" / "expunge.json").read_text())
    return read


def queries() -> list[tuple[str, str]]:
    """Return (panel, PromQL) of every query, with Grafana's variables as Prometheus would get them."""
    found = []
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "5m")
            text = text.replace("$tenant", ".*").replace("$model", ".*")
            assert "$" not in text, f"{panel['title']}: a variable that this test does not know"
            found.append((panel["title"], text))
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metrics_in(expression: str) -> set[str]:
    """Return the names of the metrics that a PromQL expression reads."""
    return set(re.findall(r"\b(?:expunge|process|python)_[a-z0-9_]+|\bup\b", expression))

"""Renders the chart by Helm's own engine: the ``helm`` binary, or Helm's library in the package helm-python-sdk."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.harness import cluster

HELM = shutil.which("helm")
LIBRARY = importlib.util.find_spec("helm_python") is not None
IS_HERE = HELM is not None or LIBRARY
MISSING = "unverified here: pip install helm-python-sdk (Helm's engine as a library, 250 MB), or install helm"


class RefusedValues(Exception):
    """Helm renders nothing with these values; the message is what it says."""


def rendered(chart: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the objects that ``helm install expunge`` would make. Raises RefusedValues."""
    text = _by_program(chart, values) if HELM is not None else _by_library(chart, values)
    return [each for each in yaml.safe_load_all(text) if each]


def _by_program(chart: Path, values: Mapping[str, Any]) -> str:
    command = [str(HELM), "template", "expunge", str(chart), "--values", "-"]
    made = subprocess.run(command, input=json.dumps(values), check=False, capture_output=True, text=True)
    if made.returncode:
        raise RefusedValues(made.stderr)
    return made.stdout


def _by_library(chart: Path, values: Mapping[str, Any]) -> str:
    helm = importlib.import_module("helm_python")
    with helm.Chart.load(chart) as loaded:
        try:
            loaded.validate_schema(dict(values))
            made: dict[str, str] = loaded.render(dict(values), name="expunge")
        except (helm.HelmValuesError, helm.HelmRenderError) as error:
            raise RefusedValues(str(error)) from None
    return "\n---\n".join(made.values())


def installed(chart: Path, values: Mapping[str, Any], secrets: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the objects that an installation would make in a cluster with these Secrets (``cluster.answering``)."""
    helm = importlib.import_module("helm_python")
    with cluster.answering(secrets) as kubeconfig, ExitStack() as closing:
        config = helm.Config(kubeconfig_content=kubeconfig, namespace="default", storage_driver="memory")
        closing.callback(config.close)
        made = config.install(str(chart), "expunge", dict(values), dry_run="server", namespace="default")
    return [each for each in yaml.safe_load_all(made["manifest"]) if each]


def faults(chart: Path, values: Mapping[str, Any]) -> list[str]:
    """Return what ``helm lint --strict`` finds."""
    if HELM is not None:
        command = [HELM, "lint", "--strict", "--quiet", str(chart), "--values", "-"]
        judged = subprocess.run(command, input=json.dumps(values), check=False, capture_output=True, text=True)
        return judged.stdout.splitlines() if judged.returncode else []
    report = importlib.import_module("helm_python").lint(chart, dict(values), strict=True)
    return [each["error"] for each in report["messages"] if each["severity"] > 1] + list(report["errors"])

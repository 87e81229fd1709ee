"""The lock pins every package that pyproject.toml brings, at the version installed here, and no GPU build."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
OURS = {"expunge", "expunge-client", "expunge-connect", "expunge-lab"}
"""built from this repository, and so in no lock"""
GPU = re.compile(r"^(nvidia|cuda|triton)")


def pinned(*files: str) -> dict[str, str]:
    """Name to version, of the lines whose marker holds here."""
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines() if line and line[0] not in "#-"]
    requirements = [Requirement(line) for line in lines]
    here = [each for each in requirements if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in here}


def closure(requirements: list[Requirement]) -> set[str]:
    """Every package that these bring in this environment, torch's GPU packages and our own aside."""
    found: set[tuple[str, str]] = set()
    waiting = [(each, extra) for each in requirements for extra in ("", *each.extras)]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in found or GPU.match(name):
            continue
        found.add((name, extra))
        for line in distribution(name).requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate(default_environment() | {"extra": extra}):
                waiting += [(needed, each) for each in ("", *needed.extras)]
    return {name for name, _ in found} - OURS


def declared(*extras: str) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [Requirement(line) for line in lines]


HOLES = {
    "cryptography": ("46.0.4", "CVE-2026-26007"),
    "h11": ("0.14.0", "CVE-2025-43859"),
    "jinja2": ("3.1.5", "CVE-2025-27516"),
    "scikit-learn": ("1.4.2", "CVE-2024-5206"),
    "setuptools": ("78.1.0", "CVE-2025-47273"),
    "starlette": ("1.3.0", "and before it CVE-2025-62727"),
    "torch": ("2.9.1", "and before it CVE-2025-32434"),
    "transformers": ("4.52.4", "CVE-2025-6921"),
}
"""a package that we name: its last version with a known hole"""


@pytest.mark.parametrize("project", ["", "client/", "connect/", "lab/"])
def test_no_floor_admits_a_known_hole(project: str) -> None:
    """A wheel is installed beside what is there already: a version within the floor stays."""
    written = tomllib.loads((ROOT / f"{project}pyproject.toml").read_text())
    extras = written["project"].get("optional-dependencies", {})
    lines = [*written["build-system"]["requires"], *written["project"]["dependencies"], *chain(*extras.values())]
    for requirement in map(Requirement, lines):
        hole, advisory = HOLES.get(canonicalize_name(requirement.name), (None, ""))
        assert hole is None or not requirement.specifier.contains(hole), (str(requirement), advisory)


def test_what_serves_the_api_is_named_with_its_floor() -> None:
    """The framework's own floors admit versions with holes."""
    assert {"starlette", "h11", "torch"} <= {each.name for each in declared()}


@pytest.mark.parametrize(
    ("files", "extras"),
    [(["requirements.lock"], ["lab"]), (["requirements.lock", "requirements-dev.lock"], ["lab", "dev"])],
)
def test_every_package_that_is_needed_is_pinned_and_nothing_else(files: list[str], extras: list[str]) -> None:
    assert set(pinned(*files)) == closure(declared(*extras))


def test_pins_lie_within_the_declared_ranges() -> None:
    pins = pinned("requirements.lock", "requirements-dev.lock")
    for requirement in (each for each in declared("dev") if each.name not in OURS):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_what_is_installed_is_what_is_pinned() -> None:
    pins = pinned("requirements.lock", "requirements-dev.lock")
    try:
        distribution("expunge")
    except PackageNotFoundError:
        return  # an environment that make did not build may hold other versions of the ranges
    installed = {name: distribution(name).version.partition("+")[0] for name in pins}
    assert installed == pins


def test_no_build_of_torch_is_prescribed() -> None:
    pins = pinned("requirements.lock", "requirements-dev.lock")
    assert "+" not in pins["torch"]
    assert not [name for name in pins if GPU.match(name)]

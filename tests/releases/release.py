"""Make a release: ``make release VERSION=0.2.0``.

On a clean tree: the version at its places, the changelog's heading, the folder that all later releases open
(``tests/releases/VERSION``), wheels and sources of the four packages in ``dist/``, one commit, its tag, and a second
commit with the next development version. A release that fails leaves the tree as it was. Nothing is pushed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from datetime import date
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SOURCE = "expunge/__init__.py"
PLACES = (
    SOURCE,
    "pyproject.toml",
    "client/pyproject.toml",
    "connect/pyproject.toml",
    "lab/pyproject.toml",
    "engines/ray/pyproject.toml",
    "docker-compose.yml",
    "compose.worker.yml",
    "deploy/helm/expunge/Chart.yaml",
)
"""the files that say the version; ``SOURCE`` is the one that decides"""
PACKAGES = (".", "client", "connect", "lab", "engines/ray")
BUILD = "import sys; from setuptools import build_meta as b; d = sys.argv[1]; b.build_wheel(d); b.build_sdist(d)"
"""setuptools takes sys.argv for itself"""
UNRELEASED = "## [Unreleased]\n"


class CannotRelease(Exception):
    """Nothing was released; the message says why."""


def version_in(text: str) -> str:
    """Return the version that ``SOURCE`` says."""
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def following(version: str) -> str:
    """Return the development version after a release."""
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0.dev0"


def require_next(version: str, now: str) -> None:
    """Raises CannotRelease unless it is of three numbers and not before the development version."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise CannotRelease(f"{version!r} is not a version such as 0.2.0. Run make release VERSION=0.2.0")
    developed = now.partition(".dev")[0]
    if ".dev" not in now or _numbers(version) < _numbers(developed):
        raise CannotRelease(f"{version} does not follow {now}, which {SOURCE} says. Name {developed} or a later one.")


def stamped(text: str, old: str, new: str) -> str:
    """Return the text with another version. A chart's own must be one of Semantic Versioning. Raises CannotRelease."""
    made = re.sub(rf"^version: {re.escape(_semantic(old))}$", f"version: {_semantic(new)}", text, flags=re.MULTILINE)
    made = re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", new, made)
    if made == text:
        raise CannotRelease(f"A file that says the version does not say {old}. See PLACES in {Path(__file__).name}.")
    return made


def headed(changelog: str, version: str, day: date) -> str:
    """Return the changelog with what is unreleased under the version's heading. Raises CannotRelease: there is none."""
    before, _, after = changelog.partition(UNRELEASED)
    if not after.partition("\n## [")[0].strip():
        raise CannotRelease("CHANGELOG.md says nothing under [Unreleased]. Say there what is new.")
    return f"{before}{UNRELEASED}\n## [{version}] - {day.isoformat()}\n{after}"


def release(version: str, root: Path = ROOT) -> None:
    """Make the release in the clone that ``root`` is. Raises CannotRelease, CalledProcessError."""
    now = version_in((root / SOURCE).read_text())
    require_next(version, now)
    folder, tag = root / "tests" / "releases" / version, f"v{version}"
    if _git(root, "status", "--porcelain"):
        raise CannotRelease("The tree has changes that are not committed. Commit them first.")
    if folder.exists() or _git(root, "tag", "--list", tag):
        raise CannotRelease(f"{version} was released before: {folder} or the tag {tag} is there.")
    start = _git(root, "rev-parse", "HEAD")
    try:
        _stamp(root, now, version)
        changelog = root / "CHANGELOG.md"
        changelog.write_text(headed(changelog.read_text(), version, date.today()))
        _python(root, "-m", "tests.releases.folder", folder)
        _python(root, "-m", "pytest", "-q", "-m", "", "tests/releases/test_folders.py", "-k", version)
        _git(root, "add", "--all")
        _build(root, _git(root, "write-tree"))
        _git(root, "commit", "--quiet", "-m", f"Release {version}")
        _git(root, "tag", "--annotate", tag, "-m", f"Expunge {version}")
        _stamp(root, version, following(version))
        _git(root, "commit", "--quiet", "--all", "-m", f"Version {following(version)}")
    except BaseException:
        _git(root, "add", "--all")
        _git(root, "reset", "--quiet", "--hard", start)
        if _git(root, "tag", "--list", tag):
            _git(root, "tag", "--delete", tag)
        raise


def _stamp(root: Path, old: str, new: str) -> None:
    for place in PLACES:
        (root / place).write_text(stamped((root / place).read_text(), old, new))


def _build(root: Path, tree: str) -> None:
    """Build from what git has, so that nothing else of the folder is in a wheel."""
    (dist := root / "dist").mkdir(exist_ok=True)
    archive = subprocess.run(["git", "archive", tree], cwd=root, check=True, capture_output=True).stdout
    with TemporaryDirectory() as source, tarfile.open(fileobj=BytesIO(archive)) as packed:
        packed.extraction_filter = getattr(tarfile, "tar_filter", None)  # None before Python 3.11.4
        packed.extractall(source)
        for package in PACKAGES:
            _python(Path(source, package), "-c", BUILD, dist)


def _python(where: Path, *arguments: object) -> None:
    path = {"PYTHONPATH": os.pathsep.join(str(where / package) for package in PACKAGES)}
    command = [sys.executable, *map(str, arguments)]
    subprocess.run(command, cwd=where, env=os.environ | path, check=True, stdout=subprocess.DEVNULL)


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _semantic(version: str) -> str:
    return version.replace(".dev", "-dev")


if __name__ == "__main__":
    try:
        release(chosen := "".join(sys.argv[1:]))
    except CannotRelease as error:
        sys.exit(f"error: {error}")
    print(f"{chosen} is released here. Push it with its tag: git push --follow-tags. dist/ has what a registry takes.")

"""What ``make release`` writes where. The drill makes a release in a clone."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

import expunge
from tests.harness.source import path_of
from tests.releases.folder import PACKED
from tests.releases.release import PLACES, ROOT, SOURCE, CannotRelease, following, headed, require_next, stamped
from tests.releases.release import version_in as version_of

NOW = expunge.__version__
DAY = date(2026, 11, 26)
developed = pytest.mark.skipif(
    ".dev" not in NOW or not (ROOT / ".git").exists(), reason="a clone of a version that is being developed"
)


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@developed
def test_the_version_is_said_at_the_known_places_alone() -> None:
    chart = NOW.replace(".dev", "-dev")
    found = {
        path
        for path in git(ROOT, "grep", "-lIF", "-e", NOW, "-e", chart, "--", ".", ":!tests/releases").splitlines()
        if path not in ("CHANGELOG.md", "requirements.lock", "requirements-dev.lock")
        and not path.startswith("docs/adr")
    }
    assert found == set(PLACES)
    assert version_of((ROOT / SOURCE).read_text()) == NOW


@pytest.mark.parametrize("place", PLACES)
def test_a_version_is_exchanged_and_its_successor_too(place: str) -> None:
    text = (ROOT / place).read_text()
    released = stamped(text, NOW, "9.8.7")
    assert NOW not in released and NOW.replace(".dev", "-dev") not in released
    assert stamped(stamped(released, "9.8.7", "9.9.0.dev0"), "9.9.0.dev0", NOW) == text
    with pytest.raises(CannotRelease, match="does not say"):
        stamped(released, NOW, "9.8.7")


def test_only_the_whole_version_is_exchanged() -> None:
    others = "a>=0.2.0.1\nb==10.2.0\nc 0.2.0.dev0\nd-0.2.0rc1\nimage: e:0.2.0-cuda\nversion: 0.2.0\nf==0.2.0"
    assert stamped(others, "0.2.0", "0.3.0.dev0") == (
        "a>=0.2.0.1\nb==10.2.0\nc 0.2.0.dev0\nd-0.2.0rc1\nimage: e:0.3.0.dev0-cuda\nversion: 0.3.0-dev0\nf==0.3.0.dev0"
    )


def test_what_is_unreleased_comes_under_the_version() -> None:
    made = headed("# Changelog\n\n## [Unreleased]\n\n### Added\n- a\n\n## [0.1.0] - 2026-01-01\n- b\n", "0.2.0", DAY)
    assert made == (
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-11-26\n\n### Added\n- a\n\n## [0.1.0] - 2026-01-01\n- b\n"
    )
    with pytest.raises(CannotRelease, match="nothing under"):
        headed(made, "0.3.0", DAY)


def test_a_version_follows_the_one_that_is_developed() -> None:
    for version in ("0.2.0", "0.2.1", "0.10.0", "1.0.0"):
        require_next(version, "0.2.0.dev0")
    assert [following(each) for each in ("0.2.0", "0.2.1", "0.9.0", "1.0.0")] == [
        "0.3.0.dev0",
        "0.3.0.dev0",
        "0.10.0.dev0",
        "1.1.0.dev0",
    ]
    for wrong in ("", "0.2", "v0.2.0", "0.2.0.dev0", "0.02.0", "0.1.9", "../0.2.0"):
        with pytest.raises(CannotRelease):
            require_next(wrong, "0.2.0.dev0")
    with pytest.raises(CannotRelease, match=r"does not follow 0\.2\.0"):
        require_next("0.2.0", "0.2.0")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of what is committed, in which a release can be made."""
    git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(tmp_path / "clone"))
    for name in ("name", "email"):
        git(tmp_path / "clone", "config", f"user.{name}", "test")
    return tmp_path / "clone"


def python(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": path_of(clone)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=clone, env=os.environ | path, capture_output=True, text=True, check=False)


def run(clone: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run what ``make release`` runs, in the clone."""
    return python(clone, "-m", "tests.releases.release", version)


@developed
def test_a_tree_with_changes_is_not_released(clone: Path) -> None:
    (clone / "README.md").write_text("edited")
    done = run(clone, NOW.partition(".dev")[0])
    assert done.returncode == 1 and "not committed" in done.stderr
    assert git(clone, "status", "--porcelain") == "M README.md"


@developed
@pytest.mark.drill
def test_a_release_that_fails_leaves_the_tree_as_it_was(clone: Path) -> None:
    (clone / "lab" / "pyproject.toml").write_text("this is no TOML, and says 0.2.0.dev0".replace("0.2.0.dev0", NOW))
    git(clone, "commit", "--quiet", "--all", "-m", "a package that cannot be built")
    before = git(clone, "rev-parse", "HEAD")
    assert run(clone, NOW.partition(".dev")[0]).returncode == 1
    assert git(clone, "rev-parse", "HEAD") == before
    assert not git(clone, "status", "--porcelain") and not git(clone, "tag", "--points-at", "HEAD")


@developed
@pytest.mark.drill
def test_a_release_is_made_in_a_clone(clone: Path) -> None:
    version = NOW.partition(".dev")[0]
    done = run(clone, version)
    assert done.returncode == 0, done.stderr
    assert git(clone, "log", "--format=%s", "-2").splitlines() == [
        f"Version {following(version)}",
        f"Release {version}",
    ]
    assert git(clone, "describe", "HEAD~1") == f"v{version}"
    assert version_of(git(clone, "show", f"v{version}:{SOURCE}")) == version
    assert version_of((clone / SOURCE).read_text()) == following(version)
    assert f"tests/releases/{version}/{PACKED}" in git(clone, "ls-tree", "-r", "--name-only", "HEAD")
    assert f"## [{version}] - " in (clone / "CHANGELOG.md").read_text()
    packages = ("expunge", "expunge_client", "expunge_connect", "expunge_lab")
    assert {path.name for path in (clone / "dist").iterdir()} == {
        f"{package}-{version}{end}" for package in packages for end in ("-py3-none-any.whl", ".tar.gz")
    }
    assert not git(clone, "status", "--porcelain")
    opened = ("-m", "pytest", "-q", "tests/releases/test_folders.py", "-k", version)
    assert python(clone, *opened).returncode == 0, "the next version does not open the release's folder"

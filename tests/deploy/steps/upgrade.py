"""From release 0.2.0 on PostgreSQL to this tree, as docs/install.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.deploy.programs import ran
from tests.deploy.project import ROOT, eventually, extract
from tests.deploy.promises import Promises
from tests.deploy.step import Check, Step, Unverified
from tests.deploy.steps.start import another

RELEASE = "0.2.0"
MODEL = "digits"
BEFORE, AFTER = 5, 5
REGISTERED_SECONDS = 180.0


def upgrade(check: Check) -> str:
    """Install 0.2.0, register a model, delete people; upgrade; port the model; delete more."""
    commit = release_commit()
    with another(check, "expunge-check-upgrade", commit) as other:
        project = other.project
        services = other.services()
        project.compose("build", seconds=1800)
        project.compose("up", "--detach", *services, seconds=300)
        project.await_ready()
        key = project.compose("run", "--rm", "-T", "migrate", "keys", "create", "--label", "deploy-check").split()[-1]
        shown = project.compose("run", "--rm", "-T", "--entrypoint", "cat", "migrate", "/var/lib/expunge/log.vkey")
        other.made_promises = promises = Promises(key, shown.strip(), person=lambda number: f"person-{number:03d}")
        with promises.console() as console:
            order = {"name": MODEL, "recipe": MODEL, "method": "newton", "guarantee": "proved", "batch": 0}
            console.post("/v1/models", order)
            state = eventually(
                lambda: console.get(f"/v1/models/{MODEL}"),
                lambda found: found["status"] != "preparing",
                REGISTERED_SECONDS,
            )
        assert state["status"] == "live", state
        promises.delete(promises.people(BEFORE))
        before = promises.kept()
        over(other)
        promises.delete(promises.people(AFTER))
        project.environment["EXPUNGE_API_KEY"] = key
        project.compose("run", "--rm", "-T", "admin", "models", "port", MODEL, "--yes")
        after = promises.kept()
        project.compose("run", "--rm", "-T", "admin", "audit", "verify")
        project.compose("run", "--rm", "-T", "admin", "doctor")
    return f"under {RELEASE} {before}; after the upgrade {after}"


def release_commit() -> str:
    """Return the commit of the release. Raises Unverified where this clone has none."""
    said = ran("git", "log", "--format=%H %s", f"--grep=^Release {RELEASE}$", folder=ROOT).splitlines()
    found = [line.split()[0] for line in said if line.endswith(f" Release {RELEASE}")]
    if not found:
        raise Unverified(f"this clone has no commit `Release {RELEASE}`: fetch the whole history")
    return found[0]


def over(check: Check) -> None:
    """Put this tree over the release's, move passwords and secrets where it has them, and start it."""
    project = check.project
    for package in ("expunge", "unlearning", "service", "workers", "migrations", "client", "connect", "examples"):
        shutil.rmtree(project.folder / package)  # as `git checkout` does: a file that is gone would shadow a new one
    extract("HEAD", project.folder)
    passwords = {name: value for name, value in project.environment.items() if name.endswith("_PASSWORD")}
    for name in passwords:
        del project.environment[name]
    (project.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in passwords.items()))
    secrets = project.folder / "secrets"
    for path in (secrets, *secrets.iterdir()):
        shutil.chown(path, 10001, 10001)
    for name in ("pepper", "sealing.key", "signing.key", "session.key"):
        (secrets / name).chmod(0o600)  # 0.2.0 had them read by everybody who may enter the folder
    recipes = project.folder / "recipes"
    shutil.copytree(project.folder / "examples", recipes, dirs_exist_ok=True)
    for name in ("backups", "data"):
        folder = Path(project.folder, name)
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, 10001, 10001)
    project.compose("build", seconds=1800)
    project.compose("up", "--detach", "--remove-orphans", *check.services(), seconds=300)
    project.await_ready()


STEPS = (Step("upgrade", f"{RELEASE} is installed and upgraded to this tree.", 420, upgrade, ("images",), False),)

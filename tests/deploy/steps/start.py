"""From empty volumes to a certificate: images, the first start, a key, an own recipe, deletions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from tests.deploy.images import provide, registry_answers, version_in
from tests.deploy.programs import ran
from tests.deploy.project import copied, eventually, remove
from tests.deploy.promises import MODEL, Promises
from tests.deploy.step import Check, Step

FIRST_DELETIONS = 5
REGISTERED_SECONDS = 180.0
PROGRAMS = {
    "postgres": ("postgres", "--version"),
    "redis": ("redis-server", "--version"),
    "prom/prometheus": ("prometheus", "--version"),
    "prom/alertmanager": ("prometheus-alertmanager", "--version"),
}
"""what tells the version of a published image's program; under Debian's name where it is made here"""


def images(check: Check) -> str:
    """Copy the project, make its secrets, provide base images, and build the Dockerfile through Compose."""
    check.copy = project = copied(check.compose_command)
    project.down()  # of a run that was killed
    read = project.config()["services"]
    registry = registry_answers()
    base = provide("python:3.12-slim-bookworm", registry)
    assert base is not None
    said = [base]
    for image in sorted({service["image"] for service in read.values() if "build" not in service}):
        found = provide(image, registry)
        if found is None:
            check.left_out_services += [name for name, service in read.items() if service["image"] == image]
            found = f"{image} cannot be had here"
        said.append(found)
        program = PROGRAMS.get(image.partition(":")[0])
        if program is not None:
            check.versions[image] = version_in(image, *program)
    project.compose("build", seconds=1800)
    server = json.loads(ran("docker", "version", "--format", "{{json .Server}}"))
    check.versions = {
        "engine": server["Version"],
        "Compose": project.compose("version", "--short").strip(),
        **check.versions,
        "Python": version_in(read["api"]["image"], "python", "--version"),
    }
    return "; ".join(said)


def up(check: Check) -> str:
    """Start everything from empty volumes, and wait until the API is ready."""
    services = check.services()
    check.project.compose("up", "--detach", *services, seconds=300)
    check.project.await_ready()
    return f"{len(check.project.running())} containers run"


def keys(check: Check) -> str:
    """Make the first API key by the command that the compose file names."""
    made = check.project.compose("run", "--rm", "-T", "admin", "keys", "create", "--label", "deploy-check", "--json")
    key = json.loads(made)["key"]
    shown = check.project.compose("run", "--rm", "-T", "--entrypoint", "cat", "admin", "/var/lib/expunge/log.vkey")
    check.made_promises = Promises(key, shown.strip())
    return "one key with every scope"


def own_recipe(check: Check) -> str:
    """Register a model by a recipe of the operator's own folder."""
    recipe = mounted(check, MODEL)
    with check.promises.console() as console:
        console.post(
            "/v1/models", {"name": MODEL, "recipe": recipe, "method": "newton", "guarantee": "proved", "batch": 0}
        )
        state = eventually(
            lambda: console.get(f"/v1/models/{MODEL}"), lambda found: found["status"] != "preparing", REGISTERED_SECONDS
        )
    assert state["status"] == "live", f"{state}\n{check.project.logs('worker')}"
    return f"{MODEL} is live"


def mounted(check: Check, name: str) -> str:
    """Return by which name a recipe of the operator's folder is registered."""
    service = check.project.config()["services"]["worker"]
    targets = [
        PurePosixPath(each["target"])
        for each in service["volumes"]
        if each["type"] == "bind" and each["source"] == str(check.project.recipes)
    ]
    assert targets, "docker-compose.yml mounts no ./recipes in the worker: an operator's own recipes have no place"
    said = check.project.compose("exec", "-T", "worker", "sh", "-c", "echo $EXPUNGE_RECIPES").strip()
    return str(targets[0].relative_to(PurePosixPath(said)) / name)


def deletions(check: Check) -> str:
    """Delete people over HTTP on 127.0.0.1:8750."""
    check.promises.delete(check.promises.people(FIRST_DELETIONS))
    return f"{FIRST_DELETIONS} deletions"


@contextmanager
def another(check: Check, name: str, revision: str = "HEAD") -> Iterator[Check]:
    """Yield a check on another copy, with volumes and secrets of its own; take it down when the block ends.

    It has the same port on this machine: the installation of the other steps is stopped meanwhile.
    """
    stopped = sorted(check.project.running())
    if stopped:
        ran("docker", "stop", *stopped)
    other = Check(check.compose_command, left_out_services=check.left_out_services)
    other.copy = copied(check.compose_command, revision, name)
    try:
        other.project.down()  # of a run that was killed
        yield other
    finally:
        remove(other.project)
        if stopped:
            ran("docker", "start", *stopped)
            check.project.await_ready()


STEPS = (
    Step("images", "Base images, and the Dockerfile built through Compose.", 600, images, promises_kept=False),
    Step("up", "Everything is started from empty volumes.", 60, up, ("images",), promises_kept=False),
    Step("keys", "The first key is made.", 5, keys, ("up",)),
    Step("own-recipe", "A recipe of the operator's own folder is registered.", 20, own_recipe, ("keys",)),
    Step("deletions", "People are deleted over HTTP, and a certificate is verified.", 20, deletions, ("own-recipe",)),
)

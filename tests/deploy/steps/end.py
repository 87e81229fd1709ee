"""The end: everything is taken down, and no container, network or volume of the project is left."""

from __future__ import annotations

from tests.deploy.programs import ran
from tests.deploy.step import Check, Step


def down(check: Check) -> str:
    """Take everything down with its volumes, and look for what is left."""
    check.project.down()
    label = f"label=com.docker.compose.project={check.project.name}"
    for kind in (("ps", "--all"), ("network", "ls"), ("volume", "ls")):
        left = ran("docker", *kind, "--quiet", "--filter", label).split()
        assert not left, f"`docker {' '.join(kind)}` still shows {', '.join(left)}"
    return "no container, network or volume is left"


STEPS = (Step("down", "Everything is taken down.", 30, down, ("up",), promises_kept=False),)

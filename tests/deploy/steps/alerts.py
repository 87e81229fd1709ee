"""Alerts reach a receiver of the check and end; recreating everything rings none."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import yaml

from tests.deploy.programs import ran
from tests.deploy.project import eventually
from tests.deploy.receiver import Received, receiver
from tests.deploy.step import Check, Step

ALWAYS_RINGS = {"ExpungeWatchdog"}
WORKERLESS = {"ExpungeNobodyWorks", "ExpungeDeadlineNear"}
"""what rings while no worker lives and a request is due soon"""
NO_API = {"ExpungeDown"}
RINGS_SECONDS = 600.0
"""the rule of a deadline waits five minutes, a group half a minute"""
QUIET_SECONDS = 300.0
"""after a recreation: longer than any rule about processes waits, a scrape and a group's wait together"""
OLDEST_DAYS = 3


def alerts(check: Check) -> str:
    """Stop the workers with a request that is due soon, then the API: each alert comes, and ends."""
    host = gateway(check)
    with receiver(host) as received:
        name_receiver(check, received)
        rung = [rings(check, received, WORKERLESS, ("worker", "updater"), due_soon=True)]
        rung.append(rings(check, received, NO_API, ("api",), due_soon=False))
        quiet(check, received)
    return f"{'; '.join(rung)}; recreating everything rang none in {QUIET_SECONDS:g} s"


def gateway(check: Check) -> str:
    """Return the address of this machine in the project's network."""
    return ran(
        *("docker", "network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}"),
        f"{check.project.name}_default",
    ).strip()


def name_receiver(check: Check, received: Received) -> None:
    """Name the check's receiver in dashboards/alertmanager.yml, as an operator does, and tell it of changes sooner."""
    path = check.project.folder / "dashboards" / "alertmanager.yml"
    settings = yaml.safe_load(path.read_text())
    settings["route"] |= {"group_wait": "5s", "group_interval": "15s"}
    (people,) = [each for each in settings["receivers"] if each["name"] == "people"]
    people["webhook_configs"] = [{"url": received.address, "send_resolved": True}]
    path.write_text(yaml.safe_dump(settings))
    check.project.compose("restart", "alertmanager")


def rings(check: Check, received: Received, names: set[str], services: tuple[str, ...], due_soon: bool) -> str:
    """Stop the services until the alerts were received, start them, and wait until each was received as ended."""
    since = time.time()
    if due_soon:
        check.project.compose("stop", *services)
        order_due_soon(check)
    else:
        check.project.compose("kill", *services)
    eventually(lambda: names - received.names("firing", since), lambda absent: not absent, RINGS_SECONDS)
    came = time.time() - since
    check.project.compose("start", *services)
    check.project.await_ready()
    back = time.time()
    eventually(lambda: names - received.names("resolved", back), lambda absent: not absent, RINGS_SECONDS)
    return f"{', '.join(sorted(names))} came after {came:.0f} s and ended {time.time() - back:.0f} s after the start"


def order_due_soon(check: Check) -> None:
    """Send a deletion whose deadline is nearer than a week."""
    (who,) = check.promises.people(1)
    due = (datetime.now(UTC) + timedelta(days=OLDEST_DAYS)).isoformat()
    with check.promises.client() as client:
        made = client.delete(subject_id=who, case_id=who, due_at=due)
    check.promises.ids[who], check.promises.openings[who] = made["id"], made["opening"]


def quiet(check: Check, received: Received) -> None:
    """Recreate every container and see that nobody is told of anything new."""
    before, since = received.ringing(), time.time()
    check.project.compose("up", "--detach", "--force-recreate", *check.services(), seconds=300)
    check.project.await_ready()
    time.sleep(QUIET_SECONDS)
    rang = received.names("firing", since) - ALWAYS_RINGS - before
    assert not rang, f"recreating everything rang {', '.join(sorted(rang))}"


STEPS = (
    Step("alerts", "Alerts reach a receiver and end; recreating everything rings none.", 1020, alerts, ("own-recipe",)),
)

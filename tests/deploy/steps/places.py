"""Other servers and other hosts: RabbitMQ as broker, a bucket as store, and a second host with workers."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import yaml

from tests.deploy.engine import log
from tests.deploy.images import SEAWEEDFS, provide, registry_answers
from tests.deploy.programs import missing, ran, tried
from tests.deploy.project import Project, eventually, remove
from tests.deploy.step import Check, Step, Unverified
from tests.deploy.steps.start import another, keys, own_recipe, up

RABBIT = "rabbitmq:3-bookworm"
HUNDRED = 100
BUCKETS = {
    "EXPUNGE_STORE": "s3://expunge/store",
    "EXPUNGE_PRIVATE_STORE": "s3://expunge-private/states",
    "EXPUNGE_KEY_FOLDER": "s3://expunge-private/keys",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "deploy-check",
    "AWS_SECRET_ACCESS_KEY": "deploy-check-secret",
    "AWS_ENDPOINT_URL": "http://seaweedfs:8333",
    "AWS_ALLOW_HTTP": "true",
}
PROCESSES = ("migrate", "api", "worker", "updater", "scheduler", "nightly", "admin")
STARTED_SECONDS = 90.0
LINK, PRIVATE_ADDRESS = "expunge-check", "10.49.0.1"
"""a bridge of this machine, and the address that the first host has in the private network"""


def rabbitmq_and_bucket(check: Check) -> str:
    """Install with RabbitMQ as broker and all places in buckets: .env and docker-compose.override.yml say so."""
    registry = registry_answers()
    if provide(RABBIT, registry) is None or provide(SEAWEEDFS, False) is None:
        raise Unverified("neither RabbitMQ nor SeaweedFS can be had here")
    with another(check, "expunge-check-places") as other:
        write_lines(other.project, BUCKETS)
        broker = "amqp://expunge:deploy-check@rabbitmq:5672//"
        over = {
            "rabbitmq": {
                "image": RABBIT,
                "environment": {"RABBITMQ_DEFAULT_USER": "expunge", "RABBITMQ_DEFAULT_PASS": "deploy-check"},
            },
            "seaweedfs": {"image": SEAWEEDFS},
            **{name: {"environment": {"EXPUNGE_BROKER_URL": broker}} for name in PROCESSES},
        }
        (other.project.folder / "docker-compose.override.yml").write_text(yaml.safe_dump({"services": over}))
        other.project.compose("up", "--detach", "rabbitmq", "seaweedfs")
        await_answer(other, "rabbitmq", "rabbitmqctl", "await_startup")
        await_answer(other, "seaweedfs", "curl", "--silent", "http://127.0.0.1:8333/")
        for bucket in ("expunge", "expunge-private"):
            said = f"s3.bucket.create -name {bucket}\n"
            other.project.compose("exec", "-T", "seaweedfs", "weed", "shell", given=said, seconds=60)
        up(other)
        keys(other)
        own_recipe(other)
        other.promises.delete_at_once(HUNDRED)
        kept = other.promises.kept()
        said = other.project.compose("exec", "-T", "rabbitmq", "rabbitmqctl", "--quiet", "list_queues", "name")
        assert said.strip(), "RabbitMQ has no queue"
        store = ran(
            "docker", "exec", next(iter(other.project.running("worker"))), "ls", "/var/lib/expunge/store"
        ).split()
        assert not store, f"the volume holds what should lie in the bucket: {store}"
    return f"{HUNDRED} deletions by RabbitMQ and buckets of SeaweedFS: {kept}"


def await_answer(check: Check, service: str, *command: str) -> None:
    """Wait until a command in the service's container ends with 0."""
    look = ("exec", "-T", service, *command)
    eventually(lambda: check.project.tried(*look).returncode, lambda code: code == 0, STARTED_SECONDS)


def write_lines(project: Project, lines: dict[str, str]) -> None:
    """Add lines to the project's .env."""
    path = project.folder / ".env"
    before = path.read_text() if path.exists() else ""
    path.write_text(before + "".join(f"{name}={value}\n" for name, value in lines.items()))


def second_host(check: Check) -> str:
    """Have another project, in networks of its own, run compose.worker.yml beside the first host's."""
    shared = Path(tempfile.mkdtemp(prefix="expunge-shared-", dir="/var/tmp"))
    shared.chmod(0o755)
    try:
        for name in ("store", "private", "keys"):
            ran("install", "-d", "-o", "10001", "-g", "10001", "-m", "0700", shared / name)
        with private_address(), another(check, "expunge-check-first") as first:
            return with_worker(first, PRIVATE_ADDRESS, shared)
    finally:
        shutil.rmtree(shared, ignore_errors=True)


@contextmanager
def private_address() -> Iterator[None]:
    """Give this machine one more address while the block runs: the first host's in the private network of both."""
    if missing(["ip"]):
        raise Unverified("there is no `ip` (apt-get install iproute2)")
    tried("ip", "link", "delete", LINK)
    made = tried("ip", "link", "add", LINK, "type", "bridge")
    if made.returncode != 0:
        raise Unverified(f"no network device can be added here: {made.stderr.strip()}")
    try:
        ran("ip", "address", "add", f"{PRIVATE_ADDRESS}/32", "dev", LINK)
        ran("ip", "link", "set", LINK, "up")
        yield
    finally:
        tried("ip", "link", "delete", LINK)


def with_worker(first: Check, address: str, shared: Path) -> str:
    """Start the first host, then the second, and see that both carry deletions out."""
    folder = first.project.folder
    disk = {
        volume: {"driver_opts": {"type": "none", "o": "bind", "device": str(shared / name)}}
        for volume, name in {"store": "store", "private": "private", "key-files": "keys"}.items()
    }
    (folder / "disk.yml").write_text(yaml.safe_dump({"volumes": disk}))
    files = "docker-compose.yml:compose.hosts.yml:disk.yml"
    write_lines(first.project, {"EXPUNGE_PRIVATE_ADDRESS": address, "COMPOSE_FILE": files})
    up(first)
    keys(first)
    own_recipe(first)
    second = second_project(first, address, shared)
    try:
        second.compose("up", "--detach", seconds=300)
        networks = {
            ran("docker", "inspect", "--format", "{{json .NetworkSettings.Networks}}", each)
            for each in second.running()
        }
        assert all("expunge-check-first" not in each for each in networks), "the second host is in the first's network"
        eventually(lambda: workers_told(first), lambda count: count == 2, STARTED_SECONDS)
        first.promises.delete_at_once(HUNDRED // 2)
        first.project.compose("stop", "worker", "updater")
        first.promises.delete_at_once(HUNDRED - HUNDRED // 2)
        kept = first.promises.kept()
        done = sum(log(each).count('"deletions claimed"') for each in second.running())
        assert done > 0, "the second host carried nothing out"
    finally:
        remove(second)
    return f"{HUNDRED} deletions, {done} updates of them on the second host: {kept}"


def second_project(first: Check, address: str, shared: Path) -> Project:
    """Copy what the head of compose.worker.yml names to another folder, and write its .env."""
    folder = Path(tempfile.mkdtemp(prefix="expunge-deploy-", dir="/var/tmp"))
    ran("cp", "-a", f"{first.project.folder}/.", folder)
    for name in ("signing.key", "session.key", "redis.acl"):
        (folder / "secrets" / name).unlink()
    said = (first.project.folder / ".env").read_text().splitlines()
    passwords = dict(line.split("=", 1) for line in said if "_PASSWORD=" in line)
    lines = {
        "COMPOSE_FILE": "compose.worker.yml",
        "EXPUNGE_DATABASE_URL": f"postgresql://expunge:{passwords['EXPUNGE_POSTGRES_PASSWORD']}@{address}:5432/expunge",
        "EXPUNGE_KEY_STORE_URL": f"postgresql://expunge:{passwords['EXPUNGE_KEYS_PASSWORD']}@{address}:5433/keys",
        "EXPUNGE_BROKER_URL": f"redis://expunge:{passwords['EXPUNGE_REDIS_PASSWORD']}@{address}:6379/0",
        "EXPUNGE_SHARED": str(shared),
    }
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    name = "expunge-check-second"
    project = Project(folder, first.compose_command, {**first.project.environment, "COMPOSE_PROJECT_NAME": name})
    project.name = name
    return project


def workers_told(check: Check) -> int:
    """Return how many workers the API knows to be alive."""
    try:
        return int(httpx.get(f"{check.promises.url}/readyz", timeout=5, trust_env=False).json()["workers"])
    except (httpx.TransportError, KeyError, ValueError):
        return 0


STEPS = (
    Step("places", "RabbitMQ is the broker, and buckets are the places.", 150, rabbitmq_and_bucket, ("images",), False),
    Step("second-host", "Another host's workers share a hundred deletions.", 150, second_host, ("images",), False),
)

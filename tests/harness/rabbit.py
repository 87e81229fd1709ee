"""A real RabbitMQ for the tests, where the Debian package rabbitmq-server is installed. It runs in a folder of ours."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import amqp

from tests.harness.servers import ServerMissing, free_port, on_path, own_folder, serving

SERVERS = "/usr/lib/rabbitmq/lib"


@contextmanager
def rabbit_server() -> Iterator[str]:
    """Start a server and its port mapper on free loopback ports; yield its URL; stop both and delete its data.

    Raises ServerMissing where the package is not installed.
    """
    found = sorted(Path(SERVERS).glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    if not found or on_path(("epmd", "erl"), None) is None:
        raise ServerMissing("there is no RabbitMQ (apt-get install rabbitmq-server)")
    with own_folder("rabbit") as folder:
        port, mapper = free_port(), free_port()
        environment = {
            "HOME": folder,
            "ERL_EPMD_PORT": mapper,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"expunge{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": port,
            "RABBITMQ_DIST_PORT": free_port(),
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "logs",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_CONF_ENV_FILE": folder / "none",
            "RABBITMQ_CONFIG_FILE": folder / "none",
            "RUNNING_UNDER_SYSTEMD": 1,  # one process, which our signals reach
        }
        listing: list[object] = ["env", *(f"{name}={value}" for name, value in environment.items())]
        with (
            serving([*listing, "epmd"], folder, lambda: None, signal.SIGTERM),
            serving([*listing, found[-1]], folder, lambda: answers(port), signal.SIGTERM),
        ):
            yield f"amqp://guest:guest@127.0.0.1:{port}//"


def answers(port: int) -> None:
    """Open a connection. Raises OSError while the server does not take any."""
    try:
        with amqp.Connection(f"127.0.0.1:{port}", connect_timeout=5):
            return
    except amqp.AMQPError as error:
        raise ConnectionError(str(error)) from None

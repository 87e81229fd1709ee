"""Whether a broker answers, and lets this user in."""

from __future__ import annotations

from urllib.parse import urlsplit

import redis
from amqp.exceptions import AccessRefused, AMQPError
from kombu.connection import Connection

SECONDS = 2.0
"""that a broker has for its answer"""


class LoginRefused(Exception):
    """The broker answers, and refuses the user, the password or what the user may do."""


class Silent(Exception):
    """The broker does not answer; the message is the type of the error."""


def log_in(url: str) -> None:
    """Log in to the broker of a ``redis``, ``rediss``, ``amqp`` or ``amqps`` URL. Raises LoginRefused, Silent."""
    if urlsplit(url).scheme.startswith("amqp"):
        _log_in_by_amqp(url)
        return
    try:
        with redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS) as client:
            client.ping()
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError):
        raise LoginRefused from None
    except (redis.RedisError, ValueError) as error:
        raise Silent(type(error).__name__) from None


def refuses(url: str) -> bool:
    """Return whether the broker refuses this user or password. One that is away refuses nobody."""
    if urlsplit(url).scheme == "filesystem":
        return False
    try:
        log_in(url)
    except LoginRefused:
        return True
    except Silent:
        return False
    return False


def _log_in_by_amqp(url: str) -> None:
    connection = Connection(url, connect_timeout=SECONDS)  # type: ignore[no-untyped-call]
    try:
        connection.connect()  # type: ignore[no-untyped-call]
    except AccessRefused:
        raise LoginRefused from None
    except (OSError, AMQPError) as error:
        raise Silent(type(error).__name__) from None
    finally:
        connection.release()  # type: ignore[no-untyped-call]

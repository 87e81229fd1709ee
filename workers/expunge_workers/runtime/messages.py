"""Messages between a worker and the processes that it has forked: a line of JSON, and descriptors beside it.

The two sides take turns, so that no message follows another in the channel.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

CPU = "cpu seconds"
"""among the facts that a process answers: what it used"""
MOST_FILES = 250
"""descriptors of one message; the kernel takes 253"""


def send(channel: socket.socket, words: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message. Raises BrokenPipeError where nobody reads any more."""
    text = json.dumps(words).encode() + b"\n"
    socket.send_fds(channel, [text[:1]], descriptors)
    channel.sendall(text[1:])


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the words of a message and its descriptors; None where the other side has ended. Raises TimeoutError."""
    text, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, MOST_FILES)
    parts = [text]
    while parts[-1] and not parts[-1].endswith(b"\n"):
        parts.append(channel.recv(1 << 20))
    whole = b"".join(parts)
    return (json.loads(whole) if whole.endswith(b"\n") else None), [*descriptors]

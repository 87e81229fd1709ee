"""Send status callbacks: signed, to public addresses over https, and again where they are not taken.

The name is resolved once, and the connection goes to the address that was checked: nothing is gained by pointing the
name elsewhere in between. No redirect is followed.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from ipaddress import IPv6Address, ip_address

import httpx

from expunge_client import ExpungeError
from expunge_connect.opendsr.processor import Processor
from expunge_connect.opendsr.requests import Intake, announce

HOUR_SECONDS = 3600
BACKOFF_SECONDS = (15, 300, 1800, *(hours * HOUR_SECONDS for hours in (2, 5, 10, 14, 20, 24)))
"""from one attempt to the next: three days and a bit"""
MAX_ATTEMPTS = len(BACKOFF_SECONDS) + 1
DEADLINE_SECONDS = 10.0
EVERY_SECONDS = 2.0
log = logging.getLogger(__name__)


def send_due(intake: Intake) -> int:
    """Attempt every callback that is due; return how many attempts were made.

    An attempt is counted before it is made. A callback may arrive twice, and is lost only after its last attempt.
    """
    due = "SELECT * FROM callbacks WHERE next_at <= ? AND attempts < ? ORDER BY id LIMIT 50"
    with intake.lock:
        rows = intake.database.execute(due, (time.time(), MAX_ATTEMPTS)).fetchall()
    for row in rows:
        wait = BACKOFF_SECONDS[min(row["attempts"], len(BACKOFF_SECONDS) - 1)]
        with intake.lock:
            counted = "UPDATE callbacks SET attempts = attempts + 1, next_at = ? WHERE id = ?"
            intake.database.execute(counted, (time.time() + wait, row["id"]))
        try:
            status = _post(intake.processor, row["url"], row["body"])
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            log.warning("callback %s not delivered: %s", row["id"], type(error).__name__)
            continue
        if 200 <= status < 300:
            with intake.lock:
                intake.database.execute("DELETE FROM callbacks WHERE id = ?", (row["id"],))
        else:
            log.warning("callback %s not taken: %s", row["id"], status)
    return len(rows)


def keep_calling_back(intake: Intake, stop: threading.Event) -> None:
    """Announce and send until ``stop`` is set. A round that fails is logged, and the next one tries again."""
    while not stop.is_set():
        try:
            announce(intake)
            send_due(intake)
        except (ExpungeError, OSError, ValueError) as error:
            log.error("round of callbacks failed: %s", type(error).__name__)
        stop.wait(EVERY_SECONDS)


def _post(processor: Processor, url: str, body: bytes) -> int:
    """Send the body under the processor's signature; return the status. Raises ValueError for a forbidden address."""
    target = httpx.URL(url)
    address = _address(target, loopback=processor.loopback)
    headers = {"Host": target.netloc.decode(), "Content-Type": "application/json", "User-Agent": "Expunge"}
    with (
        httpx.Client(trust_env=False, timeout=DEADLINE_SECONDS) as client,
        client.stream(
            "POST",
            target.copy_with(host=address),
            content=body,
            headers=headers | processor.headers(body),
            extensions={"sni_hostname": target.raw_host.decode()},
            follow_redirects=False,
        ) as answer,
    ):
        return answer.status_code


def _address(target: httpx.URL, *, loopback: bool) -> str:
    port = target.port or (443 if target.scheme == "https" else 80)
    found = socket.getaddrinfo(target.raw_host.decode(), port, type=socket.SOCK_STREAM)
    texts = [str(each[4][0]).partition("%")[0] for each in found]
    for text in texts:
        here = loopback and ip_address(text).is_loopback
        if not (here or (target.scheme == "https" and _public(text))):
            raise ValueError("A callback is sent to public addresses over https only.")
    return texts[0]


def _public(text: str) -> bool:
    """Return whether an address is public. One of IPv6 that leads to an address of IPv4 is not."""
    address = ip_address(text)
    tunnels = isinstance(address, IPv6Address) and (address.ipv4_mapped or address.sixtofour or address.teredo)
    return address.is_global and not (address.is_multicast or address.is_reserved or tunnels)

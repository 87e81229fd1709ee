"""Deliver webhooks in a separate thread, so that no slow receiver delays the scheduler.

An attempt is counted and the next one planned in one transaction before anything is sent. So two senders never send
the same attempt, and one that dies leaves the delivery to the next. A delivery may arrive twice, under the same
``webhook-id``; it is never lost before its attempts are used up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import NOW, Database, now
from expunge_service.infra.tables import WebhookDelivery, WebhookEndpoint
from expunge_service.infra.time import SECOND
from expunge_service.requests import BACKOFF_SECONDS, MAX_ATTEMPTS, DeliveryOutcome, disable_endpoint, webhook_signature
from expunge_workers.scheduler.ssrf_guard import Outbound

ROUND = 50
"""deliveries under way at once, at most"""
ROUND_PER_ENDPOINT = 5
"""of these for one endpoint, so that a slow one leaves room for the others"""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebhookRequest:
    """One attempt at a delivery."""

    id: str
    endpoint_id: str
    url: str
    payload: bytes
    headers: dict[str, str]


class WebhookSender:
    """A thread that sends what is due until it is stopped."""

    def __init__(
        self,
        database: Database,
        session_key: bytes,
        outbound: Outbound,
        every_seconds: float,
    ) -> None:
        self._database, self._session_key, self._outbound = database, session_key, outbound
        self._every = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook_sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for the current round; what it could not finish is sent again later."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=self._outbound.deadline_seconds + 1)

    def round(self) -> int:
        """Attempt everything that is due at the same time; return how many attempts were made. Raises Busy."""
        letters = claim(self._database, self._session_key)
        if not letters:
            return 0
        answers = asyncio.run(self._send_all(letters))
        with self._database.write() as session:
            for letter, (outcome, status) in zip(letters, answers, strict=True):
                _settle(session, letter, outcome, status)
        return len(letters)

    async def _send_all(self, letters: Sequence[WebhookRequest]) -> list[tuple[DeliveryOutcome, int | None]]:
        return await asyncio.gather(*(self._send(letter) for letter in letters))

    async def _send(self, letter: WebhookRequest) -> tuple[DeliveryOutcome, int | None]:
        """Send it; return the outcome, and the status that the receiver answered or None."""
        try:
            status = await self._outbound.post(letter.url, letter.payload, letter.headers)
        except (OSError, TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            log.warning("webhook %s not delivered: %s", letter.id, type(error).__name__)
            timed_out = isinstance(error, TimeoutError | httpx.TimeoutException)
            return (DeliveryOutcome.TIMED_OUT if timed_out else DeliveryOutcome.NO_ANSWER), None
        if status is None:
            log.warning("webhook %s not delivered: its URL leads to an address that is not public", letter.id)
            return DeliveryOutcome.REFUSED, None
        return (DeliveryOutcome.DELIVERED if 200 <= status < 300 else DeliveryOutcome.REJECTED), status

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                sent = self.round()
            except Exception as error:  # the next round tries again
                log.error("webhook round failed: %s", type(error).__name__)
                sent = 0
            if not sent:
                self._stop.wait(self._every)


def claim(database: Database, session_key: bytes) -> list[WebhookRequest]:
    """Claim what is due: count the attempt and plan the next one before this one is made. Raises Busy."""
    due = [delivery_id for (delivery_id,) in database.look(DUE)]
    if not due:
        return []
    with database.write() as session:
        at = now(session)
        rows = session.execute(
            select(WebhookDelivery, WebhookEndpoint)
            .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
            .where(WebhookDelivery.id.in_(due), WebhookDelivery.delivered_at.is_(None), WebhookDelivery.next_at <= at)
            .with_for_update(of=WebhookDelivery, skip_locked=True)
        ).all()
        return [_letter(session_key, delivery, endpoint, at) for delivery, endpoint in rows]


def _select_due() -> Select[str]:
    """Select the ids of the deliveries of one round: those that wait longest, of each endpoint a few."""
    turn = func.row_number().over(partition_by=WebhookDelivery.endpoint_id, order_by=WebhookDelivery.next_at)
    waiting = (
        select(WebhookDelivery.id, WebhookDelivery.next_at, turn.label("turn"))
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(WebhookDelivery.delivered_at.is_(None), WebhookDelivery.next_at <= NOW)
        .where(WebhookDelivery.attempts - WebhookDelivery.attempts_before < MAX_ATTEMPTS)
        .where(WebhookEndpoint.disabled_at.is_(None))
        .subquery()
    )
    fair = select(waiting.c.id).where(waiting.c.turn <= ROUND_PER_ENDPOINT)
    return fair.order_by(waiting.c.turn, waiting.c.next_at).limit(ROUND)


DUE = _select_due()


def _letter(session_key: bytes, delivery: WebhookDelivery, endpoint: WebhookEndpoint, at: int) -> WebhookRequest:
    wait = BACKOFF_SECONDS[min(delivery.attempts - delivery.attempts_before, len(BACKOFF_SECONDS) - 1)]
    delivery.attempts += 1
    delivery.last_outcome = delivery.last_status = None
    delivery.next_at = at + wait * SECOND
    signed = _standard(session_key, endpoint, delivery, at // SECOND)
    headers = {"Content-Type": "application/json", "User-Agent": "Expunge"} | signed
    return WebhookRequest(delivery.id, endpoint.id, endpoint.url, delivery.payload.encode(), headers)


def _standard(session_key: bytes, endpoint: WebhookEndpoint, delivery: WebhookDelivery, seconds: int) -> dict[str, str]:
    return {
        "webhook-id": delivery.id,
        "webhook-timestamp": str(seconds),
        "webhook-signature": webhook_signature(session_key, endpoint, delivery.id, seconds, delivery.payload),
    }


def _settle(session: Session, letter: WebhookRequest, outcome: DeliveryOutcome, status: int | None) -> None:
    """Record the outcome of an attempt. Disable the endpoint after a 410, as Standard Webhooks asks."""
    delivery = session.get_one(WebhookDelivery, letter.id)
    delivery.last_status, delivery.last_outcome = status, outcome
    if outcome is DeliveryOutcome.DELIVERED:
        delivery.delivered_at = now(session)
    if status == 410:
        disable_endpoint(session, session.get_one(WebhookEndpoint, letter.endpoint_id))

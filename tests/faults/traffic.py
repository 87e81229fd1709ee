"""Clients of a service that is harmed meanwhile: they ask, repeat what got no answer, and keep the answers."""

from __future__ import annotations

import hashlib
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

ONE, MANY = "/v1/deletion-requests", "/v1/deletion-requests/batch"
TIMEOUT_SECONDS = 20.0
REPEATED = 0.03
"""the part of the calls that a client sends again though it was answered, as if the answer had been lost"""


@dataclass
class Journal:
    """What clients were answered. Appending is atomic, so threads share it."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    """subject -> id of the request"""
    seconds: list[tuple[float, float]] = field(default_factory=list)
    """(when, how long) from the first try to the 202, waiting for dead processes included"""
    answers: Counter[str] = field(default_factory=Counter)
    """every status, and every broken connection"""
    contradictions: list[str] = field(default_factory=list)
    """a repeated call was answered with another request"""
    stale: list[str] = field(default_factory=list)
    """a head was served that is older than a completed deletion, or whose bytes are not those it names"""


@dataclass
class Traffic:
    """Client threads against one API. ``orders`` gives each call's subjects; the clients end when it does."""

    url: str
    api_key: str
    models: tuple[str, ...]
    orders: Iterator[list[str]]
    clients: int = 4
    readers: int = 1
    pause_seconds: float = 0.0
    """between two calls of one client"""
    seed: int = 0
    journal: Journal = field(default_factory=Journal)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        work = [self._ask_on] * self.clients + [self._read_on] * self.readers
        self._threads = [threading.Thread(target=each, args=(place,), daemon=True) for place, each in enumerate(work)]
        for thread in self._threads:
            thread.start()

    @property
    def asking(self) -> bool:
        return any(thread.is_alive() for thread in self._threads[: self.clients])

    def stop(self) -> None:
        """Let every client finish its present call."""
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def _client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.api_key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS)

    def _ask_on(self, place: int) -> None:
        chance = random.Random(self.seed + place)
        with self._client() as http:
            while not self._over.is_set() and (subjects := self._next()):
                self._ask(http, subjects, chance)
                time.sleep(self.pause_seconds)

    def _next(self) -> list[str]:
        with self._guard:
            return next(self.orders, [])

    def _ask(self, http: httpx.Client, subjects: list[str], chance: random.Random) -> None:
        key, begun = secrets.token_hex(16), time.monotonic()
        ids = self._accepted(http, subjects, key)
        self.journal.seconds.append((begun, time.monotonic() - begun))
        self.journal.acknowledged.update(zip(subjects, ids, strict=True))
        if chance.random() < REPEATED and (again := self._accepted(http, subjects, key)) != ids:
            self.journal.contradictions.append(f"{ids} became {again}")

    def _accepted(self, http: httpx.Client, subjects: list[str], key: str) -> list[str]:
        """Repeat the call with its key until it is answered; return the ids of the requests."""
        path, body = _call(subjects)
        while True:
            answer = self._try(http, "POST", path, json=body, headers={"Idempotency-Key": key})
            if answer is not None and answer.status_code == 202:
                return [answer.json()["id"]]
            if answer is not None and answer.status_code == 207:
                return [outcome["request"]["id"] for outcome in answer.json()["outcomes"]]
            time.sleep(0.2)

    def _read_on(self, place: int) -> None:
        chance = random.Random(self.seed + place)
        with self._client() as http:
            while not self._over.is_set():
                self._look(http, chance)
                self._read_something(http, chance)
                time.sleep(0.05 + self.pause_seconds)

    def _look(self, http: httpx.Client, chance: random.Random) -> None:
        """Check that no version older than an announced deletion is served, and that the bytes are those named."""
        known = list(self.journal.acknowledged.values())[-200:]
        answer = self._try(http, "GET", f"{ONE}/{chance.choice(known)}") if known else None
        if answer is None or answer.status_code != 200:
            return
        for part in answer.json()["models"]:
            if part["status"] == "completed" and part["version"] is not None:
                self._look_at_head(http, part["model"], part["version"])

    def _look_at_head(self, http: httpx.Client, model: str, least: int) -> None:
        head = self._try(http, "GET", f"/v1/models/{model}/versions/current")
        if head is not None and head.status_code == 200 and head.json()["number"] < least:
            self.journal.stale.append(f"{model}: head {head.json()['number']} after {least} was announced")
        file = self._try(http, "GET", f"/v1/models/{model}/versions/current/checkpoint")
        if file is None or file.status_code != 200:
            return
        if file.headers["etag"] != f'"{hashlib.sha256(file.content).hexdigest()}"':
            self.journal.stale.append(f"{model}: the checkpoint's bytes are not those of its ETag")

    def _read_something(self, http: httpx.Client, chance: random.Random) -> None:
        model = chance.choice(self.models)
        paths = (
            f"{ONE}?limit=20",
            f"/v1/models/{model}/versions?limit=5",
            f"/v1/models/{model}/budget",
            "/v1/models",
            "/v1/audit-log?limit=50",
            "/v1/audit-log/checkpoint",
            "/metrics",
        )
        self._try(http, "GET", chance.choice(paths))

    def _try(self, http: httpx.Client, method: str, path: str, **arguments: Any) -> httpx.Response | None:
        try:
            answer = http.request(method, path, **arguments)
        except httpx.TransportError as error:
            self.journal.answers[type(error).__name__] += 1
            return None
        self.journal.answers[str(answer.status_code)] += 1
        return answer


def _call(subjects: list[str]) -> tuple[str, dict[str, Any]]:
    if len(subjects) == 1:
        return ONE, {"subject_id": subjects[0]}
    return MANY, {"requests": [{"subject_id": subject} for subject in subjects]}

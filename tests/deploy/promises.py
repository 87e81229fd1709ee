"""What the service acknowledged, and whether it kept it: no request lost or doubled, every served version verified."""

from __future__ import annotations

import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expunge_client import Expunge, Refused, Unreachable, verify_certificate
from expunge_client.cli.client import Account, Client
from expunge_client.cli.output import CommandError
from tests.deploy.project import URL, eventually
from tests.deploy.tables import person

MODEL = "clinic"
PATIENCE_SECONDS = 240.0
"""for a deletion to be acknowledged, and for all to be completed, while something is broken"""
LATER = (429, 500, 502, 503, 504)
"""answers that say: repeat the call with the same Idempotency-Key"""


@dataclass
class Promises:
    """Every deletion that was acknowledged, by case. One case is one person."""

    key: str
    """an API key with every scope"""
    log_key: str
    """the public key of the audit log"""
    url: str = URL
    ids: dict[str, str] = field(default_factory=dict)
    """of the requests, by case"""
    openings: dict[str, str] = field(default_factory=dict)
    person: Callable[[int], str] = person
    """the id of each person of the recipe, by number"""
    used: int = 0
    """people of the recipe that were named already"""

    def client(self) -> Expunge:
        return Expunge(self.url, self.key)

    def console(self) -> Client:
        """Return a client of the command line's kind, for calls that Expunge has no method for."""
        return Client(Account(self.url, self.key))

    def people(self, count: int) -> list[str]:
        """Return the next people of the table whom no step has named."""
        first, self.used = self.used, self.used + count
        return [self.person(number) for number in range(first, first + count)]

    def delete(self, people: Iterable[str], patience: float = PATIENCE_SECONDS) -> None:
        """Ask for each person's deletion until the service acknowledges it: under one Idempotency-Key."""
        with self.client() as client:
            for each in people:
                acknowledged = self._acknowledged(client, each, time.monotonic() + patience)
                self.ids[each] = acknowledged["id"]
                self.openings[each] = acknowledged["opening"]

    def _acknowledged(self, client: Expunge, who: str, deadline: float) -> Any:
        key = str(uuid.uuid4())
        while True:
            try:
                return client.delete(subject_id=who, case_id=who, idempotency_key=key, regulation="gdpr")
            except Unreachable as error:
                said = str(error)
            except Refused as error:
                if error.status not in LATER:
                    raise
                said = str(error)
            assert time.monotonic() < deadline, f"the deletion of {who} was not acknowledged: {said}"
            time.sleep(0.5)

    def delete_at_once(self, count: int, callers: int = 4) -> None:
        """Send so many deletions from several callers, and return when all are acknowledged."""
        people = self.people(count)
        with ThreadPoolExecutor(callers) as pool:
            for done in [pool.submit(self.delete, people[first::callers]) for first in range(callers)]:
                done.result()

    @contextmanager
    def deleting(self, pause: float = 0.3) -> Iterator[None]:
        """Send deletions one after another while the block runs. What fails in them is raised at its end."""
        stop, failed = threading.Event(), []

        def go_on() -> None:
            try:
                while not stop.wait(pause):
                    self.delete(self.people(1))
            except Exception as error:  # a thread's error would be lost
                failed.append(error)

        sender = threading.Thread(target=go_on)
        sender.start()
        try:
            yield
        finally:
            stop.set()
            sender.join()
        if failed:
            raise failed[0]

    def kept(self, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until all is completed; return a sentence. Raises AssertionError where a promise is broken."""
        with self.console() as console:
            eventually(lambda: self._open(console), lambda count: count == 0, seconds)
            listed = list(console.pages("/v1/deletion-requests", limit=200))
        self._compare(listed)
        versions = self._verify_versions()
        return f"{len(self.ids)} acknowledged, {len(self.ids)} completed; {versions}"

    def _open(self, console: Client) -> int:
        """Return how many of the acknowledged are not completed: all while the service does not answer, 1 at least."""
        try:
            rows = list(console.pages("/v1/deletion-requests", limit=200))
        except CommandError:
            return len(self.ids) or 1
        done = {row["id"] for row in rows if row["status"] == "completed"}
        return sum(each not in done for each in self.ids.values())

    def _compare(self, listed: list[dict[str, Any]]) -> None:
        ours = set(self.ids.values())
        found = {row["id"]: row for row in listed}
        lost = sorted(ours - found.keys())
        assert not lost, f"acknowledged and gone: {', '.join(lost)}"
        cases = Counter(row["case_id"] for row in listed if row["case_id"] in self.ids)
        doubled = sorted(case for case, count in cases.items() if count > 1)
        assert not doubled, f"twice in the list: {', '.join(doubled)}"
        unfinished = {
            row["case_id"]: row["status"] for row in listed if row["id"] in ours and row["status"] != "completed"
        }
        assert not unfinished, f"not completed: {unfinished}"

    def _verify_versions(self) -> str:
        """Download the current version of each served model, compared with its digest; verify one certificate."""
        shown = []
        with self.client() as client, tempfile.TemporaryDirectory() as folder:
            for model in client.models():
                if model["status"] != "live":
                    continue
                found = client.current(model["name"])
                assert found is not None
                version = found[1]
                client.download(version, Path(folder, model["name"]))
                shown.append(f"{model['name']} {version['number']}")
            if self.ids:
                self.verify_certificate(client, [*self.ids][-1])
        return f"version {', '.join(shown)} verified"

    def verify_certificate(self, client: Expunge, who: str) -> None:
        """Get the certificate of a person's request and verify it, and whom it is about."""
        certificate = client.certificate(self.ids[who], PATIENCE_SECONDS)
        verify_certificate(certificate, self.log_key, opening=self.openings[who], subject_id=who, case_id=who)

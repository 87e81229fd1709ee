"""The HTTP client of the commands: finds the service, speaks JSON, turns answers into one line and a hint."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from service.cli.output import UNREACHABLE, USAGE, CommandError, commands_of
from service.infra.settings import Settings

ATTEMPTS = 4
_HINTS = {
    400: "Check the command's options: expunge COMMAND --help.",
    401: "Set EXPUNGE_API_KEY to a valid key; `expunge keys create` makes one.",
    403: "Use a key with that scope: `expunge keys create --scope ...`.",
    404: "See what there is with `expunge models list` or `expunge requests list`.",
    409: "Look at its present state first.",
    503: "`expunge doctor` says what is missing.",
}


@dataclass(frozen=True)
class Account:
    """Where the service is and the key that opens it; kept in ``client.json`` (0600) by ``expunge up``."""

    url: str
    api_key: str

    @classmethod
    def find(cls, settings: Settings) -> Account:
        """Read the account from EXPUNGE_API_KEY and EXPUNGE_URL, else from the home folder.

        Raises CommandError where there is neither, and where EXPUNGE_URL names another service than the stored key's:
        the command would reach the wrong one. The stored key is only ever sent to the stored URL.
        """
        if settings.api_key:
            return cls(settings.url, settings.api_key)
        stored = cls.read(settings.home)
        if stored is None:
            raise CommandError(
                "No service is configured.",
                "Run `expunge up`, or set EXPUNGE_URL and EXPUNGE_API_KEY.",
                UNREACHABLE,
            )
        if "url" in settings.model_fields_set and settings.url.rstrip("/") != stored.url.rstrip("/"):
            raise CommandError(
                f"EXPUNGE_URL is {settings.url}, but the key in {settings.home / 'client.json'} is for {stored.url}.",
                "Set EXPUNGE_API_KEY to a key of that service, or unset EXPUNGE_URL.",
                USAGE,
            )
        return stored

    @classmethod
    def read(cls, home: Path) -> Account | None:
        try:
            record = json.loads((home / "client.json").read_text())
            return cls(str(record["url"]), str(record["api_key"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, home: Path) -> None:
        path = home / "client.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(json.dumps({"url": self.url, "api_key": self.api_key}) + "\n")


class Client:
    """JSON over HTTP with one key. Every method raises CommandError: refused (exit 1) or unreachable (exit 3)."""

    def __init__(self, account: Account) -> None:
        headers = {"Authorization": f"Bearer {account.api_key}"}
        # trust_env off: a proxy from the environment must not see keys and subject ids
        self._http = httpx.Client(base_url=account.url, headers=headers, timeout=30, trust_env=False)
        self.url = account.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, params={name: value for name, value in query.items() if value is not None})

    def post(self, path: str, body: dict[str, Any], idempotency_key: str | None = None) -> Any:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._send("POST", path, json=body, headers=headers)

    def put(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PUT", path, json=body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PATCH", path, json=body)

    def delete(self, path: str) -> Any:
        return self._send("DELETE", path)

    def text(self, path: str) -> str:
        return self._answer("GET", path).text

    def download(self, path: str, target: Path) -> None:
        """Write what the service answers to a file, as it comes."""
        try:
            with self._http.stream("GET", path) as answer, target.open("wb") as file:
                if not answer.is_success:
                    answer.read()
                    raise _refused(answer)
                for block in answer.iter_bytes():
                    file.write(block)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def pages(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield every item of a paged list."""
        cursor: str | None = None
        while True:
            page = self.get(path, **query, cursor=cursor)
            yield from page["data"]
            cursor = page.get("next_cursor")
            if not page.get("has_more") or cursor is None:
                return

    def _send(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self._answer(method, path, **arguments)
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        for attempt in range(ATTEMPTS):
            last = attempt == ATTEMPTS - 1
            try:
                answer = self._http.request(method, path, **arguments)
            except httpx.TransportError as error:
                if last or not _repeatable(method, error, arguments):
                    raise self._unreachable(error) from error
            else:
                if answer.is_success:
                    return answer
                if last or answer.status_code not in (429, 503):
                    raise _refused(answer)
            time.sleep(0.25 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _unreachable(self, error: httpx.TransportError) -> CommandError:
        return CommandError(
            f"{self.url} does not answer ({type(error).__name__}).",
            "Is it running? `expunge up` starts it; EXPUNGE_URL says where it is.",
            UNREACHABLE,
        )


def connect() -> Client:
    """Return a client of the configured service. Raises CommandError where none is configured."""
    return Client(Account.find(Settings()))


def _repeatable(method: str, error: httpx.TransportError, arguments: dict[str, Any]) -> bool:
    """Return whether it may be sent again: GET and PUT always, a POST if it never left or has an idempotency key."""
    return (
        method in {"GET", "PUT"}
        or isinstance(error, httpx.ConnectError)
        or "Idempotency-Key" in arguments.get("headers", {})
    )


def _refused(answer: httpx.Response) -> CommandError:
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    what = problem.get("detail") or problem.get("title") or f"The service answered {answer.status_code}."
    fields = "; ".join(_field(each) for each in problem.get("errors") or [])
    steps = commands_of(problem.get("actions") or [])
    hint = f"One of these helps:{steps}" if steps else _HINTS.get(answer.status_code, "")
    return CommandError(f"{what} {fields}".strip(), hint)


def _field(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    where = next((str(error[name]) for name in ("pointer", "header", "parameter") if error.get(name)), "")
    return f"{where}: {error.get('detail', '')}".strip(": ")

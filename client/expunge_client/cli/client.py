"""The HTTP client of the commands: finds the service, speaks JSON, turns answers into one line and a hint."""

from __future__ import annotations

import hmac
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from expunge_client.calls import pause_before_look
from expunge_client.cli.output import UNREACHABLE, USAGE, CommandError, commands_of

ATTEMPTS = 4
ID_DIGITS = 32
MOST_CHOICES = 5
REQUESTS = "/v1/deletion-requests"
LOG = "/v1/audit-log"
LOG_PAGE = 200
POLL_SECONDS = 0.3
_LISTS = {REQUESTS: "requests list", "/v1/holds": "holds list", "/v1/webhooks": "webhooks list"}
_HINTS = {
    400: "Check the command's options: expunge COMMAND --help.",
    401: "Set EXPUNGE_API_KEY to a valid key; `expunge keys create` makes one.",
    403: "Use a key with that scope: `expunge keys create --scope ...`.",
    404: "See what there is with `expunge models list` or `expunge requests list`.",
    503: "`expunge doctor` says what is missing.",
}


@dataclass(frozen=True)
class Account:
    """Where the service is and the key that opens it; kept in ``client.json`` (0600) by ``expunge up``."""

    url: str
    api_key: str

    @classmethod
    def find(cls, environment: Mapping[str, str]) -> Account:
        """Read the account of EXPUNGE_SERVER, else that of EXPUNGE_API_KEY and EXPUNGE_URL, else the home folder's.

        Raises CommandError where there is none, and where EXPUNGE_URL names another service than the stored key's: the
        command would reach the wrong one. A stored key is only ever sent to the URL that it is stored with.
        """
        # not through Settings: to import pydantic takes longer than all the rest of a command
        if name := environment.get("EXPUNGE_SERVER"):
            return _named(name, servers_file(environment))
        url, home = environment.get("EXPUNGE_URL"), Path(environment.get("EXPUNGE_HOME") or ".expunge")
        if api_key := environment.get("EXPUNGE_API_KEY"):
            return cls(url or "http://127.0.0.1:8750", api_key)
        stored = cls.read(home.expanduser().resolve())
        if stored is None:
            raise CommandError(
                "No service is configured.",
                "Run `expunge up`, or `expunge login NAME URL`, or set EXPUNGE_URL and EXPUNGE_API_KEY.",
                UNREACHABLE,
            )
        if url is not None and url.rstrip("/") != stored.url.rstrip("/"):
            raise CommandError(
                f"EXPUNGE_URL is {url}, but the key in {home / 'client.json'} is for {stored.url}.",
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
        write_private(home / "client.json", {"url": self.url, "api_key": self.api_key})


def servers_file(environment: Mapping[str, str]) -> Path:
    """Return the file with the servers that have a name, in the user's configuration folder."""
    folder = environment.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()
    return Path(folder) / "expunge" / "servers.json"


def read_servers(path: Path) -> dict[str, Account]:
    """Return the servers by name; none where there is no file. Raises CommandError where it cannot be read."""
    try:
        return {name: Account(each["url"], each["api_key"]) for name, each in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandError(f"{path} is damaged.", "Delete it, and add the servers again.", USAGE) from None


def write_private(path: Path, record: dict[str, Any]) -> None:
    """Write a file with keys (JSON, mode 0600), whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(record) + "\n")
    part.replace(path)


def _named(name: str, path: Path) -> Account:
    servers = read_servers(path)
    if name not in servers:
        known = ", ".join(sorted(servers)) or "none"
        raise CommandError(f"There is no server {name!r}.", f"Known: {known}. `expunge login` adds one.", USAGE)
    return servers[name]


class Client:
    """JSON over HTTP with one key. Every method raises CommandError: refused (exit 1) or unreachable (exit 3)."""

    def __init__(self, account: Account, attempts: int = ATTEMPTS, timeout_seconds: float = 30.0) -> None:
        headers = {"Authorization": f"Bearer {account.api_key}"}
        # trust_env off: a proxy from the environment must not see keys and subject ids
        self._http = httpx.Client(base_url=account.url, headers=headers, timeout=timeout_seconds, trust_env=False)
        self._attempts, self._secret = attempts, account.api_key.encode()
        self.url = account.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        return self._send("GET", path, params={name: value for name, value in query.items() if value is not None})

    def look(self, path: str) -> tuple[Any, float]:
        """Return the answer, and the seconds until the next look: what it asks for, ``POLL_SECONDS`` at least."""
        answer = self._answer("GET", path)
        return answer.json(), pause_before_look(answer, POLL_SECONDS)

    def post(self, path: str, body: dict[str, Any], idempotency_key: str | None = None) -> Any:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._send("POST", path, json=body, headers=headers)

    def key_for(self, body: dict[str, Any]) -> str:
        """Return the idempotency key of this body: the same each time, and only the holder of the API key can make it.

        The service stores such keys, and from a bare digest the people in the body could be guessed.
        """
        return hmac.digest(self._secret, json.dumps(body, sort_keys=True).encode(), "sha256").hex()

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

    def whole_id(self, path: str, prefix: str) -> str:
        """Return the one id in a list that begins with ``prefix``, or the one request of the case ``prefix``.

        Raises CommandError for none, and for several: a case and the digits of another request's id count as two.
        """
        if len(prefix) == ID_DIGITS:
            return prefix
        digits, by_case = re.fullmatch("[0-9a-f]+", prefix), path == REQUESTS
        if not digits and not by_case:
            raise CommandError(
                f"{prefix!r} is no id.", "An id has the digits 0 to 9 and a to f; its first few do.", USAGE
            )
        query = {"id_prefix": prefix} if by_case else {}
        rows = [row for row in self.pages(path, **query) if str(row["id"]).startswith(prefix)] if digits else []
        if by_case:
            rows += self.pages(path, case_id=prefix)
        found = list({row["id"]: row for row in rows}.values())
        if len(found) == 1:
            return str(found[0]["id"])
        noun = path.rpartition("/")[2].replace("-", " ").removesuffix("s")
        if not found:
            or_case = f", or the case {prefix!r}" if by_case else ""
            what = f"No {noun} has an id that begins with {prefix!r}{or_case}."
            raise CommandError(what, f"`expunge {_LISTS[path]}` lists.")
        choices = ", ".join(f"{row['id'][:12]} ({_told_apart(row)})" for row in found[:MOST_CHOICES])
        more = f" and {len(found) - MOST_CHOICES} more" if len(found) > MOST_CHOICES else ""
        raise CommandError(f"{prefix!r} names {len(found)} {noun}s.", f"Type more of one id: {choices}{more}.", USAGE)

    def _send(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self._answer(method, path, **arguments)
        return answer.json() if answer.content else None

    def _answer(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        for attempt in range(self._attempts):
            last = attempt == self._attempts - 1
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


def connect(timeout_seconds: float = 30.0) -> Client:
    """Return a client of the configured service. Raises CommandError where none is configured."""
    return Client(Account.find(os.environ), timeout_seconds=timeout_seconds)


def signed_log(client: Client) -> tuple[str, list[dict[str, Any]]]:
    """Return the audit log's signed head, and the entries that it is over. Those that came meanwhile are left out."""
    head = client.text(f"{LOG}/checkpoint")
    entries = client.pages(LOG, limit=LOG_PAGE)
    return head, list(islice(entries, int(head.split("\n")[1])))


def _told_apart(row: dict[str, Any]) -> str:
    """Return what tells two rows with similar ids apart."""
    words = (row.get(name) for name in ("status", "url", "reason", "received_at", "created_at"))
    return ", ".join(str(word) for word in words if word)


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
    return CommandError(f"{what} {fields}".strip(), hint, problem=str(problem.get("code", "")))


def _field(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    where = next((str(error[name]) for name in ("pointer", "header", "parameter") if error.get(name)), "")
    return f"{where}: {error.get('detail', '')}".strip(": ")

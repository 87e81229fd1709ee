"""The terminal's client against an application in this process."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from expunge_client.cli.client import Account, Client
from expunge_client.cli.commands import deletions, holds, models, webhooks


def connect_here(monkeypatch: pytest.MonkeyPatch, http: httpx.Client, *others: Any) -> None:
    """Let every command call the application behind ``http``, which stays open; ``others``: rooms beside these."""

    class Here(Client):
        def __init__(self) -> None:
            super().__init__(Account("http://testserver", "unused"))
            self._http.close()
            self._http = http

        def __exit__(self, *_: Any) -> None:
            pass

    for room in (deletions, holds, models, webhooks, *others):
        monkeypatch.setattr(room, "connect", Here)

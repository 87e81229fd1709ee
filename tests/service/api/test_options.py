"""What an address says after its question mark is read, or the call is refused: never passed over in silence."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from expunge_service.access.api_keys import Scope
from tests.service.access.test_keys import OPEN, Keys, routes


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_call_passes_over_an_option_that_it_does_not_know(api: TestClient, key_of: Keys) -> None:
    """A misspelt filter would show the whole list."""
    asked, key = 0, key_of(*Scope)
    for method, path in routes(api):
        if path not in OPEN:
            answer = api.request(method, path, params={"statuss": "blocked"}, headers=key)
            assert (answer.status_code, answer.json()["code"]) == (422, "unknown_option"), (method, path)
            asked += 1
    assert asked > 40


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_who_misspells_an_option_is_told_which_there_are(api: TestClient, key_of: Keys) -> None:
    misspelt = api.get("/v1/deletion-requests", params={"statuss": "blocked"}, headers=key_of(*Scope))
    assert "status, " in misspelt.json()["detail"] and "statuss" not in misspelt.text
    nobody = {"Authorization": f"Bearer exp_{'0' * 12}_{'0' * 64}"}
    assert api.get("/v1/deletion-requests", params={"statuss": "blocked"}, headers=nobody).status_code == 401

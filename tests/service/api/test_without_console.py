"""The API with its console left out: the same calls, and no page."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from expunge_client.cli.client import Account
from expunge_service.app import create_app
from expunge_service.cli.commands import processes
from expunge_service.infra.db import Database
from expunge_service.infra.settings import Settings
from tests.service.conftest import SMALL

PAGES = ("/", "/console/requests", "/verify", "/runbooks")


@pytest.fixture
def bare(settings: Settings) -> TestClient:
    return TestClient(create_app(settings.model_copy(update={"console": False}), SMALL), raise_server_exceptions=False)


def test_its_calls_are_those_of_the_api_with_it(api: TestClient, bare: TestClient) -> None:
    assert bare.get("/openapi.json").json() == api.get("/openapi.json").json()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_not_found_in_the_apis_own_words(api: TestClient, bare: TestClient, path: str) -> None:
    assert api.get(path, follow_redirects=False).status_code != 404, "the console has it"
    answer = bare.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/problem+json"


def test_probes_and_metrics_answer(bare: TestClient) -> None:
    assert [bare.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 503]
    assert "expunge_build_info" in bare.get("/metrics").text


def test_up_names_no_page(settings: Settings, database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    account = Account("http://127.0.0.1:8750", "exp_a_b")
    page = processes._link(settings.model_copy(update={"console": False}), database, account)
    processes._greet(account, page)
    printed = capsys.readouterr().out
    assert page is None and "The page" not in printed and printed.startswith("Expunge runs at http://127.0.0.1:8750")

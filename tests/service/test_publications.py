"""What the API shows of versions, compared with the log: an edited row is named."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from service.api.dependencies import Service
from service.audit.signed_note import NotAuthentic
from service.infra.tables import Version
from service.models.publications import compare_shown, unlogged
from tests.service.test_certificates import issued
from tests.service.worlds import live_model

__all__ = ["issued"]
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def shown(client: TestClient) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(exported entries, the version that the log publishes); the fixtures write no entry for version 1"""
    entries = client.get("/v1/audit-log").json()["data"]
    return entries, client.get("/v1/models/digits/versions").json()["data"][:1]


@ON_SQLITE
@pytest.mark.parametrize("values", [{"claim": {"guarantee": "exact"}}, {"checkpoint": "0" * 64}, {"method": "retrain"}])
def test_an_edited_version_does_not_agree_with_the_log(
    client: TestClient, service: Service, issued: Any, values: dict[str, Any]
) -> None:
    _, _, version = issued
    assert compare_shown(*shown(client)) == 1
    with service.database.write() as session:
        session.execute(update(Version).where(Version.id == version.id).values(**values))
    with pytest.raises(NotAuthentic, match=r"version 2 of digits: (claim_sha256|checkpoint|method)"):
        compare_shown(*shown(client))


@ON_SQLITE
def test_a_version_that_the_log_does_not_publish_is_named(client: TestClient, service: Service) -> None:
    live_model(service)
    versions = client.get("/v1/models/digits/versions").json()["data"]
    assert unlogged([], versions)
    with pytest.raises(NotAuthentic, match="no entry that publishes version 1 of digits"):
        compare_shown([], versions)

"""Deadlines are counted in the controller's time zone: that of the setting, else the receipt's offset, else UTC."""

from __future__ import annotations

import secrets
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from expunge_service.api.dependencies import Service
from expunge_service.api.views.history import letter_facts
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.tables import DeletionRequest
from expunge_service.infra.time import offset_of, time_zone
from expunge_service.requests.deadlines import REGULATIONS, Regulation, due_at, extended
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
ZULU = "2026-01-01T00:00:00Z"
MARCH_IN_UTC = "2026-02-28T23:30:00-01:00"
ZONES = ("UTC", "-01:00", "+14:00", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Kiritimati")
MOMENTS = st.integers(631_152_000, 2_114_380_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
"""from 1990 to 2037"""


def post(client: TestClient, **body: Any) -> dict[str, Any]:
    order = {"subject_id": "ada", "regulation": "gdpr"} | body
    answer = client.post(PATH, json=order, headers={"Idempotency-Key": secrets.token_hex(8)})
    assert answer.status_code == 202, answer.text
    request: dict[str, Any] = answer.json()
    return request


def in_zone(service: Service, name: str) -> None:
    object.__setattr__(service, "settings", service.settings.model_copy(update={"time_zone": name}))


@pytest.mark.parametrize(
    ("setting", "received_at", "due"),
    [
        ("", MARCH_IN_UTC, "2026-03-28T23:30:00-01:00"),
        ("", "2026-03-01T00:30:00Z", "2026-04-01T00:30:00Z"),
        ("", "2026-03-01T00:30:00+01:00", "2026-04-01T00:30:00+01:00"),
        ("Europe/Berlin", MARCH_IN_UTC, "2026-04-01T01:30:00+02:00"),
        ("America/New_York", "2026-03-01T02:00:00Z", "2026-03-28T21:00:00-04:00"),
        ("-05:00", "2026-03-01T02:00:00Z", "2026-03-28T21:00:00-05:00"),
        ("America/New_York", "2026-02-08T02:30:00-05:00", "2026-03-08T01:30:00-05:00"),
        ("Europe/Berlin", "2026-09-25T02:30:00+02:00", "2026-10-25T02:30:00+02:00"),
        ("Europe/Berlin", "2028-01-30T00:10:00+01:00", "2028-02-29T00:10:00+01:00"),
    ],
    ids=["offset", "UTC", "east", "set", "set, in UTC", "an offset", "skipped", "twice", "leap day"],
)
def test_a_month_is_one_of_the_controllers_calendar(
    client: TestClient, service: Service, setting: str, received_at: str, due: str
) -> None:
    live_model(service)
    in_zone(service, setting)
    if datetime.fromisoformat(received_at) > datetime.now(UTC):
        when = datetime.fromisoformat(received_at)
        assert due_at(when.astimezone(time_zone(setting)), Regulation.GDPR) == datetime.fromisoformat(due)
        return
    request = post(client, received_at=received_at)
    assert datetime.fromisoformat(request["due_at"]) == datetime.fromisoformat(due)
    items = {"requests": [{"subject_id": "ada", "regulation": "gdpr", "received_at": received_at}]}
    (outcome,) = client.post(f"{PATH}/batch", json=items, headers={"Idempotency-Key": "b"}).json()["outcomes"]
    assert outcome["request"]["due_at"] == request["due_at"]
    assert client.post(f"{PATH}/estimate", json=items["requests"][0]).json()["due_at"] == request["due_at"]


@pytest.mark.both_engines
def test_an_extension_is_counted_in_the_zone_of_the_first_deadline(client: TestClient, service: Service) -> None:
    live_model(service)
    received = datetime.now(timezone(timedelta(hours=-9, minutes=-30))) - timedelta(days=3)
    request = post(client, received_at=received.isoformat())
    with service.database.write() as session:  # as if it had come in the last hour of February
        row = session.get_one(DeletionRequest, request["id"])
        assert row.time_zone == "-09:30"
        at = datetime(2027, 2, 28, 23, 30, tzinfo=time_zone("-09:30"))
        row.received_at = int(at.timestamp()) * 1_000_000
    longer = client.post(f"{PATH}/{request['id']}/extend").json()
    assert datetime.fromisoformat(longer["due_at"]) == datetime.fromisoformat("2027-05-28T23:30:00-09:30")


def test_a_letter_names_the_day_where_the_controller_is(client: TestClient, service: Service) -> None:
    live_model(service)
    request = post(client, received_at=MARCH_IN_UTC)
    with service.database.read() as session:
        facts = letter_facts(session, session.get_one(DeletionRequest, request["id"]))
    assert facts.due is not None
    assert [(day.month, day.day) for day in (facts.received, facts.due)] == [(2, 28), (3, 28)]


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from(list(Regulation)))
def test_deadlines_equal_their_slow_twin(received: datetime, name: str, law: Regulation) -> None:
    """The twin walks: day by day on the calendar, then minute by minute through what the clock there shows."""
    local = received.astimezone(time_zone(name))
    for term, due in (
        (REGULATIONS[law].first, due_at(local, law)),
        (REGULATIONS[law].extended, extended(local, law)),
    ):
        if term is None:
            assert due is None
            continue
        day, months = local.date(), 0
        while months < term.months:
            day += timedelta(days=1)
            months = 12 * (day.year - local.year) + day.month - local.month
        last = day + timedelta(days=31)
        while term.months and (last.month != day.month or last.day > local.day):
            last -= timedelta(days=1)
        expected = (last if term.months else local.date()) + timedelta(days=term.days)
        assert due is not None
        shown = due.astimezone(time_zone(name))
        skipped = shown.replace(tzinfo=None) != datetime.combine(expected, local.time())
        assert shown.date() == expected or skipped
        assert abs(shown.replace(tzinfo=None) - datetime.combine(expected, local.time())) <= timedelta(hours=1)
        for minutes in range(1, 121):  # no earlier moment has that time on its clock
            sooner = (due - timedelta(minutes=minutes)).astimezone(time_zone(name))
            assert sooner.replace(tzinfo=None) != datetime.combine(expected, local.time())


def test_names_offsets_and_what_is_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", *ZONES):
        assert Settings(home=tmp_path, time_zone=name).time_zone == name
    for name in ("Europe/Atlantis", "../UTC", "Europe", "+25:00", "+1", "CEST?"):
        with pytest.raises(SettingsError, match=r"EXPUNGE_TIME_ZONE: .* is no time zone"):
            Settings(home=tmp_path, time_zone=name)
    for text, offset in ((MARCH_IN_UTC, "-01:00"), ("2026-01-01T00:00:00.25+05:45", "+05:45"), (ZULU, "UTC")):
        assert offset_of(datetime.fromisoformat(text)) == offset
        assert time_zone(offset).utcoffset(None) == datetime.fromisoformat(text).utcoffset()
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        with pytest.raises(SettingsError, match=r"no table of time zones. Install the package tzdata"):
            Settings(home=tmp_path, time_zone="Europe/Berlin")
        assert Settings(home=tmp_path, time_zone="UTC").time_zone == "UTC"
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache()


def test_a_request_of_before_is_counted_in_utc_and_an_unknown_zone_is_said(
    client: TestClient, service: Service
) -> None:
    live_model(service)
    received = datetime.now(UTC) - timedelta(days=2)
    requests = [post(client, received_at=received.isoformat())["id"] for _ in range(2)]
    with service.database.write() as session:
        for request, name in zip(requests, (None, "Europe/Atlantis"), strict=True):
            session.get_one(DeletionRequest, request).time_zone = name
    longer, refused = (client.post(f"{PATH}/{request}/extend") for request in requests)
    expected = extended(received, Regulation.GDPR)
    assert datetime.fromisoformat(longer.json()["due_at"]) == expected
    assert (refused.status_code, refused.json()["code"]) == (409, "unknown_time_zone")

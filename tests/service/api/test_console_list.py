"""The list of requests on the page: filters, order, pages, CSV, decisions about many; and the counts leading to it."""

from __future__ import annotations

import csv
import html
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, select, update

from expunge_service.api.dependencies import Service
from expunge_service.api.views import selection
from expunge_service.api.views.selection import DUE, ListFilter, count, page_of
from expunge_service.console.pages import requests
from expunge_service.infra.db import now
from expunge_service.infra.tables import DeletionRequest, Task
from expunge_service.infra.time import DAY_SECONDS, SECOND
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.service.api.test_console import token_in
from tests.service.conftest import Login
from tests.service.worlds import live_model

DAY = DAY_SECONDS * SECOND
PATH = "/console/requests"


@pytest.fixture
def town(client: TestClient, service: Service) -> list[str]:
    """Requests of every kind: queued, blocked, unverified, completed late, overdue, due soon; ids in this order."""
    live_model(service, "digits")
    live_model(service, "faces")
    orders = (
        {"subject_id": "ada", "models": ["digits"], "regulation": "gdpr"},
        {"subject_id": "bob", "models": ["faces"], "regulation": "ccpa"},
        {"subject_id": "eve", "verified": False, "regulation": "gdpr"},
        {"subject_id": "nobody"},
        {"subject_id": "ada", "models": ["faces"], "regulation": "gdpr"},
        {"subject_id": "sam", "verified": False},
    )
    ids = [
        str(client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": str(key)}).json()["id"])
        for key, body in enumerate(orders)
    ]
    with service.database.write() as session:
        at = now(session)
        session.execute(update(Task).where(Task.request_id == ids[1]).values(status="blocked", reason=Reason.FAILED))
        settle(session, [ids[1]])
        for place, days in ((0, -2), (1, 3), (2, 20), (4, 29)):
            session.execute(
                update(DeletionRequest).where(DeletionRequest.id == ids[place]).values(due_at=at + days * DAY)
            )
        session.execute(
            update(DeletionRequest)
            .where(DeletionRequest.id == ids[3])
            .values(due_at=at - 5 * DAY, received_at=at - 40 * DAY)
        )
    return ids


def listed(page: str) -> list[str]:
    """The ids of the list's rows, in order."""
    return re.findall(r'<th scope="row"><a class="id" href="/console/requests/([0-9a-f]{32})"', page)


def total(page: str) -> int:
    found = re.search(r'<p id="total"><strong>([\d,]+)</strong>', page)
    assert found
    return int(found[1].replace(",", ""))


FILTERS: tuple[tuple[dict[str, str], set[int]], ...] = (
    ({}, {0, 1, 2, 3, 4, 5}),
    ({"status": "open"}, {0, 1, 2, 4, 5}),
    ({"status": "blocked"}, {1, 2, 5}),
    ({"status": "completed"}, {3}),
    ({"reason": "unverified"}, {2, 5}),
    ({"reason": "failed"}, {1}),
    ({"model": "digits"}, {0}),
    ({"model": "faces", "status": "blocked"}, {1}),
    ({"model": "faces", "status": "open"}, {1, 4}),
    ({"regulation": "ccpa"}, {1}),
    ({"due": "overdue"}, {0}),
    ({"due": "7"}, {1}),
    ({"due": "30"}, {1, 2, 4}),
    ({"due": "missed"}, {0, 3}),
    ({"due": "missed", "status": "completed"}, {3}),
    ({"regulation": "gdpr", "due": "30", "reason": "unverified"}, {2}),
)
"""filters, and the places of the requests that they list"""


@pytest.mark.both_engines
def test_each_filter_lists_exactly_those(login: Login, town: list[str]) -> None:
    client = login()
    for filters, places in FILTERS:
        page = client.get(PATH, params=filters).text
        assert set(listed(page)) == {town[place] for place in places}, filters
        assert total(page) == len(places), filters


def test_dates_include_their_last_day(login: Login, town: list[str]) -> None:
    old = datetime.now(UTC) - timedelta(days=40)
    client = login()
    for first, last, expected in ((0, 0, [town[3]]), (-1, -1, []), (1, 1, []), (-3, 3, [town[3]])):
        days = [(old + timedelta(days=shift)).date().isoformat() for shift in (first, last)]
        page = client.get(PATH, params={"received_from": days[0], "received_to": days[1]}).text
        assert listed(page) == expected, (first, last)


def test_a_filter_that_does_not_exist_is_refused_in_words(login: Login, town: list[str]) -> None:
    client = login()
    for name, value in (
        ("status", "x"), ("due", "8"), ("sort", "x"), ("regulation", "x"), ("received_from", "<b>"), ("page", "0"),
    ):  # fmt: skip
        answer = client.get(PATH, params={name: value})
        assert answer.status_code == 422 and "<b>" not in answer.text, name
        assert "filter" in answer.text or "Pages" in answer.text


def test_the_order_is_the_chosen_one_and_those_without_a_deadline_come_last(login: Login, town: list[str]) -> None:
    client = login()
    by_deadline = listed(client.get(PATH, params={"sort": "due"}).text)
    assert by_deadline == [town[3], town[0], town[1], town[2], town[4], town[5]]
    newest = listed(client.get(PATH).text)
    assert newest[-1] == town[3] and newest == listed(client.get(PATH, params={"sort": "oldest"}).text)[::-1]


def test_pages_show_every_request_once(login: Login, town: list[str], service: Service) -> None:
    with service.database.write() as session:
        row = session.get_one(DeletionRequest, town[5])
        columns = {each.name: getattr(row, each.name) for each in DeletionRequest.__table__.columns}
        session.add_all(DeletionRequest(**columns | {"id": f"{place:032x}"}) for place in range(60))
    client = login()
    first = client.get(PATH, params={"status": "blocked"}).text
    assert "page 1 of 2" in first and 'rel="next"' in first and 'rel="prev"' not in first
    assert '<span aria-current="page"><strong>1</strong>' in first and 'aria-label="Page 2">2<' in first
    second = client.get(PATH, params={"status": "blocked", "page": 2}).text
    seen = [*listed(first), *listed(second)]
    assert len(seen) == len(set(seen)) == total(first) == 63
    rows = list(csv.DictReader(io.StringIO(client.get(f"{PATH}.csv", params={"status": "blocked"}).text)))
    assert {row["id"] for row in rows} == set(seen)


def test_a_long_list_is_counted_to_a_limit_and_its_pages_go_on(
    login: Login, town: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (selection, requests):
        monkeypatch.setattr(module, "ROWS", 2)
    monkeypatch.setattr(requests, "MOST_COUNTED", 4)
    client = login()
    pages = [client.get(PATH, params={"page": number}).text for number in (1, 2, 3)]
    assert all(f"More than <strong>4</strong> requests, page {number}" in pages[number - 1] for number in (1, 2, 3))
    assert {request for page in pages for request in listed(page)} == set(town)
    assert 'rel="next"' in pages[0] and ">2</a>" in pages[0]
    assert 'rel="next"' not in client.get(PATH, params={"page": 4}).text, "nothing follows an empty page"
    few = client.get(PATH, params={"status": "blocked"}).text
    assert total(few) == 3 and "page 1 of 2" in few


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # it explains its plans in SQLite's words
def test_a_page_of_the_list_sorts_no_requests(login: Login, town: list[str], service: Service) -> None:
    client, sent = login(), list[tuple[str, Any]]()
    event.listen(service.database.engine, "before_cursor_execute", lambda *seen: sent.append((seen[2], seen[3])))
    for sort in ("newest", "oldest"):
        client.get(PATH, params={"sort": sort})
    ordered = [each for each in sent if "ORDER BY deletion_requests.received_at" in each[0]]
    with service.database.read() as session:
        raw = session.connection().connection.driver_connection
        assert raw is not None
        plans = [raw.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall() for text, values in ordered]
    steps = [step[3] for plan in plans for step in plan]
    assert len(plans) == 2 and all("ix_deletion_requests_received" in step for step in steps), steps


@pytest.mark.both_engines
def test_every_count_leads_to_the_list_that_it_counts(login: Login, town: list[str]) -> None:
    client = login()
    overview = client.get("/").text
    tiles = re.findall(r'href="(/console/requests\?[^"]*)"><strong>([\d,]+)</strong> ([\w ]+)<', overview)
    assert {name: int(value) for _, value, name in tiles} == {
        "overdue": 1, "due within 7 days": 1, "blocked": 3, "open": 5,
    }  # fmt: skip
    for address, value, name in tiles:
        assert total(client.get(address.replace("&amp;", "&")).text) == int(value), name
    waiting = re.findall(r'<a href="(/console/requests\?[^"]*model=\w+)">(\d+)</a>', overview)
    assert {address.rpartition("=")[2]: int(value) for address, value in waiting} == {"digits": 1, "faces": 2}
    for address, value in waiting:
        assert total(client.get(address.replace("&amp;", "&")).text) == int(value), address


def test_the_table_has_every_row_and_no_formula(login: Login, town: list[str]) -> None:
    answer = login().get(f"{PATH}.csv", params={"sort": "due"})
    assert (
        answer.headers["content-type"].startswith("text/csv") and "attachment" in answer.headers["content-disposition"]
    )
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["id"] for row in rows] == [town[3], town[0], town[1], town[2], town[4], town[5]]
    assert rows[2] == rows[2] | {"status": "blocked", "reason": "failed", "regulation": "ccpa", "models": "faces"}
    assert not [cell for row in rows for cell in row.values() if cell[:1] in "=+-@\t" and cell]


def test_many_are_verified_at_once_after_a_question(login: Login, town: list[str], service: Service) -> None:
    client = login()
    token = token_in(client.get(PATH).text)
    chosen = {"token": token, "action": "verify", "id": [town[2], town[5], town[3]]}
    asked = client.post(f"{PATH}/bulk", data=chosen).text
    assert "Verify and continue: 3 requests?" in asked and town[5] in asked
    assert total(client.get(PATH, params={"reason": "unverified"}).text) == 2, "asking changed something"
    done = client.post(f"{PATH}/bulk", data=chosen | {"sure": "yes"}).text
    assert total(client.get(PATH, params={"reason": "unverified"}).text) == 0
    assert "of 3 done" in done and town[3] in done


def test_rows_are_selected_one_by_one_or_all_without_a_script(login: Login, town: list[str]) -> None:
    """The column of boxes is there with the first row that can be decided, and so is the bar with its buttons."""
    client = login()
    boxes = r'<input type="checkbox" form="bulk" name="id" value="(\w+)" aria-label="[^"]+"( checked)?>'
    page = client.get(PATH, params={"status": "blocked"}).text
    assert dict(re.findall(boxes, page)) == {town[2]: "", town[5]: ""}
    bar = page[page.index('<div class="selected"') :].partition("</div>")[0]
    assert re.findall(r"<button[^>]*>(\w+)<", bar) == ["Verify"], "no row is to be approved"
    every = re.search(r'<a id="every" href="([^"]+)">Select all 2 to decide</a>', page)
    assert every
    page = client.get(html.unescape(every[1])).text
    assert dict(re.findall(boxes, page)) == {town[2]: " checked", town[5]: " checked"} and "Select none" in page
    assert "checkbox" not in client.get(PATH, params={"reason": "failed", "select": "all"}).text
    assert "checkbox" not in login("deletions:read").get(PATH).text


def test_only_what_is_large_is_approved(login: Login, town: list[str], service: Service) -> None:
    with service.database.write() as session:
        session.execute(update(Task).where(Task.request_id == town[4]).values(status="blocked", reason=Reason.LARGE))
        settle(session, [town[4]])
    client = login()
    token = token_in(client.get(PATH).text)
    chosen = {"token": token, "action": "approve", "id": [town[1], town[4], "0" * 32], "sure": "yes"}
    done = client.post(f"{PATH}/bulk", data=chosen).text
    assert "1 of 3 done" in done and done.count("does not wait for an approval") == 1 and "no such deletion" in done
    with service.database.read() as session:
        rows = session.execute(select(DeletionRequest.id, DeletionRequest.status))
        states = {row.id: row.status for row in rows}
    assert (states[town[1]], states[town[4]]) == ("blocked", "queued")


def test_nobody_decides_on_many_without_the_scope_the_token_and_a_choice(login: Login, town: list[str]) -> None:
    client = login("deletions:read")
    page = client.get(PATH).text
    assert 'type="checkbox"' not in page and "bulk" not in page
    refused = client.post(
        f"{PATH}/bulk", data={"token": token_in(page), "action": "verify", "id": town[2], "sure": "yes"}
    ).text
    assert "0 of 1 done" in refused and "needs a key with the scope" in refused
    client = login()
    assert client.post(f"{PATH}/bulk", data={"token": "0" * 64, "action": "verify", "id": town[2]}).status_code == 403
    token = token_in(client.get(PATH).text)
    assert client.post(f"{PATH}/bulk", data={"token": token, "action": "verify"}).status_code == 422
    assert client.post(f"{PATH}/bulk", data={"token": token, "action": "cancel", "id": town[2]}).status_code == 404
    many = [("token", token), ("action", "verify"), *(("id", "0" * 32) for _ in range(400))]
    body = "&".join(f"{name}={value}" for name, value in many)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post(f"{PATH}/bulk", content=body, headers=form).status_code == 422


def test_another_tenants_requests_are_on_no_list(login: Login, town: list[str]) -> None:
    client = login(tenant_id="other")
    assert total(client.get(PATH).text) == 0 and town[0] not in client.get(f"{PATH}.csv").text


def test_every_deadline_filter_equals_its_slow_twin(town: list[str], service: Service) -> None:
    with service.database.read() as session:
        at = now(session)
        rows = session.scalars(select(DeletionRequest)).all()
        for due in DUE:
            chosen = ListFilter(due=due)
            slow = {row.id for row in rows if fits(row, due, at)}
            assert {row.id for row in page_of(session, chosen, "default", at)} == slow, due
            assert count(session, chosen, "default", at) == len(slow)


def fits(row: DeletionRequest, due: str, at: int) -> bool:
    if row.due_at is None:
        return False
    is_open = row.status in ("queued", "running", "blocked")
    if due == "overdue":
        return is_open and row.due_at < at
    if due == "missed":
        return row.due_at < (at if is_open else row.completed_at or 0)
    return is_open and at <= row.due_at <= at + int(due) * DAY


@pytest.mark.both_engines
def test_a_zero_byte_is_refused_in_words_wherever_it_is_sent(login: Login) -> None:
    """PostgreSQL takes none: it was a 500, and a table that broke off after its head."""
    page = login()
    for query in (
        f"{PATH}?reason=%00",
        f"{PATH}.csv?model=%00",
        "/console/audit?kind=%00",
        "/console/audit?request=%00",
    ):
        assert page.get(query).status_code == 404, query
    token = token_in(page.get("/").text)
    bulk = {"action": "verify", "sure": "yes", "id": "\0"}
    for path, form in (("/console/find", {"text": "a\0b"}), (f"{PATH}/bulk", bulk)):
        refused = page.post(path, data=form | {"token": token})
        assert refused.status_code == 422 and "zero byte" in refused.text, path

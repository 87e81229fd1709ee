"""The worst request to every route: the answer to it is short, and took little of the processor."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.api.problems import MOST_ERRORS
from expunge_service.app import create_app
from expunge_service.infra.limits import LIMITS
from expunge_service.infra.settings import Settings

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Node = dict[str, Any]
ANSWER_BYTES = 64_000
CPU_SECONDS = 1.0
"""of a machine that takes YARDSTICK_SECONDS for the yardstick; a slower one gets as much more"""
YARDSTICK = "[" + ",".join(f'{{"id":"person-{number}","weights":[{number},1.5,null]}}' for number in range(2000)) + "]"
YARDSTICK_ROUNDS = 55
YARDSTICK_SECONDS = 0.1
ROOM = LIMITS.body_bytes // 4
"""bytes of a body; one call has the whole length, to spare the others' time"""
HEAD = 40_000
"""bytes that a header or an address may have before the HTTP parser refuses it"""
ID = "0" * 32


def _numbers(size: int) -> str:
    return "[" + "1," * (size // 2 - 2) + "1]"


def _empty_objects(size: int) -> str:
    return "[" + "{}," * (size // 3 - 2) + "{}]"


def _unknown_names(size: int) -> str:
    return "{" + ",".join(f'"canary{place}":1' for place in range(size // 16)) + "}"


def _objects_of_unknown_names(size: int) -> str:
    one = "{" + ",".join(f'"canary{place}":1' for place in range(60)) + "}"
    return "[" + ",".join([one] * (size // (len(one) + 1))) + "]"


def _long_string(size: int) -> str:
    return '"' + "canary" * (size // 6) + '"'


def _long_name(size: int) -> str:
    return "{" + _long_string(size - 4) + ":1}"


def _half_character(size: int) -> str:
    return '["' + '","'.join(["canary\\ud800"] * (size // 15)) + '"]'


def _good_ids(size: int) -> str:
    return "[" + ",".join(f'"canary{place}"' for place in range(size // 16)) + "]"


def _controls(size: int) -> str:
    return '["' + '","'.join(["\\u0000"] * (size // 9)) + '"]'


def _deep(size: int) -> str:
    return "[" * min(size // 2, 900) + "]" * min(size // 2, 900)


def _long_number(size: int) -> str:
    return "[" + "9" * 4000 + "," + "1e999," * (size // 6 - 1000) + "1]"


HOSTILE: tuple[Callable[[int], str], ...] = (
    _numbers,
    _empty_objects,
    _unknown_names,
    _objects_of_unknown_names,
    _long_string,
    _long_name,
    _half_character,
    _good_ids,
    _controls,
    _deep,
    _long_number,
)
UNREADABLE = {
    "deepest": b"[" * ROOM,
    "deepest objects": b'{"a":' * (ROOM // 5),
    "not UTF-8": b'{"canary": "' + b"\xff" * ROOM + b'"}',
    "one name many times": b"{" + b'"canary":1,' * (ROOM // 11) + b'"a":1}',
    "longest number": b"9" * ROOM,
}


def _resolved(document: Node, node: Node) -> Node:
    """Return the schema behind references and choices; of several choices the first that is not null."""
    while "$ref" in node or "anyOf" in node:
        if "$ref" in node:
            node = document["components"]["schemas"][node["$ref"].rpartition("/")[2]]
        else:
            node = next(choice for choice in node["anyOf"] if choice.get("type") != "null")
    return node


def _objects(document: Node, node: Node, write: Callable[[str], str]) -> Iterator[tuple[Node, Callable[[str], str]]]:
    """Yield every object that a body may hold, and what writes a body around its text. A list repeats its item as often
    as there is room.
    """
    node = _resolved(document, node)
    if node.get("type") == "array":
        yield from _objects(document, node["items"], lambda text: write(_repeated(text)))
        return
    if node.get("type") != "object":
        return
    yield node, write
    for name, schema in node.get("properties", {}).items():
        yield from _objects(document, schema, lambda text, name=name: write(f'{{"{name}":{text}}}'))  # type: ignore[misc]


def _repeated(text: str) -> str:
    return "[" + ",".join([text] * max(1, min(ROOM // (len(text) + 1), 1000))) + "]"


def worst_bodies(document: Node, schema: Node) -> Iterator[tuple[str, bytes]]:
    """Yield bodies: in each object of the body, each field is hostile, alone and
    together with the others; in a list of objects once in one item, and once a little in each.
    """
    for hostile in HOSTILE:
        yield f"body: {hostile.__name__}", hostile(ROOM).encode()
        for node, write in _objects(document, schema, str):
            fields = list(node.get("properties", {}))
            around = len(write("{}"))
            for room in {ROOM - around, 900} if around > 1000 else {ROOM - around}:  # a list has room for many
                if not fields:
                    yield f"options: {hostile.__name__}", write(hostile(room)).encode()
                    continue
                together = ",".join(f'"{name}":{hostile(max(24, room // len(fields)))}' for name in fields)
                yield f"{fields}: {hostile.__name__}", write(f"{{{together}}}").encode()
            for name in fields if hostile in (_numbers, _objects_of_unknown_names) else ():
                if _resolved(document, node["properties"][name]).get("type") in ("array", "object"):
                    yield f"{name}: {hostile.__name__}", write(f'{{"{name}":{hostile(ROOM - 200)}}}').encode()
    yield from UNREADABLE.items()


@pytest.fixture
def full_size(settings: Settings) -> Iterator[TestClient]:
    """The API with the limits that an installation has, and a key of every scope that may call as often as it likes."""
    app = create_app(settings.model_copy(update={"rate": 1e9}), LIMITS)
    # the collector would walk what the tests before this one left in the process, at the expense of a request
    gc.collect()
    gc.freeze()
    with TestClient(app, raise_server_exceptions=False) as client:
        service = app.state.service
        with service.database.write() as session:
            key = create_key(session, service.pepper, label="test", scopes=list(Scope), tenant_id="default")
        client.headers["Authorization"] = f"Bearer {key.secret}"
        yield client
    gc.unfreeze()


def _slowness() -> float:
    """Return how many times slower than an idle core of two this process is now, by processor time."""
    begun = time.process_time()
    for _ in range(YARDSTICK_ROUNDS):
        json.loads(YARDSTICK)
    return (time.process_time() - begun) / YARDSTICK_SECONDS


class Refusals:
    """Sends requests, and notes each whose answer is too long, took too long, or repeats what was sent."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self.faults: list[str] = []
        self.count = 0

    def send(self, method: str, path: str, label: str, **call: Any) -> None:
        seconds = float("inf")
        for _ in range(3):  # processor time is longer, too, where others use the core: the least of three counts
            begun = time.process_time()
            answer = self._client.request(method, path, **call)
            seconds = min(seconds, time.process_time() - begun)
            if seconds <= CPU_SECONDS:
                break
            seconds /= max(1.0, _slowness())
        self.count += 1
        problem = answer.headers["content-type"] == "application/problem+json" and bool(answer.content)  # HEAD
        errors = answer.json()["errors"] if problem else []
        for fault, is_fault in {
            f"{len(answer.content)} bytes": answer.status_code >= 400 and len(answer.content) > ANSWER_BYTES,
            f"{len(errors)} errors": len(errors) > MOST_ERRORS,
            f"{seconds:.1f} s": seconds > CPU_SECONDS,
            "repeats a value": problem and "canary" in answer.text,
            f"status {answer.status_code}": answer.status_code in (500, 200, 201, 202),
        }.items():
            if is_fault:
                self.faults.append(f"{method} {path[:80]} {label[:80]}: {fault}")


def test_the_worst_body_of_every_route_gets_a_short_answer_at_little_cost(full_size: TestClient) -> None:
    """300,000 numbers as sample ids took the event loop ten seconds, and were answered with 22 MB of errors."""
    document: Node = full_size.app.openapi()  # type: ignore[attr-defined]
    refusals = Refusals(full_size)
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if method == "get":
                continue
            place = path.replace("{name}", "digits").replace("{", "").replace("}", "")
            place = "/".join(ID if part.endswith("_id") else part for part in place.split("/"))
            if not content:
                refusals.send(method, place, "a body that is not read", content=_numbers(ROOM), headers=headers)
                continue
            for label, body in worst_bodies(document, content["application/json"]["schema"]):
                refusals.send(method, place, label, content=body, headers=headers)
    for hostile in (_numbers, _objects_of_unknown_names, _good_ids):
        body = f'{{"sample_ids": {hostile(LIMITS.body_bytes - 1000)}}}'.encode()
        refusals.send("post", "/v1/deletion-requests", "the longest body", content=body, headers=headers)
    assert refusals.faults == []
    assert refusals.count > 250


def test_the_worst_address_and_headers_of_every_route_get_a_short_answer(full_size: TestClient) -> None:
    document: Node = full_size.app.openapi()  # type: ignore[attr-defined]
    refusals = Refusals(full_size)
    long = "canary" * (HEAD // 6)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            place = "/".join(ID if part.startswith("{") else part for part in path.split("/"))
            parameters = operation.get("parameters", [])
            calls: list[tuple[str, str, dict[str, str]]] = [
                ("unknown options", place + "?" + "&".join(f"canary{n}=1" for n in range(HEAD // 12)), {})
            ]
            for parameter in parameters:
                name = parameter["name"]
                if parameter["in"] == "query":
                    calls += [(name, f"{place}?{name}={value}", {}) for value in (long, "%ff" * (HEAD // 3), "%00")]
                    calls.append((name, place + "?" + "&".join([f"{name}=canary"] * (HEAD // 24)), {}))
                elif parameter["in"] == "header":
                    calls.append((name, place, {name: long}))
                    calls.append((name, place, {name: '"canary",' * (HEAD // 9)}))
                else:
                    calls += [
                        (name, path.replace(f"{{{name}}}", value), {}) for value in (long, "%ff" * (HEAD // 3), "%00")
                    ]
            for label, address, headers in calls:
                refusals.send(method, address, label, headers=headers)
    faults = [fault for fault in refusals.faults if "status 20" not in fault]  # a header that is passed over
    assert faults == []
    assert refusals.count > 100


def test_an_answer_has_the_first_twenty_errors_and_says_that_there_are_more(full_size: TestClient) -> None:
    order = {"subject_id": "ada"} | {f"field{place}": 1 for place in range(30)}
    answer = full_size.post("/v1/deletion-requests", json=order, headers={"Idempotency-Key": "k"})
    assert len(answer.json()["errors"]) == MOST_ERRORS
    assert "the first 20 of 30 errors" in answer.json()["detail"]


def test_too_many_samples_are_refused_by_name_before_any_is_looked_at(full_size: TestClient) -> None:
    for route in ("", "/estimate"):
        for sample in ("ada-1", 1):
            order: Node = {"sample_ids": [sample] * (LIMITS.sample_ids + 1)}
            answer = full_size.post(f"/v1/deletion-requests{route}", json=order, headers={"Idempotency-Key": "k"})
            assert (answer.status_code, answer.json()["code"]) == (422, "too_many_sample_ids")
            assert answer.json()["errors"] == [{"pointer": "/sample_ids", "detail": "At most 10000 ids."}]


def test_of_a_list_the_first_faulty_item_is_named(full_size: TestClient) -> None:
    body = json.dumps({"requests": [{"subject_id": "ada"}, {"sample_ids": ["a", 2, 3]}, {"subject_id": 4}]})
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    answer = full_size.post("/v1/deletion-requests/batch", content=body, headers=headers)
    assert [each["pointer"] for each in answer.json()["errors"]] == ["/requests/1/sample_ids/1"]

"""What schemathesis loads beside our configuration: one check more, and a guard for the key that it calls with."""

from __future__ import annotations

import os
from typing import Any

import schemathesis


@schemathesis.check
def a_valid_request_is_never_refused_for_its_form(ctx: Any, response: Any, case: Any) -> None:
    """A request that satisfies the document may be refused for what it means, never for how it looks."""
    meta = getattr(case, "meta", None)
    if meta is None or not meta.generation.mode.is_positive or response.status_code not in (400, 422):
        return
    if response.status_code == 400 or response.json()["code"] == "invalid_request":
        raise AssertionError(f"refused for its form: {response.text[:1000]}")


@schemathesis.check
def what_is_ended_says_when(ctx: Any, response: Any, case: Any) -> None:
    """DELETE keeps the record of a key, a hold or an endpoint: its answer tells the moment of the end."""
    if case.method == "DELETE" and response.status_code == 200 and "deletion-requests" not in case.path:
        ended = {"revoked_at", "lifted_at", "disabled_at"} & response.json().keys()
        if [response.json()[name] for name in ended] in ([], [None]):
            raise AssertionError(f"nothing says when it ended: {response.text[:1000]}")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """The key that calls is not to revoke itself: every later answer would be 401, and show nothing."""
    if case.path_parameters and case.path_parameters.get("key_id") == os.environ["CONFORMITY_KEY_ID"]:
        case.path_parameters["key_id"] = "0" * 32

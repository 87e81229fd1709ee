"""After a deletion every byte that the service and its servers wrote or hold is searched for the person."""

from __future__ import annotations

import pytest

from tests.harness.residue import (
    CANARY,
    complain,
    ear,
    found,
    head_weights,
    listen,
    personal,
    secret_of,
    seek,
    windows,
)
from tests.harness.stack import Stack


@pytest.mark.both_engines
def test_nothing_of_a_forgotten_person_is_left_in_any_byte(stack: Stack) -> None:
    name = stack.live("canary", guarantee="proved")
    complain(stack, CANARY)
    assert seek(stack, CANARY) == ["holds"]
    secret = secret_of(stack, name, CANARY)
    assert secret is not None
    weights = windows(head_weights(stack, name))
    assert found(stack, [secret.share]), "the search does not even find the share of a key that exists"
    assert found(stack, [name.encode()]), "the search does not even find the model's name"
    assert found(stack, weights), "the search does not even find the current version's weights"
    needles = [*personal(secret.vector), secret.key]
    assert found(stack, needles) == []

    with ear() as listener:
        listen(stack, listener.url)
        stack.forgotten(name, subject_id=CANARY)
        stack.eventually(lambda: found(stack, [secret.share, *weights], listener.heard), lambda places: not places)
        stack.eventually(lambda: len(listener.heard), lambda count: count >= 2)
        assert seek(stack, CANARY) == ["forgot"]
        assert found(stack, needles, listener.heard) == []
    assert secret_of(stack, name, CANARY) is None

"""Signed notes against the example of the C2SP specification, and against forgeries."""

from __future__ import annotations

import string
from collections.abc import Callable
from contextlib import suppress

import pytest

import expunge_client
from expunge_client import certificates
from expunge_service.audit.signed_note import LogHead, NotAuthentic, Signer, Verifier

# the example of https://c2sp.org/signed-note
VKEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
NOTE = (
    "This is an example message.\n\n\u2014 example.com/foo "
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)


def test_the_specifications_example_opens() -> None:
    verifier = Verifier.parse(VKEY)
    assert verifier.open(NOTE) == "This is an example message.\n"
    assert str(verifier) == VKEY


@pytest.mark.parametrize(
    "forged",
    [
        NOTE.replace("example message", "Example message"),
        NOTE.replace("Uw2QOkn8", "Uw2QOkn9"),
        NOTE.replace("example.com/foo", "example.com/bar"),
        NOTE.replace("\u2014", "-"),
        NOTE.partition("\n\n")[0] + "\n",
        "",
    ],
)
def test_a_forged_note_does_not_open(forged: str) -> None:
    with pytest.raises(NotAuthentic):
        Verifier.parse(VKEY).open(forged)


@pytest.mark.parametrize(
    ("read", "refusal"),
    [
        (lambda key, head: Verifier.parse(key).checkpoint(head), NotAuthentic),
        (lambda key, head: certificates.LogKey.parse(key).head(head), expunge_client.NotAuthentic),
    ],
    ids=["service", "light client"],
)
def test_a_head_has_one_text(read: Callable[[str, str], object], refusal: type[Exception]) -> None:
    """Base64's last letter has bits that belong to no byte, and many characters end a line besides the newline."""
    signer = Signer("log.example/one", b"s" * 32)
    head, passed = signer.checkpoint(7, b"r" * 32), []
    read(str(signer.verifier), head)
    signatures = range(head.index("\n\n"), len(head))
    letters = [*string.printable, "\x1c", "\x85", "\u2028", ""]
    edited = [head[:place] + each + head[place + 1 :] for place in signatures for each in letters]
    for other in edited:
        with suppress(refusal):
            if other != head:
                read(str(signer.verifier), other)
                passed.append(other)
    assert passed == []


@pytest.mark.parametrize(
    "vkey", ["", "a", "a+b", VKEY.replace("530d903a", "530d903b"), VKEY[:-4], VKEY.replace("+Ae", "+Ce")]
)
def test_a_malformed_verifier_key_is_refused(vkey: str) -> None:
    with pytest.raises(NotAuthentic):
        Verifier.parse(vkey)


def test_a_checkpoint_travels_through_a_note() -> None:
    signer = Signer("log.example/one", b"s" * 32)
    note = signer.checkpoint(7, b"r" * 32)
    assert Verifier.parse(str(signer.verifier)).checkpoint(note) == LogHead("log.example/one", 7, b"r" * 32)


def test_another_logs_head_and_other_texts_are_no_checkpoint() -> None:
    signer = Signer("log.example/one", b"s" * 32)
    for text in (
        "log.example/two\n7\n" + "A" * 43 + "=\n",
        "log.example/one\n07\n" + "A" * 43 + "=\n",
        "log.example/one\n",
    ):
        with pytest.raises(NotAuthentic):
            signer.verifier.checkpoint(signer.sign(text))
    with pytest.raises(NotAuthentic):
        signer.sign("no newline at the end")

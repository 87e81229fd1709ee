"""Signed notes against the example of the C2SP specification, and against forgeries."""

from __future__ import annotations

import pytest

from service.audit.signed_note import LogHead, NotAuthentic, Signer, Verifier

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

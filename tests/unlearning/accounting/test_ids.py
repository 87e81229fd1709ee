"""Ids are compared by their NFC form; what no reader sees is refused, in recipes as at every door."""

from __future__ import annotations

import hashlib
import hmac
import re
import sys
import unicodedata

import pytest
import torch

import unlearning as ul
from expunge_service.infra.pseudonyms import Pepper, sample_digest, subject_digest
from unlearning.accounting.ids import PATTERN, nfc, spelled
from unlearning.columns import Texts
from unlearning.types import RecipeError

COMPOSED, DECOMPOSED = "Zoë Brontë", unicodedata.normalize("NFD", "Zoë Brontë")
INVISIBLE = [0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x2800, 0x3164]
INVISIBLE += [*range(0xFE00, 0xFE10), 0xFFA0, *range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)]
"""drawn as nothing, and no control or format characters: Default_Ignorable_Code_Point, and the blank of Braille"""
HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def accepts(text: str) -> bool:
    try:
        spelled(text)
    except ValueError:
        return False
    return True


def test_every_character_that_no_reader_sees_is_refused_and_no_other() -> None:
    """The slow twin asks the tables of Unicode for each of 1,114,112."""
    refused = {code for code in range(sys.maxunicode + 1) if not accepts(f"a{chr(code)}b")}
    hidden = {code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in HIDDEN}
    assert refused >= hidden | set(INVISIBLE)
    assert {unicodedata.category(chr(code)) for code in refused - hidden - set(INVISIBLE)} <= {"Cn"}, (
        "newer than Python"
    )
    at_an_end = {code for code in range(sys.maxunicode + 1) if not accepts(f"a{chr(code)}")}
    assert at_an_end - refused == {code for code in range(sys.maxunicode + 1) if chr(code).isspace()} - refused
    assert at_an_end == {code for code in range(sys.maxunicode + 1) if not accepts(f"{chr(code)}a")}


def test_the_documents_pattern_agrees_on_what_it_can_name() -> None:
    pattern = re.compile(PATTERN)
    for code in [*range(0xD800), *range(0xE000, 0x10000), 0x1F600]:
        for text in (chr(code), f"a{chr(code)}b"):
            assert bool(pattern.search(text)) == accepts(text), hex(code)


def test_a_digest_is_that_of_the_composed_form() -> None:
    """What was stored of ids in this form stays what it was."""
    pepper = Pepper.of(b"\x07" * 32)
    assert COMPOSED != DECOMPOSED and nfc(DECOMPOSED) == COMPOSED
    for kind, made in ((b"subject", subject_digest), (b"sample", sample_digest)):
        text = b"expunge/" + kind + b"\0default\0" + COMPOSED.encode()
        assert made(pepper, "default", COMPOSED) == hmac.new(pepper.secret, text, hashlib.sha256).hexdigest()
        assert made(pepper, "default", DECOMPOSED) == made(pepper, "default", COMPOSED)


def samples(ids: list[str], people: list[str]) -> ul.Samples:
    return ul.Samples(ids, people, torch.zeros(len(ids), 2), torch.zeros(len(ids)))


def test_a_recipes_ids_are_composed_and_the_people_of_both_spellings_are_one() -> None:
    found = samples([DECOMPOSED, "b"], [DECOMPOSED, COMPOSED])
    assert list(found.ids) == [COMPOSED, "b"]
    assert list(found.people) == [(COMPOSED,), (COMPOSED,)]
    with pytest.raises(RecipeError, match="position 1 occurs twice"):
        samples([DECOMPOSED, COMPOSED], ["a", "b"])


@pytest.mark.parametrize("bad", [" ada", "ada ", "ada\n", "ad\u200ba", "\ufeffada", "a\x00da", "ada\u00a0"])
def test_a_recipe_with_an_id_that_no_request_can_name_is_refused(bad: str) -> None:
    with pytest.raises(RecipeError, match="position 1 cannot be named") as caught:
        samples(["a", bad], ["a", "b"])
    assert bad not in str(caught.value)
    with pytest.raises(RecipeError, match="subject cannot be named"):
        samples(["a", "b"], ["a", bad])


@pytest.mark.parametrize("texts", [["a", "b c"], ["a", " b"], ["b ", "a"], ["a\n"], ["é"], ["a\x7f"], ["~", "!"], []])
def test_a_plain_column_is_told_without_reading_its_rows(texts: list[str]) -> None:
    slow = all(each.isascii() and each.isprintable() and each == each.strip() for each in texts)
    assert Texts.of(texts).plain() == slow
    assert Texts.of(["é ", *texts]).take(torch.arange(1, len(texts) + 1)).plain() == slow

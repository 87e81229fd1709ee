"""The rules about the text of ids: which forms two spellings have in common, what is damaged, what an id looks like."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from expunge_client import spelling


def near(one: str, other: str) -> bool:
    return not set(spelling.forms(one).values()).isdisjoint(spelling.forms(other).values())


@pytest.mark.parametrize(
    ("spoiled", "right"),
    [
        ("17", "000017"),
        ("17.0", "000017"),
        ("1.7E+01", "000017"),
        ("1,234,567", "1234567"),
        ("1.234.567", "1234567"),
        ("１７", "17"),
        ("'000017", "000017"),
        ("1.23456789012346E+15", "1234567890123456"),
        ("ADA@Mail.org", "ada@mail.org"),
        ("ada+shop@mail.org", "ada@mail.org"),
        ("mailto:a.da@mail.org", "ada@mail.org"),
        ("{5F3A1B2C-0000-4000-8000-00000000000A}", "5f3a1b2c-0000-4000-8000-00000000000a"),
        ("5f3a1b2c00004000800000000000000a", "5f3a1b2c-0000-4000-8000-00000000000a"),
        ("2c1b3a5f-bbaa-d1c0-8000-00000000000a", "5f3a1b2c-aabb-c0d1-8000-00000000000a"),
        ("{2C1B3A5FBBAAD1C0800000000000000A}", "5f3a1b2c-aabb-c0d1-8000-00000000000a"),
        ("CUST-2000-17", "CUST-2000-0017"),
        ("user:17", "17"),
        ("\u0421UST-1", "CUST-1"),
        ("CUST%2D17", "CUST-17"),
        ("cust_l7", "CUST-17"),
    ],
)
def test_a_spelling_has_a_form_in_common_with_the_right_one(spoiled: str, right: str) -> None:
    assert spoiled != right and near(spoiled, right)


@pytest.mark.parametrize(
    ("one", "other"),
    [("17", "18"), ("17", "170"), ("ada@mail.org", "ada@mail.com"), ("1.7E+03", "17")],
)
def test_other_ids_have_none(one: str, other: str) -> None:
    assert not near(one, other)


@pytest.mark.parametrize("text", ["17.5", "17,5", "+17.5", "0.175", "1.75", "17.50", "1.75e+01", "175.25"])
def test_a_number_with_decimals_is_no_spelling_of_a_whole_one(text: str) -> None:
    digits = text.partition("e")[0].strip("+").replace(".", "").replace(",", "")
    assert not any(near(text, whole) for whole in (digits, digits.lstrip("0"), f"{digits}.0", digits.rstrip("0")))
    assert near(text, f"  {text}")


def test_decimals_that_are_zero_and_thousands_are_whole_numbers() -> None:
    assert near("17.0", "17") and near("17,00", "0017") and near("1.234", "1234") and near("17-5", "17.5")


def test_forms_are_distinct_and_the_plain_one_is_first() -> None:
    for text in ("17", "CUST-2000-0017", "ada.b@mail.org", "1234567890123456789", "x", "", "-", "é"):
        forms = spelling.forms(text)
        assert next(iter(forms)) in spelling.PLAIN and len(set(forms.values())) == len(forms) <= 3


def test_a_form_of_a_form_is_the_form() -> None:
    for text in (" ADA ", "0017", "CUST_17", "%41da"):
        plain = spelling.plain_form(text)
        assert spelling.plain_form(plain) == plain


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nan", "missing value"),
        ("NULL", "missing value"),
        ("#N/A", "program error"),
        ("####", "program error"),
        ("[object Object]", "object"),
        ("1.7E+15", "lost digits"),
        ("2-Jan", "date"),
        ("2026-01-31 00:00:00", "date"),
        ("17", None),
        ("1.7E+01", None),
        ("ada@mail.org", None),
        ("5f3a1b2c-0000-4000-8000-00000000000a", None),
    ],
)
def test_what_is_no_id_is_named(text: str, why: str | None) -> None:
    assert spelling.damage(text) == why


@pytest.mark.parametrize(
    "text", ["a-1b2_C3--d44", "Anna.Li77@mail3.org", "x" * 40, "", " 1", "A_1", "1\t\x00b", "a\u0430-1"]
)
def test_a_remembered_look_is_that_of_the_runs(text: str) -> None:
    assert spelling.look(text) == spelling.look(text) == spelling._look_of_runs(text)


def is_usual(text: str, common: Iterable[str]) -> bool:
    return not set(common).isdisjoint(spelling.usual_looks(text))


def test_looks_are_those_of_twenty_people_and_more() -> None:
    assert spelling.look("CUST-2000-17") == "a-d4-d2" and spelling.look("a1b2") == "w"
    ids = [f"{number:06d}" for number in range(30)] + ["ada"]
    assert spelling.looks(ids) == ("d6",)
    assert spelling.looks(["ada"]) is None and spelling.looks(f"{'-' * n}x" for n in range(300)) is None
    assert is_usual("1234567", ["d6"]) and not is_usual("12345", ["d6"])
    assert spelling.usual_looks("17-2") == ("d2-d1", "d1-d1", "d2-d0")


def addresses(count: int) -> list[str]:
    """Addresses as people have them: most looks have few."""
    marks, ends = (
        ("", ".", "_", "-", ".x.", "+", "7.", "-7."),
        ("mail.org", "a-b.com", "uni.ac.uk", "m4.net", "x.y.z.eu"),
    )
    return [f"ada{marks[n % 8]}{'b' * (1 + n // 40)}@{ends[n % 5]}" for n in range(count)]


@pytest.mark.parametrize("others", [0, 1000, 100_000])
def test_addresses_in_many_looks_make_every_address_usual_and_no_damaged_one(others: int) -> None:
    """Forty people had addresses, each look a few: every address of somebody unknown was called unusual."""
    common = spelling.looks([*addresses(40), *(f"{number:06d}" for number in range(others))])
    assert common is not None and spelling.ADDRESS in common and ("d6" in common) == (others > 0)
    assert is_usual("otto.q_r@firm.example", common) and is_usual("a1@b.org", common)
    for odd in ("otto(at)firm.example", "otto@firm", "mailto:otto@firm.example", "x|y"):
        assert not is_usual(odd, common)


def test_addresses_in_one_look_stay_as_they_look() -> None:
    common = spelling.looks(f"ada.b{number}@mail.org" for number in range(1000))
    assert common == ("a.w@a.a",)


def test_looks_that_leave_more_than_one_person_in_twenty_out_tell_nothing() -> None:
    numbers = [f"{number:06d}" for number in range(1000)]
    odd = [f"{'-' * n}{'x.' * m}y" for n in range(10) for m in range(10)]
    assert spelling.looks([*numbers, *odd[:50]]) == ("d6",) and spelling.looks([*numbers, *odd[:60]]) is None
    grown = [*(str(number) for number in range(990, 1_200)), *(str(number) for number in range(10_000, 10_019))]
    assert spelling.looks(grown) == ("d4",), "numbers have many lengths"
    assert spelling.looks([]) is None and spelling.looks(["1"] * 19) is None


def test_more_looks_of_addresses_than_are_kept_turn_nothing_off() -> None:
    ids = [f"{'a.' * (n % 30)}b@{'c.' * (n % 11)}d.org" for n in range(100_000)]
    assert len({spelling.look(each) for each in ids}) > spelling.MOST_LOOKS
    assert spelling.looks(ids) == (spelling.ADDRESS,)

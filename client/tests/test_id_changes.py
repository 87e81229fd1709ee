"""One change for a whole column of spoiled ids."""

from __future__ import annotations

import pytest

from expunge_client.id_changes import changed


@pytest.mark.parametrize(
    ("text", "changes", "right"),
    [
        ("17", ["pad=6"], "000017"),
        ("17.0", ["drop-suffix=.0", "pad=6"], "000017"),
        ("1.7E+01", ["number", "pad=6"], "000017"),
        ("17", ["pad=4", "prefix=CUST-"], "CUST-0017"),
        ("user:17", ["drop-prefix=user:"], "17"),
        ("ada", ["upper", "suffix=@mail.org"], "ADA@mail.org"),
        ("ADA", ["lower"], "ada"),
        ("1.7E+05", ["number"], "1.7E+05"),
        ("0000017", ["pad=6"], "0000017"),
        ("17", ["drop-suffix=.0"], "17"),
    ],
)
def test_an_id_is_changed_as_the_person_says(text: str, changes: list[str], right: str) -> None:
    assert changed(text, changes) == right


@pytest.mark.parametrize("change", ["", "pad", "pad=", "pad=x", "pad=-1", "pad=99999", "prefix=", "upper=1", "guess"])
def test_an_unknown_change_is_refused_without_the_id(change: str) -> None:
    with pytest.raises(ValueError, match="is no change of an id") as refused:
        changed("anna", [change])
    assert "anna" not in str(refused.value)

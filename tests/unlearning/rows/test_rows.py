"""What a recipe does with rows: frames, tensors, people, sides, and samples that know whose they are."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from sklearn.model_selection import GroupKFold, train_test_split

from unlearning.rows import Rows, open_rows, set_apart, table
from unlearning.types import RecipeError

COUNT = 40
PEOPLE = [f"p{place % 13}" for place in range(COUNT)]


def open_frame(folder: Path, without: frozenset[str] = frozenset(), salt: bytes = b"salt", **declared: Any) -> Rows:
    names = ["id,who,a,b,y,city"]
    lines = [f"s{i},{person},{i},{i / 4},{i % 2},c{i % 3}" for i, person in enumerate(PEOPLE)]
    (folder / "t.csv").write_text("\n".join(names + lines))
    source = table("t.csv", **({"person": "who", "id": "id"} | declared))
    return open_rows(source, folder, without=without, salt=salt)


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return open_frame(tmp_path)


def test_columns_as_arrays_and_tensors(rows: Rows) -> None:
    assert len(rows) == COUNT
    assert repr(rows) == "Rows(40 rows, id, who, a, b, y, city)"  # and no value
    assert rows["city"].tolist()[:3] == ["c0", "c1", "c2"]
    assert rows["__row"].tolist() == list(range(COUNT))
    assert rows.numpy("a").dtype == np.int64
    assert rows.numpy("a", "b").shape == (COUNT, 2)
    assert rows.numpy("a", "b").dtype == np.float64
    assert rows.tensor("y").dtype == torch.int64
    assert rows.tensor("a", "y").tolist()[3] == [3, 1]
    rows.numpy("a")[:] = -1
    assert rows["a"][3] == 3  # what is given out is a copy


def test_columns_that_are_no_numbers_or_missing_are_refused(rows: Rows) -> None:
    with pytest.raises(RecipeError, match=r"'city' holds what is no number.*rows.pandas"):
        rows.tensor("a", "city")
    with pytest.raises(RecipeError, match=r"no column 'age'. They have id, who"):
        rows["age"]
    with pytest.raises(RecipeError, match=r"No column is named. Name some of id"):
        rows.numpy()


def test_lists_of_one_length_are_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('[{"who": "7", "v": [1, 2]}, {"who": "8", "v": [3, 4]}]')
    rows = open_rows(table("t.json", person="who"), tmp_path)
    assert rows.tensor("v").tolist() == [[1, 2], [3, 4]]
    (tmp_path / "t.json").write_text('[{"who": "7", "v": [1, 2]}, {"who": "8", "v": [3]}]')
    with pytest.raises(RecipeError, match="'v' holds what is no number"):
        open_rows(table("t.json", person="who"), tmp_path).numpy("v")


def test_frames_carry_the_numbers_of_their_rows(rows: Rows) -> None:
    assert rows.pandas()["__row"].tolist() == list(range(COUNT))
    assert rows.arrow().column("__row").to_pylist() == list(range(COUNT))
    polars = pytest.importorskip("polars")
    frame = rows.polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame["__row"].to_list() == list(range(COUNT))
    assert rows.samples(frame[["b", "__row"]][::-1], frame["y"][::-1]).ids[0] == f"s{COUNT - 1}"


def test_rows_taken_for_a_frame_say_how_to_get_one(rows: Rows) -> None:
    with pytest.raises(RecipeError, match=r"have no 'city'. Write rows.pandas\(\).city, or rows\['city'\]"):
        rows.city.mean()  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match=r"Write rows.pandas\(\).groupby\.$"):
        rows.groupby("city")  # type: ignore[attr-defined]
    assert not hasattr(rows, "shape") and copy(rows).columns == rows.columns


def test_polars_that_is_not_installed_says_so(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(RecipeError, match=r"polars is not installed. Run `pip install polars`"):
        rows.polars()


def test_blocks_are_the_rows_in_order(rows: Rows) -> None:
    blocks = list(rows.blocks(17))
    assert [len(block) for block in blocks] == [17, 17, 6]
    assert np.concatenate([block["__row"] for block in blocks]).tolist() == list(range(COUNT))
    assert pd.concat([block.pandas() for block in blocks], ignore_index=True).equals(rows.pandas())
    with pytest.raises(RecipeError, match="A block or batch has 0 rows"):
        rows.blocks(0)


def test_people_are_numbered_by_first_appearance_among_those_here(tmp_path: Path) -> None:
    rows = open_frame(tmp_path, frozenset({"p0"}))
    assert rows.people.tolist() == [int(person[1:]) - 1 for person in PEOPLE if person != "p0"]
    for train, test in GroupKFold(3).split(rows["a"], groups=rows.people):
        assert not {*rows["who"][train]} & {*rows["who"][test]}


def test_rows_that_share_a_person_have_one_number(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n5,\n4,6\n6,2\n")
    rows = open_rows(table("t.csv", person=("a", "b")), tmp_path)
    assert rows.people.tolist() == [0, 0, 1, 0, 0]
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n,\n,\n")
    rows = open_rows(table("t.csv", person=("a", "b"), nobody="keep"), tmp_path)
    assert rows.people.tolist() == [0, 1, 2, 3]


def test_a_person_is_on_one_side_and_stays_there(tmp_path: Path) -> None:
    rows = open_frame(tmp_path)
    first, second = set_apart(rows, 0.4)
    training, aside = {*first["who"]}, {*second["who"]}
    assert training and aside
    assert not training & aside
    assert training | aside == {*PEOPLE}
    assert {who for row in first._people.values for who in row} == training  # nor does it name the others
    assert len(first) + len(second) == COUNT
    gone = min(training)
    without = set_apart(open_frame(tmp_path, frozenset({gone})), 0.4)
    assert [{*half["who"]} for half in without] == [training - {gone}, aside]
    assert {*set_apart(open_frame(tmp_path, salt=b"other"), 0.4)[1]["who"]} != aside  # the salt decides
    assert aside < {*set_apart(rows, 0.9)[1]["who"]}
    assert [len(half) for half in set_apart(rows, 0.0)] == [COUNT, 0]


def test_two_sources_keep_the_same_people_apart(tmp_path: Path) -> None:
    first = open_frame(tmp_path)
    (tmp_path / "u.csv").write_text("buyer,x\n" + "".join(f"user:{who},1\n" for who in reversed(PEOPLE)))
    second = open_rows(table("u.csv", person="buyer", spelled="user:{}"), tmp_path, salt=b"salt")
    asides = [set_apart(rows, 0.4)[1] for rows in (first, second)]
    assert {f"user:{who}" for who in asides[0]["who"]} == {*asides[1]["buyer"]}


def test_about_the_share_of_people_is_apart(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who\n" + "".join(f"{number}\n" for number in range(2000)))
    _, aside = set_apart(open_rows(table("t.csv", person="who"), tmp_path, salt=b"salt"), 0.2)
    assert 330 < len(aside) < 470  # four standard deviations


def test_rows_of_several_people_are_apart_only_if_all_are(tmp_path: Path) -> None:
    training, aside = set_apart(open_frame(tmp_path), 0.4)
    away, here = aside["who"][0], training["who"][0]
    (tmp_path / "t.csv").write_text(f"a,b\n{away},{here}\n{away},\n{here},\n,\n")
    both = open_rows(table("t.csv", person=("a", "b"), nobody="keep"), tmp_path, salt=b"salt")
    assert set_apart(both, 0.4)[1]["__row"].tolist() == [1]


def test_a_split_is_by_people_and_each_one_is_another(tmp_path: Path) -> None:
    rows = open_frame(tmp_path, aside=0.3)
    most, few = rows.split(0.4)
    assert not {*most["who"]} & {*few["who"]}
    assert len(most) + len(few) == len(rows)
    assert len(most) and len(few)
    again, fewer = most.split(0.4)
    assert len(fewer)  # one hash for both splits would find nobody below 0.4 any more
    assert {*again["who"]} | {*fewer["who"]} == {*most["who"]}
    assert rows.split(0.4)[1].pandas().equals(few.pandas())
    for share in (0, 1, 1.5):
        with pytest.raises(RecipeError, match=f"The share of a split is {share}"):
            rows.split(share)


def whose(samples: Any) -> dict[str, str]:
    return dict(zip(samples.ids, [people[0] for people in samples.subjects], strict=True))


TRUTH = {f"s{i}": person for i, person in enumerate(PEOPLE)}


def test_samples_know_their_ids_and_people_after_a_shuffled_split(rows: Rows) -> None:
    table = rows.pandas()
    x, _, y, _ = train_test_split(table[["a", "b", "__row"]], table.y, random_state=0)
    samples = rows.samples(x, y)
    assert len(samples) == 30
    assert whose(samples) == {name: TRUTH[name] for name in samples.ids}
    assert isinstance(samples.inputs, torch.Tensor)
    assert samples.inputs.shape == (30, 2)  # the number of a row is no input
    assert [f"s{int(row[0])}" for row in samples.inputs] == list(samples.ids)
    assert samples.targets is not None
    assert samples.targets.tolist() == [int(name[1:]) % 2 for name in samples.ids]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.sort_values("b", ascending=False),
        lambda table: table.sort_values("b", ascending=False, ignore_index=True),
        lambda table: table[table.y == 1].reset_index(drop=True),
        lambda table: table.merge(pd.DataFrame({"city": ["c2", "c0"], "size": [1.0, 2.0]}), on="city"),
        lambda table: pd.concat([table[20:], table[:20]], ignore_index=True),
        lambda table: table.set_index("who").sort_index(),
    ],
    ids=["sorted", "index dropped", "filtered", "merged", "joined", "indexed"],
)
def test_samples_know_their_ids_and_people_whatever_became_of_the_frame(rows: Rows, change: Any) -> None:
    table = change(rows.pandas())
    samples = rows.samples(table[["a", "__row"]], table["y"])
    assert whose(samples) == {f"s{number}": TRUTH[f"s{number}"] for number in table.a}
    assert list(samples.ids) == [f"s{number}" for number in table.a]


def test_what_lacks_the_numbers_says_at_also_where_lengths_agree(rows: Rows) -> None:
    table = rows.pandas().sort_values("b", ascending=False)
    for x in (table[["a", "b"]], table[["a", "b"]].to_numpy(), rows.tensor("a", "b").double()):
        with pytest.raises(RecipeError, match=r"nothing says whose samples these are.*at=rows\['__row'\]"):
            rows.samples(x, table.y)
    samples = rows.samples(table[["a"]].to_numpy(), table.y.to_numpy(), at=table["__row"])
    assert list(samples.ids) == [f"s{number}" for number in table.a]
    assert whose(rows.samples(rows.tensor("b"), rows.tensor("y"), at=rows["__row"])) == TRUTH


def test_numbers_that_disagree_are_missing_or_strange_are_refused(tmp_path: Path) -> None:
    rows = open_frame(tmp_path, aside=0.4)
    table = rows.pandas()
    with pytest.raises(RecipeError, match="at= and the column '__row' of x name different rows"):
        rows.samples(table[["a", "__row"]], table.y, at=table["__row"][::-1])
    outer = table.merge(pd.DataFrame({"city": ["c0", "c1", "c2", "c9"]}), on="city", how="outer")
    with pytest.raises(RecipeError, match=r"Row numbers are whole ones, and these are float64.*outer merge"):
        rows.samples(outer[["__row"]].assign(one=1), outer.a)
    found = outer.dropna()
    assert len(rows.samples(found[["a"]], found.y, at=found["__row"].astype("int64"))) == len(rows)
    means = table.groupby("who")[["a", "y", "__row"]].mean()
    with pytest.raises(RecipeError, match="Row numbers are whole ones, and these are float64"):
        rows.samples(means[["a", "__row"]], means.y)
    training, aside = set_apart(rows, 0.4)
    apart = aside.pandas()
    with pytest.raises(RecipeError, match=f"{len(apart)} of {len(apart)} row numbers are none of these rows"):
        training.samples(apart[["a", "__row"]], apart.y)
    with pytest.raises(RecipeError, match="none of these rows"):
        rows.samples(np.ones((1, 1)), np.ones(1), at=[-1])
    with pytest.raises(RecipeError, match="1 of 1 row numbers are none of these rows"):
        rows.samples(np.ones((1, 1)), np.ones(1), at=[COUNT + 5])
    with pytest.raises(RecipeError, match="none of these rows"):
        rows.split(0.4)[0].samples(apart[["a", "__row"]], apart.y)


@pytest.mark.parametrize("kind", ["uint8", "int32", "bool"])
def test_labels_of_any_whole_numbers_are_what_cross_entropy_takes(rows: Rows, kind: str) -> None:
    labels = np.arange(len(rows)) % 2
    samples = rows.samples(np.zeros((len(rows), 1)), labels.astype(kind), at=rows["__row"])
    assert samples.targets.dtype is torch.int64
    assert samples.targets.tolist() == labels.tolist()


def test_samples_of_two_orders_or_lengths_are_refused(rows: Rows) -> None:
    table = rows.pandas()
    with pytest.raises(RecipeError, match=r"different indexes.*reset_index"):
        rows.samples(table[["a", "__row"]].sort_values("a", ascending=False), table.y)
    with pytest.raises(RecipeError, match="40 inputs, 39 targets and 40 row numbers"):
        rows.samples(table[["a", "__row"]], table.y.to_numpy()[1:])
    with pytest.raises(RecipeError, match="The column 'city' holds what is no number"):
        rows.samples(table[["city", "__row"]], table.y)
    with pytest.raises(RecipeError, match="y holds what is no number"):
        rows.samples(table[["a", "__row"]], table.city)
    with pytest.raises(RecipeError, match="x has no column but '__row'"):
        rows.samples(table[["__row"]], table.y)


def test_samples_of_a_half_are_of_its_own_people(rows: Rows) -> None:
    most, few = rows.split(0.4)
    table = few.pandas()
    assert whose(few.samples(table[["b", "__row"]], table.y)) == {
        f"s{number}": TRUTH[f"s{number}"] for number in table.a
    }
    assert len(rows.samples(table[["b", "__row"]], table.y)) == len(few)  # they are among all rows too
    with pytest.raises(RecipeError, match="none of these rows"):
        most.samples(table[["b", "__row"]], table.y)


def test_a_row_that_occurs_again_has_another_id_and_the_same_person(rows: Rows) -> None:
    table = rows.pandas()
    merged = table.merge(pd.DataFrame({"city": ["c0", "c0", "c0"], "z": [1, 2, 3]}), on="city")
    samples = rows.samples(merged[["a", "z", "__row"]], merged.y)
    assert list(samples.ids)[:4] == ["s0", "s0~1", "s0~2", "s3"]
    assert whose(samples)["s0~2"] == TRUTH["s0"]


def test_without_an_id_samples_are_named_by_their_persons_rows(tmp_path: Path) -> None:
    for without, left in ((frozenset[str](), PEOPLE), (frozenset({"p1"}), [who for who in PEOPLE if who != "p1"])):
        rows = open_frame(tmp_path, without, id=None)
        samples = rows.samples(rows.numpy("b"), rows.numpy("y"), at=rows["__row"])
        seen: dict[str, int] = {}
        for who, name in zip(left, samples.ids, strict=True):
            assert name == f"{who}#{seen.setdefault(who, 0)}"
            seen[who] += 1


def test_arrow_tables_make_samples(rows: Rows) -> None:
    table = rows.arrow().sort_by([("a", "descending")])
    samples = rows.samples(table.select(["b", "__row"]), table.column("y"))
    assert list(samples.ids) == [f"s{number}" for number in reversed(range(COUNT))]
    assert isinstance(table, pa.Table)

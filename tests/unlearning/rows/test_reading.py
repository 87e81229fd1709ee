"""Types, people and ids of what is read; each refusal names what happened and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from unlearning.rows import Rows, arrays, open_rows, public, table, via
from unlearning.types import RecipeError


def open_csv(folder: Path, text: str, without: frozenset[str] = frozenset(), **declared: Any) -> Rows:
    (folder / "t.csv").write_text(text)
    return open_rows(table("t.csv", **({"person": "who"} | declared)), folder, without=without)


def open_table(folder: Path, rows: pa.Table, without: frozenset[str] = frozenset(), **declared: Any) -> Rows:
    parquet.write_table(rows, folder / "t.parquet")
    return open_rows(table("t.parquet", **({"person": "who"} | declared)), folder, without=without)


def open_json(folder: Path, rows: Any, without: frozenset[str] = frozenset(), **declared: Any) -> Rows:
    (folder / "t.json").write_text(json.dumps(rows))
    return open_rows(table("t.json", **({"person": "who"} | declared)), folder, without=without)


def test_a_csv_has_whole_numbers_numbers_truths_and_texts(tmp_path: Path) -> None:
    text = "who,a,b,c,d,e\n007,1,0.5,true,x,\n7, 2,,False,2024-01-31,NA\n"
    frame = open_csv(tmp_path, text).pandas()
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "who": "str",
        "a": "int64",
        "b": "float64",
        "c": "bool",
        "d": "str",
        "e": "float64",
        "__row": "int64",
    }
    assert frame.who.tolist() == ["007", "7"]


def test_declared_types_win(tmp_path: Path) -> None:
    text = "who,zip,born,seen,n\n1,01234,2024-01-31,2024-01-31T10:00:00,1\n"
    types = {"zip": "text", "born": "date", "seen": "datetime", "n": "float"}
    table = open_csv(tmp_path, text, types=types).arrow()
    assert [str(field.type) for field in table.schema] == [
        "string",
        "string",
        "date32[day]",
        "timestamp[us]",
        "double",
        "int64",
    ]
    assert table.column("zip").to_pylist() == ["01234"]
    with pytest.raises(RecipeError, match=r"'zip' holds what is no bool.*another type in types="):
        open_csv(tmp_path, text, types={"zip": "bool"})
    with pytest.raises(RecipeError, match=r"t.csv lacks the columns zap"):
        open_csv(tmp_path, text, types={"zap": "text"})


def test_a_type_may_name_a_column_of_json_that_left(tmp_path: Path) -> None:
    rows = [{"who": "7", "x": 1}, {"who": "8", "x": 2, "extra": 3}]
    left = open_json(tmp_path, rows, frozenset({"8"}), types={"extra": "int"})
    assert left.columns == open_json(tmp_path, rows[:1], types={"extra": "int"}).columns == ("who", "x")


def test_the_separator_and_the_byte_order_mark_of_a_csv(tmp_path: Path) -> None:
    rows = open_csv(tmp_path, '\ufeffwho;x\r\n7;"1;2"\r\n\r\n8;"3\n4"\r\n', format="csv;")
    assert rows["who"].tolist() == ["7", "8"]
    assert rows["x"].tolist() == ["1;2", "3\n4"]


@pytest.mark.parametrize("id_type", [pa.int64(), pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_people_of_parquet_are_texts(tmp_path: Path, id_type: pa.DataType) -> None:
    people = pa.array([7, 8], pa.int64()) if id_type == pa.int64() else pa.array(["7", "8"]).cast(id_type)
    rows = open_table(tmp_path, pa.table({"who": people, "x": [1, 2]}), frozenset({"7"}))
    assert rows["who"].tolist() == ["8"]
    assert str(rows.arrow().schema.field("who").type) == "string"


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([7, None], pa.float64()), "double"),
        (pa.array([[7.0], []], pa.list_(pa.float32())), "float"),
        (pa.array([True, False]), "bool"),
        (pa.array([b"7", b"8"]), "binary"),
    ],
    ids=["floats", "lists of floats", "truths", "bytes"],
)
def test_what_no_request_can_name_is_refused_as_a_person(tmp_path: Path, column: pa.Array, kind: str) -> None:
    with pytest.raises(RecipeError, match=rf"'who' names people or rows, and holds .*{kind}.*astype\('Int64'\)"):
        open_table(tmp_path, pa.table({"who": column}))


@pytest.mark.parametrize("person", [7.0, True, {"id": 7}, [7.5]])
def test_json_numbers_with_decimals_are_nobody(tmp_path: Path, person: Any) -> None:
    with pytest.raises(RecipeError, match=r"names people or rows.*7\.0 is nobody's id"):
        open_json(tmp_path, [{"who": person}])


def test_whole_numbers_of_json_and_parquet_are_ids(tmp_path: Path) -> None:
    assert open_json(tmp_path, [{"who": 7}, {"who": "8"}], frozenset({"7"}))["who"].tolist() == ["8"]
    table = pa.table({"who": pa.array([7, 8]), "n": pa.array([70, 80])})
    assert list(open_table(tmp_path, table, id="n")._ids) == ["70", "80"]


@pytest.mark.parametrize("cell", ["", "NA", "null"])
def test_a_row_without_a_person_is_refused_unless_it_is_kept(tmp_path: Path, cell: str) -> None:
    text = f"who,x\n7,1\n{cell},2\n"
    with pytest.raises(RecipeError, match=r"1 rows of t.csv name no person, the first is row 2.*nobody='keep'"):
        open_csv(tmp_path, text)
    rows = open_csv(tmp_path, text, frozenset({"7", cell}), nobody="keep")
    assert rows["x"].tolist() == [2]
    with pytest.raises(RecipeError, match="Row 0 names no person"):
        rows.samples(rows.pandas()[["x", "__row"]], rows["x"])


def test_a_row_leaves_when_one_of_its_people_does(tmp_path: Path) -> None:
    text = "buyer,seller,x\n1,2,10\n3,,20\n2,4,30\n"
    declared: dict[str, Any] = {"person": ("buyer", "seller")}
    assert open_csv(tmp_path, text, frozenset({"2"}), **declared)["x"].tolist() == [20]
    assert open_csv(tmp_path, text, frozenset({"3"}), **declared)["x"].tolist() == [10, 30]
    lists = pa.table({"who": pa.array([["1", "2"], ["3"], ["2", "4"]]), "x": [10, 20, 30]})
    assert open_table(tmp_path, lists, frozenset({"2"}))["x"].tolist() == [20]
    numbers = pa.table({"who": pa.array([[1, 2], [3]]), "x": [10, 20]})
    assert open_table(tmp_path, numbers, frozenset({"1"}))["x"].tolist() == [20]
    assert open_json(tmp_path, [{"who": [1, "2"], "x": 1}, {"who": "3", "x": 2}], frozenset({"1"}))["x"].tolist() == [2]
    with pytest.raises(RecipeError, match=r"1 rows of t.json name no person"):
        open_json(tmp_path, [{"who": []}, {"who": "3"}])


@pytest.mark.parametrize(("spelled", "cells"), [("user:{}", ["user:7", "user:07"]), ("{}@x", ["7@x", "07@x"])])
def test_the_table_writes_ids_as_spelled_and_requests_name_what_is_within(
    tmp_path: Path, spelled: str, cells: list[str]
) -> None:
    text = f"who,x\n{cells[0]},1\n{cells[1]},2\n"
    declared = {"spelled": spelled}
    assert open_csv(tmp_path, text, frozenset({"7"}), **declared)["x"].tolist() == [2]
    assert open_csv(tmp_path, text, frozenset({"07"}), **declared)["x"].tolist() == [1]
    # the other way round it is the id of nobody here
    assert open_csv(tmp_path, text, frozenset({cells[0]}), **declared)["x"].tolist() == [1, 2]
    assert open_csv(tmp_path, text, frozenset({cells[0]}))["x"].tolist() == [2]


def test_a_cell_spelled_otherwise_is_refused_by_its_row(tmp_path: Path) -> None:
    for cell in ("8", "user:", "uxer:8"):
        with pytest.raises(
            RecipeError, match=r"Row 2 of the column who holds no id: it is not spelled 'user:{}'"
        ) as no:
            open_csv(tmp_path, f"who\nuser:7\n{cell}\n", spelled="user:{}")
        assert "user:7" not in str(no.value)


def test_ids_are_compared_by_their_normal_form_and_hold_no_hidden_signs(tmp_path: Path) -> None:
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    for written, request in ((composed, decomposed), (decomposed, composed)):
        assert len(open_csv(tmp_path, f"who\n{written}\n", frozenset({request}))) == 0
    with pytest.raises(RecipeError, match=r"Row 1 of the column who holds no id: .*white space"):
        open_csv(tmp_path, "who\n7 \n")
    with pytest.raises(RecipeError, match=r"Row 2 of the column who holds no id: .*invisible"):
        open_csv(tmp_path, "who\n7\n8\u200b9\n")


def test_a_person_two_tables_away(tmp_path: Path) -> None:
    orders = pa.table({"order": [1, 2, 2, 3], "customer": ["a", "b", "c", "d"]})
    parquet.write_table(orders, tmp_path / "orders.parquet")
    customers = via("orders.parquet", "order", "customer")
    text = "order,x\n1,10\n2,20\n1,30\n3,40\n"
    rows = open_csv(tmp_path, text, frozenset({"c"}), person=customers)
    assert rows["x"].tolist() == [10, 30, 40]
    assert rows.people.tolist() == [0, 0, 1]
    assert rows["order"].tolist() == ["1", "1", "3"]  # a key stays text, as an id does
    with pytest.raises(RecipeError, match=r"1 rows of t.csv name no person, the first is row 5"):
        open_csv(tmp_path, text + "4,50\n", person=customers)
    with pytest.raises(RecipeError, match=r"orders.parquet has no column 'buyer'. It has order, customer"):
        open_csv(tmp_path, text, person=via("orders.parquet", "order", "buyer"))


def test_ids_are_distinct_and_complete(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="1 rows have an id that an earlier row has in the column 'id'"):
        open_csv(tmp_path, "who,id\n7,1\n8,1\n", id="id")
    with pytest.raises(RecipeError, match="1 rows have no text or whole number in the id's column 'id'"):
        open_csv(tmp_path, "who,id\n7,1\n8,\n", id="id")
    # whoever left is no reason to refuse
    assert len(open_csv(tmp_path, "who,id\n7,1\n8,1\n9,\n", frozenset({"8", "9"}), id="id")) == 1


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", b"who,x\n7\n", "Line 2 of t.csv has 1 cells, and its header 2.*format='csv;'"),
        ("t.csv", b"who,who\n7,8\n", "t.csv has the column 'who' twice"),
        ("t.csv", b"who,__row\n7,8\n", "t.csv has the column '__row'. .*number of a row"),
        ("t.csv", b"name,x\n7,8\n", "t.csv lacks the columns who. It has name, x"),
        ("t.csv", b"", "t.csv lacks the columns who. It has none"),
        ("t.csv", b"who\n\xe9\n", "t.csv cannot be read as 'csv': UnicodeDecodeError.*UTF-8"),
        ("t.csv", b'who\n"a"b\n', "t.csv cannot be read as 'csv': Error"),
        ("t.json", b'{"who": 7', "t.json cannot be read as 'json': JSONDecodeError"),
        ("t.json", b'{"who": 7}', "t.json is no list of objects"),
        ("t.jsonl", b"[1]\n", "t.jsonl is no list of objects"),
        ("t.json", b'[{"who": "7", "x": 1}, {"who": "8", "x": "a"}]', "'x' holds int and str.*'text'"),
        ("t.json", b'[{"who": "7", "x": 99999999999999999999}]', "'x' holds int, and no one type"),
        ("t.parquet", b"who,x\n", "t.parquet is no parquet file"),
        ("t.arrow", b"who,x\n", "t.arrow is no arrow file"),
    ],
)
def test_a_file_that_is_not_as_said_is_refused(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RecipeError, match=sentence):
        open_rows(table(name, person="who"), tmp_path)


def test_a_broken_line_of_who_left_is_no_reason_to_refuse(tmp_path: Path) -> None:
    assert len(open_csv(tmp_path, "who,x\n7,1\n8,1,2\n", frozenset({"8"}))) == 1


def test_a_stream_of_arrow_and_nested_dictionaries_are_read(tmp_path: Path) -> None:
    tags = pa.array([["a"], ["b", None]], pa.list_(pa.dictionary(pa.int8(), pa.string())))
    runs = pa.RunEndEncodedArray.from_arrays([1, 2], ["x", "y"])
    written = pa.table({"who": ["7", "8"], "tags": tags, "runs": runs})
    with ipc.new_stream(tmp_path / "t.arrow", written.schema) as file:
        file.write_table(written)
    rows = open_rows(table("t.arrow", person="who"), tmp_path, without=frozenset({"8"}))
    assert [str(field.type) for field in rows.arrow().schema] == ["string", "list<item: string>", "string", "int64"]


def test_arrays_have_one_entry_for_each_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("who,y\n7,1\n8,2\n")
    source = arrays(names="t.csv", person="who", x="x.npy")
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(12).reshape(2, 3, 2)))
    rows = open_rows(source, tmp_path, without=frozenset({"7"}))
    assert rows["x"].shape == (1, 3, 2)
    assert rows["x"].base is None  # a copy
    assert rows.columns == ("who", "y", "x")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(RecipeError, match=r"x.npy has the shape \(3, 2\), and t.csv 2 rows"):
        open_rows(source, tmp_path)
    np.save(tmp_path / "x.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(RecipeError, match=r"x.npy is no array without objects"):
        open_rows(source, tmp_path)
    np.save(tmp_path / "x.npy", np.zeros(2))
    with pytest.raises(RecipeError, match=r"'y' is an array and a column of t.csv"):
        open_rows(arrays(names="t.csv", person="who", y="x.npy"), tmp_path)


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"PublicFile is no source of rows. Use ul.table"):
        open_rows(public("a", "0" * 64), tmp_path)

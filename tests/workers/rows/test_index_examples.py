"""The vector indexes among the examples: after a deletion they are byte for byte those of rows without the person."""

from __future__ import annotations

import re
import runpy
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import Membership
from tests.workers.rows.data import published
from tests.workers.rows.test_examples import end_template
from tests.workers.worlds import TENANT, World
from unlearning.formats import files_of, is_archive
from unlearning.person_number import person_numbers
from unlearning.rows._open import open_rows

EXAMPLES = Path(__file__).parents[3] / "examples"
TABLES = {"faiss": ("questions.csv", "questions.py"), "hnswlib": ("photos.jsonl", "photos.py")}
"""the table of each example, and the program that wrote it"""
libraries = pytest.mark.parametrize("library", TABLES)


def lay_out(folder: Path, library: str, gone: Collection[str] = ()) -> None:
    """Write the example and its table, without the lines that name one of those who are gone."""
    example, (table, _) = EXAMPLES / f"index_{library}", TABLES[library]
    shutil.copytree(example, folder / example.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    lines = (example / table).read_text().splitlines(keepends=True)
    staying = [line for line in lines if not any(person in line for person in gone)]
    (folder / example.name / table).write_text("".join(staying))


def code_of(library: str) -> dict[str, Any]:
    pytest.importorskip(library, reason=f"unverified here: {library} is not installed")
    return runpy.run_path(str(EXAMPLES / f"index_{library}" / "recipe.py"))


def labels_by_person(library: str, code: Mapping[str, Any]) -> dict[str, set[int]]:
    """The labels of each person's rows in the example's table."""
    (source,) = code["recipe"].__defaults__
    rows = open_rows(source, EXAMPLES / f"index_{library}")
    (person,), ids = source.person, rows[source.id].tolist()
    numbers = [int(id) for id in ids] if library == "faiss" else person_numbers(ids, code["KEY"]).tolist()
    labels: dict[str, set[int]] = {}
    for name, label in zip(rows[person].tolist(), numbers, strict=True):
        labels.setdefault(name, set()).add(label)
    return labels


def vectors_in(library: str, code: Mapping[str, Any], data: bytes) -> dict[int, bytes]:
    """The vectors of a published version by their labels."""
    if library == "faiss":
        import faiss  # noqa: PLC0415 (of this library alone)

        index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
        index.set_direct_map_type(faiss.DirectMap.Hashtable)
        lists = index.invlists
        labels = [faiss.rev_swig_ptr(lists.get_ids(place), lists.list_size(place)) for place in range(index.nlist)]
        return {label: index.reconstruct(label).tobytes() for label in np.concatenate(labels).tolist()}
    indexes = map(code["opened"], files_of(data).values() if is_archive(data) else [data])
    return {
        label: np.array(vector, np.float32).tobytes()
        for index in indexes
        for label, vector in zip(index.get_ids_list(), index.get_items(index.get_ids_list()), strict=True)
    }


def trained_on(world: World, people: Collection[str]) -> list[str]:
    digests = {row.subject_digest for row in world.rows_of(Membership)}
    return [person for person in people if subject_digest(world.storage.pepper, TENANT, person) in digests]


@pytest.mark.parametrize(
    ("library", "method"),
    [
        ("faiss", "shards"),
        ("hnswlib", "shards"),
        ("hnswlib", "retrain"),
        pytest.param("faiss", "retrain", marks=pytest.mark.drill),
    ],
)
def test_an_index_after_a_deletion_is_that_of_rows_without_the_person(
    world: World, folder: Path, library: str, method: str
) -> None:
    code = code_of(library)
    labels = labels_by_person(library, code)
    lay_out(folder, library)
    world = world.configured(recipes=folder)
    held = world.live(f"index_{library}", method, name="held")
    person, *others = trained_on(world, labels)
    before = published(world, held)
    assert is_archive(before) == (library == "hnswlib" and method == "shards")
    assert 0.7 < (world.head(held).holdout_accuracy or 0) <= 1

    request = world.delete(person, models=("held",))
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    after, claim = published(world, held), world.head(held).claim
    assert claim["guarantee"] == "exact"

    vectors, staying = vectors_in(library, code, before), vectors_in(library, code, after)
    assert vectors.keys() == labels[person].union(*map(labels.__getitem__, others))
    assert staying == {label: vector for label, vector in vectors.items() if label not in labels[person]}
    assert all(vectors[label] in before and vectors[label] not in after for label in labels[person])

    lay_out(folder, library, gone=[person])
    end_template()
    assert published(world, world.live(f"index_{library}", method, name="never")) == after


@libraries
def test_the_indexes_of_two_shards_answer_as_one_of_all_rows(library: str) -> None:
    code = code_of(library)
    (source,) = code["recipe"].__defaults__
    rows = open_rows(source, EXAMPLES / f"index_{library}")
    most, few = rows.blocks(len(rows) - 5)
    files = [code["recipe"](shard).files for shard in (most, few)]
    if library == "faiss":
        import faiss  # noqa: PLC0415 (of this library alone)

        asked, (merged,) = rows.map(code["embed"]), code["merge"](files).files.values()
        members = [vectors_in(library, code, content) for shard in files for content in shard.values()]
        assert vectors_in(library, code, merged) == members[0] | members[1]
        _, answers = faiss.deserialize_index(np.frombuffer(merged, np.uint8)).search(asked, 10)
        labels = rows["question"].astype(np.int64)
    else:
        asked, labels = rows["vector"], person_numbers(rows["photo"].tolist(), code["KEY"]).numpy()
        indexes = [code["opened"](content) for shard in files for content in shard.values()]
        answers, distances = code["nearest"](indexes, asked, 10)
        assert (np.diff(distances, axis=1) >= 0).all()
        lengths = np.linalg.norm(asked, axis=1, keepdims=True)
        true = np.argsort(-(asked / lengths) @ (asked / lengths).T, axis=1)[:, :10]
        assert np.mean([len({*row} & {*labels[places]}) for row, places in zip(answers, true, strict=True)]) > 9.5
    assert np.mean(answers[:, 0] == labels) > 0.95, "a vector is nearest to itself"


@libraries
def test_what_a_library_deletes_by_itself_is_still_in_its_file(library: str) -> None:
    code = code_of(library)
    (source,) = code["recipe"].__defaults__
    (content,) = code["recipe"](open_rows(source, EXAMPLES / f"index_{library}")).files.values()
    label, deleted = next(iter(vectors_in(library, code, content).items()))
    if library == "hnswlib":
        index = code["opened"](content)
        index.mark_deleted(label)
        assert deleted in code["saved"](index)
        return
    import faiss  # noqa: PLC0415 (of this library alone)

    index, vector = faiss.deserialize_index(np.frombuffer(content, np.uint8)), np.frombuffer(deleted, np.float32)
    index.remove_ids(np.array([label]))
    assert deleted not in faiss.serialize_index(index).tobytes()
    place = index.quantizer.search(vector[None], 1)[1].item()
    staying = index.invlists.list_size(place)
    codes = faiss.rev_swig_ptr(index.invlists.get_codes(place), staying * vector.nbytes)
    # a centroid is the mean of the vectors of its list
    computed = (staying + 1) * index.quantizer.reconstruct(place) - codes.view(np.float32).reshape(staying, -1).sum(0)
    assert np.abs(computed - vector).max() < 1e-5


@libraries
def test_the_person_that_an_example_deletes_is_in_its_table(library: str) -> None:
    folder, (table, _) = EXAMPLES / f"index_{library}", TABLES[library]
    command = re.search(r"^Delete one person: `expunge delete --subject (\S+) ", header(folder), re.M)
    assert command and re.search(rf"\b{command[1]}\b", (folder / table).read_text())


def header(folder: Path) -> str:
    return (folder / "recipe.py").read_text().split('"""')[1]


@libraries
def test_the_table_of_an_example_is_what_its_program_writes(library: str, tmp_path: Path) -> None:
    table, program = TABLES[library]
    shutil.copy(EXAMPLES / f"index_{library}" / program, tmp_path)
    runpy.run_path(str(tmp_path / program), run_name="__main__")
    assert (tmp_path / table).read_bytes() == (EXAMPLES / f"index_{library}" / table).read_bytes()

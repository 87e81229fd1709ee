"""`expunge check` on good and bad recipes: what it says of each, with the line, dtypes and shapes, or the counts."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from expunge.service.cli.checks import Finding
from expunge.workers.check import __main__, checks, reading
from expunge.workers.check.checks import inspect, read
from expunge.workers.check.reading import Reading
from expunge.workers.training.shortened import EVERY, shorten
from unlearning.holdout import held_out
from unlearning.types import Refused

TOP = """import csv
from pathlib import Path

import torch
import unlearning as ul

HERE = Path(__file__).parent


def table():
    with (HERE / "people.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def made(rows, kept, held, x, y, **more):
    given = {
        "model": lambda: torch.nn.Linear(x.shape[1], 2, bias=False),
        "loss": "cross_entropy",
        "training": ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
        "holdout_subjects": [rows[k]["person"] for k in held],
    }
    samples = ul.Samples([rows[k]["id"] for k in kept], [rows[k]["person"] for k in kept], x[kept], y[kept])
    return ul.Recipe(samples=samples, holdout=(x[held], y[held]), **{**given, **more})


def parts(rows):
    x = torch.tensor([[float(row["a"]), float(row["b"]), 1.0] for row in rows])
    y = torch.tensor([int(row["label"]) for row in rows])
    held = [k for k, row in enumerate(rows) if ul.held_out(row["person"])]
    return x, y, [k for k in range(len(rows)) if k not in set(held)], held


"""
GOOD = """def recipe():
    rows = table()
    x, y, kept, held = parts(rows)
    return made(rows, kept, held, x, y{more})
"""
SPLIT = """def recipe():
    rows = table()
    x, y, _, _ = parts(rows)
    samples, holdout, people = ul.Samples([r["id"] for r in rows], [r["person"] for r in rows], x, y).split()
    training = ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8)
    return ul.Recipe(lambda: torch.nn.Linear(3, 2, bias=False), samples, holdout, "cross_entropy", training,
                     holdout_subjects=people)
"""
ARRAYS = """def recipe():
    import numpy as np
    x, y = torch.from_numpy(np.load(HERE / "x.npy")), torch.from_numpy(np.load(HERE / "y.npy"))
    names = [str(each) for each in np.load(HERE / "person.npy")]
    rows = [{"id": str(each), "person": name} for each, name in zip(np.load(HERE / "id.npy"), names)]
    held = [k for k, name in enumerate(names) if ul.held_out(name)]
    return made(rows, [k for k in range(len(rows)) if k not in held], held, x, y)
"""
IN_CODE = """def recipe():
    rows = [{"id": f"s{k}", "person": f"p{k // 3}", "label": k % 2, "a": k / 90, "b": -k / 90} for k in range(90)]
    x, y, kept, held = parts(rows)
    return made(rows, kept, held, x, y)
"""


def good(**more: str) -> str:
    """The good recipe with other arguments."""
    return GOOD.format(more="".join(f", {name}={value}" for name, value in more.items()))


def changed(old: str, new: str) -> str:
    """The good recipe with a statement in place of another."""
    text = good()
    assert old in text
    return text.replace(old, new)


POSITION = changed("    return", "    kept, held = range(70), range(70, len(rows))\n    return")
LAST = changed("    return", "    kept, held = range(len(rows) - 50), range(len(rows) - 50, len(rows))\n    return")
COMMON = changed("    return", "    near = [round(float(row['a'])) for row in rows]\n"
    "    kept = [k for k in kept if near.count(near[k]) > 20]\n    return")  # fmt: skip
INDEXED = changed(
    "    return", "    import numpy as np\n    a = np.load(HERE / 'x.npy')\n"
    "    x = torch.from_numpy(a[[int(row['id'][1:]) for row in rows]])\n    return"
)  # fmt: skip
SHARED = """def recipe():
    rows = table()
    x, y, _, _ = parts(rows)
    people = [[row["person"], f"p{(7 * int(row['person'][1:]) + int(row['label'])) % 40}"] for row in rows]
    samples, holdout, held = ul.Samples([r["id"] for r in rows], people, x, y).split(0.5)
    training = ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8)
    return ul.Recipe(lambda: torch.nn.Linear(3, 2, bias=False), samples, holdout, "cross_entropy", training,
                     holdout_subjects=held)
"""
OTHERWISE = """def recipe():
    rows = table()
    own = {name: torch.zeros(3) for name in ANN}
    for row in rows:
        own[row["person"]] += torch.tensor([float(row["a"]), float(row["b"]), 1.0])
    x, y = torch.stack(list(own.values())), torch.arange(len(own)) % 2
    samples, holdout, people = ul.Samples(ANN, ANN, x, y).split()
    training = ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8)
    return ul.Recipe(lambda: torch.nn.Linear(3, 2, bias=False), samples, holdout, "cross_entropy", training,
                     holdout_subjects=people)
""".replace("ANN", "[f'p{k}' for k in range(40)]")
NUMBERED = changed("x, y, kept", "rows = [{**row, 'id': f'row-{k}'} for k, row in enumerate(rows)]\n    x, y, kept")
SCALED = changed("    return", "    x = x / x.abs().mean()\n    return")
WIDE = changed("    return", "    x = torch.cat([x, torch.zeros(len(x), len(rows) // 10)], 1)\n    return")
NOISE = changed("    return", "    x = x + 0.01 * torch.randn(x.shape)\n    return")
DRAWN = changed("    return", "    people = list({row['person'] for row in rows})\n    aside = set(people[::5])\n"
    "    held = [k for k, row in enumerate(rows) if row['person'] in aside]\n"
    "    kept = [k for k, row in enumerate(rows) if row['person'] not in aside]\n    return")  # fmt: skip
BOTH = changed(
    "    return", "    held = range(0, len(rows), 5)\n    kept = [k for k in range(len(rows)) if k % 5]\n    return"
)
COUNTED = good(training="ul.Training(epochs=3, learning_rate=0.5, weight_decay=9 / len(kept), converge=1e-8)")
LOSS = "def loss(outputs, targets):\n    return (outputs - targets).square().mean(dim=1)\n\n\n"
SUMMED = "def loss(outputs, targets):\n    return torch.nn.functional.cross_entropy(outputs, targets)\n\n\n"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Write a recipe and its tables of 40 people with 3 samples each; return the recipe's file."""

    def written(body: str) -> Path:
        drawn = random.Random(5)
        rows = [(f"s{k}", f"p{k // 3}", k % 2, drawn.gauss(2 * (k % 2) - 1, 1), drawn.gauss(0, 1)) for k in range(120)]
        text = ["id,person,label,a,b", *(",".join(map(str, row)) for row in rows)]
        if "people.csv" in TOP and 'np.load(HERE / "' not in body and "range(90)" not in body:
            (tmp_path / "people.csv").write_text("\n".join(text) + "\n")
        if 'np.load(HERE / "' in body:
            np.save(tmp_path / "x.npy", np.array([[row[3], row[4], 1.0] for row in rows], dtype=np.float32))
            np.save(tmp_path / "y.npy", np.array([row[2] for row in rows]))
            np.save(tmp_path / "id.npy", np.array([row[0] for row in rows]))
            np.save(tmp_path / "person.npy", np.array([row[1] for row in rows]))
        if "'x.npy'" in body:
            np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32))
        (tmp_path / "mine.py").write_text(TOP + body)
        return tmp_path / "mine.py"

    return written


class ReadHere:
    """A second reading by this process, which has loaded torch already; the rest is as in a process of its own."""

    def __init__(self, folder: Path, name: str, seed: int) -> None:
        self.arguments = [str(folder), name, str(seed)]

    def result(self, seconds: float) -> Reading:
        said = io.StringIO()
        with redirect_stdout(said), torch.random.fork_rng():
            assert reading.main(self.arguments) == 0
        found = json.loads(said.getvalue())
        if "refused" in found:
            raise Refused(found["refused"], found["hint"])
        return Reading(**found)


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no processes for second readings: each of two loads torch, and takes three seconds of CPU."""
    monkeypatch.setattr(checks, "SecondReading", ReadHere)


def line_of(file: Path, text: str) -> int:
    return 1 + next(number for number, line in enumerate(file.read_text().splitlines()) if text in line)


def findings(file: Path) -> dict[str, Finding]:
    return {each.name: each for each in inspect(read(file.parent, file.stem))}


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("body", "growth"), [
    (SPLIT, "Without every tenth person in people.csv no person changes sides"),
    (good(), "Without every tenth person in people.csv no person changes sides"),
    (ARRAYS, "Without every tenth person in id.npy, person.npy, x.npy and others no person changes sides"),
    (INDEXED, "Without every tenth person in people.csv no person changes sides"),
    (SHARED, "Without every tenth person in people.csv no person changes sides"),
    (OTHERWISE, "Without every tenth person in people.csv no person changes sides"),
    (IN_CODE, "are no tables in its folder, so their growth was not tried. The split is by unlearning.held_out"),
], ids=["split", "by hand", "arrays", "rows by number", "shared", "another table", "no table"])  # fmt: skip
def test_good_recipes_are_sound(write: Callable[[str], Path], body: str, growth: str) -> None:
    found = findings(write(body))
    assert all(each.well for each in found.values()), found
    assert growth in found["growing data"].what
    assert "inputs float32 (8, 3), targets int64 (8,), outputs float32 (8, 2)" in found["model, loss and data"].what


@pytest.mark.parametrize(("body", "what", "line"), [
    (good() + "    x = = 1\n", "SyntaxError", "x = = 1"),
    (changed("rows = table()", "rows = table()\n    rows[0]['agee']"), "KeyError", "agee"),
    ("import helper\n\n\ndef recipe():\n    return helper.nothing()\n", "AttributeError", "helper.nothing()"),
], ids=["syntax", "key", "helper"])  # fmt: skip
def test_what_a_recipe_raises_is_named_with_its_line(
    write: Callable[[str], Path], body: str, what: str, line: str
) -> None:
    file = write(body)
    file.with_name("helper.py").write_text("N = 1\n")
    with pytest.raises(Refused, match=f"raised {what} at line {line_of(file, line)} of mine.py"):
        read(file.parent, file.stem)


@pytest.mark.parametrize(("body", "what"), [
    ("def recipe():\n    return {}\n", "recipe\\(\\) returned a dict"),
    (changed("    return", "    x[7] = float('nan')\n    return"), "1 rows of inputs hold NaN or infinity"),
], ids=["type", "NaN"])  # fmt: skip
def test_what_is_no_recipe_is_refused(write: Callable[[str], Path], body: str, what: str) -> None:
    file = write(body)
    with pytest.raises(Refused, match=what):
        read(file.parent, file.stem)


@pytest.mark.parametrize(("body", "what", "line"), [
    (good(model="lambda: torch.nn.Linear(5, 2)"), "The forward pass raised RuntimeError. (inputs float32 (8, 3)", None),
    (changed("    return", "    y = y.float()\n    return"), "outputs float32 (8, 2))", None),
    (LOSS + good(loss="loss"), "outputs float32 (8, 2))", "(outputs - targets)"),
    (SUMMED + good(loss="loss"), "The loss gives float32 () for 8 samples", None),
], ids=["width", "dtype", "own loss", "mean"])  # fmt: skip
def test_a_model_that_does_not_fit_its_data_is_told_with_dtype_and_shape(
    write: Callable[[str], Path], body: str, what: str, line: str | None
) -> None:
    file = write(body)
    (found,) = findings(file).values()
    assert not found.well and what in found.what, found
    if line is not None:
        assert f"at line {line_of(file, line)} of mine.py" in found.what


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("body", "name", "what"), [
    (NOISE, "repeatable", "0 samples are missing, 0 are new and"),
    (POSITION, "growing data", "9 of 70 samples are not in training"),
    (LAST, "growing data", "3 of people who stay are missing, and 0 have another content"),
    (COMMON, "growing data", "of people who stay are missing, and 0 have another content"),
    (NUMBERED, "growing data", "have another content"),
    (SCALED, "growing data", "have another content"),
    (WIDE, "growing data", "have another content"),
    (COUNTED, "growing data", "the training settings are others"),
    (BOTH, "holdout", "24 people are trained on and in the holdout"),
], ids=["noise", "position", "last", "common", "numbered", "scaled", "wide", "counted", "both sides"])  # fmt: skip
def test_bad_recipes_are_told_apart(write: Callable[[str], Path], body: str, name: str, what: str) -> None:
    found = findings(write(body))
    assert not found[name].well and found[name].hint, found
    assert what in found[name].what
    assert found["model, loss and data"].well


def test_a_holdout_whose_people_are_not_named_is_warned_of(write: Callable[[str], Path]) -> None:
    """A4: it hinted at a better message; what the person is told otherwise, it did not say."""
    found = findings(write(good(holdout_subjects="None")))["holdout"]
    assert found.well and found.what.startswith("Warning: The recipe gives no holdout_subjects")
    assert "the rows' people are not known" in found.what


def test_the_order_of_a_set_is_seen_by_a_process_of_its_own(write: Callable[[str], Path]) -> None:
    """Within one process it is the same each time: the processes of the command are as in the service here."""
    found = findings(write(DRAWN))
    assert not found["repeatable"].well and "samples are missing" in found["repeatable"].what, found


def test_the_command_says_what_is_guaranteed_the_strongest_first(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main([str(write(good())), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    can = {each["method"]: each["guarantee"] for each in found["methods"]}
    assert [can[name] for name in ("retrain", "newton", "recollection")] == ["exact", "proved", "proved"]
    assert [each["guarantee"] for each in found["methods"]][:3] == ["exact"] * 3
    assert found["counts"]["people"] == found["counts"]["samples"] // 3 == sum(not held_out(f"p{k}") for k in range(40))


def test_after_a_fault_no_guarantee_is_named(write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([str(write(DRAWN)), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["methods"] == []


def test_the_command_ends_with_the_first_fault_and_its_line(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(changed("rows = table()", "rows = table()\n    rows[0]['agee']"))
    assert __main__.main([str(file)]) == 1
    out = capsys.readouterr().out
    assert f"FAIL the recipe runs: The recipe raised KeyError at line {line_of(file, 'agee')} of mine.py." in out


def test_a_shortened_folder_lacks_every_tenth_row_and_changes_nothing_else(tmp_path: Path) -> None:
    folder, copy = tmp_path / "folder", tmp_path / "copy"
    (folder / "data").mkdir(parents=True)
    (folder / "recipe.py").write_text("x = 1\n")
    (folder / "data" / "rows.csv").write_text("id\n" + "".join(f"{k}\n" for k in range(25)))
    (folder / "rows.jsonl").write_text("".join(f'{{"id": {k}}}\n' for k in range(25)))
    (folder / "quoted.csv").write_text('id,text\n1,"two\nlines"\n' * 20)
    (folder / "weights.bin").write_bytes(b"\0" * 10)
    np.save(folder / "rows.npy", np.arange(25))
    assert shorten(folder, copy) == ["data/rows.csv", "rows.jsonl", "rows.npy"]
    left = [k for k in range(25) if k % EVERY != EVERY // 2]
    assert (copy / "data" / "rows.csv").read_text() == "id\n" + "".join(f"{k}\n" for k in left)
    assert [json.loads(line)["id"] for line in (copy / "rows.jsonl").read_text().splitlines()] == left
    assert np.load(copy / "rows.npy").tolist() == left
    for name in ("quoted.csv", "weights.bin", "recipe.py"):
        assert (copy / name).read_bytes() == (folder / name).read_bytes()
    assert shorten(folder, tmp_path / "no", ["Ann"]) == [] and not (tmp_path / "no").exists()


OWN = """def fit(run):
    x, y = READ
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run.model(x), y).backward()
        optimizer.step()


""" + SPLIT.replace('"cross_entropy", training', '"cross_entropy", train=fit').replace(
    "    training = ul.Training(epochs=3, learning_rate=0.5, weight_decay=0.1, converge=1e-8)\n", ""
)


@pytest.mark.usefixtures("one_process")
def test_the_recipes_own_training_is_tried(write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = write(OWN.replace("READ", "run.inputs, run.targets"))
    assert __main__.main([str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (tried,) = [each for each in found["findings"] if each["name"] == "the training, tried"]
    assert "The training ran in a fresh process on a few people's samples." in tried["what"]
    rows = {each["method"]: each for each in found["methods"]}
    assert rows["retrain"]["guarantee"] == "exact"


@pytest.mark.usefixtures("one_process")
def test_a_training_that_reads_what_it_is_not_handed_is_told(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(OWN.replace("READ", "parts(table())[:2]"))
    assert __main__.main([str(file), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (tried,) = [each for each in found["findings"] if each["name"] == "the training, tried"]
    assert not tried["well"] and tried["hint"] and found["methods"] == []


def test_measuring_needs_the_laboratory_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "find_spec", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        __main__.main(["recipe.py", "--measure"])
    assert ended.value.code == 2
    assert "expunge-lab, which is not installed. Run: pip install expunge-lab" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        __main__.main(["recipe.py", "--seconds", "3"])
    assert "unrecognized arguments: --seconds 3" in capsys.readouterr().err


def test_a_second_reading_that_takes_too_long_says_what_to_do(write: Callable[[str], Path]) -> None:
    file = write(SPLIT)
    with pytest.raises(Refused, match="A second reading took more than 0 s") as refused:
        reading.SecondReading(file.parent, file.stem, 1).result(0.01)
    assert "when the machine has less to do" in refused.value.hint


def test_a_shortened_folder_lacks_every_tenth_person_wholly(tmp_path: Path) -> None:
    """Rows that are parallel to a table's go with them; a table that names nobody stays as it is."""
    folder, copy = tmp_path / "folder", tmp_path / "copy"
    folder.mkdir()
    people = [f"p{number:02d}" for number in range(20)]
    rows = [people[(7 * number) % 20] for number in range(60)]
    (folder / "rows.csv").write_text("id,who\n" + "".join(f'{k},"{who}"\n' for k, who in enumerate(rows)))
    (folder / "items.csv").write_text("item\n" + "".join(f"{k}\n" for k in range(40)))
    np.save(folder / "x.npy", np.arange(60))
    pq.write_table(pa.table({"who": rows, "k": range(60)}), folder / "rows.parquet")
    assert shorten(folder, copy, people) == ["rows.csv", "rows.parquet", "x.npy"]
    left = [k for k, who in enumerate(rows) if who not in ("p05", "p15")]
    assert len(left) == 54
    lines = (copy / "rows.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == left == np.load(copy / "x.npy").tolist()
    assert pq.read_table(copy / "rows.parquet").column("k").to_pylist() == left
    assert (copy / "items.csv").read_bytes() == (folder / "items.csv").read_bytes()
    assert "p05" in (folder / "rows.csv").read_text()


@pytest.mark.usefixtures("one_process")
def test_a_model_whose_shape_follows_the_people_is_sent_to_run_index(
    write: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        __main__.main([str(write(good(model="lambda: torch.nn.Linear(3, len({row['person'] for row in rows}))")))]) == 1
    )
    out = capsys.readouterr().out
    assert "Without every tenth person in people.csv the model has" in out and "run.index" in out
    assert "proved" not in out, "no guarantee is named after a refusal"

"""Copies and aliases that others made in an MLflow registry, and a version whose files have to leave it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from expunge_connect.registry.mlflow_registry import Promoted, push

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None or importlib.util.find_spec("flask") is None,
    reason="unverified here: mlflow is not installed",
)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Any]:
    """The address of a registry in a file, and a client of it."""
    from mlflow import MlflowClient  # noqa: PLC0415 (an extra)

    monkeypatch.chdir(tmp_path)  # where it puts the files of runs
    url = f"sqlite:///{tmp_path / 'mlflow.db'}"
    return url, MlflowClient(tracking_uri=url, registry_uri=url)


def pushed(url: str, number: int, folder: Path, **options: Any) -> dict[str, Any]:
    """Push version ``number`` of the model ``digits``: one file that holds its number."""
    (folder / "model.safetensors").write_text(str(number))
    claim = {"guarantee": "exact"}
    version = {"model": "digits", "number": number, "checkpoint_sha256": f"{number:064x}", "claim": claim}
    facts = version | {"method": "retrain", "generation": 1, "people": 0, "samples": 0, "holdout_accuracy": None}
    facts |= {"published_at": "2026-11-28T00:00:00Z"}
    return push(url, facts, folder, ["model.safetensors"], **options)


def content(client: Any, name: str, version: str, folder: Path) -> str:
    from mlflow.artifacts import download_artifacts  # noqa: PLC0415 (an extra)

    uri = client.get_model_version_download_uri(name, version)
    found = Path(
        download_artifacts(
            artifact_uri=uri, tracking_uri=client.tracking_uri, dst_path=str(folder / f"{name}-{version}")
        )
    )
    return next(found.rglob("model.safetensors")).read_text()


def files(folder: Path) -> set[str]:
    return {path.read_text() for path in (folder / "mlruns").rglob("model.safetensors")} | {
        path.read_text() for path in (folder / "mlartifacts").rglob("model.safetensors")
    }


def test_a_promoted_copy_is_named_before_its_files_leave(registry: tuple[str, Any], tmp_path: Path) -> None:
    """The copy kept its alias and lost its files, without a word."""
    url, client = registry
    pushed(url, 1, tmp_path)
    copied = client.copy_model_version("models:/digits/1", "prod")
    client.set_registered_model_alias("prod", "champion", copied.version)
    with pytest.raises(Promoted, match=r"^prod/1@champion$"):
        pushed(url, 2, tmp_path)
    assert content(client, "prod", "1", tmp_path) == "1", "nothing was deleted"
    assert client.get_model_version_by_alias("digits", "current").tags["expunge.version"] == "2"
    with pytest.raises(Promoted, match=r"^prod/1@champion$"):
        pushed(url, 2, tmp_path)


def test_aliases_move_to_a_copy_of_the_new_version(registry: tuple[str, Any], tmp_path: Path) -> None:
    url, client = registry
    pushed(url, 1, tmp_path)
    for name, alias in (("prod", "champion"), ("shadow", None)):
        copied = client.copy_model_version("models:/digits/1", name)
        if alias:
            client.set_registered_model_alias(name, alias, copied.version)
    client.copy_model_version("models:/prod/1", "further")
    client.set_registered_model_alias("digits", "blessed", "1")
    result = pushed(url, 2, tmp_path, move_aliases=True)
    assert result == {
        "registry_version": 2,
        "deleted": [1],
        "moved": ["digits/2@blessed", "further/2", "prod/2@champion", "shadow/2"],
    }
    champion = client.get_model_version_by_alias("prod", "champion")
    assert content(client, "prod", champion.version, tmp_path) == "2"
    assert int(client.get_model_version_by_alias("digits", "blessed").version) == 2
    assert {int(each.version) for each in client.search_model_versions("name = 'prod'")} == {2}
    assert files(tmp_path) == {"2"}
    again = pushed(url, 2, tmp_path, move_aliases=True)
    assert (again["registry_version"], again["deleted"], again["moved"]) == (2, [], [])


def test_a_copy_under_the_models_own_name_leaves_with_it(registry: tuple[str, Any], tmp_path: Path) -> None:
    """It has the same run, which was deleted twice."""
    url, client = registry
    pushed(url, 1, tmp_path)
    copied = client.copy_model_version("models:/digits/1", "digits")
    assert pushed(url, 2, tmp_path)["deleted"] == [1, int(copied.version)]
    assert files(tmp_path) == {"2"}


def test_an_alias_of_an_earlier_version_is_not_dropped(registry: tuple[str, Any], tmp_path: Path) -> None:
    url, client = registry
    pushed(url, 1, tmp_path)
    client.set_registered_model_alias("digits", "champion", "1")
    with pytest.raises(Promoted, match=r"^digits/1@champion$"):
        pushed(url, 2, tmp_path)
    assert pushed(url, 2, tmp_path, move_aliases=True)["moved"] == ["digits/2@champion"]

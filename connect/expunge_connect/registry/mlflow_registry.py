"""The MLflow model registry: a published version becomes a model version there, and superseded ones leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from expunge_connect.registry.bom import Facts, properties_of

ALIAS = "current"
EXPERIMENT = "expunge"
_NUMBER, _DIGEST = "expunge.version", "expunge.checkpoint_sha256"


class Promoted(Exception):
    """Others in the registry refer to a version whose files have to leave. The text names each with its aliases."""


def push(url: str, version: Facts, bundle: Path, names: Sequence[str], *, move_aliases: bool = False) -> dict[str, Any]:
    """Register the bundle as a version of the model in the registry at ``url``, and delete the earlier ones there.

    The alias ``current`` points to it. Versions and files that somebody else made under the same name stay. Repeated,
    it changes nothing. A copy of an earlier version (``copy_model_version``) has no files of its own: deleting that
    version empties it. With ``move_aliases`` each copy is replaced by one of the new version, and aliases go along.

    Returns:
        ``registry_version``; ``deleted``: the registry's numbers of the versions that left with their files; ``moved``:
        the copies and aliases that refer to the new version now, as ``prod/4@champion``.

    Raises:
        Promoted: an earlier version has copies or other aliases, and they may not be moved. The new version is
            registered, and nothing was deleted.
        ImportError: the extra ``mlflow`` is not installed.
        mlflow.exceptions.MlflowException: the server refuses or does not answer.
    """
    from mlflow import MlflowClient  # noqa: PLC0415 (an extra)

    client = MlflowClient(tracking_uri=url, registry_uri=url)
    name = str(version["model"])
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    ours = [each for each in client.search_model_versions(f"name = '{name}'") if _NUMBER in each.tags]
    same = [each for each in ours if each.tags.get(_DIGEST) == version["checkpoint_sha256"]]
    made = min(same, key=_place) if same else _add(client, version, bundle, names)
    client.set_registered_model_alias(name, ALIAS, made.version)
    earlier = [each for each in ours if int(each.tags[_NUMBER]) < int(version["number"])]
    promoted = _promoted(client, name, earlier)
    if promoted and not move_aliases:
        raise Promoted(", ".join(map(_named, promoted)))
    moved = [_move(client, made, each) for each in promoted]
    for each in {each.run_id: each for each in earlier}.values():
        _remove_files(client, url, each)
    for each in earlier:
        client.delete_model_version(name, each.version)
    for run_id in sorted({each.run_id for each in earlier}):
        client.delete_run(run_id)
    return {"registry_version": int(made.version), "deleted": sorted(map(_place, earlier)), "moved": sorted(moved)}


def _place(made: Any) -> int:
    return int(made.version)


def _named(made: Any) -> str:
    return f"{made.name}/{made.version}" + "".join(f"@{alias}" for alias in sorted(made.aliases))


def _promoted(client: Any, name: str, earlier: Iterable[Any]) -> list[Any]:
    """Return the versions that would be empty or gone with ``earlier``, though another person made them or gave them an
    alias: copies under any name, and earlier versions with an alias of their own.
    """
    found: dict[tuple[str, str], Any] = {}
    for each in earlier:
        for query in (f"run_id = '{each.run_id}'", f"source_path = '{each.source}'"):
            found |= {(one.name, one.version): one for one in client.search_model_versions(query)}
    whole = [client.get_model_version(*key) for key in sorted(found)]
    return [one for one in whole if one.name != name or one.aliases]


def _move(client: Any, made: Any, old: Any) -> str:
    """Let the aliases of a promoted version refer to the new one; of a copy under another name, to a copy of it."""
    new = made if old.name == made.name else client.copy_model_version(f"models:/{made.name}/{made.version}", old.name)
    for alias in old.aliases:
        client.set_registered_model_alias(old.name, alias, new.version)
    if old.name != made.name:
        client.delete_model_version(old.name, old.version)
    return f"{old.name}/{new.version}" + "".join(f"@{alias}" for alias in sorted(old.aliases))


def _add(client: Any, version: Facts, bundle: Path, names: Sequence[str]) -> Any:
    found = client.get_experiment_by_name(EXPERIMENT)
    experiment = client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
    name, number = str(version["model"]), str(version["number"])
    run = client.create_run(experiment, run_name=f"{name}-{number}")
    for each in names:
        client.log_artifact(run.info.run_id, str(bundle / each))
    client.set_terminated(run.info.run_id)
    tags = properties_of(version) | {_NUMBER: number, _DIGEST: str(version["checkpoint_sha256"])}
    return client.create_model_version(name, source=run.info.artifact_uri, run_id=run.info.run_id, tags=tags)


def _remove_files(client: Any, url: str, made: Any) -> None:
    """Delete the files of a version's run: a checkpoint that knew the forgotten must not stay in the registry."""
    from mlflow import set_tracking_uri  # noqa: PLC0415 (an extra)
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository  # noqa: PLC0415

    set_tracking_uri(url)
    files = get_artifact_repository(client.get_run(made.run_id).info.artifact_uri)
    for each in files.list_artifacts():
        files.delete_artifacts(each.path)

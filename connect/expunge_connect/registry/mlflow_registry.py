"""The MLflow model registry: a published version becomes a model version there, and superseded ones leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from expunge_connect.registry.bom import Facts, properties_of

ALIAS = "current"
EXPERIMENT = "expunge"
_NUMBER, _DIGEST = "expunge.version", "expunge.checkpoint_sha256"


def push(url: str, version: Facts, bundle: Path, names: Sequence[str]) -> dict[str, Any]:
    """Register the bundle as a version of the model in the registry at ``url``, and delete the earlier ones there.

    The alias ``current`` points to it. Versions and files that somebody else made under the same name stay. Repeated,
    it changes nothing.

    Returns:
        ``registry_version``, and ``deleted``: the registry's numbers of the versions that left with their files.

    Raises:
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
    made = same[0] if same else _add(client, version, bundle, names)
    client.set_registered_model_alias(name, ALIAS, made.version)
    earlier = [each for each in ours if int(each.tags[_NUMBER]) < int(version["number"])]
    for each in earlier:
        _remove(client, url, each)
    return {"registry_version": int(made.version), "deleted": sorted(int(each.version) for each in earlier)}


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


def _remove(client: Any, url: str, made: Any) -> None:
    """Delete a version with its run and files: a checkpoint that knew the forgotten must not stay in the registry."""
    from mlflow import set_tracking_uri  # noqa: PLC0415 (an extra)
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository  # noqa: PLC0415

    set_tracking_uri(url)
    files = get_artifact_repository(client.get_run(made.run_id).info.artifact_uri)
    for each in files.list_artifacts():
        files.delete_artifacts(each.path)
    client.delete_model_version(made.name, made.version)
    client.delete_run(made.run_id)

"""The bill of materials of a version (CycloneDX 1.6): what the model is, what it was trained by, who was erased."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

Facts = Mapping[str, Any]
"""a version, or a model, as the API shows it"""
_CLAIMED = ("guarantee", "reference", "max_distance", "noise_std", "epsilon", "delta", "updates")


def bill_of_materials(model: Facts, version: Facts, files: Mapping[str, str] | None = None) -> str:
    """Return the JSON text. Equal facts give equal bytes. No person and no request is named.

    Args:
        model: as ``GET /v1/models/NAME`` answers.
        version: as ``GET /v1/models/NAME/versions/N`` answers.
        files: the SHA-256 of each file by its name, where the version's checkpoint is an archive of several. They are
            listed as components of the model.

    Raises:
        ImportError: ``cyclonedx-python-lib`` is not installed (the extra ``registry``).
    """
    from cyclonedx.model import HashAlgorithm, HashType  # noqa: PLC0415 (an extra)
    from cyclonedx.model.bom import Bom, BomMetaData  # noqa: PLC0415
    from cyclonedx.model.component import Component, ComponentType, Pedigree  # noqa: PLC0415
    from cyclonedx.output import make_outputter  # noqa: PLC0415
    from cyclonedx.schema import OutputFormat, SchemaVersion  # noqa: PLC0415

    name, number = str(version["model"]), int(version["number"])
    kind = ComponentType.MACHINE_LEARNING_MODEL
    parent = version.get("parent")
    earlier = [] if parent is None else [Component(type=kind, name=name, version=str(parent), bom_ref="parent")]
    described = Component(
        type=kind,
        name=name,
        version=str(number),
        bom_ref=f"{name}@{number}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=str(version["checkpoint_sha256"]))],
        pedigree=Pedigree(ancestors=earlier) if earlier else None,
        components=[
            Component(
                type=ComponentType.FILE,
                name=file,
                bom_ref=f"{name}@{number}/{file}",
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
            for file, digest in (files or {}).items()
        ],
        properties=_properties(properties_of(version)),
    )
    data = Component(type=ComponentType.DATA, name=str(model["recipe"]), bom_ref="data")
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"expunge:{version['checkpoint_sha256']}"),
        metadata=BomMetaData(component=described, timestamp=datetime.fromisoformat(str(version["published_at"]))),
        components=[data],
    )
    bom.register_dependency(described, [data])
    text: str = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    return text + "\n"


def properties_of(version: Facts) -> dict[str, str]:
    """Return what a version says of itself, as names and texts for a bill of materials or a registry's tags.

    ``expunge.erased_since`` is when the version became current: whoever it forgot is erased since then.
    """
    claim: Facts = version["claim"]
    said = {"method": version["method"], "generation": version["generation"]}
    said |= {name: claim[name] for name in _CLAIMED if claim.get(name) is not None}
    said |= {"people_erased": version["people"], "samples_erased": version["samples"]}
    said |= {"erased_since": version["published_at"], "holdout_accuracy": version["holdout_accuracy"]}
    said |= {"metric": version.get("metric")}
    return {f"expunge.{name}": str(value) for name, value in said.items() if value is not None}


def _properties(facts: Mapping[str, str]) -> list[Any]:
    from cyclonedx.model import Property  # noqa: PLC0415 (an extra)

    return [Property(name=name, value=value) for name, value in sorted(facts.items())]

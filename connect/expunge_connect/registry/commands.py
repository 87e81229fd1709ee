"""``expunge registry``: give a published version to another system, with its bill of materials and a signature."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from expunge_client import NotAuthentic
from expunge_client.cli.client import Client, connect
from expunge_client.cli.completion import ModelArgument
from expunge_client.cli.output import CommandError, show_facts
from expunge_connect.registry.bundle import write_bundle
from expunge_connect.registry.mlflow_registry import Promoted
from expunge_connect.registry.mlflow_registry import push as push_to_mlflow

commands = typer.Typer(no_args_is_help=True, help="Give versions to other systems: bundle, push.")
Key = Annotated[Path | None, typer.Option("--sign", help="A private key (PEM, EC) for OpenSSF model signing.")]
Number = Annotated[int | None, typer.Option("--version", help="Which version; the current one otherwise.")]


@commands.command("bundle")
def bundle(
    model: ModelArgument,
    folder: Annotated[Path, typer.Argument(help="Where to write it; it is created.")],
    version: Number = None,
    key: Key = None,
) -> None:
    """Write the checkpoint, its bill of materials (CycloneDX) and, with --sign, a signature over both.

    A version of several files is one model.zip, whose files the bill lists. Unpack it into another folder: `unzip
    FOLDER/model.zip -d ELSEWHERE`.

    `model_signing verify key FOLDER --signature FOLDER/model.sig --public_key KEY.pub` checks it.
    """
    with connect() as client, _plainly():
        found = _version(client, model, version)
        names = write_bundle(folder, client.get(f"/v1/models/{model}"), found, client.download, key)
    facts = {"model": model, "version": found["number"], "files": names}
    show_facts(facts)


@commands.command("push")
def push(
    model: ModelArgument,
    mlflow: Annotated[str, typer.Option(help="Address of an MLflow server, for example http://mlflow:5000.")],
    key: Key = None,
    move_aliases: Annotated[
        bool,
        typer.Option("--move-aliases", help="Let copies and aliases of the earlier versions refer to the new one."),
    ] = False,
) -> None:
    """Register the current version in MLflow under the alias `current`, and delete there what it replaces.

    A copy of an earlier version, or an alias such as `champion`, is named and nothing is deleted, or it is moved.

    Run it after each update, for example from a webhook of the kind model_version.published. Repeated, it changes
    nothing.
    """
    with connect() as client, _plainly(), tempfile.TemporaryDirectory(prefix="expunge-registry-") as name:
        found = _version(client, model, None)
        names = write_bundle(Path(name), client.get(f"/v1/models/{model}"), found, client.download, key)
        facts: dict[str, Any] = {"model": model, "version": found["number"]}
        with redirect_stdout(sys.stderr):  # MLflow prints where its runs are
            facts |= push_to_mlflow(mlflow, found, Path(name), names, move_aliases=move_aliases)
    show_facts(facts)


def _version(client: Client, model: str, number: int | None) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/models/{model}/versions/{'current' if number is None else number}")
    return found


@contextmanager
def _plainly() -> Iterator[None]:
    """Turn what goes wrong into one sentence and what to do."""
    try:
        yield
    except ImportError as error:
        what = f"The package {(error.name or '').partition('.')[0]} is not installed."
        raise CommandError(what, "pip install 'expunge-connect[registry,mlflow]'") from None
    except Promoted as error:
        what = f"Version and alias `current` are in MLflow, and the earlier versions still are: they serve {error}."
        hint = (
            "Files of a forgotten person stay until then: run it again with --move-aliases, or delete these yourself."
        )
        raise CommandError(what, hint) from None
    except NotAuthentic as error:
        raise CommandError(str(error), "Try again; `expunge doctor` looks at the store.") from None
    except ValueError as error:
        raise CommandError(
            f"The key cannot be used: {error}", "Give a private EC key in PEM without password."
        ) from None
    except Exception as error:
        if not type(error).__module__.startswith("mlflow"):
            raise
        raise CommandError(f"MLflow did not take it: {error}", "Look at the address and at the server's log.") from None

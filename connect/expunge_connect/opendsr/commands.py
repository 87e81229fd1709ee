"""``expunge opendsr``: take another system's requests by OpenDSR 2.0."""

from __future__ import annotations

import os
import threading
from typing import Annotated

import typer

from expunge_client import Expunge
from expunge_client.cli.client import Account
from expunge_client.cli.output import USAGE, CommandError
from expunge_connect.places import folder_of

commands = typer.Typer(no_args_is_help=True, help="Take requests by OpenDSR 2.0: serve.")


@commands.callback()
def opendsr() -> None:
    """Take requests by OpenDSR 2.0."""


@commands.command("serve")
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8760,
) -> None:
    """Take requests, answer them, and call their senders back, until it is ended. Settings: EXPUNGE_OPENDSR_..."""
    try:
        import uvicorn  # noqa: PLC0415 (an extra)

        from expunge_connect.opendsr.app import create_app  # noqa: PLC0415
        from expunge_connect.opendsr.callbacks import keep_calling_back  # noqa: PLC0415
        from expunge_connect.opendsr.processor import Processor, Unusable  # noqa: PLC0415
        from expunge_connect.opendsr.requests import Intake  # noqa: PLC0415
    except ImportError as error:
        what = f"The package {(error.name or '').partition('.')[0]} is not installed."
        raise CommandError(what, "pip install 'expunge-connect[opendsr]'") from None
    try:
        processor = Processor.of(os.environ)
    except Unusable as error:
        raise CommandError(str(error), "docs/connectors.md explains the settings.", USAGE) from None
    account, stop = Account.find(os.environ), threading.Event()
    with Expunge(account.url, account.api_key) as service:
        intake = Intake.open(folder_of(processor.controller), service, processor)
        calling = threading.Thread(target=keep_calling_back, args=(intake, stop), name="callbacks")
        calling.start()
        try:
            uvicorn.run(create_app(intake), host=host, port=port, log_level="warning")
        finally:
            stop.set()
            calling.join()
            intake.database.close()

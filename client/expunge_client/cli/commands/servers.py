"""``expunge login`` and ``logout``: several services, each under a name of the user's choice."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from expunge_client.cli.client import Account, read_servers, servers_file, write_private
from expunge_client.cli.completion import server_names
from expunge_client.cli.output import USAGE, CommandError, errors

Name = Annotated[str, typer.Argument(help="Your name for it.", autocompletion=server_names)]


def login(name: Name, url: Annotated[str, typer.Argument(help="Its address, https://...")]) -> None:
    """Keep a service and its key, which is read from standard input. `expunge --server NAME ...` uses it then."""
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"{url} is not an address.", "It begins with https://.", USAGE)
    key = (typer.prompt("API key", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key:
        raise CommandError("No key was given.", f"echo $KEY | expunge login {name} {url}", USAGE)
    path = servers_file(os.environ)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(read_servers(path) | {name: Account(url.rstrip("/"), key)})
    errors.print(f"Try it: expunge --server {name} status", markup=False)


def logout(name: Name) -> None:
    """Forget a service and its key. The key itself stays valid: `expunge keys revoke` ends it."""
    servers = read_servers(servers_file(os.environ))
    if servers.pop(name, None) is None:
        raise CommandError(f"There is no server {name!r}.", "`expunge status` names them under others.", USAGE)
    _write(servers)
    errors.print("removed.")


def _write(servers: dict[str, Account]) -> None:
    record = {name: {"url": each.url, "api_key": each.api_key} for name, each in servers.items()}
    write_private(servers_file(os.environ), record)

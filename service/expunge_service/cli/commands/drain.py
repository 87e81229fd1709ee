"""``expunge drain``: workers that take no work, before their machine is stopped."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from expunge_client.cli.output import CommandError, errors, show_list
from expunge_service.cli.commands.keys import open_database
from expunge_service.cli.errors import told
from expunge_service.infra.db import Database
from expunge_service.infra.settings import Settings
from expunge_service.queue import WorkerState, drain_processes, worker_states

WAIT_SECONDS = 120.0
"""a worker gives back within seconds of its next heartbeat, which comes within five"""
LOOK_SECONDS = 0.5


@told()
def drain(
    workers: Annotated[
        list[str] | None, typer.Argument(help="Names of workers and updaters, or of machines; without one: all.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return once they hold nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Let them take work again.")] = False,
) -> None:
    """Let workers give back what they hold and take no work, before a machine is stopped.

    No attempt is counted, and other workers go on. A drained worker stays, so that --undo finds it; one that is started
    later takes work. SIGTERM does the same and ends it.
    """
    with open_database(Settings()) as database:
        states = _ask(database, workers or [], drained=not undo)
        if wait:
            states = _await(database, [state.process for state in states])
    show_list([_shown(state) for state in states], ("worker", "kind", "state"))


def _ask(database: Database, names: list[str], *, drained: bool) -> list[WorkerState]:
    """Ask the living workers of these names, and return them. Raises CommandError where a name is nobody's."""
    with database.write() as session:
        alive = [state.process for state in worker_states(session)]
        if not alive:
            raise CommandError("No worker is alive.", "`expunge doctor` looks closer.")
        for name in names:
            if not worker_states(session, [name]):
                raise CommandError(f"No living worker or updater is named {name}.", f"Alive: {', '.join(alive)}.")
        drain_processes(session, [state.process for state in worker_states(session, names)], drained=drained)
        return worker_states(session, names)


def _await(database: Database, processes: list[str]) -> list[WorkerState]:
    """Return the workers once they are as they were asked to be, or have ended. Raises CommandError where it lasts."""
    deadline, waited_for = time.monotonic() + WAIT_SECONDS, 0
    while True:
        with database.read() as session:
            states = worker_states(session, processes)
        late = [state for state in states if not state.is_as_asked]
        if not late:
            return states
        if time.monotonic() > deadline:
            what = f"After {WAIT_SECONDS:g} s {late[0].process} is {_state_of(late[0])}. It runs {late[0].software}."
            raise CommandError(what, "Its log says what it does. SIGTERM ends it, and gives back what it holds.")
        if len(late) != waited_for:
            errors.print(f"waiting for {len(late)} of {len(processes)} ...")
            waited_for = len(late)
        time.sleep(LOOK_SECONDS)


def _shown(state: WorkerState) -> dict[str, str]:
    return {"worker": state.process, "kind": state.kind, "state": _state_of(state)}


def _state_of(state: WorkerState) -> str:
    """Say in a word or two what the worker does now, and what it was asked to."""
    match state.asked, state.rests and not state.holds:
        case True, True:
            return "drained"
        case True, False:
            return "asked to take no work"
        case False, True:
            return "asked to take work again"
    return "taking work"

"""A part on a machine of the cluster: an actor whose process has the part's program as its child."""

from __future__ import annotations

from expunge_workers.runtime.part_program import end_program, start_program


class Part:
    """Starts the program of a part, and again wherever Ray makes this actor again: it goes on from its checkpoint."""

    def __init__(self, place: str, name: str, key: bytes) -> None:
        self._program = start_program(place, name, key)

    def exit_status(self) -> int | None:
        """Return how the program ended; None: it runs."""
        return self._program.poll()

    def end(self) -> None:
        """End the program, and all that it started."""
        end_program(self._program)

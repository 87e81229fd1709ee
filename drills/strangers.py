"""The part of a simulated history in which strangers ask: unverified requests, and what is decided on them."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from sqlalchemy import select

from drills.invariants import Broken
from drills.town import Town
from service import verification
from service.intake import AT_ONCE
from service.records import DeletionRequest
from service.requests import Decided

PEOPLE = [f"p{number}" for number in range(8)]
"""of twelve in each model: a proved release needs both classes"""
DECISIONS = ("verify", "verify", "reject", "withdraw")


class Strangers:
    """Rules of the simulation. ``who`` are those whom a verified request named at any time, by request."""

    town: Town
    accepted: list[str]
    who: dict[str, str]
    strangers: dict[str, str]

    @rule(person=st.sampled_from(PEOPLE))
    def a_stranger_asks(self, person: str) -> None:
        self.strangers[self.town.take_in(person)] = person

    @precondition(lambda self: self.strangers)
    @rule(data=st.data(), what=st.sampled_from(DECISIONS))
    def somebody_decides(self, data: st.DataObject, what: str) -> None:
        """On any of them, however often: one that was decided stays so."""
        request = data.draw(st.sampled_from(sorted(self.strangers)))
        with suppress(Decided), self.town.database.write() as session:
            row = session.get(DeletionRequest, request)
            if row is None:  # asked after the backup that was restored
                return
            if what == "verify":
                self.town.bell.messages.extend(verification.verify(session, row, AT_ONCE))
                self.who[request] = self.strangers[request]
                self.accepted.append(request)
            elif what == "reject":
                verification.reject(session, row, "drill")
            else:
                verification.withdraw(session, row)

    def gone_unasked(self) -> list[Broken]:
        """People who are gone from a served version though no verified request ever named them."""
        gone = {(name, person) for name, person in self.town.absent(PEOPLE) if person not in self.who.values()}
        return [Broken("lost", f"{person} is gone from {name}, and only strangers asked") for name, person in gone]

    def forget_strangers(self) -> None:
        """After a restored backup: those who asked since are not known any more."""
        with self.town.database.read() as session:
            kept = set(session.scalars(select(DeletionRequest.id)))
        self.strangers = {request: person for request, person in self.strangers.items() if request in kept}

"""Rules of the simulation about misspelled ids: who asks under one, who decides, what must not happen undecided."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from sqlalchemy import select

from expunge_service.infra.tables import DeletionRequest
from expunge_service.requests.states import RequestRefused
from tests.faults.invariants import Broken, Wrong
from tests.faults.town import MODELS, Town

PEOPLE = [f"p{number}" for number in range(8)]
"""of twelve in each model: a proved update needs both classes"""


class Misspelled(NamedTuple):
    """A request whose id is the person's in capitals, which nobody has; the models that it names."""

    person: str
    models: tuple[str, ...] | None


class Spellings(RuleBasedStateMachine):
    """The part of a history in which ids are misspelled, and people decide about them."""

    town: Town
    accepted: list[str]
    cancelled: set[str]
    who: dict[str, str]
    restored: bool
    misspelled: dict[str, Misspelled]
    apart: set[str]
    """people of whom it was said that their misspelled id is another person's"""

    @rule(
        person=st.sampled_from(PEOPLE),
        models=st.sampled_from([None, *((name,) for name in MODELS)]),
        window=st.sampled_from([0, 60]),
    )
    def somebody_asks_under_a_misspelled_id(self, person: str, models: tuple[str, ...] | None, window: int) -> None:
        request = self.town.accept(person.upper(), models, window)
        self.accepted.append(request)
        self.misspelled[request] = Misspelled(person, models)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data(), same=st.booleans())
    def somebody_decides_about_an_id(self, data: st.DataObject, same: bool) -> None:
        self.decide(data.draw(st.sampled_from(self.waiting())), same=same)

    def decide(self, request: str, *, same: bool) -> None:
        """Decide twice: the second time is refused, so that no decision takes effect again."""
        person = self.misspelled[request].person
        right = person if same else None
        with suppress(RequestRefused):  # the question is about a legal hold
            self.town.decide(request, right)
            if same:
                self.who[request] = person
            else:
                self.apart.add(person)
            if request not in self.waiting():
                self.town.decide(request, right)
                raise Wrong([Broken("doubled", f"a decision about request {request} took effect twice")])

    def waiting(self) -> list[str]:
        """Return the misspelled requests that wait for a decision, in the order of their acceptance.

        Their ids are random: in their order one seed would draw another history each time.
        """
        with self.town.database.read() as session:
            near = set(session.scalars(select(DeletionRequest.id).where(DeletionRequest.near.is_not(None))))
        return [request for request in self.misspelled if request in near]

    def forget_lost_decisions(self) -> None:
        """After a restore, take those requests as undecided that wait again; the others stay decided."""
        for request in self.waiting():
            self.who.pop(request, None)

    def finished_without_a_decision(self) -> list[Broken]:
        """Return the misspelled requests that ended although the person with nearly their id is served."""
        absent = self.town.absent(PEOPLE)
        with self.town.database.read() as session:
            ended = set(session.scalars(select(DeletionRequest.id).where(DeletionRequest.status == "completed")))
        return [
            Broken("lost", f"request {request} of {person.upper()} is finished, and nobody was asked about {person}")
            for request, (person, models) in self.misspelled.items()
            if request in ended and request not in self.who and person not in self.apart
            if any((name, person) not in absent for name in models or MODELS)
        ]

    def deleted_without_a_decision(self) -> list[Broken]:
        """Return the people who are gone, though nobody asked for them but under a misspelled id."""
        asked = set(self.who.values())
        only = {each.person for each in self.misspelled.values()} - asked
        gone = set() if self.restored else self.town.absent(PEOPLE)
        return [
            Broken("doubled", f"{person} is gone from {name}, and nobody said whose id {person.upper()} is")
            for name, person in sorted(gone)
            if person in only and name in MODELS
        ]

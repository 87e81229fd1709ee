"""Which tasks a claim takes: pure rules, as a table and as a simulated queue."""

from __future__ import annotations

import random

from expunge_service.queue import HALVE_AFTER, HOLD_AFTER
from expunge_service.queue.claims import Choice, Waiting, choose


def waiting(*attempts: int, group: int = 0) -> list[Waiting]:
    return [Waiting(f"t{index}", f"r{index}", count, group) for index, count in enumerate(attempts)]


def taken(choice: Choice) -> list[str]:
    return [task.id for task in choice.take]


def test_everything_that_waits_is_taken_together() -> None:
    assert taken(choose(waiting(0, 1, 0, 1), limit=100)) == ["t0", "t1", "t2", "t3"]


def test_a_batch_has_a_limit_and_takes_the_oldest() -> None:
    assert taken(choose(waiting(0, 0, 0), limit=2)) == ["t0", "t1"]


def test_after_two_claims_without_a_result_the_batch_is_halved() -> None:
    assert taken(choose(waiting(2, 2, 2, 2, 2), limit=100)) == ["t0", "t1", "t2"]


def test_suspects_go_before_newcomers_and_apart_from_them() -> None:
    tasks = [*waiting(0, 0), Waiting("s", "r", 2, 7)]
    assert taken(choose(tasks, limit=100)) == ["s"]


def test_the_attempts_of_company_do_not_hold_anybody() -> None:
    choice = choose(waiting(2, 2, 2), limit=100)
    assert [choice.attempts(task) for task in choice.take] == [HALVE_AFTER, HALVE_AFTER]


def test_alone_the_third_failure_holds() -> None:
    attempts = 0
    for _ in range(HOLD_AFTER):
        choice = choose(waiting(attempts), limit=100)
        attempts = choice.attempts(choice.take[0])
    choice = choose(waiting(attempts), limit=100)
    assert (taken(choice), [task.id for task in choice.hold]) == ([], ["t0"])


def test_poison_is_found_in_any_place_and_nobody_else_is_held() -> None:
    for size in (1, 2, 3, 7, 32):
        for poison in {0, size // 2, size - 1}:
            assert simulate(size, {poison}) == {f"t{poison}"}


def test_several_poisons_are_found() -> None:
    random.seed(0)
    for _ in range(20):
        poisons = set(random.sample(range(16), 3))
        assert simulate(16, poisons) == {f"t{index}" for index in poisons}


def simulate(size: int, poisons: set[int]) -> set[str]:
    """Run claims until nothing waits; a claim dies if it holds a poison. Returns who was held."""
    bad = {f"t{index}" for index in poisons}
    queue = {task.id: task for task in waiting(*[0] * size)}
    held: set[str] = set()
    for token in range(1, 500):
        if not queue:
            return held
        choice = choose(list(queue.values()), limit=1000)
        for task in choice.hold:
            held.add(task.id)
            del queue[task.id]
        dies = any(task.id in bad for task in choice.take)
        for task in choice.take:
            if dies:
                queue[task.id] = Waiting(task.id, task.request_id, choice.attempts(task), token)
            else:
                del queue[task.id]
    raise AssertionError("the queue never drained")

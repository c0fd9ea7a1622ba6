"""Whose turn it is on the device."""

import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from littledragon.validators import locks
from littledragon.validators.locks import HostLock
from littledragon.validators.turns import Turns


def started(turns: Turns, wanted: list[int], seen: list[tuple[int, int]]) -> list[threading.Thread]:
    """A thread for each turn, all of which wait by now."""

    def wait(turn: int) -> None:
        with turns.permit(turn) as number:
            seen.append((turn, number))

    threads = [threading.Thread(target=wait, args=(turn,), daemon=True) for turn in wanted]
    for count, thread in enumerate(threads, 1):
        thread.start()
        while len(turns._waiting) < count:
            time.sleep(0.0005)
    return threads


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 4), max_size=12))
def test_the_earliest_turn_comes_first_and_among_equals_who_came_first(wanted: list[int]) -> None:
    turns, seen = Turns(1), list[tuple[int, int]]()
    with turns.permit():
        threads = started(turns, wanted, seen)
    for thread in threads:
        thread.join(timeout=20)
    assert seen == [(turn, 0) for turn in sorted(wanted)]


def test_there_are_so_many_permits_and_no_more() -> None:
    turns, inside, most, used = Turns(2), Counter[int](), list[int](), list[int]()
    guard = threading.Lock()

    def work() -> None:
        for _ in range(20):
            with turns.permit() as number:
                with guard:
                    inside[number] += 1
                    most.append(max(inside.values()))
                    used.append(sum(inside.values()))
                time.sleep(0.001)
                with guard:
                    inside[number] -= 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert set(most) == {1}  # nobody's number is another's
    assert max(used) == 2
    assert len(used) == 120


class Interrupted(threading.Event):
    """An interrupt comes while its thread waits."""

    def wait(self, timeout: float | None = None) -> bool:
        raise KeyboardInterrupt


def test_who_is_interrupted_while_waiting_takes_no_permit_along(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen = Turns(1), list[tuple[int, int]]()

    def interrupted() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Event", Interrupted)
            with pytest.raises(KeyboardInterrupt), turns.permit():
                raise AssertionError("it was interrupted before")

    interrupted()  # it has been given one
    assert turns._idle == [0]
    with turns.permit():
        interrupted()  # it has not
        threads = started(turns, [1], seen)
    threads[0].join(timeout=20)
    assert seen == [(1, 0)]


def test_who_waits_to_be_alone_on_the_host_is_ordered_too(tmp_path: Path) -> None:
    lock, seen = HostLock("t", tmp_path), list[int]()

    def wait(turn: int) -> None:
        with lock.exclusive(turn):
            seen.append(turn)

    threads = [threading.Thread(target=wait, args=(turn,), daemon=True) for turn in (3, 1, 2, 0)]
    with lock.exclusive():
        for thread in threads:
            thread.start()
        while len(locks._gate(tmp_path / "t")._waiting) < len(threads):
            time.sleep(0.001)
    for thread in threads:
        thread.join(timeout=20)
    assert seen == [0, 1, 2, 3]

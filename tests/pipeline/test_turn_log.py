"""The log of turns counts what decided them, each turn once."""

from __future__ import annotations

from pipeline.turn_log import TurnLog


def end(log: TurnLog, turn_id: int, decided_by: str | None) -> None:
    log.open(turn_id, turn_id).decided_by = decided_by
    log.close(turn_id)


def test_turns_are_counted_by_what_decided_them() -> None:
    log = TurnLog()
    for turn_id, decided_by in enumerate(("rule", "manual", "manual", "model", None)):
        end(log, turn_id, decided_by)
    assert log.decided() == {"manual": 2, "model": 1, "rule": 1}


def test_a_turn_that_is_open_again_counts_once_as_it_ends_last() -> None:
    log = TurnLog()
    end(log, 1, "rule")
    end(log, 1, "manual")
    log.close(1)
    assert log.decided() == {"manual": 1, "rule": 0}


def test_what_is_forgotten_stays_counted_and_what_was_noise_does_not() -> None:
    log = TurnLog(capacity=2)
    for turn_id in range(10):
        end(log, turn_id, "model")
    assert log.decided() == {"model": 10}
    log.drop(9)
    assert log.decided() == {"model": 9}


def test_an_answer_that_was_interrupted_counts() -> None:
    log = TurnLog()
    log.open(1, 1).decided_by = "manual"
    log.interrupt_older(2)
    assert log.decided() == {"manual": 1}

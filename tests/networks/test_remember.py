"""What is found of a model is found once inside a block."""

import pytest

from dosimeter.networks.remember import remembered, remembering

asked: list[object] = []


@remembered
def look(what: object, *, hard: object = None) -> list[object]:
    asked.append(what)
    if what == "wrong":
        raise ValueError("no")
    return [what]


def test_the_same_question_runs_once_and_only_inside_a_block() -> None:
    asked.clear()
    one, other = object(), object()
    look(one)
    look(one)
    assert len(asked) == 2
    with remembering():
        assert look(one) is look(one)
        assert look(other) == [other]
        assert look(one, hard=other) is not look(one)
        assert len(asked) == 5
    look(one)
    assert len(asked) == 6


def test_what_was_refused_is_refused_again() -> None:
    asked.clear()
    wrong = "wrong"
    with remembering():
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                look(wrong)
    assert len(asked) == 1

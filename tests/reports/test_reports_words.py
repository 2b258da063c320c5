"""The sentences say what the numbers are."""

from dataclasses import replace

import pytest

from dosimeter.auditing import Result
from dosimeter.auditing.records import Success
from dosimeter.lines import clean
from dosimeter.metrics import percent
from dosimeter.progress import duration
from dosimeter.reports.words import labels_said, meaning, number, rows, shares, verdict


def with_rate(result: Result, hits: int, of: int, blind: int = 0) -> Result:
    one = result.records[0]
    records = [replace(one, scores={"ssim": float(k < hits)}, baseline={"ssim": float(k < blind)}) for k in range(of)]
    scores = replace(result.scores, success=Success(hits, of, threshold=0.5))
    return replace(result, scores=scores, records=records)


@pytest.mark.parametrize(
    ("hits", "of", "blind", "sentence"),
    [
        (
            31,
            32,
            0,
            "31 of 32 images were read (97 %, 95 % interval 84-99 %); without the update the same attack reads 0.",
        ),
        (1, 10, 0, "1 of 10 images was read (10 %, 95 % interval 2-40 %); without the update the same attack reads 0."),
        (
            0,
            12,
            0,
            "None of the 12 images was read (95 % interval 0-24 %); without the update the same attack reads 0.",
        ),
        (1, 1, 0, "The image was read; without the update the same attack reads 0."),
        (0, 1, 0, "The image was not read; without the update the same attack reads 0."),
        (
            3,
            10,
            4,
            "3 of 10 images were read (30 %, 95 % interval 11-60 %); without the update the same attack reads 4, "
            "as many or more.",
        ),
    ],
)
def test_verdict(colour: Result, hits: int, of: int, blind: int, sentence: str) -> None:
    assert verdict(with_rate(colour, hits, of, blind)) == sentence


def test_labels_are_said_where_they_were_recovered(colour: Result, grey: Result) -> None:
    assert labels_said(colour) == "5 of 5 labels were recovered; an even guess gets 10 %."
    names = [share.name for share in shares(colour)]
    assert "Labels right" in names
    assert "All labels right" not in names  # of one image it would say the same again
    assert labels_said(grey) == ""
    assert "Labels right" not in [share.name for share in shares(grey)]


def test_meaning_warns_unless_all_was_read(colour: Result) -> None:
    assert "may read more" in meaning(with_rate(colour, 9, 10))
    assert "may read more" not in meaning(with_rate(colour, 10, 10))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.48114, "0.481"),
        (15.107, "15.1"),
        (1.84, "1.84"),
        (150.0, "150"),
        (0, "0"),
        (-0.05, "-0.050"),
        (0.0012, "0.0012"),
        (3e-9, "3.0e-09"),
        (float("nan"), "–"),  # noqa: RUF001
        (float("inf"), "–"),  # noqa: RUF001
        (None, "–"),  # noqa: RUF001
    ],
)
def test_number(value: object, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.99, "1 min 00 s"), (187, "3 min 07 s"), (7500, "2 h 05 min")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("share", "shown"), [(0.0, "0"), (1.0, "100"), (0.004975, "0.5"), (0.9945, "99"), (0.996, "99.6"), (0.42, "42")]
)
def test_percent(share: float, shown: str) -> None:
    assert percent(share) == shown


def test_clean() -> None:
    assert clean("a\x1b[2J\u202eb\udc80\tc\u2003d\ne") == "a\ufffd[2J\ufffdb\ufffd c d\ne"


def test_a_score_without_words_has_its_own_name(colour: Result) -> None:
    scores = replace(colour.scores, scores=colour.scores.scores | {"new": colour.scores["ssim"]})
    assert rows(replace(colour, scores=scores))[-1].name == "new"

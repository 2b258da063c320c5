"""Spaces: the Bayes paper's grids as its program has them, the default one, and a user's own in words."""

import itertools

import pytest

from dosimeter.attacks import presets
from dosimeter.errors import SettingError
from dosimeter.tuning.spaces import NAMED, Choice, Space, Span, space_of


def test_the_papers_grids_have_480_and_540_settings_around_what_the_first_stage_found() -> None:
    by_match, by_density = NAMED["bayes-480"], NAMED["bayes-540"]
    assert len(by_match.grid(4)) == 480
    assert len(by_density.grid(4)) == 540
    # beta from 1e-7 to 1e5 (App. A.3): a match of weight f beside a prior of weight 1 is a prior of weight 1 / f
    weights = [by_match.settings(by_match.before, factor, {})["tv"] for factor in by_match.factors]
    assert weights[0] == 1e-7
    assert 1e5 < float(weights[-1]) < 2e5
    assert all(float(b) == 2 * float(a) for a, b in itertools.pairwise(weights))
    tvs = {by_match.settings(values, 4.0, {})["tv"] for values in by_match.grid(4)}
    assert tvs == {0.25, 0.5, 0.25 / 1.5, 0.125}  # [0.5 beta, 2 beta] in the program's steps
    assert {float(by_match.settings(values, 4.0, {})["ramp"]) for values in by_match.grid(4)} >= {0.25, 1.0, 4.0}
    assert min(Space.around(3.0)) == 1.5
    assert (len(Space.around(3.0)), len(by_match.factors), len(by_density.factors)) == (20, 41, 24)


@pytest.mark.parametrize("name", NAMED)
def test_every_setting_of_a_papers_grid_is_one_that_the_attack_takes(name: str) -> None:
    space = NAMED[name]
    searches = {presets.bayes(**space.settings(values, 0.7, {"scale": 0.1})) for values in space.grid(4)}  # type: ignore[arg-type]
    # of 540 those whose ramp would begin above 1 begin at 1
    assert len(searches) == len(space.grid(4)) if name == "bayes-480" else len(searches) > 400


def test_a_density_counts_whole_from_the_start_where_the_factor_is_high() -> None:
    space = NAMED["bayes-540"]
    assert space.settings(space.before, 1e3, {"scale": 0.1})["ramp"] == 1.0
    assert space.settings(space.before, 1.0, {"scale": 0.1})["ramp"] == pytest.approx(0.01)


def test_the_default_space_is_what_an_attack_has_and_leaves_open() -> None:
    axes = space_of("default", [], "bayes:density=cosine,tv=0.5").axes
    assert list(axes) == ["lr", "decay", "weights", "ramp", "restarts"]
    assert axes["lr"] == Span(0.05, 2.0, log=True)
    assert axes["weights"] == Choice(("equal", "exponential", "by-layer"))
    ig = space_of("default", [], "ig").axes
    assert list(ig) == ["lr", "tv", "decay", "restarts"]
    assert ig["tv"] == Span(1e-5, 1.0, log=True)


def test_words_are_ranges_or_values() -> None:
    axes = space_of("default", ["lr=0.01..1:log", "restarts=1..3", "decay=steps,cosine", "tv=0,0.1"], "ig").axes
    assert axes == {
        "lr": Span(0.01, 1, log=True),
        "restarts": Span(1, 3),
        "decay": Choice(("steps", "cosine")),
        "tv": Choice((0, 0.1)),
    }
    assert axes["lr"].points(3) == [0.01, 0.1, 1.0]
    assert axes["restarts"].points(4) == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "words", "attack", "said"),
    [
        ("default", ["lr"], "ig", "where to look for it"),
        ("default", ["lr=1..0.1"], "ig", "where to look for it"),
        ("default", ["lr=0..1:log"], "ig", "above 0"),
        ("default", ["lr=a..b"], "ig", "where to look for it"),
        ("default", ["lr=0.1..1:cubic"], "ig", "where to look for it"),
        ("default", ["rate=0.1..1"], "ig", "Unknown setting of attack 'ig' 'rate'"),
        ("default", ["lr=0.1..1"], "ig:lr=0.2", "give it once"),
        ("default", [], "labels", "with settings to tune"),
        ("bayes-480", [], "ig", "Unknown setting of attack 'ig' 'ramp'"),
        ("bayes-480", ["lr=0.1..1"], "bayes", "leave one out"),
        ("bayes-481", [], "bayes", "Unknown space 'bayes-481'"),
    ],
)
def test_bad_words_are_refused_in_a_line(name: str, words: list[str], attack: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        space_of(name, words, attack)

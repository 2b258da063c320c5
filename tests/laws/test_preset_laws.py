"""Every preset that goes by a paper has the numbers that the paper prints, and its variant those of the program."""

from typing import Any

import pytest

from dosimeter import spec
from dosimeter.attacks import Search, presets
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.search import likelihoods, masks, moves, optimisers, priors, schedules, starts, weights
from dosimeter.attacks.search.stopping import Stop
from dosimeter.errors import SettingError

TV = priors.TotalVariation()
BOX = (moves.Box(),)
OPEN = weights.Open(prior=TV, rule=weights.ByTokens(tokens=1e-4, others=0.1))

CVB: dict[str, Any] = {
    "likelihood": likelihoods.Cosine(),
    "prior": 0.01 * TV,
    "labels": labels_.Known(),
    "start": starts.Normal(),
    "optimiser": optimisers.Adam(lr=1.0),
    "schedule": schedules.Plateau(patience=400, factor=0.1),
    "moves": BOX,
    "restarts": 1,
    "stop": Stop(steps=20_000, patience=4000, target=1e-5),
}
"""CVB, Sec. V-B."""

RELEASED: dict[str, Any] = {"prior": OPEN, "optimiser": optimisers.Adam(lr=1.0, signed=True), "keep": "best"}
"""What CVB's program does otherwise."""

TABLE_III: dict[str, Any] = {
    "likelihood": likelihoods.SquaredL2(),
    "labels": labels_.Known(),
    "start": starts.Normal(),
    "optimiser": optimisers.LBFGS(lr=0.01, inner=20),
    "schedule": schedules.Plateau(patience=40, factor=0.1),
    "stop": Stop(steps=2000, patience=400, target=1e-5),
    "keep": "best",
}
"""The other attacks of CVB's Table III, as its program runs them."""

PRINTED: dict[str, dict[str, Any]] = {
    "ig-a": {
        "likelihood": likelihoods.Cosine(),
        "prior": 1e-8 * TV,
        "optimiser": optimisers.Adam(lr=0.1, signed=True),
        "schedule": schedules.StepDecay(at=(3 / 8, 5 / 8, 7 / 8), factor=0.1),
        "moves": BOX,
        "restarts": 32,
        "stop": Stop(steps=4000),
    },
    "ig-b": {"prior": 1e-4 * TV, "only": masks.Largest(n=10), "restarts": 16, "stop": Stop(steps=12_000)},
    "ig-cvb": CVB | {"keep": "last", "only": masks.Everything()},
    "ig-cvb:variant=released": CVB | RELEASED | {"only": masks.Everything()},
    "ignore": CVB | {"keep": "last", "only": masks.BeforeNoise(encoder=True)},
    "ignore:variant=released": CVB | RELEASED | {"only": masks.BeforeNoise(encoder=True)},
    "ig-ppp": {
        "likelihood": likelihoods.Cosine(),
        "prior": 0.01 * TV,
        "labels": labels_.Known(),
        "start": starts.Normal(),
        "optimiser": optimisers.Adam(lr=0.1),
        "schedule": schedules.Plateau(patience=800, factor=0.1),
        "only": masks.BeforeNoise(encoder=False),
        "stop": Stop(steps=20_000, patience=4000, match=1e-5),
    },
    "dlg": {
        "likelihood": likelihoods.SquaredL2(),
        "labels": labels_.Joint(),
        "optimiser": optimisers.LBFGS(lr=1.0, inner=20),
        "moves": (),
        "stop": Stop(steps=300, target=1e-6),
    },
    "idlg": {"labels": labels_.FromLastLayer(), "stop": Stop(steps=300, target=1e-6), "moves": ()},
    "cpl": {"start": starts.Tiled(across=2), "optimiser": optimisers.LBFGS(lr=1.0, inner=1), "stop": Stop(steps=300)},
    "idlg:variant=cvb": TABLE_III | {"prior": priors.Prior(), "moves": BOX},
    "cpl:variant=cvb": TABLE_III | {"prior": 0.01 * priors.Prediction(), "moves": ()},
}


def made(words: str) -> Search:
    attack = spec.make("attack", words, presets.BY_NAME)
    assert isinstance(attack, Search)
    return attack


@pytest.mark.parametrize("words", PRINTED)
def test_a_preset_has_the_printed_numbers(words: str) -> None:
    search = made(words)
    assert {name: getattr(search, name) for name in PRINTED[words]} == PRINTED[words]


@pytest.mark.parametrize("name", ["ig-cvb", "ig-ppp", "idlg", "cpl", "dlg"])
def test_a_paper_s_preset_says_where_it_deviates(name: str) -> None:
    assert "Deviations" in (presets.BY_NAME[name].__doc__ or "")


def test_what_is_given_counts_in_every_variant() -> None:
    search = made("ig-cvb:variant=released,tv=0.5,signed=false")
    assert search.prior == 0.5 * TV
    assert search.optimiser == optimisers.Adam(lr=1.0)
    assert search.keep == "best"
    assert made("cpl:variant=cvb,alpha=0.5,steps=9").prior == 0.5 * priors.Prediction()
    assert made("cpl:variant=cvb,steps=9").stop.steps == 9


@pytest.mark.parametrize(
    ("words", "said"), [("ig-cvb:variant=cvb", "variant"), ("idlg:variant=cvb,rule=bias", "rule"), ("ig:tv=x", "tv")]
)
def test_what_no_variant_has_is_refused(words: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        made(words)


def test_a_variant_that_is_not_there_is_refused_from_python_too() -> None:
    with pytest.raises(SettingError, match="variant"):
        presets.inverting_gradients_cvb(variant="printed")
    with pytest.raises(SettingError, match="tv"):
        presets.inverting_gradients(tv="none")  # type: ignore[arg-type]

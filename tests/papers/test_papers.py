"""The five papers as data: every item can be made, says what it leaves out, and is judged as its numbers are."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dosimeter import federated, models, papers, spec
from dosimeter.auditing import part
from dosimeter.metrics import Rate
from dosimeter.papers import published
from dosimeter.papers.claims import Claim, Held, Higher, Kept, Stated, named
from dosimeter.papers.item import Case, Cut, Item
from dosimeter.papers.quantities import QUANTITIES, Value
from dosimeter.papers.run import Measured, parameters_of, share
from dosimeter.papers.show import apart, cells, differ, markdown
from dosimeter.sweeps import Trial

CASES = [(item, case) for item in papers.ITEMS.values() for case in item.cases]


def test_names_are_unique_and_numbers_are_of_known_quantities() -> None:
    for item in papers.ITEMS.values():
        names = [case.name for case in item.cases]
        assert len(names) == len(set(names)), item.key
        assert {len(name) for name in names} == {len(item.heading)}, item.key
        assert set(item.quantities) <= set(QUANTITIES)
        for case in item.cases:
            assert set(case.published) <= set(QUANTITIES), (item.key, case.name)
            assert case.trial is not None or case.course is not None or case.pair is not None


def test_published_numbers_are_those_of_the_papers() -> None:
    """A few of each, read off the papers' pages."""
    told = {
        ("ppp/table2", ("CIFAR-10", "PPP NG2"), "ssim"): Value(0.17, 0.07),
        ("ppp/table3", ("CIFAR-10", "ResNet", "Baseline"), "accuracy"): Value(79.46, 0.06),
        ("cvb/table4", ("MNIST", "PRECODE 512"), "asr"): Value(100.0),
        ("cvb/table5", ("CIFAR-10", "ResNet-18", "None"), "ssim_minmax"): Value(0.55, 0.11),
        ("cvb/table8", ("s=4",), "asr"): Value(26.56),
        ("bayes/table2", ("MNIST", "Prune + Gauss", "0", "Bayes"), "psnr_unclipped"): Value(18.40),
        ("ig/table1", ("L2",), "psnr_normalised"): Value(-0.38),
        ("fedkl/table6", ("DLG", "LeNet", "MNIST", "with"), "rmse_bytes"): Value(140.87),
        ("fedkl/table1", ("federated", "ResNet-20", "CIFAR-10", "with"), "accuracy"): Value(88.45),
    }
    for (key, name, quantity), value in told.items():
        case = next(case for case in papers.ITEMS[key].cases if case.name == name)
        assert case.value(quantity) == value


def test_networks_with_precode_have_as_many_parameters_as_the_paper_says(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVB, Table II: its bottleneck is half as wide as the channels at its position."""
    monkeypatch.setenv("DOSIMETER_DATA", str(data_folder))
    for case in papers.ITEMS["cvb/table2"].cases:
        assert Value(parameters_of(case)) == case.value("parameters"), case.name


def test_spreads_stand_beside_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = published.read("ppp-6", 3)
    assert len(rows) == 76
    assert rows[0].words == {"data": "MNIST", "model": "MLP", "defense": "Baseline"}
    assert rows[0].numbers["psnr"] == (60.09, 3.51)
    assert all(isinstance(value, float) for value in published.read("ppp-1", 2)[0].numbers.values())


@given(st.sampled_from(CASES), st.integers(1, 300), st.integers(1, 300), st.integers(1, 300))
def test_a_cut_never_grows_anything(chosen: tuple[Item, Case], victims: int, steps: int, rounds: int) -> None:
    _, case = chosen
    small = case.cut(Cut(victims=victims, steps=steps, rounds=rounds))
    if case.trial is not None:
        assert small.trial is not None
        assert small.trial.victims == min(victims, case.trial.victims)
        assert int(small.trial.steps or 0) <= int(case.trial.steps or 0)
        same = {each.name for each in fields(Trial)} - {"victims", "steps", "round"}
        assert all(getattr(small.trial, name) == getattr(case.trial, name) for name in same)
    assert case.cut(Cut()) == case


def test_what_is_cut_is_said() -> None:
    item = papers.find("ppp/table1")
    assert papers.missing(item, "paper") == []
    assert papers.missing(item, "laptop") == [
        "8 of 128 victims",
        "500 of 20000 steps of searches",
        "5 of 200 rounds of training",
        "8 batches of a client in a round in place of all",
        "100 steps of every search of ours",
        "1 of 3 trainings",
    ]
    assert "no training, so no accuracy" in papers.missing(item, "smoke")
    assert item.at("paper") is item


def test_the_strongest_attack_meets_the_same_victims_until_all_are_read() -> None:
    case = papers.find("cvb/table4").cases[0]
    assert case.trial is not None
    assert case.strongest == replace(case.trial, attack="auto", steps="auto", until_read=True)


def rows(**values: float) -> list[Measured]:
    return [
        Measured((name,), {"ssim": Value(value, 0.01), "accuracy": Value(100 * value)}, strongest=Value(1 - value))
        for name, value in values.items()
    ]


@pytest.mark.parametrize("claim", papers.CLAIMS, ids=lambda claim: claim.name)
def test_a_claim_names_rows_that_its_item_has(claim: Claim) -> None:
    item = papers.ITEMS[claim.item]
    names = [Measured(case.name, {}) for case in item.cases]
    for check in claim.checks:
        assert isinstance(check, Stated | Kept | Higher)
        sides = (check.rows, *([check.than] if isinstance(check, Higher) else []))
        assert all(named(names, words) for words in sides), check
        assert getattr(check, "quantity", "accuracy") in (*item.quantities, "asr")


def test_a_claim_is_held_not_held_or_not_tested() -> None:
    claim = Claim(name="c", where="p. 1", item="x/y", checks=(Stated(rows=("a",), quantity="ssim", below=0.4),))
    assert claim.judge(rows(a=0.3)).held is Held.HELD
    assert claim.judge(rows(a=0.3), ours=True).held is Held.NOT  # for the strongest attack reaches 0.7
    assert claim.judge(rows(a=0.5)).held is Held.NOT
    assert claim.judge(rows(b=0.3)).held is Held.UNTESTED
    assert "a: 0.50" in claim.judge(rows(a=0.5)).evidence


def test_images_read_by_our_attack_are_judged_in_percent() -> None:
    check = Stated(rows=("a",), quantity="asr", above=50.0)
    row = Measured(("a",), {"asr": Value(10.0)}, strongest=Value(0.99), read_by=Rate(9, 10))
    assert check.judge([row], ours=True).held is Held.HELD
    assert check.judge([row._replace(read_by=Rate(4, 10))], ours=True).held is Held.NOT
    assert check.judge([row], ours=False).held is Held.NOT


def test_one_check_that_fails_is_enough() -> None:
    checks = (Stated(rows=("a",), quantity="ssim", below=0.4), Stated(rows=("b",), quantity="ssim", below=0.4))
    claim = Claim(name="c", where="p. 1", item="x/y", checks=checks)
    assert claim.judge(rows(a=0.1, b=0.9)).held is Held.NOT
    assert claim.judge(rows(b=0.9)).held is Held.NOT
    assert claim.judge(rows(a=0.1, b=0.1)).held is Held.HELD
    assert claim.judge(rows(a=0.1)) == (
        Held.UNTESTED,
        "held in 1 of 2 checks so far: ssim a: 0.10 (below 0.4 wanted)",
    )


def test_a_claim_on_all_rows_is_not_held_by_some_of_them() -> None:
    check = Stated(rows=("CVB",), quantity="ssim", below=0.4)
    found = [
        Measured(("CNN", "CVB"), {"ssim": Value(0.1)}),
        Measured(("ViT", "CVB"), {}, why_not="more time than this scale has"),
    ]
    judged = check.judge(found, ours=False)
    assert judged.held is Held.UNTESTED
    assert judged.evidence.startswith("held in 1 of 2 rows so far: ssim CNN, CVB: 0.10")
    read = [found[0]._replace(values={"ssim": Value(0.9)}), found[1]]
    assert check.judge(read, ours=False).held is Held.NOT


def test_a_search_that_fell_short_silences_its_own_row_alone() -> None:
    check = Stated(rows=("a",), quantity="ssim", above=0.5)
    short = Measured(("a", "1"), {"ssim": Value(0.1)}, short=Rate(4, 4))
    ended = Measured(("a", "2"), {"ssim": Value(0.1)}, short=Rate(0, 4))
    assert check.judge([short], ours=False).held is Held.UNTESTED
    assert check.judge([short, ended], ours=False).held is Held.NOT


def test_accuracy_is_kept_within_points_and_compared_row_by_row() -> None:
    claim = Kept(rows=("with",), against=("without",), within=3.0)
    found = [
        Measured((data, lock), {"accuracy": Value(value)})
        for data, lock, value in (
            ("m", "with", 97.0),
            ("m", "without", 98.0),
            ("c", "with", 88.0),
            ("c", "without", 89),
        )
    ]
    assert claim.judge(found, ours=False).held is Held.HELD
    worse = [each._replace(values={"accuracy": Value(80.0)}) if each.name == ("c", "with") else each for each in found]
    assert claim.judge(worse, ours=False).held is Held.NOT
    assert claim.judge(found, ours=True).held is Held.UNTESTED


def test_a_training_that_was_cut_says_nothing_of_accuracies() -> None:
    checks = (Kept(rows=("a",), against=("b",)), Stated(rows=("a",), quantity="ssim", below=0.4))
    claim = Claim(name="c", where="p. 1", item="x/y", checks=checks)
    assert claim.judge(rows(a=0.3, b=0.2)).held is Held.HELD
    assert claim.judge(rows(a=0.1, b=0.2)).held is Held.NOT
    for mine in (0.1, 0.3):
        judged = claim.judge(rows(a=mine, b=0.2), cut="5 of 200 rounds of training")
        assert judged.held is Held.UNTESTED
        assert "held in 1 of 2 checks so far: ssim" in judged.evidence
    alone = Claim(name="c", where="p. 1", item="x/y", checks=checks[:1])
    judged = alone.judge(rows(a=0.1, b=0.2), cut="5 of 200 rounds of training")
    assert judged.evidence == "a: 10.00 against 20.00 %; but trainings were cut: 5 of 200 rounds of training"


def test_a_quantity_is_higher_by_a_factor() -> None:
    check = Higher(rows=("a",), than=("b",), quantity="ssim", by=2.0)
    assert check.judge(rows(a=0.8, b=0.4), ours=False).held is Held.HELD
    assert check.judge(rows(a=0.7, b=0.4), ours=False).held is Held.NOT


def test_a_share_of_images_differs_from_the_papers_where_that_is_outside_its_interval() -> None:
    asr, few, many = QUANTITIES["asr"], share(Rate(8, 8)), share(Rate(128, 128))
    assert (few.mean, round(few.low or 0)) == (100.0, 68)
    assert not differ(asr, few, Value(96.88))
    assert differ(asr, few, Value(60.0))
    assert differ(asr, many, Value(96.88))


def test_numbers_differ_by_more_than_both_spreads_and_the_papers_rounding() -> None:
    ssim = QUANTITIES["ssim"]
    assert not differ(ssim, Value(0.504, 0.0), Value(0.5))
    assert differ(ssim, Value(0.506, 0.0), Value(0.5))
    assert not differ(ssim, Value(0.60, 0.05), Value(0.50, 0.05))
    assert differ(ssim, Value(0.62, 0.05), Value(0.50, 0.05))


def test_a_table_has_measured_beside_published_and_what_was_not_run() -> None:
    item = papers.find("ppp/table1")
    found = [
        Measured(
            item.cases[0].name, {"ssim": Value(0.5, 0.1)}, strongest=Value(0.9), by="analytic", read_by=Rate(1, 2)
        ),
        Measured(item.cases[1].name, {}, why_not="needs more"),
    ]
    head, *_ = cells(item, found)
    assert "0.50 ± 0.10 (1.00) ≠" in head
    assert head[-4:] == ["analytic", "0.90", "1 of 2 (9-91 %)", "-"]
    text = markdown(item, found, "laptop")
    assert "not run: needs more" in text
    assert "Cut at this scale: " in text
    assert item.differs in text
    assert "Why figures differ was not found out." in markdown(replace(item, differs=""), found, "laptop")
    assert apart(found[0], item) == ["ssim"]
    assert "≠" not in markdown(item, found, "smoke")  # whose numbers say nothing


def test_an_unknown_item_is_refused() -> None:
    with pytest.raises(Exception, match="table9"):
        papers.find("ppp/table9")


def test_every_word_of_every_row_is_known() -> None:
    asked = [each for _, case in CASES for each in (case.trial, case.course) if each is not None]
    for words in dict.fromkeys(each.protocol for each in asked if each.protocol):
        spec.make("protocol", words, federated.BY_NAME)
    for words in dict.fromkeys(each.defense for each in asked):
        part("defense", words)
    for words in dict.fromkeys(each.model for each in asked):
        assert words.partition(":")[0] in models.BY_NAME
    for item, case in CASES:
        for attack in dict.fromkeys([*([case.trial.attack] if case.trial else []), *case.tries]):
            if not case.needs:
                assert part("attack", attack), item.key


def test_a_cut_of_rows_with_a_word_and_of_batches() -> None:
    item = papers.find("ppp/table3").at("laptop")
    deep = {case.name[1]: case for case in item.cases}
    assert {name: case.trial and case.trial.victims for name, case in deep.items()} == {
        "LeNet": 4, "ResNet": 1, "ViT": 1,
    }  # fmt: skip
    assert deep["ResNet"].course is None
    course = deep["LeNet"].course
    assert course is not None
    assert course.protocol is not None
    made = spec.make("protocol", course.protocol, federated.BY_NAME)
    assert (made.steps, made.epochs, course.round) == (4, None, 3)
    lost = next(case for case in papers.find("fedkl/table1").at("laptop").cases if "ResNet-32" in case.name)
    assert lost.needs == "more time than this scale has"


def test_settings_are_tried_evenly() -> None:
    case = papers.find("bayes/table2").cases[0]
    small = case.cut(Cut(tries=4))
    assert small.tries == tuple(case.tries[at] for at in (0, 4, 9, 14))
    assert small.trial is not None
    assert small.trial.attack == small.tries[0]


def test_a_search_that_fell_short_is_no_evidence() -> None:
    hides, reads = (Stated(rows=("a",), quantity="ssim", **bound) for bound in ({"below": 0.4}, {"above": 0.5}))
    row = Measured(("a",), {"ssim": Value(0.3)}, strongest=Value(0.3), short=Rate(1, 2), short_by=Rate(2, 2))
    assert reads.judge([row], ours=False).held is Held.UNTESTED  # a longer search might read it
    assert hides.judge([row], ours=False).held is Held.HELD  # so says the paper's own attack
    assert hides.judge([row], ours=True).held is Held.UNTESTED
    whole = row._replace(short=Rate(0, 2), short_by=Rate(0, 2))
    assert reads.judge([whole], ours=False).held is Held.NOT
    assert hides.judge([whole], ours=True).held is Held.HELD

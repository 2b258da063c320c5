"""A panel: every defense meets the attacks made for it, and the verdict says what they reach together."""

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import dosimeter as dm
from dosimeter import defenses as d
from dosimeter import store
from dosimeter.attacks import AverageRounds, LeaveOut, RecoverKey, Search
from dosimeter.attacks.search import degraded, likelihoods, treatments
from dosimeter.auditing import Audit, Contender, audit_panel, conclude
from dosimeter.auditing.job import Job
from dosimeter.auditing.panel.channels import channel_of
from dosimeter.auditing.panel.contenders import contenders
from dosimeter.auditing.panel.panel import Revealed, attacks_of, strongest, verdict
from dosimeter.channel import Channel, Hides
from dosimeter.cli import app
from dosimeter.defenses import Defense
from dosimeter.errors import SettingError
from dosimeter.progress import duration
from dosimeter.reports import print_result, words
from dosimeter.reports.page import render
from dosimeter.reports.words import grants
from dosimeter.types import Victims

SHAPE = (1, 28, 28)


def tiny() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(784, 32), nn.Sigmoid(), nn.Linear(32, 16), nn.Sigmoid(), nn.Linear(16, 10))
    return nn.Sequential(dm.models.Normalise((0.13,), (0.31,)), *layers)


def panel(defense: Defense, *, batch: int = 1) -> dict[str, object]:
    found = met(defense, tiny(), batch=batch)
    names = list(found)
    assert (names[0], names[-1]) == ("ig", "all revealed")
    return {name: one.attack for name, one in found.items()}


def channel(defense: Defense, model: nn.Module, *, batch: int = 1) -> Channel:
    victims = dm.pick(dm.load("mnist-5k"), 1, batch=batch, seed=0)
    job = Job(Audit(model=model, victims=victims, attack=dm.presets.inverting_gradients(), defense=defense))
    return channel_of(defense, job.client.target, victims.labels[0], seed=0)


def met(defense: Defense, model: nn.Module, *, batch: int = 1) -> dict[str, Contender]:
    found = contenders(channel(defense, model, batch=batch), steps=10)
    names = [one.attack.name for one in found]
    assert len(names) == len(set(names))
    return dict(zip(names, found, strict=True))


def likelihood(attack: object) -> object:
    assert isinstance(attack, Search)
    return attack.likelihood


def test_images_are_searched_from_coarse_to_fine_unless_they_are_tiny_or_tokens() -> None:
    def names(model: nn.Module, *shape: int) -> list[str]:
        images, labels = torch.rand(1, 1, *shape), torch.zeros(1, 1, dtype=torch.long)
        victims = Victims(images, labels, labels, ("0",))
        setting = Audit(model=model, victims=victims, attack=dm.presets.inverting_gradients(), defense=d.NoDefense())
        return [one.name for one in attacks_of(setting, steps=1)]

    def built(name: str) -> nn.Module:
        return dm.models.build(name, shape=(3, 32, 32), classes=10, mean=(0.5,) * 3, std=(0.3,) * 3, seed=0)

    assert "coarse to fine" in names(built("lenet"), 3, 32, 32)
    assert "coarse to fine" not in names(built("vit-released"), 3, 32, 32)
    assert "coarse to fine" not in names(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), 1, 4, 4)


def test_each_defense_meets_what_follows_from_it() -> None:
    assert likelihood(panel(d.GaussianNoise(sigma=0.3))["density"]) == likelihoods.Gaussian(sigma=0.3)
    assert likelihood(panel(d.LaplaceNoise(scale=0.3))["density"]) == likelihoods.Laplace(scale=0.3)
    private = panel(d.DpSgd(clip=2.0, sigma=3.0), batch=4)
    assert likelihood(private["density"]) == likelihoods.Gaussian(sigma=1.5)
    assert isinstance(private["ig, rounds averaged"], AverageRounds)
    assert likelihood(panel(d.Pruning())["survived"]) == likelihoods.Survived()
    assert likelihood(panel(d.Quantisation(bits=5))["interval"]) == likelihoods.Interval(step=1 / 15)
    mixed = panel(d.RandomPruning(rate=0.4) | d.GaussianNoise(sigma=0.2))
    assert likelihood(mixed["mixture"]) == likelihoods.Pruned(rate=0.4, scale=0.2)
    mixed = panel(d.Pruning(ratio=0.9) | d.LaplaceNoise(scale=0.2))
    assert likelihood(mixed["mixture"]) == likelihoods.Pruned(rate=0.9, scale=0.2, noise="laplace")
    shown = panel(d.GaussianNoise(sigma=0.2) | d.RandomPruning(rate=0.4))
    assert likelihood(shown["masked density"]) == degraded.Zeroed(by="places", sigma=0.2)
    assert "mixture" not in shown
    for defense in (d.Precode(k=4), d.Dropout()):
        found = panel(defense)
        assert {"ignore", "averaged", "joint"} <= set(found)
        assert found["joint"].secrets == treatments.Joint()  # type: ignore[attr-defined]
        assert found["all revealed"].secrets == treatments.Known()  # type: ignore[attr-defined]
    assert {"noise-weighted", "ignore, rounds averaged"} <= set(panel(d.Ppp(k=4)))
    pruned = panel(d.Ppp(k=4, prune=0.9))["survived"]
    assert isinstance(pruned, Search)
    assert (pruned.likelihood, pruned.secrets) == (likelihoods.Survived(), treatments.Joint())
    assert any(isinstance(attack, LeaveOut) for attack in panel(d.Soteria()).values())
    assert "analytic" in panel(d.NoBias())


def test_noise_on_a_model_that_draws_is_met_by_its_density_with_the_draws_searched() -> None:
    for added, name in ((d.GaussianNoise(sigma=0.1), "density"), (d.Quantisation(), "interval")):
        attack = panel(d.Precode(k=4) | added)[name]
        assert isinstance(attack, Search)
        assert attack.secrets == treatments.Joint()


def keyed(share: str) -> dict[str, Contender]:
    model = dm.models.build("lenet", shape=SHAPE, classes=10, mean=(0.0,), std=(1.0,), seed=0)
    return met(d.KeyLock(share=share), model)  # type: ignore[arg-type]


def test_a_key_is_met_by_all_that_the_server_has_of_it() -> None:
    assert keyed("none")["joint, one client's updates"].same_client == 4
    assert "with the key" not in keyed("none")
    given = keyed("key")["with the key"]
    assert given.role == "adaptive"  # not a control, for the client sends it
    assert given.attack.needs().secrets
    assert any(isinstance(one.attack, RecoverKey) for one in keyed("lock").values())


def test_updates_of_one_client_are_attacked_together() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 5, seed=0)
    model = dm.models.build("lenet", shape=victims.shape, classes=10, mean=(0.0,), std=(1.0,), seed=0)
    setting = Audit(
        model=model, victims=victims, attack=dm.presets.inverting_gradients(), defense=d.KeyLock(share="key")
    )
    trials = {t.attack: t for t in audit_panel(setting, steps=2)}
    assert {name for name, t in trials.items() if t.refused} <= {"ignore", "averaged", "eliminate", "analytic"}
    tied, alone = (trials[name].result for name in ("joint, one client's updates", "joint, four starts"))
    assert tied is not None
    assert alone is not None
    assert tied.threat.same_client == 4
    assert alone.threat.same_client == 1
    assert conclude(list(trials.values())).panel[1].same_client == 1


def own(defense: Defense) -> Defense:
    """The same as a class of a user's, who states nothing."""

    class Own(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return defense.on_gradient(gradient, moment, rng)

    return Own()


@pytest.mark.parametrize(
    "defense",
    [
        d.GaussianNoise(sigma=0.02),
        d.LaplaceNoise(scale=0.001),
        d.Pruning(ratio=0.9),
        d.RandomPruning(rate=0.4),
        d.Quantisation(bits=6),
        d.RandomPruning(rate=0.5) | d.GaussianNoise(sigma=0.1),
        d.Pruning(ratio=0.8) | d.LaplaceNoise(scale=0.01),
        d.GaussianNoise(sigma=0.01) | d.RandomPruning(rate=0.5),
        d.Soteria(rate=0.5),
        d.DpSgd(clip=0.5, sigma=0.3),
    ],
    ids=repr,
)
def test_a_users_own_defense_meets_what_ours_would(defense: Defense) -> None:
    stated, measured = met(defense, tiny()), met(own(defense), tiny())
    assert list(measured) == list(stated)
    for name, one in stated.items():
        assert measured[name].rounds == one.rounds
        assert type(getattr(measured[name].attack, "likelihood", None)) is type(getattr(one.attack, "likelihood", None))


def test_a_child_of_ours_that_does_something_else_does_not_inherit_what_its_parent_states() -> None:
    class Louder(d.GaussianNoise):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return {name: g + torch.randn(g.shape, generator=rng) for name, g in gradient.items()}

    attack = met(Louder(sigma=1e-6), tiny())["density"].attack
    assert attack.likelihood.sigma == pytest.approx(1.0, rel=0.05)  # type: ignore[attr-defined]


def test_what_no_attack_was_made_for_is_said() -> None:
    class Shuffle(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return {
                name: g.flatten()[torch.randperm(g.numel(), generator=rng)].view_as(g) for name, g in gradient.items()
            }

    found = channel(Shuffle(), tiny())
    assert found == Channel((Hides(None),), ("Shuffle",))
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    setting = Audit(model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=Shuffle())
    said = verdict(list(audit_panel(setting, steps=1)))
    assert "for which no attack was made (measured on Shuffle)" in said


@dataclass(frozen=True, kw_only=True)
class Hide(Defense):
    """A user's own: send nothing but zeros, so that no attack reads anything."""

    def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
        return {name: 1e-30 * torch.ones_like(g) for name, g in gradient.items()}


def test_the_strongest_attack_and_the_control_speak() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    setting = Audit(
        model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=d.GaussianNoise(sigma=1e-6)
    )
    trials = list(audit_panel(setting, steps=150))
    _, best = strongest(trials)
    ran = [t.result for t in trials if t.result is not None and t.role != "control"]
    assert best.scores.success.hits == max(r.scores.success.hits for r in ran) == 2
    whole = conclude(trials)
    assert [row.attack for row in whole.panel] == [t.attack for t in trials]
    assert "reads 2 of 2 images" in whole.verdict
    assert "works here" in whole.verdict
    assert [row["attack"] for row in whole.document()["panel"]] == [t.attack for t in trials]


def test_what_solves_or_knows_the_defense_has_its_turn_before_what_ignores_it() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    setting = Audit(model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=d.Precode())
    trials = list(audit_panel(setting, steps=1))
    solved = [t.attack for t in trials if t.attack in ("eliminate", "analytic")]
    searched = [t.role for t in trials[len(solved) :]]
    assert [t.attack for t in trials[:2]] == solved
    assert searched == sorted(searched, key=["adaptive", "published", "control"].index)
    assert set(searched) == {"adaptive", "published", "control"}


def test_a_panel_may_end_once_every_image_is_read() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    setting = Audit(model=tiny(), victims=victims, attack=dm.presets.inverting_gradients())
    short = replace(setting, resources=dm.Resources(until_read=True))
    assert short.made != setting.made
    assert [t.attack for t in audit_panel(short, steps=1)] == ["analytic"]
    hidden = replace(short, defense=Hide())
    assert [t.attack for t in audit_panel(hidden, steps=1)][-1] == "all revealed"


def test_a_panel_takes_as_long_as_all_its_attacks(tmp_path: Path) -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    setting = Audit(model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=d.NoDefense())
    trials = list(audit_panel(setting, steps=5))
    whole, each = conclude(trials), [t.result.seconds for t in trials if t.result]
    assert len(each) == 4
    assert whole.seconds == sum(each)
    store.write_run(whole, tmp_path / "run")
    info = store.read_run(tmp_path / "run").info
    assert info["seconds"] == whole.seconds
    assert info["attacks"] == [{"attack": t.attack, "seconds": s} for t, s in zip(trials, each, strict=True)]
    printed = io.StringIO()
    print_result(whole, Console(file=printed, width=120))
    assert f"complete in {duration(sum(each))}" in printed.getvalue()
    page = render(whole)
    for seconds in each:
        assert duration(seconds) in printed.getvalue()
        assert duration(seconds) in page
    assert "seconds" not in json.dumps(whole.document())  # which a rerun repeats to the byte


def test_an_attack_that_solves_gives_up_and_says_of_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dosimeter.auditing.panel.panel.LEAST", 0.0)
    data = dm.load("mnist-5k", size=32)
    victims = dm.pick(data, 24, seed=0)
    model = dm.models.build("cnn", shape=data.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)
    setting = Audit(
        model=model,
        victims=victims,
        attack=dm.presets.inverting_gradients(),
        defense=d.NoDefense(),
        resources=dm.Resources(workers=1),
    )
    trials = list(audit_panel(setting, steps=1))
    whole = conclude(trials)
    assert whole.status == "complete"
    solved = whole.panel[-1].result  # tried first, and once more with all the time that the searches took
    assert solved is not None
    untried = solved.scores.unmeasured["out of time"]
    assert [t.attack for t in trials] == ["coarse to fine", "ig", "all revealed", "analytic"]
    assert 1 <= untried <= 24
    assert f"The time of analytic was up before it was done with {untried} of 24 updates" in whole.unmeasured
    row = next(row for row in words.panel(whole) if row.name == "analytic")
    assert row.read.endswith(f"gave up after {duration(solved.seconds)}: {24 - untried} of 24 victims done")
    assert all(t.result and t.result.scores.unmeasured == {} for t in trials[:3])  # searches have all the time


def test_what_the_control_reads_does_not_end_a_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told what the defense hides; an attack that waits for its turn after it is still to come."""
    monkeypatch.setattr("dosimeter.auditing.panel.panel.LEAST", 0.0)
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    resources = dm.Resources(until_read=True, workers=1)
    attack = dm.presets.inverting_gradients()
    setting = Audit(model=tiny(), victims=victims, attack=attack, defense=Hide(), resources=resources)
    trials = list(audit_panel(setting, steps=150))
    control = next(t.result for t in trials if t.role == "control")
    assert control is not None
    assert control.scores.success.hits == 2
    assert trials[-1].attack == "analytic"


def test_a_control_that_fails_takes_the_verdict_back() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    setting = Audit(model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=Hide())
    trials = list(audit_panel(setting, steps=1))
    said = verdict(trials)
    assert "reads 0 of 2 images (0 %, 95 % interval 0-74 %)" in said
    assert "says little of the defense" in said


def test_the_verdict_does_not_contradict_an_attack_that_needs_no_help() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    setting = Audit(model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=d.NoDefense())
    trials = list(audit_panel(setting, steps=1))
    assert {t.attack: t.result.scores.success.hits for t in trials if t.result} == {
        "ig": 0,
        "coarse to fine": 0,
        "analytic": 2,
        "all revealed": 0,
    }
    said = verdict(trials)
    assert "3 attacks were tried. The best, analytic" in said
    assert any(f"number {at} of the data" in said for at in victims.indices.flatten())
    assert said.endswith("0 of 2 are read by that search, so the best attack needs none of it.")
    refused = replace(trials[0], result=None, refused="no")
    assert "3 attacks were tried (1 more does not fit)" in verdict([*trials, refused])


def test_auto_on_the_command_line_writes_all_and_gates(tmp_path: Path) -> None:
    words = "audit --model mlp-2 --size 8 --victims 2 --steps 40 --attack auto"
    where = tmp_path / "run"
    defended = [*words.split(), "--defense", "precode:k=8|noise:sigma=1e-5"]
    found = CliRunner().invoke(app, [*defended, "--out", str(where), "--fail-above", "0.7"])
    assert found.exit_code == 1, found.output
    assert "Fails: 2 of 2 images are" in found.output
    document = json.loads((where / "records.json").read_text())
    names = [row["attack"] for row in document["panel"]]
    assert {"ig", "ignore", "joint", "density", "all revealed"} <= set(names)
    assert len(list((where / "attacks").iterdir())) == sum("refused" not in row for row in document["panel"])
    page = (where / "report.html").read_text()
    assert 'aria-labelledby="attacks"' in page
    assert document["verdict"][:20] in page
    passed = CliRunner().invoke(
        app, [*words.split(), "--out", str(where), "--overwrite", "--fail-above", "1"], catch_exceptions=False
    )
    assert passed.exit_code == 0, passed.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--defense noise:sigma=-1", "got -1"),
        ("--defense noise|nothing", "nothing"),
        ("--fail-above 2", "fail-above"),
        ("--rounds 3", "takes no --rounds"),
        ("--guess-local-steps 1+2 --rounds 2", "takes no --guess-local-steps, --rounds"),
    ],
)
def test_bad_words_are_refused_before_any_work(words: str, said: str, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["audit", *words.split(), "--attack", "auto", "--out", str(tmp_path / "run")])
    assert found.exit_code == 2
    assert said in found.output
    assert not (tmp_path / "run").exists()


def test_images_that_clients_transform_are_scored_as_well() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    attack = dm.presets.inverting_gradients(steps=150)
    result = dm.audit(tiny(), victims, attack=attack, defense=d.Ats(policy="0-0-0"))  # three inversions are one
    scores = result.scores
    assert scores.transformed["ssim"].mean > 0.6 > scores["ssim"].mean
    assert scores.transformed.hits == 2
    assert dm.audit(tiny(), victims, attack=attack, defense=d.GaussianNoise()).scores.transformed is None


def test_clients_transform_anew_in_every_round() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    moved = d.Ats(policy="2-3-7")  # each of them in one of two directions
    job = Job(
        Audit(
            model=tiny(),
            victims=victims,
            attack=dm.presets.inverting_gradients(),
            defense=moved,
            updates=dm.Updates(rounds=4),
        )
    )
    first, *others = (seen.gradient["2.weight"] for seen in job.observe(victims))
    assert not all(torch.equal(first, other) for other in others)


def test_a_defense_of_ones_own_and_several_rounds_on_the_command_line(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "from dataclasses import dataclass\nimport torch\nimport dosimeter as dm\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Flip(dm.Defense):\n"
        "    def on_gradient(self, gradient, moment, rng):\n"
        "        sign = 1 - 2 * torch.randint(2, (), generator=rng)\n"
        "        return {name: sign * g for name, g in gradient.items()}\n"
    )
    words = (
        f"audit --model mlp-2 --size 12 --victims 1 --steps 5 --rounds 4 --defense {own}:Flip|noise:sigma=0.1 --json"
    )
    found = CliRunner().invoke(app, [*words.split(), "--out", str(tmp_path / "run")], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    document = json.loads((tmp_path / "run" / "records.json").read_text())
    assert document["settings"]["defense"] == "Chain(parts=(Flip(), GaussianNoise(sigma=0.1)))"
    assert document["threat"]["rounds"] == 4
    assert "AverageRounds" in document["settings"]["attack"]


def test_the_cost_of_differential_privacy_and_what_is_seen_stand_beside_the_numbers() -> None:
    victims = dm.pick(dm.load("mnist-5k", size=8), 2, seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    attack = dm.presets.inverting_gradients(steps=1)
    result = dm.audit(model, victims, attack=attack, defense=d.DpSgd(), updates=dm.Updates(same_client=2))
    assert "epsilon" in result.settings["differential privacy"]
    assert result.threat.same_client == 2
    said = {grant.what: grant.value for grant in grants(result.threat)}
    assert (said["Rounds"], said["Updates of a client"]) == ("1 update", "2 updates")
    assert "differential privacy" not in dm.audit(model, victims, attack=attack).settings


def test_a_shortcut_around_the_noise_stands_beside_the_numbers() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            x = self.first(images.flatten(1)).tanh()
            logits: torch.Tensor = self.last(x + self.inner(x).tanh())
            return logits

    victims = dm.pick(dm.load("mnist-5k", size=8), 1, seed=0)
    around, last = (
        Job(
            Audit(
                model=Skip(),
                victims=victims,
                attack=dm.presets.inverting_gradients(),
                defense=d.Precode(k=4, position=at),
            )
        )
        for at in (1, None)
    )
    assert around.settings()["shortcut"] == "carries the image around the noise before inner"
    assert "shortcut" not in last.settings()


def test_a_control_reveals_all_and_changes_nothing_else() -> None:
    inner = d.Precode(k=4) | d.DpSgd(sigma=1.0) | d.Ats()
    control, same = Revealed(inner=inner), d.Around(inner=inner)
    gradient, images, labels = {"w": torch.ones(3)}, torch.rand(2, *SHAPE), torch.tensor([0, 1])
    assert control.on_gradient(gradient, d.Moment(), torch.Generator()) is gradient
    assert control.on_batch(images, labels, torch.Generator())[0] is images
    assert (control.clips(), same.clips()) == (None, 1.0)
    assert control.facts() == same.facts() == inner.facts()
    made = [type(m) for m in control.on_model(tiny(), SHAPE).modules()]
    assert made == [type(m) for m in inner.on_model(tiny(), SHAPE).modules()]
    assert not torch.equal(same.on_batch(images, labels, torch.Generator().manual_seed(0))[0], images)


def test_an_attack_that_uses_the_defenses_settings_is_refused_where_they_are_withheld() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    unknown = dm.ThreatModel(labels=True, defense=False)
    noise = d.GaussianNoise(sigma=0.1)
    setting = Audit(
        model=tiny(), victims=victims, attack=dm.presets.inverting_gradients(), defense=noise, threat=unknown
    )
    for one in met(noise, tiny()).values():
        whole = replace(setting, attack=one.attack, updates=dm.Updates(rounds=one.rounds))
        if one.attack.name == "density":
            with pytest.raises(SettingError, match="settings of the defense, which the threat model withholds"):
                whole.granted()
        else:
            assert not whole.granted().defense
    trials = list(audit_panel(setting, steps=1))
    assert [t.attack for t in trials if t.refused] == ["density"]


def test_a_clipping_bound_that_is_withheld_is_not_simulated() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    attack = dm.presets.inverting_gradients(steps=3)
    given = {}
    for knows in (True, False):
        threat = dm.ThreatModel(labels=True, defense=knows)
        job = Job(
            Audit(model=tiny(), victims=victims, attack=attack, defense=d.DpSgd(sigma=0.0, clip=0.01), threat=threat)
        )
        given[knows] = job.attacker.target.step
    assert given[False] is None
    assert given[True] is not None

"""What a defense did to images before training is found out and undone, without the truth."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import defenses as d
from dosimeter import store
from dosimeter.attacks import Undo, presets
from dosimeter.attacks.around.likeliest import undo
from dosimeter.auditing.job import Job
from dosimeter.auditing.panel.contenders import contenders
from dosimeter.auditing.panel.panel import _seen_through
from dosimeter.auditing.setting import Audit
from dosimeter.channel import Channel, Transforms
from dosimeter.channel import Path as Stages
from dosimeter.defenses.operations import VARIANTS, Operation
from dosimeter.errors import SettingError
from dosimeter.metrics import ssim
from dosimeter.types import Outcome, Shape

QUIET = dm.Resources(progress=False)


def photos(n: int = 4, side: int = 24) -> Tensor:
    """Smooth coloured images that use all of the range and are dark nowhere at their edges."""
    rng = torch.Generator().manual_seed(3)
    rough = F.avg_pool2d(torch.rand(n, 3, side + 6, side + 6, generator=rng), 7, 1)
    low, high = rough.amin((1, 2, 3), keepdim=True), rough.amax((1, 2, 3), keepdim=True)
    inner = ((rough - low) / (high - low) * 1.6 - 0.3).clamp(0, 1)
    inner[:, :, [0, 1, -2, -1]] = inner[:, :, [0, 1, -2, -1]] * 0.5 + 0.5
    inner[..., [0, 1, -2, -1]] = inner[..., [0, 1, -2, -1]] * 0.5 + 0.5
    return inner


def named(name: str, variant: str = "autoaugment") -> tuple[Operation, ...]:
    """The operation of that name with the largest magnitude, in all its directions."""
    kind = VARIANTS[variant]
    place = max((size, at) for at, (each, size) in enumerate(kind.operations) if each == name)[1]
    return kind.options(place, (3, 24, 24))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("translate-x", 0.6),  # of which 11 of 24 columns are lost
        ("shear-y", 0.95),
        ("rotate", 0.95),
        ("brightness", 0.65),  # times 1.9, where half of the range is lost
        ("contrast", 0.85),
        ("color", 0.85),
        ("sharpness", 0.95),
        ("invert", 0.99),
    ],
)
def test_every_direction_is_told_and_undone(name: str, least: float) -> None:
    images, options = photos(), named(name)
    for at, change in enumerate(options):
        changed = change(images)
        found = undo(changed, [(options,)])
        assert {picks[1] for picks in found.picks} == {at}
        before, after = float(ssim(changed, images).mean()), float(ssim(found.images, images).mean())
        assert after > max(least, before + 0.02), (before, after)


@pytest.mark.parametrize("name", ["equalize", "autocontrast", "posterize"])
def test_what_has_no_inverse_stays_as_it_is(name: str) -> None:
    changed = named(name)[0](photos())
    assert torch.allclose(undo(changed, [(named(name),)]).images, changed, atol=0.04)


def test_a_mirror_cannot_be_told() -> None:
    mirrors = VARIANTS["released"].before()[1]
    assert {picks[1] for picks in undo(photos().flip(-1), [(mirrors,)]).picks} == {0}


def test_moves_of_a_crop_leave_an_edge_that_tells_them() -> None:
    images = photos(6)
    moves = VARIANTS["released"].before()[0]
    drawn = [3, 17, 40, 59, 66, 80]
    changed = torch.cat([moves[at](image[None]) for at, image in zip(drawn, images, strict=True)])
    found = undo(changed, [(moves,)])
    assert [picks[1] for picks in found.picks] == drawn
    assert float(ssim(found.images, images).mean()) > 0.9


def test_stages_are_undone_backwards_and_policies_told_apart() -> None:
    images = photos(3)
    bright, moved = named("brightness", "released"), named("translate-y", "released")
    inverted = named("invert")
    paths = ((moved, bright), (inverted, moved))
    first = bright[1](moved[1](images[:1]))
    second = moved[0](inverted[0](images[1:2]))
    found = undo(torch.cat([first, second]), paths)
    assert found.picks == [(0, 1, 1), (1, 0, 0)]
    assert float(ssim(found.images, images[:2]).min()) > 0.75


def test_images_do_not_depend_on_who_shares_their_chunk() -> None:
    changed = torch.cat([named("translate-x")[0](photos()), named("translate-x")[1](photos())])
    together = undo(changed, [(named("translate-x"),)])
    alone = [undo(one[None], [(named("translate-x"),)]) for one in changed]
    assert together.picks == [each.picks[0] for each in alone]
    assert torch.allclose(together.images, torch.cat([each.images for each in alone]), atol=5e-3)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 24), nn.ReLU(), nn.Linear(24, 10))


@dataclass(frozen=True, kw_only=True)
class Darker(dm.Defense):
    """A user's own, which says what it does."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return self._changed(images), labels

    def changes(self, shape: Shape) -> tuple[Stages, ...]:
        return (((self._changed,),),)

    def _changed(self, images: Tensor) -> Tensor:
        return 0.4 - 0.4 * images.flip(-2)


@dataclass(frozen=True, kw_only=True)
class Untold(dm.Defense):
    """A user's own, which does not say."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return Darker().on_batch(images, labels, rng)


def test_a_users_own_transformation_is_undone(tmp_path: Path) -> None:
    victims = dm.pick(dm.load("mnist-5k"), 3, seed=0)
    attack = Undo(attack=presets.analytic(), by=Darker())
    found = dm.audit(model(), victims, attack=attack, defense=Darker(), resources=QUIET)
    assert found.scores.success.originals == 3
    assert found.scores["ssim"].mean > 0.95
    assert found.threat.defense
    assert found.scores.baseline["ssim"].mean < 0.2
    assert found.scores.transformed.hits == 3  # by what was read before it was undone
    store.write_run(found, tmp_path / "run")
    again = store.read(tmp_path / "run")
    assert dm.rescore(again, dm.Scoring()).scores == found.scores
    with pytest.raises(SettingError, match="states nothing"):
        dm.audit(model(), victims, attack=replace(attack, by=Untold()), defense=Untold(), resources=QUIET)
    with pytest.raises(SettingError, match="by a search, and 'analytic' is none"):
        replace(attack, jointly=True)


def test_images_are_searched_through_what_was_done_to_them() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, seed=0)
    ats = d.Ats(policy="0", variant="autoaugment")  # an inversion
    attack = Undo(attack=presets.inverting_gradients(steps=80), by=ats, jointly=True)
    found = dm.audit(model(), victims, attack=attack, defense=ats, resources=QUIET)
    assert found.scores.success.originals == 2
    assert found.scores["ssim"].mean > 0.6
    assert found.scores.transformed.hits == 2  # what the first search read


def test_what_was_read_counts_where_nothing_can_be_undone() -> None:
    """An attack that reads what clients trained on is no evidence of privacy because it then loses its way."""
    victims = dm.pick(dm.load("mnist-5k"), 2, batch=2, seed=0)

    @dataclass(frozen=True, kw_only=True)
    class Elsewhere(Darker):
        def changes(self, shape: Shape) -> tuple[Stages, ...]:
            return (((lambda images: images.flip(-1) ** 4,),),)

    attack = Undo(attack=presets.inverting_gradients(steps=150), by=Elsewhere())
    torch.manual_seed(1)
    wide = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.Sigmoid(), nn.Linear(256, 10))
    found = dm.audit(wide, victims, attack=attack, defense=Darker(), resources=QUIET)
    assert found.scores.success.originals == 0
    assert found.scores.success.hits == found.scores.transformed.hits > 0
    assert found.scores.evidence["read"] == found.scores.success.hits


def test_an_interrupted_undoing_keeps_what_was_read() -> None:
    victims, ats = dm.pick(dm.load("mnist-5k"), 24, seed=0), d.Ats(policy="0", variant="autoaugment")
    job = Job(Audit(model=model(), victims=victims, attack=presets.analytic(), defense=ats, resources=QUIET))
    told = []

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        told.append(done)
        if told.count(24) > 2:  # all is solved, and one part of two is undone
            raise KeyboardInterrupt

    found = Undo(attack=presets.analytic(), by=ats)(job.attacker.target, job.observe(victims), seed=0, watch=watch)
    cut = [outcome is Outcome.INTERRUPTED for outcome in found.outcomes]
    assert cut == sorted(cut)
    assert 0 < sum(cut) < 24
    assert found.trained_on is not None
    same = (found.trained_on == found.images).flatten(1).all(1)
    assert same.tolist() == cut
    assert torch.isfinite(found.match).all()


def test_the_panel_undoes_what_is_stated() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    for defense, least in ((d.Ats() | d.GaussianNoise(), 3), (Darker(), 3), (Untold(), 0)):
        audit = Audit(model=model(), victims=victims, attack=presets.analytic(), defense=defense, resources=QUIET)
        _, channel = _seen_through(audit, 5)
        undoing = [one for one in contenders(channel, steps=5) if isinstance(one.attack, Undo)]
        assert len(undoing) == least
        assert ("not stated" in channel.words()) is (least == 0)
    assert contenders(Channel((Transforms(),)), steps=5)[0].attack.name == "ig"

"""Victims of which an audit says nothing, because the search diverged or the update is zero, are counted and said."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import auditing
from dosimeter.attacks import Attack
from dosimeter.auditing import Audit, Outcome, audit_panel, conclude
from dosimeter.defenses import Moment
from dosimeter.reports import print_result
from dosimeter.reports.page import render
from dosimeter.types import Gradient, Observation, Reconstruction, Target, Victims, Watch

SHAPE = (1, 6, 6)
DIVERGING = dm.presets.inverting_gradients(steps=3, by="descent", box=False, lr=1e38)
ZERO = dm.defenses.Pruning(ratio=1.0)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.Sigmoid(), nn.Linear(24, 5))


def victims(n: int = 2, batch: int = 1) -> Victims:
    rng = torch.Generator().manual_seed(1)
    labels = torch.zeros(n, batch, dtype=torch.long)  # what an argmin of zeros would give
    places = torch.arange(n * batch).reshape(n, batch)
    return Victims(torch.rand(n, batch, *SHAPE, generator=rng), labels, places, tuple(f"v{i}" for i in range(n)))


def audited(attack: Attack, defense: dm.Defense | None = None, batch: int = 1) -> dm.Result:
    names = {"model": "small", "data": "noise", "channel": "the update as it is"}
    quiet = dm.Resources(progress=False)
    made = {"model": small_model(), "victims": victims(batch=batch), "attack": attack}
    return dm.perform(dm.Audit(**made, defense=defense or dm.defenses.NoDefense(), names=names, resources=quiet))


def captured(attack: Attack, scale: float) -> dm.Captured:
    model, one = small_model(), victims(1)
    slopes = torch.autograd.grad(F.cross_entropy(model(one.images[0]), one.labels[0]), list(model.parameters()))
    update = {name: scale * g for (name, _), g in zip(model.named_parameters(), slopes, strict=True)}
    return dm.captured(model, dm.Capture(update, SHAPE), attack=attack, resources=dm.Resources(progress=False))


def everywhere(result: Outcome) -> list[str]:
    """All that people and programs read of a result."""
    console = Console(file=io.StringIO(), width=1000)
    print_result(result, console)
    shown = [console.file.getvalue(), render(result), json.dumps(result.document())]  # type: ignore[attr-defined]
    return [*shown, result.summary()] if isinstance(result, dm.Result) else shown


def test_victims_on_whom_the_search_diverged_are_counted_and_said() -> None:
    result = audited(DIVERGING)
    assert result.scores.unmeasured == {"diverged": 2}
    assert result.unmeasured == "The search diverged on 2 of 2 updates, of which it says nothing."
    assert all("diverged" in text for text in everywhere(result))
    assert not audited(dm.presets.inverting_gradients(steps=3)).unmeasured


@dataclass(frozen=True, kw_only=True)
class Spoiling(dm.Attack):
    """An attack whose images are not finite, whatever it says of them."""

    inner: dm.Search = dm.presets.inverting_gradients(steps=1)
    name: str = "spoiling"

    def needs(self) -> dm.ThreatModel:
        return self.inner.needs()

    def blind(self) -> dm.Search:
        return self.inner.blind()

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        found = self.inner(target, observations, seed=seed, watch=watch)
        spoilt = torch.tensor([name == "v1" for name in observations[0].ids])
        return found._replace(images=torch.where(spoilt.view(-1, 1, 1, 1, 1), torch.nan, found.images))


def test_images_that_are_not_finite_have_diverged() -> None:
    result = audited(Spoiling())
    assert result.scores.unmeasured == {"diverged": 1}
    assert [record.stopped for record in result.records] == ["steps", "diverged"]


@pytest.mark.parametrize(
    ("make", "batch"),
    [
        (lambda: dm.presets.inverting_gradients(steps=2, labels="idlg"), 1),
        (lambda: dm.presets.inverting_gradients(steps=2, labels="counts"), 3),
        (lambda: dm.presets.dlg(steps=2, inner=1), 1),
        (lambda: dm.presets.analytic(), 1),
        (lambda: dm.presets.features(), 1),
        (lambda: dm.presets.labels_only(), 3),
        (lambda: dm.presets.labels_only(rule="rows"), 1),
    ],
    ids=["idlg", "counts", "dlg", "analytic", "features", "labels", "rows"],
)
def test_a_zero_update_is_noticed_and_gives_no_label(make: Callable[[], Attack], batch: int) -> None:
    result = audited(make(), ZERO, batch)
    assert result.scores.unmeasured == {"zero update": 2}
    assert result.scores.labels.hits == 0
    assert {record.label_used for record in result.records} == {None}
    assert all("The update is zero" in text for text in everywhere(result) if text[0] != "{")
    assert all(record["stopped"] == "zero update" for record in json.loads(everywhere(result)[2])["records"])
    assert result.scores.determined is None or result.scores.determined.max == 0.0


def test_granted_labels_of_a_zero_update_stay_granted() -> None:
    result = audited(dm.presets.inverting_gradients(steps=2), ZERO)
    assert result.scores.unmeasured == {"zero update": 2}
    assert result.scores.labels is None


@dataclass(frozen=True, kw_only=True)
class WithoutLast(dm.Defense):
    """The gradient of the last layer stays with the first client and is zero for the others."""

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        return {name: 0 * g if name.startswith("3") else g for name, g in gradient.items()}


@pytest.mark.parametrize(("labels", "batch"), [("idlg", 1), ("counts", 1), ("counts", 3)])
def test_labels_of_a_zero_last_layer_are_not_determined(labels: str, batch: int) -> None:
    result = audited(dm.presets.inverting_gradients(steps=2, labels=labels), WithoutLast(), batch)  # type: ignore[arg-type]
    assert result.scores.unmeasured == {}
    assert result.scores.labels.hits == 0
    assert {record.label_used for record in result.records} == {None}


def test_one_zero_update_among_others_leaves_them_alone() -> None:
    some = victims()
    some.images[1] = 0.0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 24, bias=False), nn.ReLU(), nn.Linear(24, 5, bias=False))
    result = dm.audit(
        model,
        some,
        attack=dm.presets.inverting_gradients(steps=2, labels="idlg"),
        resources=dm.Resources(progress=False),
    )
    assert result.scores.unmeasured == {"zero update": 1}
    assert [record.label_used for record in result.records] == [0, None]


@pytest.mark.parametrize(
    "attack", [dm.presets.inverting_gradients(steps=2), dm.presets.analytic()], ids=["ig", "analytic"]
)
def test_a_captured_update_that_is_zero_is_noticed(attack: Attack) -> None:
    result = captured(attack, 0.0)
    assert result.unmeasured.startswith("The update is zero")
    assert result.scores.labels.found is None
    assert result.scores.certificate.share == 0.0
    assert all("The update is zero" in text for text in everywhere(result) if text[0] != "{")
    assert "recovered: class" not in everywhere(result)[0]
    seen = dm.reconstruct(small_model(), dm.Capture(zeros(), SHAPE, labels=torch.tensor([0])), attack=attack)
    assert seen.outcomes == ("zero update",)


def zeros() -> dict[str, Tensor]:
    return {name: torch.zeros_like(p) for name, p in small_model().named_parameters()}


def test_a_search_that_diverges_on_a_captured_update_is_said() -> None:
    result = captured(DIVERGING, 1.0)
    assert result.unmeasured == "The search diverged on the update, of which it says nothing."
    assert all("diverged" in text for text in everywhere(result))


def test_a_panel_says_which_attack_measured_nothing() -> None:
    setting = Audit(
        model=small_model(), victims=victims(), attack=DIVERGING, defense=ZERO, resources=dm.Resources(progress=False)
    )
    result = conclude(list(audit_panel(setting, steps=1)))
    assert all(
        t.result.scores.unmeasured == {"zero update": 2} for t in result.panel if t.result and t.role != "control"
    )
    assert result.unmeasured.count("The update is zero") == 1
    assert "The update is zero" in result.verdict + everywhere(result)[0]
    ran = auditing.Trial(attack="ig", role="adaptive", about="", result=audited(DIVERGING))
    plain = dm.presets.inverting_gradients(steps=3)
    best = auditing.Trial(attack="ig", role="published", about="", result=audited(plain))
    control = replace(ran, role="control")
    assert conclude([best, ran]).unmeasured.startswith("The search of ig diverged on 2 of 2 updates")
    assert not conclude([best, control]).unmeasured

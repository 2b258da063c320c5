"""Attacks made for defenses: what they leave out, weigh and average."""

from dataclasses import replace

import pytest
import torch

from dosimeter.attacks import AverageRounds, LeaveOut, presets
from dosimeter.attacks.around.rounds import average
from dosimeter.attacks.search import masks
from dosimeter.attacks.stages import only
from dosimeter.defenses import Precode
from dosimeter.errors import SettingError
from dosimeter.types import Observation
from small import observe, target_of, tiny_target


def seen_of_two() -> tuple[object, Observation]:
    target = tiny_target()
    images = torch.rand(2, 1, 1, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return target, observe(target, images, torch.tensor([[0], [3]]))


def test_the_mean_of_rounds_has_less_noise() -> None:
    target, seen = seen_of_two()
    noisy = [
        seen._replace(gradient={n: g + 0.1 * torch.randn_like(g) for n, g in seen.gradient.items()}) for _ in range(100)
    ]
    mean = average(noisy)
    apart = torch.cat([(mean.gradient[n] - g).flatten() for n, g in seen.gradient.items()])
    assert float(apart.std()) == pytest.approx(0.01, rel=0.1)
    attack = presets.inverting_gradients(steps=5)
    found = AverageRounds(attack=attack)(target, [seen, seen], seed=0)  # type: ignore[arg-type]
    alone = attack(target, [seen], seed=0)  # type: ignore[arg-type]
    assert torch.equal(found.images, alone.images)
    with pytest.raises(SettingError, match="one update of each victim, got 2"):
        attack(target, [seen, seen], seed=0)  # type: ignore[arg-type]


def test_the_tensor_that_was_changed_is_found_and_left_out() -> None:
    target, seen = seen_of_two()
    names = ["1.1.weight", "1.3.weight"]
    broken = {name: g.clone() for name, g in seen.gradient.items()}
    for v, name in enumerate(names):
        broken[name][v] = torch.randn_like(broken[name][v])
    seen = seen._replace(gradient=broken)
    search = presets.inverting_gradients(steps=100)
    attack = LeaveOut(attack=search)
    assert attack.candidates(target) == names  # type: ignore[arg-type]
    found = attack(target, [seen], seed=0)  # type: ignore[arg-type]
    for v, name in enumerate(names):
        told = replace(search, only=masks.Except(names=(name,)))(target, [only(seen, [v])], seed=0)  # type: ignore[arg-type]
        assert torch.allclose(found.images[v], told.images[0], atol=1e-6)
    turned = attack(target, [only(seen, [1, 0])], seed=0)  # type: ignore[arg-type]
    assert torch.allclose(turned.images[[1, 0]], found.images, atol=1e-6)


def test_a_tensor_that_is_left_out_does_not_matter() -> None:
    target, seen = seen_of_two()
    attack = replace(presets.inverting_gradients(steps=5), only=masks.Except(names=("1.3.weight",)))
    broken = seen._replace(gradient={**seen.gradient, "1.3.weight": torch.randn_like(seen.gradient["1.3.weight"])})
    found = [attack(target, [one], seed=0).images for one in (seen, broken)]  # type: ignore[arg-type]
    assert torch.equal(*found)
    for names in (("other",), tuple(target.parameters)):  # type: ignore[attr-defined]
        with pytest.raises(SettingError, match="leave"):
            masks.Except(names=names).check(target)  # type: ignore[arg-type]


def test_noisy_tensors_count_less() -> None:
    target = target_of(Precode(k=4).on_model(tiny_target().model, (1, 6, 6)), (1, 6, 6))
    sizes = torch.tensor([[float(p.numel()) for p in target.parameters.values()]], dtype=torch.float64)
    early = [name for name in target.parameters if name.startswith("1.1.")]
    only = masks.InverseVariance(each=tuple((name, 0.1) for name in early))
    weights = dict(zip(target.parameters, only.weights(target, sizes)[0], strict=True))
    per_entry = {name: float(w) * target.parameters[name].numel() for name, w in weights.items()}
    late = [name for name in per_entry if name not in early]
    assert early
    assert max(per_entry[name] for name in early) < 0.2 * min(per_entry[name] for name in late)

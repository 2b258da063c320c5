"""Tensors that a search leaves out by name, masks that a density is told, and keys that generators are given."""

import pytest
import torch

from dosimeter.attacks import presets
from dosimeter.attacks.search import degraded, masks, treatments
from dosimeter.auditing import part
from dosimeter.errors import SettingError
from small import network, target_of


def test_a_layer_is_left_out_with_all_its_tensors() -> None:
    target = target_of(network(), (1, 16, 16))
    names = list(target.parameters)
    search = part("attack", "ig:leave=1+3.bias")
    weights = search.only.weights(target, torch.ones(2, len(names)))  # type: ignore[union-attr]
    left = [name for name, weight in zip(names, weights[0].tolist(), strict=True) if not weight]
    assert left == ["1.weight", "1.bias", "3.bias"]
    assert torch.equal(weights[0], weights[1])


def test_a_name_that_is_not_there_or_all_names_are_refused() -> None:
    target = target_of(network(), (1, 16, 16))
    with pytest.raises(SettingError, match=r"9\.weight"):
        masks.Except(names=("9.weight", "1.weight")).check(target)
    with pytest.raises(SettingError, match="leaves 0"):
        masks.Except(names=("1", "3", "6", "8")).check(target)
    with pytest.raises(SettingError, match="leave"):
        presets.inverting_gradients(leave=("1",), top=3)


def test_laplace_noise_behind_a_known_mask_has_its_own_density() -> None:
    simulated, observed = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.0, 2.5, 2.0]])
    found = degraded.Zeroed(by="places", sigma=0.5, noise="laplace").entry_loss(simulated, observed)
    law = torch.distributions.Laplace(torch.tensor([2.0, 3.0]), 0.5)
    top = law.log_prob(law.mean).sum()
    assert found == pytest.approx(float(top - law.log_prob(torch.tensor([2.5, 2.0])).sum()))
    search = part("attack", "bayes:density=known-mask-laplace,scale=0.2")
    assert search.likelihood == degraded.Zeroed(by="places", sigma=0.2, noise="laplace")  # type: ignore[union-attr]
    assert search.needs().defense
    with pytest.raises(SettingError, match="noise"):
        degraded.Zeroed(noise="uniform")  # type: ignore[arg-type]


def test_a_generator_is_given_a_key_or_guesses_it() -> None:
    assert presets.grnn(secrets="known").needs().secrets
    assert not presets.grnn(secrets="guessed").needs().secrets
    assert presets.grnn().secrets == treatments.Resampled()

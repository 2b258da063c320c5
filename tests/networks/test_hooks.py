"""Watching networks run leaves them as they were."""

import pytest
import torch
from torch import Tensor, nn

from dosimeter import networks


def model() -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5))
    return nn.Sequential(inner, nn.Flatten(), nn.Linear(32, 3))


def hooks(watched: nn.Module) -> int:
    return sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in watched.modules())


def test_the_order_has_containers_before_their_layers_and_shapes_of_inputs() -> None:
    watched = model().train()
    found = networks.run_order(watched, (1, 6, 6))
    assert list(found.items())[:2] == [("0", (1, 6, 6)), ("0.0", (1, 6, 6))]
    assert found["2"] == (32,)
    assert all(layer.training for layer in watched.modules())
    assert torch.equal(watched[0][1].running_mean, torch.zeros(2))  # type: ignore[index]
    assert hooks(watched) == 0


def test_hooks_leave_with_the_block_whatever_happens_in_it_and_what_they_give_is_used() -> None:
    watched = model().eval()

    def doubled(name: str, _layer: nn.Module, _inputs: object, output: Tensor) -> Tensor:
        assert name == "2"
        return 2 * output

    x = torch.rand(2, 1, 6, 6)
    plain = watched(x)
    with networks.hooked(watched, doubled, lambda name, _: name == "2"):
        assert torch.equal(watched(x), 2 * plain)
    with pytest.raises(ZeroDivisionError), networks.hooked(watched, doubled, lambda name, _: name == "2"):
        raise ZeroDivisionError
    assert hooks(watched) == 0


def test_clones_share_weights_and_not_modules() -> None:
    watched = model()
    clone = networks.clone_modules(watched)
    for ours, theirs in zip(watched.parameters(), clone.parameters(), strict=True):
        assert ours is not theirs
        assert ours.data_ptr() == theirs.data_ptr()
    clone[2].bias = None  # type: ignore[index]
    assert watched[2].bias is not None  # type: ignore[index]


def test_batch_norm_by_the_batch_is_told_from_that_by_running_statistics() -> None:
    assert not networks.norms_by_batch(model())
    assert networks.norms_by_batch(nn.Sequential(nn.BatchNorm2d(2, track_running_stats=False)))

"""FedKL: parameters as the paper counts them, one key a client, secrets that give its own scale and shift."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import clients, models
from dosimeter.attacks.around.key import recover
from dosimeter.defenses import Chain, GaussianNoise, KeyLock, NoDefense
from dosimeter.defenses.fedkl import HiddenLock, Lock, OpenLock
from dosimeter.errors import SettingError
from small import target_of

SHAPE = (3, 32, 32)


def build(name: str, classes: int = 10, **settings: object) -> nn.Module:
    return models.build(name, shape=SHAPE, classes=classes, mean=(0.5,), std=(0.25,), seed=0, settings=settings)


def lock_of(model: nn.Module) -> Lock:
    (lock,) = [layer for layer in model.modules() if isinstance(layer, Lock)]
    return lock


def held(model: nn.Module) -> int:
    """Numbers in the state_dict, running statistics included, without the normalisation of images."""
    return sum(t.numel() for name, t in model.state_dict().items() if not name.startswith("normalise."))


def own(lock: Lock, kind: str, key: Tensor) -> Tensor:
    """gamma and beta that plain linear layers make of the key."""
    both = torch.cat([F.linear(key, part.weight, part.bias) for part in (lock.scale, lock.shift)])
    return both.relu() if kind == "relu" else both


@pytest.mark.parametrize(
    ("name", "settings", "share"),
    [
        ("lenet", {}, 22.43),
        ("lenet-bn", {}, 22.43),
        ("resnet20", {}, 10.49),
        ("resnet32", {}, 6.46),
        ("resnet18-imagenet", {}, 1.15),
        ("resnet34", {"stem": "imagenet"}, 0.61),
        ("vgg16-bn", {"head": "imagenet"}, 0.097),
    ],
)
def test_the_locks_share_is_the_papers(name: str, settings: dict[str, object], share: float) -> None:
    """Table III, with 3 channels, 100 classes and running statistics counted."""
    with torch.device("meta"):
        plain = models.BY_NAME[name].make(shape=SHAPE, classes=100, **settings)
        channels = next(layer.out_channels for layer in plain.modules() if isinstance(layer, nn.Conv2d))
        lock = KeyLock(share="lock").layer(channels)
    kept = nn.BatchNorm2d(channels, affine=False)
    batch_norm = any(isinstance(layer, nn.BatchNorm2d) for layer in plain.modules())
    total = held(plain) - 2 * channels if batch_norm else held(plain) + held(kept)
    assert 100 * held(lock) / (total + held(lock)) == pytest.approx(share, abs=0.005 if share > 0.1 else 0.0005)


@pytest.mark.parametrize("name", ["lenet", "lenet-bn", "resnet20", "cnn"])
@pytest.mark.parametrize("share", ["none", "lock"])
def test_only_the_first_block_is_locked(name: str, share: str) -> None:
    plain = build(name)
    before = held(plain)
    model = KeyLock(key=8, share=share).on_model(plain, SHAPE)  # type: ignore[arg-type]
    assert held(plain) == before  # the user's model is not touched
    lock = lock_of(model)
    channels = lock.scale.out_features
    normed = name in ("lenet-bn", "resnet20")
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    of_lock = 2 * (8 + 1) * channels if share == "lock" else 0
    affine = 2 * channels if normed else 0
    assert trained == sum(p.numel() for p in plain.parameters()) - affine + of_lock
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert [n.affine for n in norms] == [False] + [True] * (len(norms) - 1)


@pytest.mark.parametrize("kind", ["linear", "relu"])
@pytest.mark.parametrize("share", ["none", "lock"])
def test_the_model_is_the_papers_equation(kind: str, share: str) -> None:
    """Against gamma * BN(conv(x)) + beta written out, with running statistics of the user's own."""
    plain = build("lenet-bn").double()
    norm = plain.features[1]  # type: ignore[index]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    model = KeyLock(key=6, lock=kind, share=share).on_model(plain, SHAPE).eval()  # type: ignore[arg-type]
    target, lock, key = target_of(model, SHAPE), lock_of(model), torch.rand(6, dtype=torch.float64)
    gamma, beta = own(lock, kind, key)[:, None, None].chunk(2)
    if isinstance(lock, OpenLock):
        (drawn,) = lock.drawn_for(key).values()
    else:
        assert isinstance(lock, HiddenLock)
        (drawn,) = lock.made_of(*lock.weights(), key).values()
    (name,) = target.secrets
    images = torch.rand(2, *SHAPE, dtype=torch.float64)
    found = torch.func.functional_call(model, {name: drawn}, (images,))
    plain.eval()
    norm.weight.data, norm.bias.data = gamma.flatten(), beta.flatten()
    assert torch.allclose(found, plain(images), atol=1e-10)


@pytest.mark.parametrize("key", [3, 40])
def test_what_the_server_expects_of_a_key_is_right(key: int) -> None:
    """Secrets of many clients have mean 0 and covariance 1, with a lock that is known and one that is not."""
    for round_ in ("first", "later"):
        torch.manual_seed(0)
        lock = KeyLock(key=key, round=round_).layer(5)  # type: ignore[arg-type]
        assert isinstance(lock, HiddenLock)
        rng = torch.Generator().manual_seed(1)
        u = torch.stack([lock.draw(rng)["hidden"] for _ in range(1500)])
        assert u.shape[1] == (min(10, key) if round_ == "first" else 10)
        assert float(u.mean(0).abs().max()) < 0.12
        assert float((u.T.cov() - torch.eye(u.shape[1])).abs().max()) < 0.2


def test_a_client_keeps_its_key() -> None:
    """The same stream gives the same key, another gives another; both give what the lock makes of it."""
    defense = KeyLock(key=30)
    target = target_of(defense.on_model(build("lenet"), SHAPE), SHAPE)
    lock = lock_of(target.model)
    one, again, other = (defense.draw(target, 2, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    (name,) = target.secrets
    assert torch.equal(one[name], again[name])
    assert not torch.allclose(one[name], other[name])
    key = torch.rand(30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert isinstance(lock, HiddenLock)
    assert torch.allclose(lock.centre + lock.spread @ one[name], own(lock, "linear", key), atol=1e-6)
    later = KeyLock(key=30, round="later")
    hidden = target_of(later.on_model(build("lenet"), SHAPE), SHAPE)
    mine = later.draw(hidden, 2, torch.Generator().manual_seed(1))[name]
    made = own(lock_of(hidden.model), "linear", key) / math.sqrt(1 / 9 + 1 / 90)
    assert not torch.allclose(mine, made, atol=0.1)  # its lock is no longer the server's


@pytest.mark.parametrize("kind", ["linear", "relu"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_of_a_lock_is_its_key(kind: str, batch: int, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    target = target_of(KeyLock(lock=kind, share="lock").on_model(build("lenet"), SHAPE), SHAPE, dtype)  # type: ignore[arg-type]
    drawn = clients.draw_secrets(target, batch, torch.Generator().manual_seed(5))
    images = torch.rand(batch, *SHAPE, dtype=dtype)
    update = clients.gradient(replace(target, drawn=drawn), images, torch.randint(10, (batch,)))
    found = recover(target, {name: g[None] for name, g in update.items()})
    (name,) = target.secrets
    assert found[name].shape == (1, 1024)
    assert float((torch.special.ndtr(found[name][0]) - torch.special.ndtr(drawn[name])).abs().max()) < 1e-5


def test_what_is_sent_along() -> None:
    assert [KeyLock(share=share).reveals for share in ("none", "key", "lock", "both")] == [False, True, False, True]  # type: ignore[arg-type]
    assert not KeyLock(share="key", round="later").reveals  # the key of a lock that the server does not know
    assert not NoDefense().reveals
    assert (KeyLock(share="key") | GaussianNoise()).reveals
    assert not Chain(parts=(KeyLock(), GaussianNoise())).reveals


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"key": 0}, "a key of at least 1, got 0"),
        ({"lock": "tanh"}, "lock 'tanh'"),
        ({"share": "all"}, "share 'all'"),
        ({"round": "second"}, "round 'second'"),
        ({"share": "lock", "round": "later"}, "knows the lock in every round"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        KeyLock(**settings)  # type: ignore[arg-type]


def test_models_that_cannot_be_locked_are_refused() -> None:
    with pytest.raises(SettingError, match="locks a convolution"):
        KeyLock(key=4).on_model(build("mlp", width=8), SHAPE)
    with pytest.raises(SettingError, match="GroupNorm follows"):
        KeyLock(key=4).on_model(build("resnet18-gn", width=1 / 16), SHAPE)

import pytest
import torch

from dosimeter import rng
from dosimeter.defenses import BY_NAME, Chain, Defense, GaussianNoise, Moment, NoDefense
from dosimeter.errors import SettingError

GRADIENT = {"a": torch.linspace(-1, 1, 6).reshape(2, 3), "b": torch.ones(4, dtype=torch.float64)}
IDENTITIES = [NoDefense(), GaussianNoise(sigma=0.0), NoDefense() | GaussianNoise(sigma=0.0)]


def send(defense: Defense, seed: int = 0) -> dict[str, torch.Tensor]:
    return dict(defense.on_gradient(GRADIENT, Moment(), rng.stream(seed, "defense")))


@pytest.mark.parametrize("defense", IDENTITIES, ids=repr)
def test_a_defense_of_no_strength_is_the_identity(defense: Defense) -> None:
    assert all(torch.equal(send(defense)[name], g) for name, g in GRADIENT.items())


@pytest.mark.parametrize("make", BY_NAME.values(), ids=BY_NAME)
def test_names_shapes_and_precision_survive_and_the_stream_decides(make: type[Defense]) -> None:
    sent = send(make())
    assert {n: (g.shape, g.dtype) for n, g in sent.items()} == {n: (g.shape, g.dtype) for n, g in GRADIENT.items()}
    assert all(torch.equal(sent[name], again) for name, again in send(make()).items())


def test_noise_has_its_deviation_and_no_mean() -> None:
    clean = {"w": torch.zeros(200_000)}
    noisy = GaussianNoise(sigma=0.3).on_gradient(clean, Moment(), rng.stream(0, "noise"))["w"]
    assert abs(float(noisy.std()) - 0.3) < 0.003
    assert abs(float(noisy.mean())) < 0.004


def test_defenses_act_from_left_to_right() -> None:
    class Double(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return {name: 2 * g for name, g in gradient.items()}

    class AddOne(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return {name: g + 1 for name, g in gradient.items()}

    assert torch.equal(send(Double() | AddOne())["b"], torch.full((4,), 3.0, dtype=torch.float64))
    assert torch.equal(send(AddOne() | Double())["b"], torch.full((4,), 4.0, dtype=torch.float64))
    assert len((Double() | AddOne() | Double()).parts) == 3  # type: ignore[attr-defined]
    assert isinstance(Double() | AddOne(), Chain)


@pytest.mark.parametrize("sigma", [-1.0, float("nan"), float("inf")])
def test_unusable_noise_is_refused(sigma: float) -> None:
    with pytest.raises(SettingError, match="at least 0, got"):
        GaussianNoise(sigma=sigma)

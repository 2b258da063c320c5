import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dosimeter import models


def small() -> nn.Module:
    torch.manual_seed(0)
    return models.ResNet(shape=(1, 8, 8), classes=3, depth=20, width=0.25).double()


def test_evaluation_then_equals_training() -> None:
    images = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    expected = small().train()(images)
    model = small()
    assert not torch.allclose(model.eval()(images), expected)
    models.use_batch_statistics(model)
    for mode in (False, True):
        assert torch.allclose(model.train(mode)(images), expected)
    assert not torch.allclose(model(images[:2]), expected[:2])  # the batch decides


def test_nothing_of_the_batch_stays_in_the_model() -> None:
    model = small().train()
    models.use_batch_statistics(model)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert not any("running" in name or "tracked" in name for name in kept)
    model(torch.rand(4, 1, 8, 8, dtype=torch.float64))
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in model.state_dict().items())


def test_many_batches_at_once_are_each_alone_and_have_a_slope() -> None:
    model = small().eval()
    models.use_batch_statistics(model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    images = torch.rand(2, 4, 1, 8, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 1, 2, 0], [2, 2, 1, 0]])

    def step(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (x,)), y)

    together = vmap(grad(step), in_dims=(None, 0, 0))(parameters, images, labels)
    for row in range(2):
        alone = grad(step)(parameters, images[row], labels[row])
        assert all(torch.allclose(together[name][row], alone[name]) for name in alone)
    (slope,) = torch.autograd.grad(sum(g.square().sum() for g in together.values()), images)
    assert slope.isfinite().all()
    assert slope.flatten(1).abs().amax(1).min() > 0


def test_all_kinds_of_batch_norm_are_meant_and_no_other_norm() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.InstanceNorm2d(2, affine=True))
    models.use_batch_statistics(model)
    assert set(model.state_dict()) == {f"{i}.{part}" for i in range(4) for part in ("weight", "bias")}
    networks = models.build("mlp", shape=(1, 2, 2), classes=2, mean=(0,), std=(1,), seed=0, settings={"width": 3})
    models.use_batch_statistics(networks)
    assert networks.eval()(torch.rand(3, 1, 2, 2)).shape == (3, 2)

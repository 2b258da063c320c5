import torch
import torch.nn.functional as F
from torch import nn

from dosimeter import clients
from dosimeter.types import Target


def test_the_gradient_is_autograds_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).double()
    model[3].bias.requires_grad_(False)
    images, labels = torch.rand(5, 1, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])
    target = Target(model, F.cross_entropy, (1, 8, 8), torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    found = clients.gradient(target, images, labels)
    F.cross_entropy(model(images), labels).backward()
    assert set(found) == {name for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None
            assert torch.allclose(found[name], parameter.grad, atol=1e-12)
            assert not found[name].requires_grad

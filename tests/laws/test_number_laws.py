"""Numbers at their edges: every audit of them gives finite figures and never passes what it did not measure, or says in
one line why it cannot."""

import json
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import dosimeter as dm
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.errors import DosimeterError
from dosimeter.types import Outcome, Victims

CLASSES = 4


class Edge(NamedTuple):
    """Images (V, B, C, H, W), how many classes the model tells apart, and what is done to its weights."""

    images: Tensor
    classes: int = CLASSES
    scale: float = 1.0
    bias: float = 0.0
    dtype: torch.dtype = torch.float32
    ends: str = ""  # how all victims end, where that is known: an outcome, or words of a refusal


def random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


EDGES = {
    "usual": Edge(random(2, 1, 1, 6, 6)),
    "float64": Edge(random(2, 1, 1, 6, 6), dtype=torch.float64),
    "black images": Edge(torch.zeros(2, 1, 1, 6, 6)),
    "white images": Edge(torch.ones(2, 1, 1, 6, 6)),
    "grey images": Edge(torch.full((2, 1, 1, 6, 6), 0.5)),
    "1x1 images": Edge(random(2, 1, 1, 1, 1)),
    "1x9 images": Edge(random(2, 1, 1, 1, 9)),
    "colours of 1x1": Edge(random(2, 1, 3, 1, 1)),
    "one class": Edge(random(2, 1, 1, 6, 6), classes=1, ends=Outcome.ZERO_UPDATE),
    "batches beyond the classes": Edge(random(1, 9, 1, 6, 6)),
    "a batch of one image again and again": Edge(random(1, 1, 1, 6, 6).expand(1, 3, 1, 6, 6)),
    "weights of 0": Edge(random(2, 1, 1, 6, 6), scale=0.0),
    "saturated by weights": Edge(random(2, 1, 1, 6, 6), scale=1e4),
    "saturated by a bias": Edge(random(2, 1, 1, 6, 6), bias=1e4, ends=Outcome.ZERO_UPDATE),
    "tiny weights": Edge(random(2, 1, 1, 6, 6), scale=1e-20),
    "weights near the end of float32": Edge(random(2, 1, 1, 6, 6), scale=1e37),
    "images beyond 1": Edge(2 * random(2, 1, 1, 6, 6), ends="Images must be in [0, 1]"),
    "images that are not finite": Edge(random(2, 1, 1, 6, 6) / 0, ends="Images must be in [0, 1]"),
}
ATTACKS = ("ig:steps=2", "analytic")
FEW = ("one class", "grey images", "saturated by a bias")
CASES = [(name, attack) for attack in ATTACKS for name in EDGES]
CASES += [(name, attack) for attack in ("dlg:steps=2", "labels", "bayes:steps=2") for name in FEW]
ALSO_REFUSED = {
    "ig:steps=2": {"1x1 images": "vectors", "1x9 images": "vectors", "colours of 1x1": "vectors"},
    "analytic": {
        "batches beyond the classes": "solves for one image",
        "a batch of one image again and again": "solves for one image",
    },
}
"""What single attacks refuse beside, since it is nothing that they could solve, and in which words."""


def model_of(edge: Edge) -> nn.Module:
    torch.manual_seed(0)
    pixels = edge.images[0, 0].numel()
    model = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 8), nn.Sigmoid(), nn.Linear(8, edge.classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(edge.scale)
        model[3].bias[0] += edge.bias
    return model


def victims_of(edge: Edge) -> Victims:
    many, batch = edge.images.shape[:2]
    labels = torch.arange(many * batch).reshape(many, batch) % edge.classes
    labels = torch.zeros_like(labels) if edge.bias else labels
    places = torch.arange(many * batch).reshape(many, batch)
    return Victims(edge.images, labels, places, tuple(f"v{at}" for at in range(many)))


def audited(edge: Edge, attack: str) -> dm.Result | str:
    """What comes of an audit, or why it is refused."""
    how = dm.Resources(progress=False, dtype=edge.dtype, workers=1)
    try:
        return dm.audit(model_of(edge), victims_of(edge), attack=attack, resources=how)
    except DosimeterError as reason:
        return str(reason)


@pytest.mark.parametrize(("name", "attack"), CASES)
def test_numbers_at_their_edge_give_finite_figures_or_a_refusal(name: str, attack: str) -> None:
    edge, result = EDGES[name], audited(EDGES[name], attack)
    if isinstance(result, str):
        assert "\n" not in result
        says = ALSO_REFUSED.get(attack, {}).get(name, edge.ends)
        assert says, result
        assert says in result
        return
    json.dumps(result.document(), allow_nan=False)
    assert all(images.isfinite().all() for images in (result.raw, result.raw_baseline) if images is not None)
    if edge.ends in list(Outcome):
        assert {record.stopped for record in result.records} == {edge.ends}
        assert weigh(result).kind is Kind.INCONCLUSIVE
    else:
        assert not edge.ends

"""What a traced search records of every tensor, against gradients taken by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import dosimeter as dm
from dosimeter import store
from dosimeter.attacks import presets
from dosimeter.types import TRACED, Victims
from small import network


@pytest.mark.parametrize("defense", ["none", "precode:k=3"])
def test_a_trace_is_of_the_simulated_update_and_moves_nothing(defense: str, tmp_path: Path) -> None:
    model = network().eval()
    images = torch.rand(2, 1, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    victims = Victims(images, torch.tensor([[1], [3]]), torch.tensor([[0], [1]]), ("a", "b"))
    attack = presets.inverting_gradients(steps=6, trace=True, tv=0.01)
    how = {"defense": dm.auditing.part("defense", defense), "seed": 0}
    found = dm.audit(model, victims, attack=attack, **how)
    plain = dm.audit(model, victims, attack=replace(attack, trace=False), **how)
    assert torch.equal(found.images, plain.images)
    assert not plain.curve.traces
    traces = found.curve.traces
    assert all(each.shape == (len(victims.ids), len(found.curve.steps), len(TRACED)) for each in traces.values())
    store.write_run(found, tmp_path)
    again = store.read(tmp_path)
    assert set(again.curve.traces) == set(traces)  # type: ignore[union-attr]
    assert all(torch.equal(again.curve.traces[name], each) for name, each in traces.items())  # type: ignore[union-attr]
    if defense != "none":
        return
    last = {name: dict(zip(TRACED, each[0, -1].tolist(), strict=True)) for name, each in traces.items()}
    simulated, observed = (
        torch.autograd.grad(F.cross_entropy(model(images[0]), victims.labels[0]), list(model.parameters()))
        for images in (found.raw, victims.images)
    )
    for (name, _), g, o in zip(model.named_parameters(), simulated, observed, strict=True):
        first, second = o.flatten().abs().topk(2).indices.tolist()
        assert last[name]["norm"] == pytest.approx(float(g.norm()), rel=1e-3)
        assert last[name]["observed norm"] == pytest.approx(float(o.norm()), rel=1e-3)
        cosine = float((g * o).sum() / (g.norm() * o.norm()))
        assert last[name]["cosine"] == pytest.approx(cosine, abs=1e-3)
        assert last[name]["second"] == pytest.approx(float(g.flatten()[second]), rel=1e-2, abs=1e-5)
        assert last[name]["observed first"] == pytest.approx(float(o.flatten()[first]), rel=1e-3)

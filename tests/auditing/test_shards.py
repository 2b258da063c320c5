"""An audit in shards is the audit, to the byte."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dosimeter as dm
from dosimeter import presets
from dosimeter.attacks import Stop
from dosimeter.auditing import Audit, Resources, Scoring, audit_all, part, perform, shards
from dosimeter.data import load, pick, pick_decoys
from dosimeter.errors import DataError
from small import network


def whole(victims: int = 5, **more: Any) -> Audit:
    """Victims in tiles of two, in float32."""
    images = load("mnist-5k").prepared(16, None)
    picked = pick(images, victims, seed=0)
    picked = picked._replace(labels=picked.labels % 5)  # of which the network has so many
    decoys = pick_decoys(images, picked, 20, seed=0, split="train")
    scoring = Scoring(decoys=decoys, among=9)
    resources = Resources(budget=110_000, steady=True, workers=1, progress=False)
    found = {"attack": part("attack", "ig:steps=4"), "resources": resources, "scoring": scoring, **more}
    return Audit(model=network(), victims=picked, **found)


def same(one: dm.Result, other: dm.Result, *, within: float = 0.0) -> bool:
    """To the byte; `within` allows for solvers, which round otherwise from run to run."""
    pairs = [(one.raw, other.raw), (one.raw_baseline, other.raw_baseline), (one.curve.match, other.curve.match)]
    alike = all(torch.allclose(this, that, rtol=0, atol=within) for this, that in pairs)
    return alike and json.dumps(one.document()) == json.dumps(other.document())


def joined(audit: Audit, many: int, folder: Path, steps: int | None = None) -> tuple[int, dm.Result]:
    parts = []
    for at, each in enumerate(shards.cut(audit, many, steps=steps)):
        shards.write_shard(folder / str(at), shards.attack_shard(audit, each, steps=steps))
        parts.append(shards.read_shard(folder / str(at)))
    return len(parts), shards.judge_shards(audit, parts, steps=steps)


def test_shards_are_whole_tiles_and_cover_all() -> None:
    audit = whole()
    tile = perform(audit).settings["tile"]
    assert 1 < tile < 4
    for many in (1, 2, 3, 100):
        cut = shards.cut(audit, many)
        assert [each.start for each in cut] == [0, *(each.stop for each in cut[:-1])]
        assert cut[-1].stop == 5
        assert len(cut) == min(many, -(-5 // tile))
        assert all(each.start % tile == 0 for each in cut)


@pytest.mark.parametrize("attack", ["ig:steps=4", "ig:steps=4,restarts=2", "analytic"])
def test_what_shards_find_together_is_what_is_found_of_all(attack: str, tmp_path: Path) -> None:
    audit = whole(attack=part("attack", attack))
    many, found = joined(audit, 3, tmp_path)
    assert many > 1
    assert same(found, perform(audit), within=1e-9 if attack == "analytic" else 0.0)


def test_searches_that_are_begun_anew_are_the_same_in_shards(tmp_path: Path) -> None:
    audit = whole(attack=replace(presets.inverting_gradients(), stop=Stop(steps=12, leg=12)))
    found = joined(audit, 2, tmp_path)[1]
    assert any(record.again for record in found.records)
    assert same(found, perform(audit))


def test_a_panel_in_shards_is_the_panel(tmp_path: Path) -> None:
    audit = whole(4, defense=part("defense", "noise:sigma=0.01"))
    many, found = joined(audit, 2, tmp_path, steps=3)
    assert many == 2
    beside = audit_all(audit, steps=3)
    assert len(found.panel) == len(beside.panel) > 2
    assert found.verdict == beside.verdict
    for one, other in zip(found.panel, beside.panel, strict=True):
        assert one.refused == other.refused
        assert one.result is None or (other.result is not None and same(one.result, other.result, within=1e-9))
    assert same(found, beside, within=1e-9)


def test_a_shard_that_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / shards.FILE).write_bytes(b"something else")
    with pytest.raises(DataError, match="cannot be read"):
        shards.read_shard(tmp_path)

"""An audit in shards: victims who are attacked apart, in whatever process, and judged together.

A shard is a number of whole tiles (`Resources.steady`), so that what an attack finds of its victims is what it finds of
them among all others, to the byte.
"""

import io
import math
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from dosimeter import files
from dosimeter.attacks import Steps
from dosimeter.auditing.job import Job, Ran, on_cpu
from dosimeter.auditing.panel.panel import audit_all, audits_of
from dosimeter.auditing.result import Result
from dosimeter.auditing.run import Attacked, attack, judged
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.watches import Place
from dosimeter.errors import DataError, SettingError
from dosimeter.types import Curve, Ended, Outcome, Reconstruction, Trained

FILE = "shard.pt"

Shard = Mapping[str, Attacked | str]
"""What each attack found of some victims, by its name, or why it was refused."""


def cut(audit: Audit, many: int, *, steps: Steps | None = None) -> list[slice]:
    """Victims in as many shards of about one size as were asked for, or in fewer where there are fewer tiles."""
    assert audit.victims is not None
    tiles = []
    for each in [audit] if steps is None else audits_of(audit, steps=steps):
        with suppress(SettingError):  # which is said when it is run
            tiles.append(Job(each).plan.victims)
    grain, of = math.lcm(*tiles), len(audit.victims.ids)
    whole = -(-of // grain)
    many = min(many, whole)
    ends = [min(of, grain * (whole * at // many)) for at in range(many + 1)]
    return [slice(first, last) for first, last in pairwise(ends)]


def attack_shard(audit: Audit, where: slice, *, steps: Steps | None = None) -> Shard:
    """What the attack, or a panel with so many steps, finds of some of the victims."""
    assert audit.victims is not None
    victims, found = audit.victims.take(where), dict[str, Attacked | str]()
    if steps is None:
        found[_name(audit)] = alone = attack(Job(replace(audit, victims=victims)))
        if alone.ran.found.interrupted or alone.ran.blind.interrupted:
            raise KeyboardInterrupt
        return found

    def by(each: Audit, place: Place) -> Result:
        try:
            job = Job(replace(each, victims=victims))
            found[_name(each)] = attacked = attack(job, place=place)
        except SettingError as reason:
            found[_name(each)] = str(reason)
            raise
        return judged(job, attacked)

    audit_all(audit, steps=steps, by=by)  # of all victims, so that every shard has the same panel
    return found


def judge_shards(audit: Audit, shards: Sequence[Shard], *, steps: Steps | None = None) -> Result:
    """What comes of an audit all of whose shards were attacked."""

    def by(each: Audit, place: Place | None = None) -> Result:
        parts = [shard[_name(each)] for shard in shards]
        for part in parts:
            if isinstance(part, str):
                raise SettingError(part)
        return judged(Job(each), _joined([part for part in parts if isinstance(part, Attacked)]))

    return by(audit) if steps is None else audit_all(audit, steps=steps, by=by)


def _name(audit: Audit) -> str:
    """An attack's among those of a panel."""
    return f"{audit.attack.name}, {audit.updates}"


def _joined(parts: Sequence[Attacked]) -> Attacked:
    ran = [part.ran for part in parts]
    found, blind = (on_cpu([getattr(each, name) for each in ran]) for name in ("found", "blind"))
    truth = torch.cat([each.truth for each in ran])
    return Attacked(Ran(found, blind, truth), sum(part.seconds for part in parts))


def write_shard(folder: Path, shard: Shard) -> None:
    """Keep a shard as a file of tensors and plain values."""
    content = io.BytesIO()
    torch.save({name: each if isinstance(each, str) else _plain(each) for name, each in shard.items()}, content)
    files.replace(folder / FILE, content.getvalue())


def read_shard(folder: Path) -> Shard:
    """What was kept; reading it executes nothing."""
    try:
        kept: dict[str, Any] = torch.load(folder / FILE, weights_only=True)
        return {name: each if isinstance(each, str) else _attacked(each) for name, each in kept.items()}
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{folder / FILE} cannot be read ({files.reason(error)}); remove the folder.") from None


def _plain(attacked: Attacked) -> dict[str, Any]:
    def plain(found: Reconstruction) -> dict[str, Any]:
        return found._asdict() | {
            "stopped": [(each.outcome.value, each.detail) for each in found.stopped],
            "curve": (found.curve.steps, found.curve.match, dict(found.curve.traces)),
            "determined": [dict(each) for each in found.determined],
            "trained": [tuple(each) for each in found.trained],
        }

    found, blind, truth = attacked.ran
    return {"found": plain(found), "blind": plain(blind), "truth": truth, "seconds": attacked.seconds}


def _attacked(kept: Mapping[str, Any]) -> Attacked:
    def found(plain: Mapping[str, Any]) -> Reconstruction:
        made = {
            "stopped": tuple(Ended(Outcome(outcome), detail) for outcome, detail in plain["stopped"]),
            "curve": Curve(*plain["curve"]),
            "determined": tuple(plain["determined"]),
            "trained": tuple(Trained(*each) for each in plain["trained"]),
        }
        return Reconstruction(**{**plain, **made})

    return Attacked(Ran(found(kept["found"]), found(kept["blind"]), kept["truth"]), kept["seconds"])

"""What one captured update says for certain, if it is what it is said to be: an update of this model by this step."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks import Analytic
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.counts import least_counts
from dosimeter.attacks.last_layer import find_last_layer
from dosimeter.attacks.solve.certificate import ENTRY_ROUNDING, IMAGE
from dosimeter.auditing.captured.seeing import Seen
from dosimeter.auditing.records import Certificate, LabelsFound
from dosimeter.auditing.setting import Audit
from dosimeter.defenses import NoDefense
from dosimeter.errors import DosimeterError, SettingError
from dosimeter.types import UNTOLD, Reconstruction


class Certified(NamedTuple):
    """What is certain, and the image that it is said of, where anything of it is."""

    said: Certificate
    image: Tensor | None = None  # (1, 1, C, H, W) clipped to [0, 1]
    cut: bool = False  # solving for it was interrupted


def certify(seen: Seen, audit: Audit, found: Reconstruction, *, cut: bool = False) -> Certified:
    """Which share of the image the equations determine: by the attack that ran, or by the analytic one beside it.

    After Ctrl-C (`cut`) nothing more is solved for.
    """
    name = audit.attack.name
    if not found.determined and cut:
        return Certified(Certificate(refused="The audit was interrupted before anything was solved for."))
    if not found.determined:
        known = seen.observation.labels is not None
        solver = Analytic(labels=labels_.Known() if known else labels_.FromLastLayer())
        try:
            solver.check(seen.attacker.target, seen.observation.batch)
            found, name = solver(seen.attacker.target, [seen.observation], seed=audit.seed), solver.name
        except DosimeterError as reason:
            return Certified(Certificate(refused=str(reason)))
    holds = found.outcomes[0].explains
    match = float(found.match[0])
    share = found.determined[0].get(IMAGE, 0.0) if holds else 0.0
    said = Certificate(
        attack=name,
        verdict=found.stopped[0].words,
        share=share,
        layers=dict(found.determined[0]) if holds else {},
        match=match if match < torch.inf else None,
    )
    return Certified(said, found.images.cpu().float().clamp(0, 1) if share else None, found.interrupted)


def labels_said(seen: Seen, audit: Audit, found: Reconstruction) -> LabelsFound:
    """The labels that the attack used, and how often each class occurs at least."""
    told = found.labels is not None and not (found.labels[0] == UNTOLD).any()
    labels = found.labels[0].tolist() if found.labels is not None and told else None
    source = "granted" if audit.granted().labels else "recovered"
    return LabelsFound(source=source if told else "none", found=labels, **_least(seen, audit))


def _least(seen: Seen, audit: Audit) -> dict[str, Any]:
    """How often each class occurs at least, from one gradient that nothing was done to, or why that cannot be."""
    if seen.client.target.step is not None or audit.defense != NoDefense() or seen.client.target.secrets:
        return {}
    try:
        _, bias = find_last_layer(seen.attacker.target).gradients(seen.observation)
    except SettingError:
        return {}
    if bias is None:
        return {}
    batch, rounding = seen.observation.batch, ENTRY_ROUNDING * torch.finfo(seen.attacker.target.mean.dtype).eps
    if (
        float(bias[0].abs().sum()) > 2 + rounding * bias.shape[1]
        or abs(float(bias[0].sum())) > rounding * bias.shape[1]
    ):
        doubt = f"no mean over {batch} image(s) has such a gradient of the last bias, so the update is not what it was "
        return {"doubt": doubt + "said to be: noise, another scale (a sum, another learning rate) or another model"}
    counts = least_counts(bias[0], batch, rounding=rounding)
    return {"least": {str(c): int(n) for c, n in enumerate(counts.tolist()) if n}}

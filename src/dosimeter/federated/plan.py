"""How a federation is audited from what its server kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from dosimeter import data, fingerprint
from dosimeter.auditing import Audit
from dosimeter.clients import LocalTraining
from dosimeter.errors import ModelError
from dosimeter.types import BatchNorm, Shape, Victims

MOST = 16
"""Images of an update up to which they are searched for."""

Batches = Mapping[tuple[int, int], Victims]
"""{(round, node): its batch}"""


class Pool(NamedTuple):
    """Images (n, C, H, W) and labels (n,) that may be in an update."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Which:
    """Which updates are audited, and what is said of them that was not kept."""

    rounds: tuple[int, ...] = ()  # only these, counted from 1; all by default
    most: int = MOST  # images of an update up to which they are searched for
    batch: int | None = None  # images behind every update; by default as many as its client says
    batch_norm: BatchNorm | None = None  # how clients ran it; by default what their running statistics show


@dataclass(frozen=True, kw_only=True, eq=False)
class Beside:
    """What an auditor has beside the updates."""

    truth: Batches = field(default_factory=dict)  # one victim each, for scores alone
    pool: Pool | None = None  # images that may have been in the updates
    dataset: data.Dataset | None = None  # images of the auditor's own
    shadows: int = 8  # updates of them that each round is compared with
    split: str = "train"  # of the data


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """How a federation is audited."""

    audit: Audit  # with the app's model, whose weights are those of each round
    shape: Shape
    said: LocalTraining | None = None  # how clients trained, where that was not kept
    which: Which = Which()
    beside: Beside = field(default_factory=Beside)

    @property
    def made(self) -> str:
        """The fingerprint of all that determines what comes of an update, without the update itself."""
        audit, beside = self.audit, self.beside
        parts = [audit.model, audit.attack, audit.defense, audit.loss, audit.seed, audit.scoring]
        parts += [audit.resources.dtype, audit.resources.minutes]
        others = [beside.truth, beside.dataset and beside.dataset.fingerprint, beside.shadows, beside.split]
        try:
            return fingerprint.of([fingerprint.code(), parts, self.shape, self.said, self.which, others])
        except ModelError:  # a part that cannot be told from others
            return ""

"""What an audit hands over."""

import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from dosimeter import types
from dosimeter.types import Curve, Record, ThreatModel, Victims


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """An audit's outcome. `document()` is what a rerun repeats to the byte; times and machine stand apart."""

    settings: dict[str, Any]
    threat: ThreatModel
    records: list[Record]
    scores: dict[str, Any]
    victims: Victims
    images: Tensor  # (V, B, C, H, W) reconstructions, clipped to [0, 1], in the victims' order
    baseline: Tensor  # (V, B, C, H, W) the same without the update
    curve: Curve
    seconds: float
    environment: dict[str, str]
    status: str  # complete or interrupted
    panel: list[dict[str, Any]] = field(default_factory=list)  # all attacks that were tried, where there were several
    times: list[float] = field(default_factory=list)  # seconds that each of them took; `seconds` are those of all
    verdict: str = ""  # what they say together
    seen: list[tuple[str, Tensor]] = field(default_factory=list)  # what each of them saw, (V, B, C, H, W)

    @property
    def originals(self) -> Tensor:
        """(V, B, C, H, W) the private images."""
        return self.victims.images

    @property
    def unmeasured(self) -> str:
        """Of how many victims nothing is said, by this attack or another of the panel, and why; nothing for none."""
        tried = [row for row in self.panel if row["role"] != "control" and "refused" not in row]
        counts = [(row["unmeasured"], f" of {row['attack']}") for row in tried] or [(self.scores["unmeasured"], "")]
        said = [_unmeasured(found, len(self.victims.ids), by) for found, by in counts]
        return " ".join(dict.fromkeys(text for texts in said for text in texts))

    def document(self) -> dict[str, Any]:
        """Settings, threat model, scores and records as plain values."""
        document = {
            "format": 1,
            "status": self.status,
            "settings": self.settings,
            "threat": vars(self.threat),
            "scores": self.scores,
            "ids": list(self.victims.ids),  # each names all images of a batch, so it stands once
            "records": self.records,
        }
        return document | {"panel": self.panel, "verdict": self.verdict} if self.panel else document

    def summary(self) -> str:
        """The numbers that matter in a few lines."""
        s, scores, floor = self.settings, self.scores["scores"], self.scores["baseline"]
        lines = [
            f"{s['attack_name']} on {s['model']}, {s['data']}: {s['victims']} updates of {s['batch']} image(s), "
            f"defense {s['defense']}" + ("" if self.threat.server == "honest" else f", server {self.threat.server}"),
            f"  images read (SSIM >= {s['threshold']}): {self.scores['success']['text']}",
        ]
        for key in ("ssim", "psnr", "lpips", *s.get("metrics", {})):
            if key in scores:
                one = scores[key]
                blind = floor[key]["mean"]
                lines.append(f"  {key.upper():5} {one['mean']:.3f} +- {one['std']:.3f}, without the update {blind:.3f}")
        if "identification" in self.scores:
            found = self.scores["identification"]
            lines.append(f"  identified: {found['text']}, chance {found['chance']:.1%}")
        if "labels" in self.scores:
            found = self.scores["labels"]
            lines.append(
                f"  labels right: {found['text']}, an even guess {found['guess']:.1%}; "
                f"updates with all of them: {found['updates']['text']}"
            )
        worst = self.scores["worst"]
        lines.append(f"  most exposed: image {worst['index']} with SSIM {worst['ssim']:.3f}")
        lines += [f"  {self.unmeasured}"] if self.unmeasured else []
        if self.status != "complete":
            lines.append(f"  this audit was {self.status}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, eq=False)
class Captured:
    """What was made of one captured update: V is 1, and nothing here needs the truth.

    `scores` holds what can be said without it:

        certificate   what the equations determine, or why nothing is solved for
        labels        those that were granted or found, and the least counts that are certain
        match         how far the reconstruction's update is from the captured one, None where the search diverged
        unmeasured    {why: 1} where nothing is said: the search diverged or the update is zero
        shadows       how that compares with updates of other images, or why it is not compared
        judged        the scores of an ordinary audit, only where the truth was given
    """

    settings: dict[str, Any]
    threat: ThreatModel
    records: list[Record]
    scores: dict[str, Any]
    images: Tensor  # (1, B, C, H, W) reconstructions, clipped to [0, 1]; in the truth's order where there is one
    baseline: Tensor  # (1, B, C, H, W) the same without the update
    curve: Curve
    seconds: float
    environment: dict[str, str]
    status: str  # complete or interrupted
    certified: Tensor | None = None  # (1, 1, C, H, W) the image of the certificate, where anything of it is certain
    judged: Result | None = None  # beside the truth, where it was given

    @property
    def originals(self) -> Tensor | None:
        """(1, B, C, H, W) the truth, where it was given."""
        return None if self.judged is None else self.judged.originals

    @property
    def unmeasured(self) -> str:
        """Why nothing is said of the update; nothing where something is."""
        return " ".join(_unmeasured(self.scores["unmeasured"], 1))

    def document(self) -> dict[str, Any]:
        """Settings, threat model, scores and records as plain values."""
        return {
            "format": 1,
            "captured": True,
            "status": self.status,
            "settings": self.settings,
            "threat": vars(self.threat),
            "scores": self.scores,
            "records": self.records,
        }


def _unmeasured(counts: dict[str, int], of: int, by: str = "") -> list[str]:
    """Sentences on how many of so many updates the attack `by` says nothing of, and why."""
    said = []
    if n := counts.get(types.Outcome.DIVERGED):
        which = "the update" if of == 1 else f"{n} of {of} updates"
        said.append(f"The search{by} diverged on {which}, of which it says nothing.")
    if n := counts.get(types.Outcome.ZERO_UPDATE):
        whose = "" if of == 1 else f" for {n} of {of} victims"
        said.append(f"The update is zero{whose}: it holds nothing to read, and its labels are not determined.")
    if n := counts.get(types.Outcome.OUT_OF_TIME):
        said.append(f"The time{by} was up before it came to {n} of {of} updates, which it did not try.")
    return said


Outcome = Result | Captured
"""What a run folder and a report are made of."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during an audit; `result` holds what was there by then."""

    def __init__(self, result: Result) -> None:
        super().__init__("interrupted")
        self.result = result


class InterruptedCapture(KeyboardInterrupt):
    """Ctrl-C while a captured update was audited; `result` holds what was there by then."""

    def __init__(self, result: Captured) -> None:
        super().__init__("interrupted")
        self.result = result


def environment() -> dict[str, str]:
    """Versions and machine, which a rerun need not repeat."""
    return {
        "dosimeter": version("dosimeter"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }

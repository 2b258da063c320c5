"""What an audit hands over, and what its run folder keeps."""

import platform
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor

from dosimeter import plain, types
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.dosed import Dosed
from dosimeter.auditing.records import COMPLETE, Finding, ImageRecord, Summary
from dosimeter.auditing.verdict import weigh
from dosimeter.metrics import Rate
from dosimeter.types import Curve, ThreatModel, Victims

Role = Literal["published", "adaptive", "control"]
"""Of an attack in a panel."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What every run has. `document()` is what a rerun repeats to the byte; times and machine stand apart."""

    settings: dict[str, Any]
    threat: ThreatModel
    records: list[ImageRecord]
    raw: Tensor  # (V, B, C, H, W) reconstructions as the attack left them, in the victims' order
    raw_baseline: Tensor  # (V, B, C, H, W) the same without the update
    curve: Curve
    seconds: float
    environment: dict[str, str]
    status: str  # complete or interrupted
    command: str = ""  # that made it, where one did
    made: str = ""  # a fingerprint of all that determines it, where it may be asked for again

    @cached_property
    def images(self) -> Tensor:
        """(V, B, C, H, W) reconstructions, clipped to [0, 1]."""
        return clipped(self.raw)

    @cached_property
    def baseline(self) -> Tensor:
        """(V, B, C, H, W) the same without the update."""
        return clipped(self.raw_baseline)

    def _document(self, **more: Any) -> dict[str, Any]:
        """Settings, threat model, scores and records as plain values."""
        head = {"format": 1, "status": self.status, "settings": self.settings, "threat": vars(self.threat)}
        return head | more | {"records": [record.document() for record in self.records]}


@dataclass(frozen=True, kw_only=True, eq=False)
class Result(Found):
    """An audit's outcome."""

    scores: Summary
    victims: Victims
    std: Tensor | None = None  # (C, 1, 1) what the model divides images by; None in runs of before it was kept
    transformed: Tensor | None = None  # (V, B, C, H, W) what clients trained on, where their defense made other images
    read_as: Tensor | None = None  # (V, B, C, H, W) what an attack read before it undid what a defense did to images
    panel: tuple["Trial", ...] = ()  # all attacks that were tried, where there were several; `seconds` are those of all
    verdict: str = ""  # what they say together
    dosed: Dosed | None = None  # what the updates tell by their dose, where it was measured

    @property
    def originals(self) -> Tensor:
        """(V, B, C, H, W) the private images."""
        return self.victims.images

    @property
    def unmeasured(self) -> str:
        """Of how many victims nothing is said, by this attack or another of the panel, and why; nothing for none."""
        tried = [(each.result, f" of {each.attack}") for each in self.panel if each.role != "control"]
        counts = [(found.scores.unmeasured, by) for found, by in tried if found] or [(self.scores.unmeasured, "")]
        said = [_unmeasured(found, len(self.victims.ids), by) for found, by in counts]
        return " ".join(dict.fromkeys(text for texts in said for text in texts))

    @property
    def alone(self) -> tuple[Any, ...]:
        """Nothing shows a leak but what stands beside the truth."""
        return ()

    @property
    def most_exposed(self) -> str:
        """The image that was read best, in a sentence."""
        worst = self.scores.worst
        return f"The most exposed image is number {worst.index} of the data, with an SSIM of {worst.ssim:.2f}."

    def document(self) -> dict[str, Any]:
        """Settings, threat model, scores and records as plain values."""
        told: dict[str, Any] = {"panel": [each.row() for each in self.panel], "verdict": self.verdict}
        found = weigh(self)
        claims = {each.name: {"hits": each.rate.hits, "of": each.rate.of, "p": each.p} for each in found.claims}
        conclusion = {"kind": found.kind.value, "sentence": found.sentence, "details": list(found.details)}
        told = {"conclusion": conclusion | {"claims": claims}} | (told if self.panel else {})
        told |= {} if self.dosed is None else {"dose": self.dosed.document()}
        # A name is that of all images of a batch, so it stands once.
        return self._document(scores=plain.of(self.scores), ids=list(self.victims.ids), **told)

    def summary(self) -> str:
        """The numbers that matter in a few lines."""
        s, scores = self.settings, self.scores
        lines = [
            f"{s['attack_name']} on {s['model']}, {s['data']}: {s['victims']} updates of {s['batch']} image(s), "
            f"defense {s['defense']}" + ("" if self.threat.server == "honest" else f", server {self.threat.server}"),
            f"  {weigh(self).sentence}",
            f"  images read (SSIM >= {s['threshold']}): {scores.success.text}",
        ]
        for key in ("ssim", "psnr", "lpips", "lpips_vgg", *s.get("metrics", {})):
            if one := scores.scores.get(key):
                blind = scores.baseline[key].mean
                lines.append(f"  {key.upper():5} {one.mean:.3f} +- {one.std:.3f}, without the update {blind:.3f}")
                if made := scores.transformed:
                    one, blind = made[key], made.baseline[key].mean
                    lines.append(f"        {one.mean:.3f} +- {one.std:.3f} with what clients trained on, {blind:.3f}")
        if found := scores.identification:
            lines.append(f"  identified: {found.text}, chance {found.chance:.1%}")
        if labels := scores.labels:
            lines.append(
                f"  labels right: {labels.text}, an even guess {labels.guess:.1%}; "
                f"updates with all of them: {labels.updates.text}"
            )
        lines.append(f"  most exposed: image {scores.worst.index} with SSIM {scores.worst.ssim:.3f}")
        lines += [f"  {self.unmeasured}"] if self.unmeasured else []
        if self.status != COMPLETE:
            lines.append(f"  this audit was {self.status}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One attack of a panel: its result, or why there is none."""

    attack: str
    role: Role
    about: str
    rounds: int = 1
    same_client: int = 1
    result: Result | None = None
    refused: str = ""

    def row(self) -> dict[str, Any]:
        """As plain values, with the few numbers that tell it from the others."""
        told = ("attack", "role", "about", "rounds", "same_client")
        row = {key: getattr(self, key) for key in told}
        if self.result is None:
            return row | {"refused": self.refused}
        scores = self.result.scores
        row |= {"unmeasured": scores.unmeasured, "success": plain.of(scores.success), "ssim": scores["ssim"].mean}
        row |= {"psnr": scores["psnr"].mean, "worst": plain.of(scores.worst)}
        if made := scores.transformed:
            row["transformed"] = plain.of(Rate(made.hits, made.of)) | {key: made[key].mean for key in ("ssim", "psnr")}
        return row | ({"recovered": plain.of(scores.recovered)} if scores.recovered else {})


@dataclass(frozen=True, kw_only=True, eq=False)
class Captured(Found):
    """What was made of one captured update: V is 1, and nothing here needs the truth but what was judged beside it.

    Images and records are in the truth's order where there is one.
    """

    scores: Finding
    certified: Tensor | None = None  # (1, 1, C, H, W) the image of the certificate, where anything of it is certain
    judged: Result | None = None  # beside the truth, where it was given

    @property
    def originals(self) -> Tensor | None:
        """(1, B, C, H, W) the truth, where it was given."""
        return None if self.judged is None else self.judged.originals

    @property
    def unmeasured(self) -> str:
        """Why nothing is said of the update; nothing where something is."""
        return " ".join(_unmeasured(self.scores.unmeasured, 1))

    def document(self) -> dict[str, Any]:
        """Settings, threat model, scores and records as plain values."""
        ids = {} if self.judged is None else {"ids": list(self.judged.victims.ids)}
        found = weigh_captured(self)
        conclusion = {"kind": found.kind.value, "sentence": found.sentence}
        return self._document(captured=True, conclusion=conclusion, scores=plain.of(self.scores), **ids)


def clipped(images: Tensor) -> Tensor:
    """Images as a viewer shows them, whatever an attack left."""
    return torch.nan_to_num(images).clamp(0, 1)


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
        which = "the update" if of == 1 else f"{n} of {of} updates"
        said.append(f"The time{by} was up before it was done with {which}.")
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

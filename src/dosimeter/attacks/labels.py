"""Where the labels of a search come from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dosimeter.attacks import counts
from dosimeter.attacks.last_layer import INSTEAD, TARGETS, LastLayer, features, find_last_layer
from dosimeter.attacks.stages import Beat, unheard
from dosimeter.errors import SettingError, unknown
from dosimeter.trees import squared_norms
from dosimeter.types import UNTOLD, Local, Observation, Step, Summed, Target


class Labels:
    """The start of all sources of labels."""

    granted = False
    """Whether the threat model must grant them."""

    def check(self, target: Target, batch: int) -> None:
        """Refuse a task or a model whose updates do not tell them, before any work."""

    def find(self, target: Target, observation: Observation, beat: Beat = unheard) -> Tensor:
        """(V, B); `beat` is called between pieces of the work."""
        raise NotImplementedError

    def classes(self, target: Target) -> int:
        """How many logits a label has that is searched with the images; 0 where none is."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Known(Labels):
    """Granted by the threat model, as in PPP, CVB and Inverting Gradients (Remark 1)."""

    granted = True

    def find(self, target: Target, observation: Observation, beat: Beat = unheard) -> Tensor:
        if observation.labels is None:
            raise SettingError(
                "This attack needs the labels, which are not granted; give them (Capture(labels=...)) or have them "
                "found (labels=counts, or joint where the client trains with Adam)."
            )
        return observation.labels


@dataclass(frozen=True, kw_only=True)
class FromLastLayer(Labels):
    """Read off the last layer's gradient, exact for one image an update: only the label's entry of p - y is negative.

    `rule` says where p - y is taken from:

        rows   the sums of the weight gradient's rows, (p - y) sum(f): the label's is the most negative where the
               features f do not sum to less than 0, as after ReLU or a sigmoid (iDLG, Eq. 4)
        bias   the bias gradient, which is p - y whatever the features are
        auto   weight and bias gradient side by side have rank one, (p - y) (f, 1)^T: their projection on the main
               direction is p - y up to scale, and noise on single entries averages out; see `residuals` for the sign

    Deviations: iDLG's own rule is `rows`, which fails on features of both signs, for instance a ViT's.
    """

    rule: Literal["auto", "bias", "rows"] = "auto"

    def __post_init__(self) -> None:
        if self.rule not in ("auto", "bias", "rows"):
            raise SettingError(unknown("rule to read a label", self.rule, ("auto", "bias", "rows")))

    def check(self, target: Target, batch: int) -> None:
        if batch != 1:
            instead = f"count labels (--attack ig:labels=counts), {INSTEAD}" if _sums(target.step) else INSTEAD
            raise SettingError(f"iDLG reads one label off an update, but this one holds {batch} images; {instead}.")
        layer = find_last_layer(target)
        for rule, name, what in (("rows", layer.weight, "weight"), ("bias", layer.bias, "bias")):
            if self.rule == rule and name is None:
                raise SettingError(
                    f"The rule {rule!r} reads the gradient of the last layer's {what}, and {layer.path!r} trains none; "
                    "use rule=auto."
                )

    def find(self, target: Target, observation: Observation, beat: Beat = unheard) -> Tensor:
        self.check(target, observation.batch)
        weight, bias = find_last_layer(target).gradients(observation)
        if self.rule == "rows" and weight is not None:
            found = weight.sum(-1)
        elif self.rule == "bias" and bias is not None:
            found = bias
        else:
            found = residuals(weight, bias)
        return torch.where(found.any(-1), found.argmin(-1), UNTOLD).unsqueeze(-1)


@dataclass(frozen=True, kw_only=True)
class Counts(Labels):
    """How often each class occurs in a batch of any size, from the last layer's gradient; labels sorted by class.

    `rule` is `fit`, which estimates the batch's mean output from the update itself (`counts.fit_counts`), or `llg`, the
    published rule of thumb (`counts.llg_counts`). Counts are exact while the mean output is known to 1 / (2 B): about
    always on untrained networks with a bias, the less the longer a network was trained and the larger the batch.
    One image's label is read as by `FromLastLayer`, which is exact. Of local training by SGD the update is a sum of
    gradients that shrink on the way, by how much is fitted too; images that it counts alike have no order.
    """

    rule: Literal["fit", "llg"] = "fit"

    def __post_init__(self) -> None:
        if self.rule not in ("fit", "llg"):
            raise SettingError(unknown("rule to count labels", self.rule, ("fit", "llg")))

    def check(self, target: Target, batch: int) -> None:
        find_last_layer(target)
        if batch > 1 and not _sums(target.step):
            raise SettingError(
                f"Labels are counted from sums of gradients, and the client sends none by {target.step!r}; {INSTEAD}."
            )

    def find(self, target: Target, observation: Observation, beat: Beat = unheard) -> Tensor:
        self.check(target, observation.batch)
        if observation.batch == 1:
            return FromLastLayer().find(target, observation)
        layer, batch, step = find_last_layer(target), observation.batch, target.step
        matrix, shift = layer.values(target)
        weights, pull = torch.ones(batch).to(matrix), None
        if isinstance(step, Local):
            weights, pull = step.weights(batch).to(matrix), step.pull(target.parameters, batch)
        weights = weights / weights.mean()
        slopes, offsets = layer.gradients(observation, pull)
        squares = squared_norms(observation.gradient).sum(1).tolist()
        found = []
        for v, own in enumerate(_own_features(target, layer, observation)):
            beat()
            slope = None if slopes is None else slopes[v]
            if not any(part[v].any() for part in (slopes, offsets) if part is not None):
                found.append(torch.full((batch,), UNTOLD, device=target.mean.device))
                continue
            if offsets is not None:
                offset = offsets[v]
            else:
                assert slope is not None
                offset = counts.pseudo_bias(slope, own)
            if self.rule == "llg":
                labels = counts.nearest_labels(counts.llg_counts(offset, batch).to(weights), weights)
            else:
                along = counts.course(step, batch, offset, squares[v])
                labels = counts.fit_labels(counts.Gradients(matrix, shift, slope, offset, own), weights, along)
            found.append(torch.where(weights > 0, labels, UNTOLD))
        return torch.stack(found)


@dataclass(frozen=True, kw_only=True)
class Joint(Labels):
    """Unknowns beside the images: the softmax of logits that start standard normal (DLG, Eq. 4 and Alg. 1)."""

    def check(self, target: Target, batch: int) -> None:
        if not target.classification:
            raise SettingError(f"Labels can be searched only under cross-entropy; {TARGETS}.")

    def find(self, target: Target, observation: Observation, beat: Beat = unheard) -> Tensor:
        """(V, B) of zeros: nothing is known of the labels before the search."""
        return torch.zeros(len(observation.ids), observation.batch, dtype=torch.long)

    def classes(self, target: Target) -> int:
        self.check(target, 1)
        with torch.no_grad():
            blank = torch.zeros(1, *target.shape, dtype=target.mean.dtype, device=target.mean.device)
            return int(target.model(blank).shape[1])


def _sums(step: Step | None) -> bool:
    """Whether an update is a sum of gradients."""
    return step is None or (isinstance(step, Summed) and step.sums)


def usable(labels: Tensor) -> Tensor:
    """Labels that a model can be run with: any class, the first, where the update does not tell."""
    return torch.where(labels == UNTOLD, 0, labels)


def residuals(weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """(V, classes): p - y of one image, up to a factor above 0, from gradients (V, classes, features) and (V, classes).

    It is the projection of the layer's gradient on its main direction. A bias gives the sign. Without one it follows
    from p - y having one negative entry: the others are positive and so is their sum without the largest. Only of two
    classes nothing is left to sum; there features are taken to sum to more than 0, as iDLG takes them.
    """
    parts = [part for part in (weight, None if bias is None else bias.unsqueeze(-1)) if part is not None]
    whole = torch.cat(parts, -1)  # (V, classes, features + 1)
    main = torch.linalg.eigh(whole @ whole.mT).eigenvectors[..., -1:]  # (V, classes, 1)
    direction = whole.mT @ main  # (V, features + 1, 1)
    found = (whole @ direction).squeeze(-1)  # each row by itself, so that small entries keep their digits
    if bias is not None:
        sign = (found * bias).sum(-1)
    else:
        sign = found.sort(-1).values[..., 1:-1].sum(-1)
        sign = torch.where(sign == 0, direction.sum((-2, -1)), sign)
    return torch.where(sign[:, None] < 0, -found, found)


def _own_features(target: Target, layer: LastLayer, seen: Observation) -> Iterator[Tensor]:
    """(n, features) of the attacker's own images for every victim: the same for all unless clients send statistics."""
    images = counts.own_images(target)
    if seen.statistics is None:
        yield from [features(target, layer, images)] * len(seen.ids)
        return
    for v in range(len(seen.ids)):
        sent = {name: (mean[v], variance[v]) for name, (mean, variance) in seen.statistics.items()}
        yield features(replace(target, statistics=sent), layer, images)

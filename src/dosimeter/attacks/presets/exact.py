"""What is solved or counted rather than searched."""

from typing import Literal

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.around.key import RecoverKey
from dosimeter.attacks.labels_only import LabelsOnly
from dosimeter.attacks.presets.inverting import inverting_gradients
from dosimeter.attacks.presets.words import LABELS, pick, varies
from dosimeter.attacks.search.search import Search
from dosimeter.attacks.solve.analytic import Analytic, Eliminate
from dosimeter.attacks.solve.deep import Deep
from dosimeter.attacks.solve.features import Features
from dosimeter.attacks.solve.unlock import SolveLock


def analytic(*, labels: Literal["known", "idlg"] = "idlg", levels: int | None = 256) -> Analytic:
    """Solve a fully connected first layer for one image (Inverting Gradients, Prop. 1; rank one without a bias).

    Args:
        labels: granted, or read off the last layer (iDLG); only the check of the result and a layer without bias need
            them.
        levels: of a pixel in a file, for which patches of a ViT are taken that come out near them; none for any.
    """
    return Analytic(labels=pick("labels", labels, LABELS), levels=levels)


def eliminate(*, labels: Literal["known", "idlg"] = "idlg") -> Eliminate:
    """Solve for the noise that PRECODE or CVB drew inside the model, then for the image; our own.

    Args:
        labels: granted, or read off the last layer (iDLG); only the check of the result and a last layer without bias
            need them.
    """
    return Eliminate(labels=pick("labels", labels, LABELS))


def deep(*, labels: Literal["known", "idlg"] = "idlg", steps: int = 300, lr: float = 0.3, tv: float = 1e-4) -> Deep:
    """Solve a deep network's wide convolutions for what they saw, then for the image behind them; our own.

    Args:
        labels: granted, or read off the last layer (iDLG).
        steps: of Adam, for the image behind the lowest layer that is solved.
        lr: its learning rate on normalised images.
        tv: weight of the total variation in the first half of the steps.
    """
    return Deep(labels=pick("labels", labels, LABELS), iterations=steps, lr=lr, tv=tv)


def features(*, labels: Literal["known", "idlg"] = "idlg") -> Features:
    """Solve a layer inside the network for its input (Inverting Gradients, Prop. 1), then for the image behind it.

    Args:
        labels: granted, or read off the last layer (iDLG); only the check of the result needs them.
    """
    return Features(labels=pick("labels", labels, LABELS))


def unlock(*, labels: Literal["known", "idlg"] = "idlg") -> SolveLock:
    """Solve for the scale and shift of a key lock (FedKL, Eq. 29), then for the image, layer by layer; without its key.

    Args:
        labels: as in `analytic`.
    """
    return SolveLock(attack=analytic(labels=labels))


@varies(inverting_gradients, "steps lr tv distance signed labels", tv=1e-2, distance="mean-cosine")
def recover_key(search: Search) -> RecoverKey:
    """Read a key off the gradient of its lock (Inverting Gradients, Prop. 1) where clients send it; search with it.

    A lock without bias gives it by rank one, up to a factor that is known to about one over its length.
    """
    return RecoverKey(attack=search)


def labels_only(*, rule: Literal["fit", "llg", "auto", "bias", "rows"] = "fit") -> LabelsOnly:
    """Only the labels of a batch and no images: LLG (Wainakh et al. 2021), iDLG, or a fit of the last layer.

    Args:
        rule: how often each class occurs in a batch of any size, by a fit or by LLG; or the label of one image, from
            the whole last layer, its bias or the sums of its rows (iDLG, Eq. 4).
    """
    finders: dict[str, labels_.Labels] = {
        "fit": labels_.Counts(rule="fit"),
        "llg": labels_.Counts(rule="llg"),
        "auto": labels_.FromLastLayer(rule="auto"),
        "bias": labels_.FromLastLayer(rule="bias"),
        "rows": labels_.FromLastLayer(rule="rows"),
    }
    return LabelsOnly(labels=pick("rule", rule, finders))

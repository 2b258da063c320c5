"""DLG, iDLG and CPL: squared distance, by L-BFGS."""

from dataclasses import replace
from typing import Literal

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.presets.words import IGNORED, Ignore, Secrets, moving, needless, pick, treat, varies
from dosimeter.attacks.search import likelihoods, optimisers, priors, schedules, starts
from dosimeter.attacks.search.search import Search
from dosimeter.attacks.search.stopping import Steps, stop


def dlg(
    *,
    steps: Steps = 300,
    inner: int = 20,
    lr: float = 1.0,
    restarts: int = 1,
    line: Literal["none", "wolfe"] = "none",
    target: float | None = 1e-6,
    keep: Literal["last", "best"] = "best",
    ignore: Ignore = "nothing",
    secrets: Secrets = "resampled",
) -> Search:
    """Deep Leakage from Gradients (Zhu et al. 2019), Eq. 4: squared L2 match, image and label searched together.

    L-BFGS with learning rate 1, 300 steps of 20 iterations, normal start, no box, stop at a loss of 1e-6.

    Args:
        steps: how many steps at most.
        inner: iterations of L-BFGS in each.
        lr: its learning rate.
        restarts: searches from different starts, the lowest matching loss is kept.
        line: none, as in the paper's program, or a line search for the length of every move.
        target: stop at this loss.
        keep: return the last iterate or the one with the lowest loss.
        ignore, secrets: as in `inverting_gradients`.

    Deviations: the iterate with the lowest loss is returned, since without a line search the last may be far off.
    """
    return Search(
        name="dlg",
        likelihood=likelihoods.SquaredL2(),
        labels=labels_.Joint(),
        start=starts.Normal(),
        optimiser=optimisers.LBFGS(lr=lr, inner=inner, line=line),
        only=pick("ignore", ignore, IGNORED),
        secrets=treat(secrets),
        moves=(),
        restarts=restarts,
        keep=keep,
        stop=stop(steps, target=target),
    )


OfCVB = Literal["original", "cvb"]
"""An attack as its own paper has it, or as the CVB paper runs it."""

_CVB = {"steps": 2000, "lr": 0.01, "inner": 20, "target": 1e-5}


def _as_in_cvb(search: Search, *, box: bool) -> Search:
    """The other settings of its Table III: normal start, granted labels, x0.1 after 40 steps on a plateau, stop after
    400 without a lower loss."""
    return replace(
        search,
        labels=labels_.Known(),
        start=starts.Normal(),
        schedule=schedules.Plateau(patience=40),
        moves=moving(box=box),
        stop=replace(search.stop, patience=400),
    )


@varies(dlg, "steps inner lr restarts line target keep ignore secrets", variants={"cvb": _CVB})
def idlg(search: Search, *, rule: Literal["auto", "bias", "rows"] = "auto", variant: OfCVB = "original") -> Search:
    """iDLG (Zhao et al. 2020), Alg. 1: the label from the last layer (Eq. 4), then the image as in DLG.

    Args:
        rule: where the label is taken from: iDLG's own sums of rows, the bias, or the whole layer.
        variant: the paper's own, or as the CVB paper's program runs it for its Table III: L-BFGS with learning rate
            0.01, times 0.1 after 40 steps on a plateau, 2,000 steps of 20 iterations, stop at 1e-5 or after 400 without
            a lower loss, labels granted, pixels kept in [0, 1].

    Deviations: the label is read off the whole layer, since sums of rows fail on features of both signs; where they
    are right, both are.
    """
    if variant == "cvb":
        needless("rule", rule != "auto", "variant=cvb", "there the labels are granted")
        return replace(_as_in_cvb(search, box=True), name="idlg")
    return replace(search, name="idlg", labels=labels_.FromLastLayer(rule=rule))


@varies(
    dlg,
    "steps lr restarts line target keep ignore secrets",
    inner=1,
    target=None,
    variants={"cvb": _CVB | {"alpha": 0.01}},
)
def cpl(search: Search, *, alpha: float = 1e-3, variant: OfCVB = "original") -> Search:
    """Client Privacy Leakage (Wei et al. 2020), Alg. 1: squared L2 match plus alpha |F(x) - y|^2 on the prediction.

    The start is a uniform patch repeated 2x2; the label is read off the last layer; L-BFGS with learning rate 1, 300
    iterations.

    Args:
        alpha: weight of the prediction term.
        variant: the paper's own, or as the CVB paper's program runs it for its Table III: as its `idlg`, but without
            the box and with a weight of 0.01.

    Deviations: alpha is a choice of ours, small because an untrained model does not recognise the true image either;
    F is taken after the softmax, where CVB's program takes the distance, not squared, of the scores before it from the
    number of the class; the iterate with the lowest loss is returned.
    """
    prior, labels = alpha * priors.Prediction(), labels_.FromLastLayer()
    if variant == "cvb":
        return replace(_as_in_cvb(search, box=False), name="cpl", prior=prior)
    return replace(search, name="cpl", prior=prior, labels=labels, start=starts.Tiled(across=2))

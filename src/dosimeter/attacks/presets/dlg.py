"""DLG, iDLG and CPL: squared distance, by L-BFGS."""

from dataclasses import replace
from typing import Literal

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.presets.words import IGNORED, Ignore, Secrets, pick, treat, varies
from dosimeter.attacks.search import likelihoods, optimisers, priors, starts
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


@varies(dlg, "steps inner lr restarts line target keep ignore secrets")
def idlg(search: Search, *, rule: Literal["auto", "bias", "rows"] = "auto") -> Search:
    """iDLG (Zhao et al. 2020), Alg. 1: the label from the last layer (Eq. 4), then the image as in DLG.

    Args:
        rule: where the label is taken from: iDLG's own sums of rows, the bias, or the whole layer.

    Deviations: the label is read off the whole layer, since sums of rows fail on features of both signs; where they
    are right, both are.
    """
    return replace(search, name="idlg", labels=labels_.FromLastLayer(rule=rule))


@varies(dlg, "steps lr restarts line target keep ignore secrets", inner=1, target=None)
def cpl(search: Search, *, alpha: float = 1e-3) -> Search:
    """Client Privacy Leakage (Wei et al. 2020), Alg. 1: squared L2 match plus alpha |F(x) - y|^2 on the prediction.

    The start is a uniform patch repeated 2x2; the label is read off the last layer; L-BFGS with learning rate 1, 300
    iterations.

    Args:
        alpha: weight of the prediction term.

    Deviations: alpha is a choice of ours, small because an untrained model does not recognise the true image either;
    F is taken after the softmax; the iterate with the lowest loss is returned.
    """
    prior, labels = alpha * priors.Prediction(), labels_.FromLastLayer()
    return replace(search, name="cpl", prior=prior, labels=labels, start=starts.Tiled(across=2))

"""The papers' attacks with their printed settings; every setting can be changed by keyword."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, TypeVar

from dosimeter.attacks import (
    degraded,
    generators,
    likelihoods,
    masks,
    optimisers,
    priors,
    sampling,
    schedules,
    starts,
    treatments,
)
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.analytic import Analytic, Eliminate
from dosimeter.attacks.features import Features
from dosimeter.attacks.key import RecoverKey
from dosimeter.attacks.labels_only import LabelsOnly
from dosimeter.attacks.leave_out import LeaveOut
from dosimeter.attacks.search import Search, Stop
from dosimeter.attacks.unlock import SolveLock
from dosimeter.errors import SettingError, unknown
from dosimeter.types import Attack

T = TypeVar("T")

_LABELS: dict[str, labels_.Labels] = {
    "known": labels_.Known(),
    "idlg": labels_.FromLastLayer(),
    "counts": labels_.Counts(),
}

Ignore = Literal["nothing", "noise", "bottleneck"]
"""Which tensors are left out of the match: none, those that noise drawn inside the model touches (CVB, Eq. 4), or the
whole bottleneck that draws it and all after it (PPP, Eq. 4)."""

_IGNORED: dict[str, masks.Mask] = {
    "nothing": masks.Everything(),
    "noise": masks.BeforeNoise(encoder=True),
    "bottleneck": masks.BeforeNoise(encoder=False),
}

Secrets = Literal["resampled", "guessed", "mean", "joint", "known"]
"""What is supposed of numbers that clients draw inside the model; see `treatments`."""


def inverting_gradients(
    *,
    steps: int = 2000,
    lr: float = 0.1,
    tv: float = 1e-2,
    restarts: int = 1,
    signed: bool = True,
    by: Literal["adam", "descent", "lbfgs"] = "adam",
    box: bool = True,
    distance: Literal["cosine", "mean-cosine", "chord", "l2", "l1", "survived", "interval"] = "cosine",
    top: int | None = None,
    decay: Literal["steps", "plateau", "none"] = "steps",
    plateau: int = 400,
    patience: int | None = None,
    target: float | None = None,
    labels: Literal["known", "idlg", "counts"] = "known",
    ignore: Ignore = "nothing",
    secrets: Secrets = "resampled",
    draws: int = 1,
    median: int | None = None,
    keep: Literal["last", "best"] = "last",
) -> Search:
    """Inverting Gradients (Geiping et al. 2020), Eq. 4: cosine match, total variation, signed Adam, box, restarts.

    The method is the paper's; steps, total variation and restarts default to values that suit a quick audit of a
    small network. `inverting_gradients_a` has the paper's own.

    Args:
        steps: how many steps at most.
        lr: learning rate on normalised images.
        tv: weight of the total variation.
        restarts: searches from different starts, the lowest matching loss is kept.
        signed: feed Adam the sign of the slope.
        by: Adam, or what the paper's Table 1 puts in its place: plain descent or L-BFGS with one iteration a step.
        box: keep pixels in [0, 1].
        distance: what is matched: cosine, the mean of every tensor's cosine or of its root (chord), squared L2 (Eq. 3)
            or L1; what survived pruning by size, or the intervals of 8-bit quantisation.
        top: match only so many tensors, those with the largest norm (Eq. 7); all by default.
        decay: shrink the step at 3/8, 5/8 and 7/8 of the steps, or when the loss stays for `plateau` steps.
        plateau: see `decay`.
        patience: stop after so many steps without a lower loss.
        target: stop at this loss.
        labels: granted, or read off the last layer: of one image (iDLG), or how often each class occurs in a batch.
        ignore: leave out the tensors that noise drawn inside the model touches; see `ignoring`.
        secrets: what is supposed of such noise: drawn anew at every step, guessed once, its mean, searched with the
            image, or known.
        draws: the mean over so many draws, where it is drawn anew.
        median: a 3x3 median filter every so many steps (Sec. 3.1), against the noise of strided first layers.
        keep: return the last iterate, as the paper's program does, or the one with the lowest loss.
    """
    matches: dict[str, likelihoods.Likelihood | likelihoods.Entrywise] = {
        "cosine": likelihoods.Cosine(),
        "mean-cosine": likelihoods.MeanCosine(),
        "chord": likelihoods.MeanChord(),
        "l2": likelihoods.SquaredL2(),
        "l1": likelihoods.L1(),
        "survived": likelihoods.Survived(),
        "interval": likelihoods.Interval(),
    }
    ways: dict[str, optimisers.Optimiser[Any]] = {
        "adam": optimisers.Adam(lr=lr, signed=signed),
        "descent": optimisers.Descent(lr=lr),
        "lbfgs": optimisers.LBFGS(lr=lr, inner=1),
    }
    decays: dict[str, schedules.Schedule] = {
        "steps": schedules.StepDecay(),
        "plateau": schedules.Plateau(patience=plateau),
        "none": schedules.Constant(),
    }
    return Search(
        name="ig",
        likelihood=_pick("distance", distance, matches),
        prior=tv * priors.TotalVariation(),
        labels=_pick("labels", labels, _LABELS),
        optimiser=_pick("by", by, ways),
        schedule=_pick("decay", decay, decays),
        only=_pick("ignore", ignore, _IGNORED) if top is None else masks.Largest(n=top),
        secrets=treat(secrets, draws),
        median=median,
        box=box,
        restarts=restarts,
        keep=keep,
        stop=Stop(steps=steps, patience=patience, target=target),
    )


def inverting_gradients_a(*, steps: int = 4000, restarts: int = 32, tv: float = 1e-8) -> Search:
    """Setting A of Inverting Gradients, Table 2: step size 0.1, 4,000 iterations, 32 restarts, total variation 1e-8."""
    return inverting_gradients(steps=steps, restarts=restarts, tv=tv, lr=0.1)


def inverting_gradients_b(*, steps: int = 12_000, restarts: int = 16, tv: float = 1e-4, top: int = 10) -> Search:
    """Settings B and C of Inverting Gradients, Table 2: 12,000 iterations, 16 restarts, total variation 1e-4, and only
    the 10 tensors with the largest norm. C is B on a network that was trained for 10 epochs."""
    return inverting_gradients(steps=steps, restarts=restarts, tv=tv, lr=0.1, top=top)


def inverting_gradients_cvb(
    *,
    steps: int = 20_000,
    tv: float = 1e-2,
    ignore: Ignore = "nothing",
    secrets: Secrets = "resampled",
    draws: int = 1,
    keep: Literal["last", "best"] = "last",
    penalty: bool = True,
) -> Search:
    """Inverting Gradients as the CVB paper runs it (Sec. V-B).

    Adam with learning rate 1, times 0.1 after 400 iterations on a plateau; stop at a loss of 1e-5, after 4,000
    iterations without a lower one, or after 20,000. Total variation 0.01 in the paper (0.1 in its program).

    Args:
        steps, tv, ignore, secrets, draws, keep: as in `inverting_gradients`.
        penalty: count the penalty of a defense's layers in the simulated loss, as the client's loss does; the released
            program does not.
    """
    search = inverting_gradients(
        steps=steps,
        tv=tv,
        lr=1.0,
        signed=False,
        decay="plateau",
        plateau=400,
        patience=4000,
        target=1e-5,
        ignore=ignore,
        secrets=secrets,
        draws=draws,
        keep=keep,
    )
    return replace(search, penalty=penalty)


def ignoring(
    *,
    steps: int = 20_000,
    tv: float = 1e-2,
    encoder: bool = True,
    draws: int = 1,
    keep: Literal["last", "best"] = "last",
    penalty: bool = True,
) -> Search:
    """The "Ignore" attack on noise inside the model: `inverting_gradients_cvb` on the tensors that it does not touch.

    Which these are is found by running the model with two draws; see `masks.BeforeNoise`.

    Args:
        encoder: match the layers that say how the noise is drawn too (CVB, Eq. 4), or not (PPP, Eq. 4).
        steps, tv, draws, keep, penalty: as in `inverting_gradients_cvb`.
    """
    search = inverting_gradients_cvb(
        steps=steps,
        tv=tv,
        ignore="noise" if encoder else "bottleneck",
        draws=draws,
        keep=keep,
        penalty=penalty,
    )
    return replace(search, name="ignore")


def bayes(
    *,
    density: Literal[
        "gaussian", "laplace", "prune-gaussian", "prune-laplace", "known-mask", "cosine", "l2", "l1"
    ] = "gaussian",
    scale: float = 0.1,
    rate: float = 0.5,
    tv: float = 1.0,
    pixels: float = 0.0,
    variation: Literal["paper", "released"] = "released",
    weights: Literal["equal", "exponential"] = "equal",
    k: int = 1,
    delta: float = 0.0,
    langevin: float = 0.0,
    steps: int = 200,
    lr: float = 0.5,
    decay: float = 0.99,
    restarts: int = 1,
    labels: Literal["known", "idlg", "counts"] = "known",
) -> Search:
    """The adversary of the Bayes paper (Balunovic et al. 2022), Alg. 1: the defense's own density and a prior.

    Adam with a step that shrinks by the factor `decay` at every step, 200 steps, normal start, no box, the last iterate
    (Sec. 6 and its program).

    Args:
        density: of the update given the image: of Gaussian or Laplace noise, of such noise after a random mask, of
            Gaussian noise where zeros of the update show the mask, or what the paper compares with: cosine, l2, l1.
        scale: deviation or width of the noise.
        rate: share of entries that the mask drops.
        tv: weight of the total variation (beta).
        pixels: weight of the prior that pixels are in [0, 1] (phi, App. A.4).
        variation: anisotropic and averaged as the text says, or squared, periodic and summed as in the program.
        weights: every tensor alike, or falling exponentially from the first layer on.
        k: points around a candidate at which the density is taken.
        delta: radius of the ball that they are drawn from, L2 over pixels.
        langevin: noise after every step instead (App. A.7).
        steps, lr, restarts, labels: as in `inverting_gradients`.
        decay: factor on the step size at every step.

    Deviations: tv and lr are ours, found on images that are not attacked; the paper chose them by the true PSNR.
    """
    densities: dict[str, likelihoods.Likelihood | likelihoods.Entrywise] = {
        "gaussian": likelihoods.Gaussian(sigma=scale),
        "laplace": likelihoods.Laplace(scale=scale),
        "prune-gaussian": likelihoods.Pruned(rate=rate, scale=scale),
        "prune-laplace": likelihoods.Pruned(rate=rate, scale=scale, noise="laplace"),
        "known-mask": degraded.Zeroed(by="places", sigma=scale),
        "cosine": likelihoods.Cosine(),
        "l2": likelihoods.SquaredL2(),
        "l1": likelihoods.L1(),
    }
    variations = {
        "paper": priors.TotalVariation(),
        "released": priors.TotalVariation(power=2, periodic=True, total=True),
    }
    layers: dict[str, masks.Mask] = {"equal": masks.Everything(), "exponential": masks.Exponential()}
    return Search(
        name="bayes",
        likelihood=_pick("density", density, densities),
        prior=tv * _pick("variation", variation, variations) + pixels * priors.PixelRange(),
        labels=_pick("labels", labels, _LABELS),
        only=_pick("weights", weights, layers),
        ball=sampling.Ball(delta=delta, samples=k) if delta or k > 1 else None,
        langevin=langevin,
        optimiser=optimisers.Adam(lr=lr),
        schedule=schedules.Exponential(factor=decay),
        box=False,
        restarts=restarts,
        stop=Stop(steps=steps),
    )


def joint(
    *,
    steps: int = 3000,
    lr: float = 1.0,
    tv: float = 3e-2,
    weight: float = 1e-3,
    plateau: int = 300,
    restarts: int = 1,
    labels: Literal["known", "idlg", "counts"] = "known",
) -> Search:
    """Ours: the image and what clients drew inside the model, searched together on all tensors alike.

    The mean of every tensor's distance on the unit sphere, total variation and the draws' own density; Adam with a rate
    that shrinks on plateaus. It is the most probable pair of image and draw, not the best image on average over draws.

    Args:
        weight: of the draws' standard normal density, mean(u^2) / 2.
        plateau: steps without a lower loss after which the rate is divided by 10.
        steps, lr, tv, restarts, labels: as in `inverting_gradients`.
    """
    search = inverting_gradients(
        steps=steps,
        lr=lr,
        tv=tv,
        signed=False,
        distance="chord",
        decay="plateau",
        plateau=plateau,
        restarts=restarts,
        labels=labels,
    )
    return replace(search, name="joint", secrets=treatments.Joint(weight=weight))


def leaving_out(*, steps: int = 2000, tv: float = 1e-2, probe: float = 0.1) -> LeaveOut:
    """Inverting Gradients without the tensor that a defense such as Soteria changed (Bayes, Sec. 5).

    Which one that is is found by trying all.

    Args:
        steps, tv: as in `inverting_gradients`.
        probe: share of the steps that the trial of each tensor takes.
    """
    return LeaveOut(attack=inverting_gradients(steps=steps, tv=tv), probe=probe)


def grad_inversion(
    *,
    steps: int = 2000,
    lr: float = 0.1,
    tv: float = 1e-4,
    l2: float = 1e-6,
    bn: float = 0.0,
    sent: bool = False,
    group: float = 0.0,
    restarts: int = 1,
    langevin: float = 0.0,
    labels: Literal["known", "idlg", "counts"] = "known",
) -> Search:
    """A search of the kind of GradInversion (Yin et al. 2021), Eq. 2 and 8 to 11: squared L2 match, many priors.

    Args:
        tv, l2: weights of the total variation and of the image's norm.
        bn: weight of the distance to the batch norms' running statistics, or to those that clients `sent`.
        group: weight of the distance to the mean of all restarts.
        restarts: seeds that search side by side; the lowest matching loss is kept.
        langevin: noise after every step, which the paper uses to explore.
        steps, lr, labels: as in `inverting_gradients`.

    Deviations: weights and steps suit small images, the paper's are for 224x224 and 20,000 iterations; seeds are not
    aligned before they are averaged; the match is divided by the observed norm, so that one set of weights fits all.
    """
    statistics = priors.BatchNormStatistics(of="sent" if sent else "running")
    prior = tv * priors.TotalVariation() + l2 * priors.L2Norm()
    prior = prior + bn * statistics if bn else prior
    return Search(
        name="grad-inversion",
        likelihood=likelihoods.RelativeL2(),
        prior=prior + group * priors.Group() if group else prior,
        labels=_pick("labels", labels, _LABELS),
        optimiser=optimisers.Adam(lr=lr),
        schedule=schedules.StepDecay(),
        langevin=langevin,
        restarts=restarts,
        stop=Stop(steps=steps),
    )


def analytic(*, labels: Literal["known", "idlg"] = "idlg") -> Analytic:
    """Solve a fully connected first layer for one image (Inverting Gradients, Prop. 1; rank one without a bias).

    Args:
        labels: granted, or read off the last layer (iDLG); only the check of the result and a layer without bias need
            them.
    """
    return Analytic(labels=_pick("labels", labels, _LABELS))


def eliminate(*, labels: Literal["known", "idlg"] = "idlg") -> Eliminate:
    """Solve for the noise that PRECODE or CVB drew inside the model, then for the image; our own.

    Args:
        labels: granted, or read off the last layer (iDLG); only the check of the result and a last layer without bias
            need them.
    """
    return Eliminate(labels=_pick("labels", labels, _LABELS))


def features(*, labels: Literal["known", "idlg"] = "idlg") -> Features:
    """Solve a layer inside the network for its input (Inverting Gradients, Prop. 1), then for the image behind it.

    Args:
        labels: granted, or read off the last layer (iDLG); only the check of the result needs them.
    """
    return Features(labels=_pick("labels", labels, _LABELS))


def unlock(*, labels: Literal["known", "idlg"] = "idlg") -> SolveLock:
    """Solve for the scale and shift of a key lock (FedKL, Eq. 29), then for the image, layer by layer; without its key.

    Args:
        labels: as in `analytic`.
    """
    return SolveLock(attack=analytic(labels=labels))


def recover_key(
    *,
    steps: int = 2000,
    lr: float = 0.1,
    tv: float = 1e-2,
    distance: Literal["cosine", "mean-cosine", "l2", "l1"] = "mean-cosine",
    signed: bool = True,
    labels: Literal["known", "idlg", "counts"] = "known",
) -> RecoverKey:
    """Read a key off the gradient of its lock (Inverting Gradients, Prop. 1) where clients send it; search with it.

    Args:
        steps, lr, tv, distance, signed, labels: of the search, as in `inverting_gradients`.
    """
    search = inverting_gradients(steps=steps, lr=lr, tv=tv, distance=distance, signed=signed, labels=labels)
    return RecoverKey(attack=search)


def dlg(
    *,
    steps: int = 300,
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
        only=_pick("ignore", ignore, _IGNORED),
        secrets=treat(secrets),
        box=False,
        restarts=restarts,
        keep=keep,
        stop=Stop(steps=steps, target=target),
    )


def idlg(
    *,
    steps: int = 300,
    inner: int = 20,
    lr: float = 1.0,
    restarts: int = 1,
    line: Literal["none", "wolfe"] = "none",
    target: float | None = 1e-6,
    keep: Literal["last", "best"] = "best",
    rule: Literal["auto", "bias", "rows"] = "auto",
    ignore: Ignore = "nothing",
    secrets: Secrets = "resampled",
) -> Search:
    """iDLG (Zhao et al. 2020), Alg. 1: the label from the last layer (Eq. 4), then the image as in DLG.

    Args:
        rule: where the label is taken from: iDLG's own sums of rows, the bias, or the whole layer.
        steps, inner, lr, restarts, line, target, keep, ignore, secrets: as in `dlg`.

    Deviations: the label is read off the whole layer, since sums of rows fail on features of both signs; where they
    are right, both are.
    """
    search = dlg(
        steps=steps,
        inner=inner,
        lr=lr,
        restarts=restarts,
        line=line,
        target=target,
        keep=keep,
        ignore=ignore,
        secrets=secrets,
    )
    return replace(search, name="idlg", labels=labels_.FromLastLayer(rule=rule))


def cpl(
    *,
    steps: int = 300,
    lr: float = 1.0,
    alpha: float = 1e-3,
    restarts: int = 1,
    line: Literal["none", "wolfe"] = "none",
    target: float | None = None,
    keep: Literal["last", "best"] = "best",
    ignore: Ignore = "nothing",
    secrets: Secrets = "resampled",
) -> Search:
    """Client Privacy Leakage (Wei et al. 2020), Alg. 1: squared L2 match plus alpha |F(x) - y|^2 on the prediction.

    The start is a uniform patch repeated 2x2; the label is read off the last layer; L-BFGS with learning rate 1, 300
    iterations.

    Args:
        alpha: weight of the prediction term.
        steps, lr, restarts, line, target, keep, ignore, secrets: as in `dlg`.

    Deviations: alpha is a choice of ours, small because an untrained model does not recognise the true image either;
    F is taken after the softmax; the iterate with the lowest loss is returned.
    """
    search = dlg(
        steps=steps,
        inner=1,
        lr=lr,
        restarts=restarts,
        line=line,
        target=target,
        keep=keep,
        ignore=ignore,
        secrets=secrets,
    )
    prior, labels = alpha * priors.Prediction(), labels_.FromLastLayer()
    return replace(search, name="cpl", prior=prior, labels=labels, start=starts.Tiled(across=2))


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
    return LabelsOnly(labels=_pick("rule", rule, finders))


def grnn(
    *,
    steps: int = 1000,
    lr: float = 1e-4,
    momentum: float = 0.99,
    tv: float = 1e-3,
    width: int = 16,
    labels: Literal["joint", "known", "idlg"] = "joint",
    restarts: int = 1,
    keep: Literal["last", "best"] = "last",
) -> Search:
    """GRNN (Ren et al. 2021): fit the weights of an untrained generator of images and labels to one update.

    128 fixed numbers of noise go through a generator of their own for every victim and through a linear layer with a
    softmax for the label. The loss is squared L2 + L2 + total variation; RMSprop with learning rate 1e-4 and momentum
    0.99, 1,000 iterations (the paper's program).

    Args:
        steps: iterations.
        lr, momentum: of RMSprop, on the weights.
        tv: weight of the total variation: 1e-3 for LeNet, 1e-6 for ResNet-18.
        width: channels before the generator's last block; the program has 32.
        labels: made by the generator's label branch, granted, or read off the last layer (iDLG).
        restarts: generators for every victim; the lowest matching loss is kept.
        keep: return the last iterate, as the program does, or the one with the lowest loss.

    Deviations: width 16, which has less than half the weights; total variation is that of the normalised images; other
    deviations are said at `generators.Weights`.
    """
    sources: dict[str, labels_.Labels | labels_.Joint] = {"joint": labels_.Joint(), **_LABELS}
    return Search(
        name="grnn",
        likelihood=likelihoods.L2AndSquare(),
        prior=2 * tv * priors.TotalVariation(power=2),
        labels=_pick("labels", labels, sources),
        space=generators.Weights(width=width),
        start=starts.Uniform(low=-1, high=1),
        optimiser=optimisers.RMSprop(lr=lr, momentum=momentum),
        box=False,
        restarts=restarts,
        keep=keep,
        stop=Stop(steps=steps),
    )


def ggl(
    *,
    generator: str | generators.Generator = "generator.safetensors",
    by: Literal["cma", "adam"] = "cma",
    steps: int = 500,
    population: int = 50,
    sigma: float = 1.0,
    lr: float = 0.1,
    kl: float = 0.1,
    fit: Literal["none", "clip", "prune", "soteria"] = "none",
    labels: Literal["known", "idlg"] = "idlg",
    restarts: int = 1,
) -> Search:
    """GGL (Li et al. 2022), Eq. 4 and 5: search the latent of a trained generator for the image behind the update.

    The mean over tensors of squared L2, plus 0.1 times how far the latent is from a standard normal; CMA-ES, 500 rounds
    of 50 evaluations, or Adam with learning rate 0.1; the label from the last layer (the paper's program).

    Args:
        generator: a file of `dosimeter train-generator`, or a generator of your own.
        by: CMA-ES, which needs no slopes, or Adam.
        steps: rounds of CMA-ES or steps of Adam, for which the paper's program takes 2,500.
        population, sigma: of CMA-ES: evaluations in a round, and how far apart they are at first.
        lr: of Adam.
        kl: weight of the latent's own prior.
        fit: do to simulated updates what a defense does: clip them to the observed norm, drop as large a share of
            entries as is missing, or drop what Soteria hid.
        labels, restarts: as in `inverting_gradients`.

    Deviations: the generator is a small one that `dosimeter train-generator` trains in minutes, a variational
    autoencoder's decoder; the paper has BigGAN and a GAN of faces. The best latent seen is returned.
    """
    fits: dict[str, likelihoods.Likelihood | likelihoods.Entrywise] = {
        "none": likelihoods.SquaredL2(),
        "clip": degraded.Clipped(likelihood=likelihoods.SquaredL2()),
        "prune": degraded.Zeroed(by="rate"),
        "soteria": degraded.Zeroed(by="places"),
    }
    ways: dict[str, optimisers.Optimiser[Any]] = {
        "cma": optimisers.CMAES(population=population, sigma=sigma),
        "adam": optimisers.Adam(lr=lr),
    }
    trained = generator if isinstance(generator, generators.Generator) else generators.load_generator(generator)
    return Search(
        name="ggl",
        likelihood=_pick("fit", fit, fits),
        only=masks.Mean(),
        labels=_pick("labels", labels, _LABELS),
        space=generators.Latent(generator=trained, kl=kl),
        start=starts.Normal() if by == "adam" else starts.Uniform(),
        optimiser=_pick("by", by, ways),
        box=False,
        restarts=restarts,
        keep="best",
        stop=Stop(steps=steps),
    )


BY_NAME: dict[str, Callable[..., Attack]] = {
    "ig": inverting_gradients,
    "ig-a": inverting_gradients_a,
    "ig-b": inverting_gradients_b,
    "ig-cvb": inverting_gradients_cvb,
    "ignore": ignoring,
    "joint": joint,
    "leave-out": leaving_out,
    "bayes": bayes,
    "grad-inversion": grad_inversion,
    "dlg": dlg,
    "idlg": idlg,
    "cpl": cpl,
    "analytic": analytic,
    "eliminate": eliminate,
    "features": features,
    "unlock": unlock,
    "recover-key": recover_key,
    "labels": labels_only,
    "grnn": grnn,
    "ggl": ggl,
}
"""The names that the command line knows."""


def treat(secrets: Secrets, draws: int = 1) -> treatments.Treatment:
    """The treatment of that name."""
    choices: dict[str, treatments.Treatment] = {
        "resampled": treatments.Resampled(draws=draws),
        "guessed": treatments.Guessed(),
        "mean": treatments.Mean(),
        "joint": treatments.Joint(),
        "known": treatments.Known(),
    }
    return _pick("secrets", secrets, choices)


def _pick(setting: str, value: str, choices: dict[str, T]) -> T:
    if value not in choices:
        raise SettingError(unknown(f"value of {setting}", value, choices))
    return choices[value]

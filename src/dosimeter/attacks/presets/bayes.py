"""The Bayes paper's adversary, and GradInversion's priors."""

from typing import Literal

from dosimeter.attacks.presets.words import LABELS, moving, needless, pick
from dosimeter.attacks.search import degraded, likelihoods, masks, optimisers, priors, sampling, schedules
from dosimeter.attacks.search.search import Search
from dosimeter.attacks.search.stopping import Steps, stop


def bayes(
    *,
    density: Literal[
        "gaussian",
        "laplace",
        "prune-gaussian",
        "prune-laplace",
        "known-mask",
        "known-mask-laplace",
        "cosine",
        "l2",
        "l1",
    ] = "gaussian",
    scale: float | None = None,
    rate: float | None = None,
    tv: float = 1.0,
    pixels: float = 0.0,
    variation: Literal["paper", "released"] = "released",
    weights: Literal["equal", "exponential", "by-layer"] = "equal",
    ramp: float = 1.0,
    k: int = 1,
    delta: float = 0.0,
    langevin: float = 0.0,
    steps: Steps = 200,
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
            Gaussian or Laplace noise where zeros of the update show the mask, or what the paper compares with: cosine,
            l2, l1.
        scale: deviation or width of the noise; 0.1 by default.
        rate: share of entries that the mask drops; 0.5 by default.
        tv: weight of the total variation (beta).
        pixels: weight of the prior that pixels are in [0, 1] (phi, App. A.4).
        variation: anisotropic and averaged as the text says, or squared, periodic and summed as in the program.
        weights: every tensor alike, or falling exponentially from the first tensor on, or layer by layer as in the
            program.
        ramp: how much the density counts at the first step; it counts whole from the middle of the steps on.
        k: points around a candidate at which the density is taken.
        delta: radius of the ball that they are drawn from, L2 over pixels.
        langevin: noise after every step instead (App. A.7).
        steps, lr, restarts, labels: as in `inverting_gradients`.
        decay: factor on the step size at every step.

    Deviations: tv and lr are ours, found on images that are not attacked; the paper chose them by the true PSNR.
    """
    noisy, masked = density not in ("cosine", "l2", "l1"), density.startswith("prune-")
    needless("scale", scale is not None and not noisy, f"density={density}", "that has no width")
    needless("rate", rate is not None and not masked, f"density={density}", "that has no mask to integrate out")
    needless("k", k > 1 and delta == 0, "delta=0", "all points of such a ball are one")
    scale, rate = 0.1 if scale is None else scale, 0.5 if rate is None else rate
    densities: dict[str, likelihoods.Likelihood] = {
        "gaussian": likelihoods.Gaussian(sigma=scale),
        "laplace": likelihoods.Laplace(scale=scale),
        "prune-gaussian": likelihoods.Pruned(rate=rate, scale=scale),
        "prune-laplace": likelihoods.Pruned(rate=rate, scale=scale, noise="laplace"),
        "known-mask": degraded.Zeroed(by="places", sigma=scale),
        "known-mask-laplace": degraded.Zeroed(by="places", sigma=scale, noise="laplace"),
        "cosine": likelihoods.Cosine(),
        "l2": likelihoods.SquaredL2(),
        "l1": likelihoods.L1(),
    }
    variations = {
        "paper": priors.TotalVariation(),
        "released": priors.TotalVariation(power=2, periodic=True, total=True),
    }
    layers: dict[str, masks.Mask] = {
        "equal": masks.Everything(),
        "exponential": masks.Exponential(),
        "by-layer": masks.Exponential(by="layers"),
    }
    return Search(
        name="bayes",
        likelihood=pick("density", density, densities),
        prior=tv * pick("variation", variation, variations) + pixels * priors.PixelRange(),
        labels=pick("labels", labels, LABELS),
        only=pick("weights", weights, layers),
        ball=sampling.Ball(delta=delta, samples=k) if delta or k > 1 else None,
        moves=moving(box=False, langevin=langevin),
        optimiser=optimisers.Adam(lr=lr),
        schedule=schedules.Exponential(factor=decay),
        restarts=restarts,
        ramp=ramp,
        stop=stop(steps),
    )


def grad_inversion(
    *,
    steps: Steps = 2000,
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
    needless("sent", sent and not bn, "bn=0", "no prior looks at statistics")
    needless("group", bool(group) and restarts == 1, "restarts=1", "one start is its own mean")
    statistics = priors.BatchNormStatistics(of="sent" if sent else "running")
    prior = tv * priors.TotalVariation() + l2 * priors.L2Norm()
    prior = prior + bn * statistics if bn else prior
    return Search(
        name="grad-inversion",
        likelihood=likelihoods.RelativeL2(),
        prior=prior + group * priors.Group() if group else prior,
        labels=pick("labels", labels, LABELS),
        optimiser=optimisers.Adam(lr=lr),
        schedule=schedules.StepDecay(),
        moves=moving(langevin=langevin),
        restarts=restarts,
        stop=stop(steps),
    )

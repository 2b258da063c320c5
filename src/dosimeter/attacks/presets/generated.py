"""Images from generators: GRNN and GGL."""

from typing import Any, Literal

from dosimeter import checks
from dosimeter.attacks import generators
from dosimeter.attacks.presets.words import LABELS, Secrets, given, needless, pick, treat
from dosimeter.attacks.search import degraded, likelihoods, masks, optimisers, priors, starts
from dosimeter.attacks.search.search import Search
from dosimeter.attacks.search.stopping import Steps, stop


def grnn(
    *,
    steps: Steps = 1000,
    lr: float = 1e-4,
    momentum: float = 0.99,
    tv: float = 1e-3,
    width: int = 16,
    labels: Literal["joint", "known", "idlg"] = "joint",
    secrets: Secrets = "resampled",
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
        secrets: what is supposed of what clients draw inside the model, such as a key: drawn anew at every step,
            guessed once, as FedKL's program does, its mean, searched with the image, or known.
        restarts: generators for every victim; the lowest matching loss is kept.
        keep: return the last iterate, as the program does, or the one with the lowest loss.

    Deviations: width 16, which has less than half the weights; total variation is that of the normalised images; other
    deviations are said at `generators.Weights`.
    """
    checks.at_least("GRNN", "a weight tv", tv, 0)
    return Search(
        name="grnn",
        likelihood=likelihoods.L2AndSquare(),
        prior=2 * tv * priors.TotalVariation(power=2),
        labels=pick("labels", labels, LABELS),
        space=generators.Weights(width=width),
        start=starts.Uniform(low=-1, high=1),
        optimiser=optimisers.RMSprop(lr=lr, momentum=momentum),
        secrets=treat(secrets),
        moves=(),
        restarts=restarts,
        keep=keep,
        stop=stop(steps),
    )


def ggl(
    *,
    generator: str | generators.Generator = "generator.safetensors",
    by: Literal["cma", "adam"] = "cma",
    steps: Steps = 500,
    population: int | None = None,
    sigma: float | None = None,
    lr: float | None = None,
    kl: float = 0.1,
    fit: Literal["none", "clip", "prune", "soteria"] = "none",
    labels: Literal["known", "idlg"] = "idlg",
    secrets: Secrets = "resampled",
    restarts: int = 1,
) -> Search:
    """GGL (Li et al. 2022), Eq. 4 and 5: search the latent of a trained generator for the image behind the update.

    The mean over tensors of squared L2, plus 0.1 times how far the latent is from a standard normal; CMA-ES, 500 rounds
    of 50 evaluations, or Adam with learning rate 0.1; the label from the last layer (the paper's program).

    Args:
        generator: a file of `dosimeter train-generator`, or a generator of your own.
        by: CMA-ES, which needs no slopes, or Adam.
        steps: rounds of CMA-ES or steps of Adam, for which the paper's program takes 2,500.
        population, sigma: of CMA-ES: evaluations in a round, 50, and how far apart they are at first, 1.
        lr: of Adam, 0.1.
        kl: weight of the latent's own prior.
        fit: do to simulated updates what a defense does: clip them to the observed norm, drop as large a share of
            entries as is missing, or drop what Soteria hid.
        labels, restarts: as in `inverting_gradients`.
        secrets: as in `grnn`; what is searched is so by Adam or CMA-ES like the latent.

    Deviations: the generator is a small one that `dosimeter train-generator` trains in minutes, a variational
    autoencoder's decoder; the paper has BigGAN and a GAN of faces. The best latent seen is returned.
    """
    for key, value, whose in (("population", population, "cma"), ("sigma", sigma, "cma"), ("lr", lr, "adam")):
        needless(key, value is not None and by != whose, f"by={by}", f"it is a setting of by={whose}")
    fits: dict[str, likelihoods.Likelihood] = {
        "none": likelihoods.SquaredL2(),
        "clip": degraded.Clipped(likelihood=likelihoods.SquaredL2()),
        "prune": degraded.Zeroed(by="rate"),
        "soteria": degraded.Zeroed(by="places"),
    }
    ways: dict[str, optimisers.Optimiser[Any]] = {
        "cma": optimisers.CMAES(**given(population=population, sigma=sigma)),
        "adam": optimisers.Adam(**given(lr=lr)),
    }
    trained = generator if isinstance(generator, generators.Generator) else generators.load_generator(generator)
    return Search(
        name="ggl",
        likelihood=pick("fit", fit, fits),
        only=masks.Mean(),
        labels=pick("labels", labels, LABELS),
        space=generators.Latent(generator=trained, kl=kl),
        start=starts.Normal() if by == "adam" else starts.Uniform(),
        optimiser=pick("by", by, ways),
        secrets=treat(secrets),
        moves=(),
        restarts=restarts,
        keep="best",
        stop=stop(steps),
    )

"""Inverting Gradients, and what PPP and CVB made of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from dosimeter.attacks.around.leave_out import LeaveOut
from dosimeter.attacks.presets.words import (
    IGNORED,
    LABELS,
    Ignore,
    Secrets,
    TotalVariation,
    Variant,
    given,
    moving,
    needless,
    pick,
    smooth,
    treat,
    varies,
)
from dosimeter.attacks.search import likelihoods, masks, optimisers, schedules, treatments
from dosimeter.attacks.search.search import Search
from dosimeter.attacks.search.stopping import AUTO, Steps, stop


def inverting_gradients(
    *,
    steps: Steps = AUTO,
    lr: float = 0.1,
    tv: TotalVariation = AUTO,
    restarts: int = 1,
    signed: bool | None = None,
    by: Literal["adam", "descent", "lbfgs"] = "adam",
    box: bool = True,
    distance: Literal["cosine", "mean-cosine", "chord", "l2", "l1", "survived", "interval"] = "cosine",
    top: int | None = None,
    decay: Literal["steps", "plateau", "cosine", "none"] = "steps",
    plateau: int | None = None,
    patience: int | None = None,
    target: float | None = None,
    labels: Literal["known", "idlg", "counts", "joint"] = "known",
    ignore: Ignore = "nothing",
    leave: Sequence[str] = (),
    secrets: Secrets = "resampled",
    draws: int = 1,
    median: int | None = None,
    coarse: int | Literal["auto"] | None = None,
    keep: Literal["last", "best"] = "last",
    trace: bool = False,
) -> Search:
    """Inverting Gradients (Geiping et al. 2020), Eq. 4: cosine match, total variation, signed Adam, box, restarts.

    The method is the paper's; it goes on until it stops improving, and total variation and restarts default to values
    that suit a quick audit of a small network. `inverting_gradients_a` has the paper's own.

    Args:
        steps: how many, or as many as it takes until the loss stops falling (`auto`; see `Stop.leg`).
        lr: learning rate on normalised images.
        tv: weight of the total variation; `auto` is 0.01, or less where the network's own match would not keep that
            from blurring images that the attacker draws (see `weights.Balanced`), `cvb` that of CVB's program, 0.1, or
            1e-4 for a network of tokens.
        restarts: searches from different starts, the lowest matching loss is kept.
        signed: feed Adam the sign of the slope, which is the default.
        by: Adam, or what the paper's Table 1 puts in its place: plain descent or L-BFGS with one iteration a step.
        box: keep pixels in [0, 1].
        distance: what is matched: cosine, the mean of every tensor's cosine or of its root (chord), squared L2 (Eq. 3)
            or L1; what survived pruning by size, or the intervals of 8-bit quantisation.
        top: match only so many tensors, those with the largest norm (Eq. 7); all by default.
        decay: shrink the step at 3/8, 5/8 and 7/8 of the steps, or of each leg; or when the loss stays for `plateau`
            steps; or along a cosine.
        plateau: see `decay`; 400 by default.
        patience: stop after so many steps without a lower loss.
        target: stop at this loss.
        labels: granted; read off the last layer, of one image (iDLG) or how often each class occurs in a batch; or
            searched with the images (joint), also through local steps.
        ignore: leave out the tensors that noise drawn inside the model touches; see `ignoring`.
        leave: leave out tensors, or all of layers, by their names (CVB, Table I).
        secrets: what is supposed of such noise: drawn anew at every step, guessed once, its mean, searched with the
            image, or known.
        draws: the mean over so many draws, where it is drawn anew.
        median: a 3x3 median filter every so many steps (Sec. 3), against the noise of strided first layers.
        coarse: so many steps on a quarter of the images' waves, as many on a half, and all after that; `auto` is a
            quarter of the steps, or of the first leg.
        keep: return the last iterate, as the paper's program does, or the one with the lowest loss.
        trace: record norm, cosine and two entries of every tensor of the simulated update on the way (PPP, Figs. 3, 4).
    """
    needless("ignore", ignore != "nothing" and top is not None, f"top={top}", "that chooses the tensors alone")
    needless("leave", bool(leave) and top is not None, f"top={top}", "that chooses the tensors alone")
    needless("leave", bool(leave) and ignore != "nothing", f"ignore={ignore}", "that chooses the tensors alone")
    needless("signed", signed is not None and by != "adam", f"by={by}", "only Adam is fed signs")
    needless("plateau", plateau is not None and decay != "plateau", f"decay={decay}", "that waits for no plateau")
    matches: dict[str, likelihoods.Likelihood] = {
        "cosine": likelihoods.Cosine(),
        "mean-cosine": likelihoods.MeanCosine(),
        "chord": likelihoods.MeanChord(),
        "l2": likelihoods.SquaredL2(),
        "l1": likelihoods.L1(),
        "survived": likelihoods.Survived(),
        "interval": likelihoods.Interval(),
    }
    ways: dict[str, optimisers.Optimiser[Any]] = {
        "adam": optimisers.Adam(lr=lr, signed=signed is not False),
        "descent": optimisers.Descent(lr=lr),
        "lbfgs": optimisers.LBFGS(lr=lr, inner=1),
    }
    decays: dict[str, schedules.Schedule] = {
        "steps": schedules.StepDecay(),
        "plateau": schedules.Plateau(**given(patience=plateau)),
        "cosine": schedules.CosineDecay(),
        "none": schedules.Constant(),
    }
    until = stop(steps, patience=patience, target=target)
    quarter = max(1, (until.leg or until.steps) // 4)
    return Search(
        name="ig",
        likelihood=pick("distance", distance, matches),
        prior=smooth(tv),
        labels=pick("labels", labels, LABELS),
        optimiser=pick("by", by, ways),
        schedule=pick("decay", decay, decays),
        only=_matched(ignore, tuple(leave), top),
        secrets=treat(secrets, draws),
        moves=moving(box=box, median=median, coarse=quarter if coarse == AUTO else coarse),
        restarts=restarts,
        keep=keep,
        trace=trace,
        stop=until,
    )


def _matched(ignore: Ignore, leave: tuple[str, ...], top: int | None) -> masks.Mask:
    """Which tensors are."""
    if top is not None:
        return masks.Largest(n=top)
    return masks.Except(names=leave) if leave else pick("ignore", ignore, IGNORED)


@varies(inverting_gradients, "steps restarts tv", steps=4000, restarts=32, tv=1e-8)
def inverting_gradients_a(search: Search) -> Search:
    """Setting A of Inverting Gradients, Table 2: step size 0.1, 4,000 iterations, 32 restarts, total variation 1e-8."""
    return search


@varies(inverting_gradients, "steps restarts tv top", steps=12_000, restarts=16, tv=1e-4, top=10)
def inverting_gradients_b(search: Search) -> Search:
    """Settings B and C of Inverting Gradients, Table 2: 12,000 iterations, 16 restarts, total variation 1e-4, and only
    the 10 tensors with the largest norm. C is B on a network that was trained for 10 epochs."""
    return search


@varies(
    inverting_gradients,
    "steps tv signed ignore leave secrets draws keep trace",
    steps=20_000,
    tv=1e-2,
    lr=1.0,
    signed=False,
    decay="plateau",
    plateau=400,
    patience=4000,
    target=1e-5,
    variants={"released": {"tv": "cvb", "signed": True, "keep": "best"}},
)
def inverting_gradients_cvb(search: Search, *, penalty: bool = True, variant: Variant = "paper") -> Search:
    """Inverting Gradients as the CVB paper runs it (Sec. V-B).

    Adam with learning rate 1, times 0.1 after 400 iterations on a plateau; stop at a loss of 1e-5, after 4,000
    iterations without a lower one, or after 20,000.

    Args:
        penalty: count the penalty of a defense's layers in the simulated loss, as the client's loss does and as in
            CVB's program; PRECODE's leaves it out.
        variant: as the paper says, or as its program does: total variation 0.1 for CNNs and ResNets and 1e-4 for a
            network of tokens, on which 0.01 is too smooth; signed steps; the iterate with the lowest loss, which among
            fresh draws may just have been lucky. Settings that are given count in both.

    Deviations: which networks have tokens is found by running them, where the program has a file for each model.
    """
    return replace(search, penalty=penalty)


@varies(inverting_gradients_cvb, "steps tv draws keep trace penalty variant")
def ignoring(search: Search, *, encoder: bool = True) -> Search:
    """The "Ignore" attack on noise inside the model: `inverting_gradients_cvb` on the tensors that it does not touch.

    Which these are is found by running the model with two draws; see `masks.BeforeNoise`.

    Args:
        encoder: match the layers that say how the noise is drawn too (CVB, Eq. 4), or not (PPP, Eq. 4). The PPP paper's
            other settings are those of `inverting_gradients_ppp`.
    """
    return replace(search, name="ignore", only=masks.BeforeNoise(encoder=encoder))


@varies(
    inverting_gradients,
    "steps tv signed ignore secrets draws keep trace",
    steps=20_000,
    tv=1e-2,
    signed=False,
    decay="plateau",
    plateau=800,
    patience=4000,
    ignore="bottleneck",
)
def inverting_gradients_ppp(search: Search, *, target: float = 1e-5) -> Search:
    """Inverting Gradients as the PPP paper runs it (Sec. 4.2), without the whole bottleneck and all after it (Eq. 4).

    Total variation 0.01; Adam with learning rate 0.1, times 0.1 after 800 iterations on a plateau; stop at a match of
    1e-5, after 4,000 iterations without a lower loss, or after 20,000. With `ignore=nothing` it is the paper's attack
    on models without a bottleneck, and the one that PRECODE withstands.

    Args:
        target: stop once the match itself, without total variation, is at most this: it is what the paper calls the
            reconstruction loss D. With total variation it would stay above on any image.

    Deviations: steps are not signed, since the text has no word of it; `signed` has them so.
    """
    return replace(search, name="ig-ppp", stop=replace(search.stop, match=target))


@varies(
    inverting_gradients,
    "steps lr tv plateau restarts labels",
    lr=1.0,
    tv=3e-2,
    signed=False,
    distance="chord",
    decay="plateau",
    plateau=300,
)
def joint(search: Search, *, weight: float = 1e-3) -> Search:
    """Ours: the image and what clients drew inside the model, searched together on all tensors alike.

    The mean of every tensor's distance on the unit sphere, total variation and the draws' own density; Adam with a rate
    that shrinks on plateaus. It is the most probable pair of image and draw, not the best image on average over draws.

    Args:
        weight: of the draws' standard normal density, mean(u^2) / 2.
    """
    return replace(search, name="joint", secrets=treatments.Joint(weight=weight))


@varies(inverting_gradients, "steps tv")
def leaving_out(search: Search, *, probe: float = 0.1) -> LeaveOut:
    """Inverting Gradients without the tensor that a defense such as Soteria changed (Bayes, Sec. 5).

    Which one that is is found by trying all.

    Args:
        probe: share of the steps that the trial of each tensor takes; where these are auto, at most those of the first
            leg.
    """
    return LeaveOut(attack=search, probe=probe)

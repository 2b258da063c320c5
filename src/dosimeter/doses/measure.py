"""The dose of private images: what their update tells of them, by linear algebra at the truth instead of by a search.

    p(image | update)  ~  N(., (P + M)^-1),     M = J^T S^-1 J,     J = dg / d(image, draws)

at the true image and the true draws, for a channel of noise S and a prior of precision P. What is drawn inside the
model, and the other images of a batch, are eliminated. It is an estimate from above of what attacks reach from below:
a reader that is told the network's slopes at the truth.

Fisher information as a measure of leakage: Hannun et al. 2021 (arXiv:2102.11673), Guo et al. 2022 (arXiv:2201.12383).
*Deviations*: draws inside the model are unknowns, not part of an expectation.
"""

import threading
import time
from dataclasses import replace
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import engine
from dosimeter.auditing.setting import Resources, Updates
from dosimeter.defenses import Defense
from dosimeter.doses import channels
from dosimeter.doses.aggregation import Aggregation
from dosimeter.doses.bounds import Bound, bounds_of, by_fisher
from dosimeter.doses.case import Case, case_of
from dosimeter.doses.figures import estimated_of, image_of, tensors_of
from dosimeter.doses.information import needs
from dosimeter.doses.priors import WHITE, Prior
from dosimeter.doses.result import Doses, ImageDose
from dosimeter.doses.updates import first_network, measured_update
from dosimeter.errors import SettingError
from dosimeter.progress import bar
from dosimeter.servers import Tamper
from dosimeter.types import Loss, Step, Victims

Which = Literal["worst", "all", "none"]


class Show(NamedTuple):
    """What a dose says of images beside its figures."""

    tensors: Which = "worst"  # of which images what each tensor determines alone, and what is left without it
    pictures: int = 8  # of how many images what is determined and what is hidden


SHOWN = Show()


def dose(
    model: nn.Module,
    victims: Victims,
    *,
    defense: Defense | str | None = None,
    server: Tamper | str | None = None,
    loss: Loss | str | None = None,
    step: Step | str | None = None,
    prior: Prior | None = WHITE,
    seed: int = 0,
    updates: Updates = Updates(),
    resources: Resources = Resources(dtype=torch.float64),
    show: Show = SHOWN,
    aggregation: Aggregation | None = None,
) -> Doses:
    """How much of every private image its update determines, without any attack.

    Args:
        model, victims, defense, server, loss, step, seed: as in `dosimeter.audit`; draws are of the same streams.
        prior: `White()`, `Images(images=...)` of public images that are no victims, or None for none.
        updates: batch-norm statistics, and rounds: updates of the same batch, whose information adds up.
        resources: the memory that the exact matrices may take, and images at once (workers), one a core by default. It
            is done in float64 on the CPU in any case.
        show: what else to say of the images.
        aggregation: where the server sees the mean of several clients' updates alone; of the victim's images.
    """
    case = case_of(
        model, victims, defense=defense, server=server, loss=loss, step=step, prior=prior, seed=seed, updates=updates,
        resources=resources, aggregation=aggregation,
    )  # fmt: skip
    size = needs(first_network(case, case.gathered(victims), 0))
    exact = size <= resources.budget
    workers = min(resources.workers or torch.get_num_threads(), max(1, resources.budget // size), len(victims.ids))
    done = count(1)

    def work(v: int) -> _Done:
        if exact:
            drawn_, told = v * victims.batch < show.pictures, show.tensors == "all"
            ready = _measured(case, victims, v, show=drawn_, tensors=told)
        else:
            ready = _guessed(case, victims, v)
        advance(next(done))
        return ready

    with bar("dose", len(victims.ids), show=resources.progress) as advance:
        engine.threads.keep_memory()
        every = range(len(victims.ids))
        if workers == 1:
            ready = [work(v) for v in every]
        else:  # two images on a thread each are done sooner than one on two
            ready = engine.threads.run(work, every, workers=workers, stop=threading.Event())
    if not ready:
        raise KeyboardInterrupt
    how = ready[0].how
    found = [each for some in ready for each in some.images]
    drawn = {name: shown for some in ready for name, shown in some.pictures.items()}
    doses = Doses(
        images=tuple(found), prior="none" if case.prior is None else case.prior.name, channel=case.channel.words(),
        noise=min(how.variance.values()) ** 0.5, rounded=_times(how), notes=_notes(how, case, victims), exact=exact,
        bounds=_bounds(case, victims, found),
        settings=_settings(case, victims), pictures=drawn,
    )  # fmt: skip
    return _with_tensors(doses, case, victims) if show.tensors == "worst" and exact else doses


class _Done(NamedTuple):
    """One update's images."""

    images: list[ImageDose]
    pictures: dict[str, dict[str, Tensor]]
    how: channels.Seen


def _measured(case: Case, victims: Victims, v: int, *, show: bool, tensors: bool) -> _Done:
    """By matrices."""
    began = time.perf_counter()
    whole = case.gathered(victims)
    update = measured_update(case, whole, v)
    images, drawn = list[ImageDose](), dict[str, dict[str, Tensor]]()
    for b in range(victims.batch):
        each, shown = image_of(case, update, whole, v, b, show=show, tensors=tensors)
        images.append(each._replace(seconds=round((time.perf_counter() - began) / victims.batch, 3)))
        drawn |= {f"{each.id}/{b}": shown} if shown else {}
    return _Done(images, drawn, update.how)


def _guessed(case: Case, victims: Victims, v: int) -> _Done:
    """By products."""
    began = time.perf_counter()
    if case.clients > 1:
        raise SettingError(
            "The dose of one client among several is made by matrices, which do not fit; allow more memory (--budget), "
            "fewer clients (--clients), or leave the aggregation out."
        )
    images, how = estimated_of(case, victims, v)
    seconds = round((time.perf_counter() - began) / victims.batch, 3)
    return _Done([each._replace(seconds=seconds) for each in images], {}, how)


def _with_tensors(doses: Doses, case: Case, victims: Victims) -> Doses:
    """The most exposed image with what each tensor tells of it."""
    worst = doses.worst
    v = victims.ids.index(worst.id)
    whole = case.gathered(victims)
    update = measured_update(replace(case, updates=replace(case.updates, rounds=1)), whole, v)
    told = worst._replace(tensors=tensors_of(case, update, whole.batch, worst.place))
    return replace(doses, images=tuple(told if each is worst else each for each in doses.images))


def _bounds(case: Case, victims: Victims, found: list[ImageDose]) -> tuple[Bound, ...]:
    """What is known of clipping and noise, whatever the model, and of the Fisher information of this one."""
    known = bounds_of(case.stated, victims.batch, case.updates.rounds, case.clients)
    told = [each.fisher for each in found if each.fisher is not None]
    return (*known, by_fisher(max(told))) if known and told else known


def _times(how: channels.Seen) -> float | None:
    """How many times the rounding of float32 the noise on tensors without any is."""
    return how.louder if how.plain else None


def _notes(how: channels.Seen, case: Case, victims: Victims) -> tuple[str, ...]:
    notes = [*how.notes, *(case.aggregation.words(victims.batch) if case.aggregation else ())]
    if how.plain:
        which = "no tensor has" if len(how.plain) == len(how.variance) else f"{len(how.plain)} tensors have no"
        notes.append(f"{which} noise of its own; rounding counts, {how.louder:.3g} times that of float32")
    if len(case.client.target.secrets) and not case.client.defense.reveals:
        notes.append("what is drawn inside the model is unknown, by its standard normal prior")
    if how.clip is not None:
        notes.append("clipping leaves the gradient's direction, and its length where that is below the bound")
    return tuple(notes)


def _settings(case: Case, victims: Victims) -> dict[str, Any]:
    target, defense = case.client.target, case.client.defense
    return {
        "parameters": sum(p.numel() for p in target.parameters.values()),
        "shape": list(target.shape),
        "defense": repr(defense),
        "step": "gradient" if target.step is None else repr(target.step),
        "batch": victims.batch,
        "rounds": case.updates.rounds,
        "clients": case.clients,
        "others": None if case.aggregation is None else case.aggregation.others,
        "seed": case.client.seed,
        "threshold": "a deviation of 0.25" if case.prior is None else "half of the prior's variance",
    }

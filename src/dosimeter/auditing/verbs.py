"""What a user calls: `audit`, `panel` and `captured` make one audit of their arguments and perform it."""

from torch import nn

from dosimeter import spec
from dosimeter.attacks import AUTO, Attack, Steps
from dosimeter.auditing.captured.captured import examine
from dosimeter.auditing.captured.seeing import Capture
from dosimeter.auditing.panel.panel import audit_all
from dosimeter.auditing.result import Captured, Result
from dosimeter.auditing.run import perform
from dosimeter.auditing.score import Scoring
from dosimeter.auditing.setting import Audit, Resources, Updates, part
from dosimeter.defenses import Defense
from dosimeter.servers import Tamper
from dosimeter.types import BatchNorm, Loss, Step, ThreatModel, Victims


def audit(
    model: nn.Module,
    victims: Victims,
    *,
    attack: Attack | str,
    defense: Defense | str | None = None,
    server: Tamper | str | None = None,
    loss: Loss | str | None = None,
    step: Step | str | None = None,
    threat: ThreatModel | None = None,
    seed: int = 0,
    updates: Updates = Updates(),
    resources: Resources = Resources(),
    scoring: Scoring = Scoring(),
) -> Result:
    """Measure how much of the victims' images an attack reads out of the updates they would send.

    A part is a value or its words on the command line: `attack="ig:tv=0.01"`, `defense="noise:sigma=0.01|cvb"`.

    Args:
        model: any module that takes images (B, C, H, W) in [0, 1]; it is copied and run in evaluation mode.
        victims: private batches, for instance from `dosimeter.pick`.
        attack: a preset or a `Search` of your own; "auto" is `dosimeter.panel`, all attacks made for the defense.
        defense: what clients do to their updates; nothing by default.
        server: what the server does to the model before clients get it; nothing by default.
        loss: (output, labels) -> scalar; cross-entropy by default.
        step: how a client turns a batch into an update, such as `clients.LocalTraining`; one gradient by default.
        threat: what the attacker is granted; by default the least that the attack needs.
        seed: names every random stream.
        updates: what the server sees besides: batch-norm statistics, several rounds, several updates of one client.
        resources: device, precision, memory, threads.
        scoring: from which SSIM an image counts as read, decoys, LPIPS, metrics of your own.
    """
    steps = None if not isinstance(attack, str) else auto(attack)
    whole = Audit(
        model=model, victims=victims, attack=part("attack", "ig" if steps else attack),
        defense=part("defense", defense or "none"), server=part("server", server or "honest"), loss=part("loss", loss),
        step=part("step", step), threat=threat, seed=seed, updates=updates, resources=resources, scoring=scoring,
    )  # fmt: skip
    return perform(whole) if steps is None else audit_all(whole, steps=steps)


def panel(
    model: nn.Module,
    victims: Victims,
    *,
    steps: Steps = AUTO,
    defense: Defense | str | None = None,
    server: Tamper | str | None = None,
    loss: Loss | str | None = None,
    step: Step | str | None = None,
    threat: ThreatModel | None = None,
    seed: int = 0,
    updates: Updates = Updates(),
    resources: Resources = Resources(),
    scoring: Scoring = Scoring(),
) -> Result:
    """Audit by every attack made for the defense: the strongest one's result, with all of them and a verdict beside it.

    Args:
        steps: of every search; by default as many as each needs.
        model, victims, defense, server, loss, step, threat, seed, updates, resources, scoring: as in `audit`; how many
            rounds the server sees, each attack of the panel says itself.
    """
    return audit(
        model, victims, attack=f"{AUTO}:steps={steps}", defense=defense, server=server, loss=loss, step=step,
        threat=threat, seed=seed, updates=updates, resources=resources, scoring=scoring,
    )  # fmt: skip


def captured(
    model: nn.Module,
    capture: Capture,
    *,
    attack: Attack | str,
    defense: Defense | str | None = None,
    loss: Loss | str | None = None,
    step: Step | str | None = None,
    batch_norm: BatchNorm = "running",
    shadows: Victims | None = None,
    truth: Victims | None = None,
    seed: int = 0,
    resources: Resources = Resources(),
    scoring: Scoring = Scoring(),
) -> Captured:
    """Audit one captured update: what is certain of its images, what an attack makes of it, and how good that may be.

    Args:
        model: the model before the update as the client ran it, with the layers that its defense adds.
        capture: the update and what is known of it.
        attack: a preset or a `Search` of your own; one that would be granted labels recovers them where there are none.
        defense: what the client did, which the attacker knows and shadows do too. It is taken to act on the client's
            change of weights, so the unit of its sigma is that of weights; `Capture.lr` of 1 says: on gradients.
        step, batch_norm: as in `reconstruct`.
        shadows: batches of images of your own, as large as the update's. Updates are made of them in the same way and
            attacked in the same way, to learn how often a match like this one's goes with an image that is read.
        truth: the batch behind the update, one victim; it is used for scores only, the attack never sees it.
            Its `trained_on` is what the client trained on, where a defense made that of the truth.
        loss, seed, resources, scoring: as in `audit`.
    """
    whole = Audit(
        model=model, victims=shadows, attack=part("attack", attack), defense=part("defense", defense or "none"),
        loss=part("loss", loss), step=part("step", step), seed=seed, updates=Updates(batch_norm=batch_norm),
        resources=resources, scoring=scoring,
    )  # fmt: skip
    return examine(whole, capture, truth)


def auto(words: str, steps: Steps | None = None) -> Steps | None:
    """The steps of a panel that is asked for as an attack, `auto` or `auto:steps=250`; None for any other attack.

    `steps` are those of another option.
    """

    def steps_of(*, steps: Steps = AUTO) -> Steps:
        return steps

    return spec.make("attack", words, {AUTO: steps_of}, steps=steps) if words.partition(":")[0] == AUTO else None

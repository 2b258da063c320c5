"""All that is the same for every image of a dose: the client, its channel, the prior."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dosimeter import clients, rng
from dosimeter.attacks import presets
from dosimeter.auditing.case import Client, clipping, resolve
from dosimeter.auditing.observe import like
from dosimeter.auditing.panel.channels import channel_of
from dosimeter.auditing.setting import Audit, Resources, Updates, part
from dosimeter.channel import Channel, Clip, Draws, Facts, Transforms
from dosimeter.doses.aggregation import Aggregation, Public, check, public_updates, stepped
from dosimeter.doses.priors import Known, Prior, White
from dosimeter.errors import DataError, SettingError
from dosimeter.types import Victims


@dataclass(frozen=True, eq=False)
class Case:
    """All that is the same for every image."""

    client: Client
    channel: Channel
    stated: Facts  # with the clipping of examples, which `channel` lacks where the step itself is differentiated
    prior: Known | None
    white: Known
    updates: Updates
    aggregation: Aggregation | None = None  # where the server sees a mean over clients
    public: Public | None = None  # whose updates stand for those of the others

    @property
    def clients(self) -> int:
        """Whose mean the server sees."""
        return 1 if self.aggregation is None else self.aggregation.clients

    def gathered(self, victims: Victims) -> Victims:
        """Victims with all images that are unknown: those of other clients too, where these are."""
        return victims if self.aggregation is None else self.aggregation.gathered(victims)

    @property
    def known(self) -> Known:
        """By which others are eliminated; without a prior they still have the scale of pixels."""
        return self.prior or self.white


def case_of(
    model: nn.Module,
    victims: Victims,
    *,
    defense: Any = None,
    server: Any = None,
    loss: Any = None,
    step: Any = None,
    prior: Prior | None = None,
    seed: int = 0,
    updates: Updates = Updates(),
    resources: Resources = Resources(),
    aggregation: Aggregation | None = None,
) -> Case:
    """All parts, checked before any work."""
    low, high = float(victims.images.min()), float(victims.images.max())
    if not (low >= 0 and high <= 1):
        raise DataError(f"Images must be in [0, 1], got values from {low:.4g} to {high:.4g}; divide bytes by 255.")
    audit = Audit(
        model=model, victims=victims, attack=presets.BY_NAME["ig"](), defense=part("defense", defense or "none"),
        server=part("server", server or "honest"), loss=part("loss", loss), step=part("step", step), seed=seed,
        updates=updates, resources=replace(resources, dtype=torch.float64, device="cpu"),
    )  # fmt: skip
    audit = clipping(audit)
    with rng.scoped(seed, "defense", "model"):
        defended = audit.defense.on_model(model, victims.shape)
    sent = audit.server(defended, shape=victims.shape, batch=victims.batch)
    highest = int(victims.labels.max()) if not victims.labels.is_floating_point() else None
    if updates.batch_norm == "sent":
        raise SettingError(
            "Batch-norm statistics that are sent along tell of the images too, which the dose does not count; use "
            "batch_norm='batch' or 'running'."
        )
    client, _ = resolve(audit, sent, victims.shape, victims.batch, labels=victims.labels[0], highest=highest)
    step, target = client.target.step, client.target
    _check(client)
    channel = channel_of(audit.defense, target, like(victims.labels[0], target), seed)
    stated, joint = channel.facts, aggregation is not None and aggregation.joint
    if isinstance(step, clients.ClippedGradient):
        # Of one image the clipping is algebra; of several the step itself is differentiated.
        several = victims.batch > 1 or joint
        channel = _with_clip(channel, () if several else (Clip(step.bound),))
        client = client if several else replace(client, target=replace(target, step=None))
    size = victims.images[0, 0].numel()
    known = None if prior is None else prior.known(size)
    white = White().known(size)
    case = Case(client, channel, stated, known, white, updates)
    if aggregation is None or aggregation.clients == 1:
        return case
    return _aggregated(case, victims, aggregation, resources.budget)


def _aggregated(case: Case, victims: Victims, aggregation: Aggregation, budget: int) -> Case:
    """The same as one of several clients."""
    check(case.channel, aggregation)
    case = replace(case, aggregation=aggregation)
    client, target = case.client, case.client.target
    if not aggregation.joint:
        return replace(case, public=public_updates(client, case.channel, aggregation, victims.batch, budget))
    whole = case.gathered(victims)
    stream = rng.stream(client.seed, "secrets", victims.ids[0])
    drawn = clients.scoped_draws(target, client.defense, whole.batch, stream, "image")
    return replace(case, client=replace(client, target=stepped(target, aggregation.clients, whole, drawn)))


def _with_clip(channel: Channel, clip: tuple[Clip, ...]) -> Channel:
    """The channel with this clipping of examples as the first thing that is done to an update, and no other."""
    before = [fact for fact in channel.facts if isinstance(fact, Draws | Transforms)]
    others = [fact for fact in channel.facts if not isinstance(fact, Draws | Transforms)]
    after = [fact for fact in others if not (isinstance(fact, Clip) and fact.of == "example")]
    return channel._replace(facts=(*before, *clip, *after))


def _check(client: Client) -> None:
    step = client.target.step
    if step is None or isinstance(step, clients.ClippedGradient):
        return
    if isinstance(step, clients.LocalTraining) and step.shuffle:
        raise SettingError("The dose does not know the order that a client drew; leave shuffle out of the step.")
    if any(secret.scope == "image" for secret in client.target.secrets.values()):
        raise SettingError(
            f"The defense draws new numbers inside the model in every pass, and {step!r} takes several; measure its "
            "dose on one gradient."
        )

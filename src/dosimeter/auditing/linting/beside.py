"""Labels, and what defenses and batch norms give away beside the image."""

from collections.abc import Iterator
from dataclasses import replace

from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter import models, networks
from dosimeter.attacks import presets
from dosimeter.attacks.last_layer import find_last_layer
from dosimeter.auditing.linting.findings import Leak, Level
from dosimeter.auditing.linting.subject import Subject
from dosimeter.channel import Draws
from dosimeter.clients import statistics
from dosimeter.errors import ModelError
from dosimeter.types import Secretive


def labels(subject: Subject) -> Iterator[Leak]:
    """The last layer under cross-entropy."""
    if subject.refusal(presets.labels_only(), subject.batch):
        return
    layer = find_last_layer(subject.target)
    what = "the label is the one entry below 0 of what came back to its outputs"
    if subject.batch > 1:
        what = f"how often each class is among the {subject.batch} labels is counted from its gradient"
    level = Level.WARNING
    if blurs := subject.blurs(frozenset(filter(None, (layer.weight, layer.bias)))):
        level, what = level.lowered(), f"{what}; blurred: {', '.join(blurs)}"
    remedy = "a last layer that is not trained or not sent, or noise on the update; larger batches tell counts"
    yield Leak("labels", level, layer.path, what, "labels", remedy)


def keys(subject: Subject) -> Iterator[Leak]:
    """Numbers that a client draws once and keeps, and how it gives them away."""
    for fact in subject.channel.facts:
        if not isinstance(fact, Draws) or fact.scope != "client":
            continue
        where = ", ".join(_secretive(subject, "client"))
        if fact.sent:
            what = "the key is sent, so that nothing is locked"
            yield Leak("key-sent", Level.ERROR, where, what, "ig:secrets=known", "a key that stays with the client")
        if fact.trained and not subject.refusal(presets.recover_key(steps=1), subject.batch):
            what = "the gradient of the lock is sent, and the key is the ratio of its weight's to its bias's"
            remedy = "a lock that stays with the client, such as fedkl:share=none"
            yield Leak("key-lock", Level.ERROR, where, what, "recover-key", remedy)


def shortcuts(subject: Subject) -> Iterator[Leak]:
    """Ways around all layers that draw noise for every image."""
    places = _secretive(subject, "image")
    if not places or not networks.bypassed(subject.target.model, subject.target.shape, places):
        return
    what = "a shortcut carries the image around the noise that is drawn here"
    remedy = "a place that no shortcut leads around: behind the block (--defense cvb chooses one)"
    yield Leak("shortcut", Level.WARNING, ", ".join(places), what, "ignore", remedy)


def batch_norms(subject: Subject) -> Iterator[Leak]:
    """Statistics of the private batch, which clients send or may send with their weights."""
    norms = [name for name, layer in subject.target.model.named_modules() if isinstance(layer, _BatchNorm)]
    if not norms or subject.target.step is not None or not _sendable(subject):
        return
    count = f"{len(norms)} batch norm{'s' if len(norms) > 1 else ''}"
    if subject.statistics == "sent":
        level, what = Level.WARNING, f"mean and variance of the private batch are sent for {count}"
    else:
        level, what = (
            Level.NOTE,
            f"{count}: clients that train by batch statistics and send their buffers send those too",
        )
    remedy = "group norm, or buffers that stay with the client (FedBN)"
    options = (("--batch-norm", "sent"), ("--batch", str(subject.batch)))
    yield Leak("batch-norm", level, norms[0], what, "grad-inversion:bn=0.1,sent=true", remedy, None, options)


def _sendable(subject: Subject) -> bool:
    """Whether the batch has statistics to send: a single value has no variance."""
    model = networks.clone_modules(subject.target.model)
    models.use_batch_statistics(model)
    images = subject.image.expand(subject.batch, *subject.target.shape)
    try:
        sent = statistics(replace(subject.target, model=model), images)
    except (ModelError, ValueError):
        return False
    return bool(sent)


def _secretive(subject: Subject, scope: str) -> list[str]:
    """Layers with secrets of that scope."""
    return [
        path
        for path, layer in subject.target.model.named_modules()
        if isinstance(layer, Secretive) and any(secret.scope == scope for secret in layer.secrets().values())
    ]

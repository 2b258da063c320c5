"""Victims that an auditor chooses by the size of their gradients (Inverting Gradients, Figs. 5 and 6)."""

from dataclasses import replace

import torch

from dosimeter import clients, rng
from dosimeter.attacks.base import Blank
from dosimeter.auditing.job import Job
from dosimeter.auditing.observe import like
from dosimeter.auditing.setting import Audit
from dosimeter.types import Victims

POOL = 256
"""Updates among which they are chosen, unless there are fewer."""


def by_gradient(audit: Audit, n: int, *, largest: bool) -> Victims:
    """The n of the audit's victims whose loss has the largest or the smallest gradient in the audited model, in order.

    The norm is that of the plain gradient, before local steps and whatever a defense does to it. It is the auditor who
    looks: no attacker knows it, so a rate among such victims is that of the most or the least exposed and of nobody
    else. What a model draws is drawn once for each update.
    """
    job = Job(replace(audit, attack=Blank(), step=None, threat=None))
    target, victims = job.client.target, job.victims
    norms = []
    for at, name in enumerate(victims.ids):
        drawn = clients.draw_secrets(target, victims.batch, rng.stream(audit.seed, "choosing", name))
        images, labels = victims.images[at].to(target.mean), like(victims.labels[at], target)
        slopes = replace(target, drawn=drawn).gradient(images, labels)
        norms.append(torch.stack([g.square().sum() for g in slopes.values()]).sum())
    order = torch.stack(norms).argsort(descending=largest, stable=True)
    return victims.take(order[:n].tolist())

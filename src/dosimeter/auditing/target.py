"""From the user's model to a target: a private copy, checked before any work is done."""

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from dosimeter import clients, models, theirs
from dosimeter.auditing.rehearsal import (
    FEW,
    blank,
    check_loss,
    check_model,
    check_rows,
    check_seen,
    check_slopes,
    outputs,
)
from dosimeter.auditing.setting import Audit
from dosimeter.errors import ModelError, SettingError, UpdateError
from dosimeter.types import BatchNorm, Shape, Statistics, Target, ThreatModel, as_device


def make_target(
    model: nn.Module,
    shape: Shape,
    audit: Audit,
    *,
    batch: int,
    labels: Tensor | None = None,
    highest: int | None = None,
) -> Target:
    """A private copy of the model as clients run it, with its loss, checked on one blank batch.

    It is in evaluation mode, with batch norm as the threat model says. `labels` are those of one batch, `highest` is
    the highest label of all.
    """
    check_model(model)
    device, dtype = as_device(audit.resources.device), audit.resources.dtype
    mode = audit.granted().statistics
    with theirs.running(f"The model cannot be copied to {device} as {str(dtype).partition('.')[2]}", ModelError):
        copied = copy.deepcopy(model).to(device=device, dtype=dtype).eval()
    if mode != "running":
        models.use_batch_statistics(copied)
    mean, std = (t.to(device=device, dtype=dtype) for t in models.normalisation(copied, shape[0]))
    target = Target(
        copied,
        audit.loss or F.cross_entropy,
        shape,
        mean,
        std,
        classification=audit.loss is None,
        step=audit.step,
        compiled=audit.resources.compiled,
        way=audit.resources.way,
    )
    images = blank(shape, batch, mean).requires_grad_()
    twin = copy.deepcopy(copied)  # a model may keep what it is given, and what has a gradient cannot be copied
    with torch.enable_grad(), _Norms() as norms:
        output = outputs(twin, images, budget=audit.resources.budget)
        check_seen(output, images)
    if labels is not None:
        some = labels[: len(images)].to(device)
        top = int(labels.max()) if highest is None else highest
        value = check_loss(target.loss, output, some, classification=target.classification, highest=top)
        check_slopes(twin, value)
    if target.classification and mode == "running":
        few = blank(shape, FEW, mean)
        with torch.no_grad():
            check_rows(outputs(twin, few, budget=audit.resources.budget), few)
    _check_norms(norms, mode, len(clients.statistics(target, images.detach())) if mode == "sent" else 0)
    return target


def as_attacked(target: Target, threat: ThreatModel, batch: int) -> Target:
    """The target as the attacker simulates it, which holds nothing of local training that the threat model withholds.

    Where statistics are sent, its batch norms wait for them.
    """
    target = untold(target, threat, batch)
    if not threat.defense and isinstance(target.step, clients.ClippedGradient):
        target = replace(target, step=None)
    if threat.statistics != "sent":
        return target
    model = copy.deepcopy(target.model)
    models.use_given_statistics(model)
    return replace(target, model=model)


def untold(target: Target, threat: ThreatModel, batch: int) -> Target:
    """The target whose step lacks what the threat model withholds of clients that train on so many images."""
    step = target.step
    if not isinstance(step, clients.LocalTraining) or (threat.local_steps and threat.local_lr):
        return target
    return replace(target, step=step.untold(batch, steps=threat.local_steps, lr=threat.local_lr))


def given_statistics(target: Target, mode: BatchNorm, given: Statistics | None) -> Statistics | None:
    """What one captured client sent of its batch norms, with an axis of victims; refused where it does not fit."""
    if (mode == "sent") != (given is not None):
        raise SettingError("Statistics come with batch_norm='sent' and only with it; give both or neither.")
    if given is None:
        return None
    sizes = {name: m.num_features for name, m in target.model.named_modules() if isinstance(m, _BatchNorm)}
    found = {name: tuple(t.to(target.mean)[None] for t in pair) for name, pair in given.items()}
    if found.keys() != sizes.keys():
        raise UpdateError(f"The statistics are of {sorted(found)}, expected one pair for each of {sorted(sizes)}.")
    for name, pair in found.items():
        if any(t.shape != (1, sizes[name]) or not t.isfinite().all() for t in pair) or (pair[1] < 0).any():
            raise UpdateError(f"The statistics of {name!r} are not {sizes[name]} finite means and variances from 0 on.")
    return {name: (mean, variance) for name, (mean, variance) in found.items()}


class _Norms(TorchFunctionMode):
    """Counts by which statistics batch norm is done, whoever calls it; one value a channel is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.batch = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "batch_norm":  # of torch.nn.functional or of torch, which both have `training` sixth
            x, of_batch = args[0], (kwargs or {}).get("training", len(args) > 5 and args[5])
            if of_batch and x.numel() == x.shape[1]:
                raise ModelError(
                    f"A batch norm sees one value a channel, {tuple(x.shape)}, which has no variance; take more images "
                    "an update or running statistics (--batch-norm running)."
                )
            self.batch += bool(of_batch)
            self.running += not of_batch
        return func(*args, **(kwargs or {}))


def _check_norms(norms: _Norms, mode: BatchNorm, noted: int) -> None:
    """Every batch norm does what the threat model says."""
    if mode == "running":
        if norms.batch:
            raise ModelError(
                "A batch norm of the model has no running statistics, so it uses those of the private batch; "
                "say so (--batch-norm batch or sent)."
            )
    elif not (norms.batch or norms.running):
        raise ModelError(f"The model has no batch norm, so --batch-norm {mode} has no meaning for it; leave it out.")
    elif norms.running or (mode == "sent" and noted != norms.batch):
        raise ModelError(
            f"The model calls batch norm outside torch's layers, where --batch-norm {mode} cannot reach it; "
            "use nn.BatchNorm layers or running statistics."
        )

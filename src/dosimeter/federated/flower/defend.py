"""A defense for the clients of any Flower app, as a mod."""

import secrets

import torch
from flwr.app import ArrayRecord, Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor

from dosimeter import defenses
from dosimeter.defenses import Defense, Moment, NoDefense
from dosimeter.errors import SettingError, UpdateError
from dosimeter.rng import derive


def defend(
    defense: Defense, *, seed: int | None = None, statistics: tuple[str, ...] = ("running_", "num_batches")
) -> Mod:
    """A mod that gives the defense the change of weights, before minus after, and sends what it makes of it.

    `ClientApp(mods=[defend(dm.defenses.GaussianNoise(sigma=0.01))])`

    Args:
        defense: one that changes updates. One that changes model or images belongs into the app's own training.
        seed: names the random streams, for runs that are to be repeated. By default the system's own randomness,
            since whoever knows the seed can take noise away again.
        statistics: how the names of buffers begin, of which a server does not know that they are no weights; they stay.
    """
    _check(defense)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        before, round_ = _only(message, "message")[1].to_torch_state_dict(), _round(message)  # the app may empty it
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, after = _only(reply, "reply")
        rng = torch.Generator().manual_seed(_draw(seed, context, round_))
        sent = _changed(defense, before, after.to_torch_state_dict(), round_, rng, statistics)
        reply.content[name] = ArrayRecord(sent)
        return reply

    return mod


def _changed(
    defense: Defense,
    old: dict[str, Tensor],
    new: dict[str, Tensor],
    round_: int,
    rng: torch.Generator,
    statistics: tuple[str, ...],
) -> dict[str, Tensor]:
    """The weights that are sent instead of those that training ended with."""
    if old.keys() != new.keys():
        raise UpdateError(
            "A defense needs the weights before and after training by the same names, got "
            f"{sorted(old.keys() ^ new.keys())[:3]} on one side only; send the whole state_dict back."
        )
    weights = [
        name
        for name, tensor in new.items()
        if tensor.is_floating_point() and not name.rpartition(".")[2].startswith(statistics)
    ]
    change = {name: old[name] - new[name] for name in weights}
    sent = defense.on_gradient(change, Moment(round_), rng)
    return {name: old[name] - sent[name] if name in sent else tensor for name, tensor in new.items()}


def _only(message: Message, what: str) -> tuple[str, ArrayRecord]:
    found = list(message.content.array_records.items())
    if len(found) != 1:
        raise UpdateError(f"A defense needs exactly one ArrayRecord in the {what}, got {len(found)}.")
    return found[0]


def _round(message: Message) -> int:
    for record in message.content.config_records.values():
        if isinstance(found := record.get("server-round"), int):
            return found - 1
    return 0


def _draw(seed: int | None, context: Context, round_: int) -> int:
    if seed is None:
        return secrets.randbits(63)
    client = context.node_config.get("partition-id", context.node_id)
    return derive(seed, "flower", "defense", str(client), f"round {round_}")


def _check(defense: Defense) -> None:
    """Refuse what would do nothing around a client, or half of what it promises."""
    hooks = ("on_model", "trained", "on_batch", "clips")
    for part in defenses.parts(defense):
        inside = [hook for hook in hooks if getattr(type(part), hook) is not getattr(Defense, hook)]
        if inside or (type(part).on_gradient is Defense.on_gradient and part != NoDefense()):
            raise SettingError(
                f"{type(part).__name__} changes how a client trains, so it cannot be put around one; use it inside the "
                "app's own training, or run dosimeter's client_app."
            )
    defense.on_gradient({"weight": torch.zeros(1)}, Moment(), torch.Generator())  # refuses if it needs the batch

"""FedKL: a private key turns the scale and shift after the first convolution into the client's own.

    s = gamma * BN(conv(x)) + beta      gamma = W k + b,  beta = W' k + b'      (FedKL, Eq. 29)

The key k is drawn by the client, uniform in [0, 1). The lock (W, b, W', b') is made by the server and handed out, so in
the first round only the key is secret; from then on it is the client's own (Sec. III-D). Whatever stays with the
client, the update depends on it through gamma and beta alone: 2 O numbers for O channels.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.defenses.base import Defense
from dosimeter.defenses.places import Added, own_modules
from dosimeter.errors import SettingError, unknown
from dosimeter.networks import run_order
from dosimeter.types import Gradient, Secret, Secrets, Shape, Target

Kind = Literal["linear", "relu"]
Share = Literal["none", "key", "lock", "both"]
Round = Literal["first", "later"]


class Lock(Added, ABC):
    """gamma * x + beta for feature maps (n, O, H, W); where gamma and beta come from is said by subclasses.

    Without biases (see `NoBias`) gamma = W k and beta = W' k.
    """

    def __init__(self, key: int, channels: int, kind: Kind) -> None:
        super().__init__()
        self.scale = nn.Linear(key, channels)
        self.shift = nn.Linear(key, channels)
        self._kind = kind
        self.locked = channels
        self.penalty: Tensor | None = None

    @property
    def biased(self) -> bool:
        """Whether both parts still have their biases."""
        return self.scale.bias is not None

    def weights(self) -> tuple[Tensor, Tensor]:
        """Weight (2 O, S) and bias (2 O,) of both parts together; a bias that was taken away is 0."""
        weight = torch.cat([self.scale.weight, self.shift.weight]).detach()
        bias = torch.cat([self.scale.bias, self.shift.bias]).detach() if self.biased else torch.zeros_like(weight[:, 0])
        return weight, bias

    @abstractmethod
    def unlocked(self) -> Tensor:
        """(n, 2 O) or (1, 2 O): gamma and beta before the ReLU of the released program."""

    def forward(self, x: Tensor) -> Tensor:
        both = self.unlocked()
        gamma, beta = (F.relu(both) if self._kind == "relu" else both).chunk(2, dim=1)
        return gamma[..., None, None] * x + beta[..., None, None]


class OpenLock(Lock):
    """The lock trains with the model and its gradient is sent; the secret u gives the key, the normal cdf of u."""

    key: Tensor

    def __init__(self, key: int, channels: int, kind: Kind) -> None:
        super().__init__(key, channels, kind)
        self.register_buffer("key", torch.zeros(key), persistent=False)

    def secrets(self) -> dict[str, Secret]:
        return {"key": Secret(tuple(self.key.shape[-1:]), "client")}

    def drawn_for(self, key: Tensor) -> dict[str, Tensor]:
        """What a client with this key (..., S) has in its buffers."""
        tiny = torch.finfo(key.dtype).eps
        return {"key": torch.special.ndtri(key.clamp(tiny, 1 - tiny))}

    def unlocked(self) -> Tensor:
        key = torch.special.ndtr(self.key).reshape(-1, self.key.shape[-1])
        return torch.cat([self.scale(key), self.shift(key)], 1)


class HiddenLock(Lock):
    """The lock stays with the client. The secret is what the key makes of it: gamma and beta = centre + spread u.

    Of a key of 1,024 numbers the model sees only 2 O combinations, so these are drawn, and searched, themselves.

    Args:
        known: whether the lock is still the server's. The centre is then what it makes of a key of 1/2, and the columns
            of spread are its singular directions: with W = U S V^T, u = V^T (k - 1/2) sqrt(12) has variance 1 and no
            correlation. Otherwise mean 0 and variance 1/9 + 1/(3 S) are what a fresh lock of torch's start gives, 1/9
            where it has no bias.
    """

    centre: Tensor
    spread: Tensor
    hidden: Tensor

    def __init__(self, key: int, channels: int, kind: Kind, *, known: bool) -> None:
        super().__init__(key, channels, kind)
        self.requires_grad_(False)
        self._known = known
        centre, spread = self._expected()
        self.register_buffer("centre", centre, persistent=False)
        self.register_buffer("spread", spread, persistent=False)
        self.register_buffer("hidden", torch.zeros(spread.shape[1]), persistent=False)
        self.register_load_state_dict_post_hook(_settle)  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        self.centre, self.spread = self._expected()

    def _expected(self) -> tuple[Tensor, Tensor]:
        """Centre (2 O,) and spread (2 O, U)."""
        weight, bias = self.weights()
        key = weight.shape[1]
        if self._known:
            left, sizes, _ = torch.linalg.svd(weight, full_matrices=False)
            return weight.sum(1) / 2 + bias, left * sizes / math.sqrt(12)
        variance = 1 / 9 + self.biased / (3 * key)
        return torch.zeros_like(bias), torch.eye(len(bias)).to(bias) * math.sqrt(variance)

    def secrets(self) -> dict[str, Secret]:
        return {"hidden": Secret((self.spread.shape[1],), "client")}

    def draw(self, rng: torch.Generator) -> dict[str, Tensor]:
        """A client's key, and its lock where that is no longer the server's, as what they make of the buffer."""
        weight, bias = (t.cpu().double() for t in self.weights())
        key = torch.rand(weight.shape[1], generator=rng, dtype=torch.float64)
        if not self._known:
            weight, bias = (
                (2 * torch.rand(t.shape, generator=rng, dtype=t.dtype) - 1) / math.sqrt(len(key))
                for t in (weight, bias)
            )
        return self.made_of(weight, bias * self.biased, key)

    def made_of(self, weight: Tensor, bias: Tensor, key: Tensor) -> dict[str, Tensor]:
        """What a client with this lock (2 O, S), (2 O,) and this key (S,) has in its buffer."""
        away = weight @ key + bias - self.centre.to(key)
        return {"hidden": (torch.linalg.pinv(self.spread.to(key)) @ away).to(self.spread)}

    def unlocked(self) -> Tensor:
        return self.centre + self.hidden.reshape(-1, self.hidden.shape[-1]) @ self.spread.T


def _settle(lock: HiddenLock, _loaded: object) -> None:
    lock.settle()


class Locked(nn.Sequential):
    """A normalised convolution and the lock after it; `conv` is missing where the model normalises it itself."""

    def __init__(self, conv: nn.Module | None, norm: nn.Module, lock: nn.Module) -> None:
        super().__init__()
        if conv is not None:
            self.conv = conv
        self.norm = norm
        self.lock = lock


@dataclass(frozen=True, kw_only=True)
class KeyLock(Defense):
    """FedKL (Sec. III-C and Eq. 29): scale and shift after the first convolution come from the client's private key.

    The lock sits in the first block of convolution and batch norm, as in all of the paper's experiments (Sec. IV-A);
    where the convolution has no batch norm, one without scale and shift is put in. One key of so many numbers a client,
    kept for all its steps.

    Args:
        key: length of the key; the paper has 1,024.
        lock: "linear" as in Eq. 29, or "relu" as in the released program, which then has about half of its scales at 0.
        share: what the client sends along (Table VII). The key of a lock that the server knows hides nothing any more;
            the gradient of the lock gives the key away (see `attacks.RecoverKey`), so it hides no more than both.
        round: in the first round the server knows the lock, which it made; later ones are modelled by a lock of the
            client's own, drawn as a fresh one.

    Deviations: a lock of later rounds has been trained away from the server's and is not independent of it; taking it
    so is in the defense's favour. In audits of local training a lock that is not sent stays as it is for all steps.
    """

    key: int = 1024
    lock: Kind = "linear"
    share: Share = "none"
    round: Round = "first"

    def __post_init__(self) -> None:
        checks.count("FedKL", "a key", self.key)
        for setting, choices in (("lock", Kind), ("share", Share), ("round", Round)):
            if getattr(self, setting) not in get_args(choices):
                raise SettingError(unknown(setting, getattr(self, setting), get_args(choices)))
        if self.share in ("lock", "both") and self.round == "later":
            raise SettingError(
                f"A server that is sent the lock's gradients (share={self.share}) knows the lock in every round, as in "
                "the first; use round=first."
            )

    @property
    def reveals(self) -> bool:
        """A key tells gamma and beta where the lock is known, and nothing of a lock that is not."""
        return self.share in ("key", "both") and self.round == "first"

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        return self._locked(model, shape, self.layer)

    def trained(self, model: nn.Module, shape: Shape) -> nn.Module:
        """With a lock that each client trains, whether it sends it or not."""
        return self._locked(model, shape, lambda channels: OpenLock(self.key, channels, self.lock))

    def private(self, model: nn.Module) -> frozenset[str]:
        if self.share in ("lock", "both"):
            return frozenset()
        locks = [path for path, layer in model.named_modules() if isinstance(layer, OpenLock)]
        return frozenset(name for name, _ in model.named_parameters() if any(name.startswith(f"{p}.") for p in locks))

    def kept(self, secrets: Secrets, private: Gradient) -> Defense:
        """In the state it was trained to, no longer known to the server."""
        return _Kept(key=self.key, lock=self.lock, share=self.share, round="later", keys=secrets, locks=private)

    def _locked(self, model: nn.Module, shape: Shape, make: Callable[[int], Lock]) -> nn.Module:
        model = copy.deepcopy(model)
        order = list(run_order(model, shape))
        leaves = [path for path in order if not any(model.get_submodule(path).children())]
        own = own_modules(model)
        at = next((i for i, path in enumerate(leaves) if isinstance(own.get(path), nn.Conv2d)), None)
        if at is None:
            raise SettingError("FedKL locks a convolution, and the model has none; choose a model with convolutions.")
        conv, after = model.get_submodule(leaves[at]), leaves[at + 1] if at + 1 < len(leaves) else ""
        assert isinstance(conv, nn.Conv2d)
        norm, lock = model.get_submodule(after), make(conv.out_channels)
        if isinstance(norm, nn.GroupNorm | nn.LayerNorm | nn.InstanceNorm2d):
            raise SettingError(
                f"FedKL takes the place of batch norm's scale and shift, but a {type(norm).__name__} follows the first "
                "convolution; choose a model with batch norm or none."
            )
        if isinstance(norm, nn.BatchNorm2d):
            path, locked = after, Locked(None, norm, lock)
            norm.affine = False
            norm.register_parameter("weight", None)
            norm.register_parameter("bias", None)
        else:
            path, locked = leaves[at], Locked(conv, nn.BatchNorm2d(conv.out_channels, affine=False), lock)
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, locked.to(conv.weight).train(conv.training))
        return model

    def layer(self, channels: int) -> Lock:
        """The lock of so many channels."""
        if self.share in ("lock", "both"):
            return OpenLock(self.key, channels, self.lock)
        return HiddenLock(self.key, channels, self.lock, known=self.round == "first")

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        return {
            f"{path}.{name}": value
            for path, layer in target.model.named_modules()
            if isinstance(layer, HiddenLock)
            for name, value in layer.draw(rng).items()
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kept(KeyLock):
    """FedKL whose clients all have the key and the trained lock of one."""

    keys: Secrets
    locks: Gradient

    def draw(self, target: Target, batch: int, rng: torch.Generator) -> Secrets:
        drawn: dict[str, Tensor] = {}
        for name, hidden in self.keys.items():
            path = name.rpartition(".")[0]
            layer = target.model.get_submodule(path)
            both = [f"{path}.{part}" for part in ("scale", "shift")]
            weight = torch.cat([self.locks[f"{part}.weight"] for part in both]).double()
            none = torch.zeros(len(weight) // 2)
            bias = torch.cat([self.locks.get(f"{part}.bias", none) for part in both]).double()
            key = torch.special.ndtr(hidden.double())
            made = layer.made_of(weight, bias, key)  # type: ignore[operator]
            drawn |= {f"{path}.{what}": value.to(target.mean) for what, value in made.items()}
        return drawn

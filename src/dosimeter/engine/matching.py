"""Inner products of simulated and observed gradients, differentiable in the images, for all candidates at once.

Four ways, chosen by trying them on the first candidate; all give the same numbers:

    chain      straight and residual networks and transformers by hand, without autograd (see `chain` and `transformer`)
    tape       one pass for all images of any network, gradients never written out (see `tape` and `contract`)
    vmap       `torch.func` over candidates, for models with layers that the tape does not know and for local training
    one by one for models that vmap cannot take, such as those that branch on their data
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from dosimeter.engine.chain import Chain
from dosimeter.engine.contract import Contraction, Vectors, entry_losses
from dosimeter.engine.layers import Part, Vector
from dosimeter.engine.memory import FEW, TRIED
from dosimeter.engine.parts import InParts
from dosimeter.engine.reading import NotStraight
from dosimeter.engine.tape import Tape
from dosimeter.engine.threads import twice_differentiable
from dosimeter.engine.transformer import Transformer
from dosimeter.errors import ModelError
from dosimeter.networks import norms_by_batch
from dosimeter.rng import stream
from dosimeter.trees import flat, rows, squared_norms
from dosimeter.types import Gradient, Secrets, Statistics, Target, Way

Compare = Callable[[Tensor, Tensor], Tensor]


ODD = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, AssertionError)
"""What models and their layers raise where a way does not suit them."""

JUMPS = 20.0
"""How many times as far as by rounding numbers may be apart in float32 for a look in float64 to be worth it."""


class Products(NamedTuple):
    """All that a matching loss needs to know of N candidates' gradients, for each of P tensors."""

    cross: Tensor  # (N, P) <simulated, observed>
    simulated: Tensor  # (N, P) |simulated|^2
    observed: Tensor  # (N, P) |observed|^2
    difference: Tensor  # (N, P) |simulated - observed|^2


class Explanation(NamedTuple):
    """How one tensor is compared, and why."""

    tensor: str
    form: str
    why: str


class Matcher:
    """Compares the gradients that candidates would cause with those that were observed.

    Args:
        target: the model, its parameters and the loss.
        observed: {name: (V, ...)}, one gradient a victim.
        statistics: {layer: (V, C) twice}, the mean and variance that the batch norms of each victim's candidates use.
        exact: compare entry by entry wherever gradients are written out anyway or can be, so that
            `Products.difference` does not suffer from cancellation near the solution.
        way: force a way, for tests and benchmarks; None takes the fastest that works.
    """

    def __init__(
        self,
        target: Target,
        observed: Gradient,
        *,
        statistics: Statistics | None = None,
        exact: bool = False,
        way: Way | None = None,
    ) -> None:
        self._target = target if target.part is None else replace(target, step=InParts(target.part))
        self._parameters = target.parameters
        self._observed = {name: observed[name] for name in self._parameters}
        self._norms = squared_norms(self._observed)  # (V, P)
        self._statistics = statistics or {}
        self._exact = exact
        self._forced = way or target.way
        self._chain: Chain | Transformer | None = None
        self._tape: Tape | None = None
        self._contractions: dict[str, Contraction] = {}
        self._small: list[str] = []
        self._vectors: Vectors | None = None
        self._order: Tensor  # columns as computed -> the model's order
        self.way: Way | None = None
        self.why = ""

    @property
    def norms(self) -> Tensor:
        """(V, P): the observed gradients' squared norms, tensors in the model's order."""
        return self._norms

    def __call__(self, images: Tensor, labels: Tensor, owner: Tensor, secrets: Secrets | None = None) -> Products:
        """Simulate a client's step for every candidate and compare it with its owner's observation.

        Args:
            images: (N, B, C, H, W) in [0, 1].
            labels: (N, B) classes or targets.
            owner: (N,) the victim that each candidate wants to be.
            secrets: {buffer: (N, ...)} what each candidate supposes was drawn inside the model; nothing by default.
        """
        secrets = secrets or {}
        with torch.enable_grad(), twice_differentiable():
            if self.way is None:
                self._choose(images, labels, secrets)
            if self._chain is not None:
                return self._from_chain(self._chain, images, labels, owner)
            if self._tape is not None:
                return self._from_tape(self._tape, images, labels, owner, secrets)
            return self._written_out(self._simulate(images, labels, owner, secrets), owner)

    def entries(
        self, images: Tensor, labels: Tensor, owner: Tensor, compare: Compare, secrets: Secrets | None = None
    ) -> Tensor:
        """(N, P): a loss that needs every entry of both gradients; they are written out a few candidates at a time.

        Args:
            images, labels, owner, secrets: as in a call.
            compare: (simulated (n, entries), observed (n, entries)) of one tensor -> (n,).
        """
        secrets = secrets or {}
        if self.way is None:
            self._choose(images, labels, secrets)
        observed = [flat(self._observed[name]) for name in self._parameters]
        if self._chain is not None and self._tape is None:
            self._tape = Tape(self._target, lifted=isinstance(self._chain, Transformer))
        if self._tape is None:
            simulated = self._simulate(images, labels, owner, secrets)
            columns = [compare(flat(simulated[n]), o[owner]) for n, o in zip(self._parameters, observed, strict=True)]
        else:
            parts = _by_name(self._tape(images, labels, self._of(owner), secrets))
            columns = [
                entry_losses(parts[n], o, owner, compare) for n, o in zip(self._parameters, observed, strict=True)
            ]
        return torch.stack(columns, 1)

    def explain(self) -> list[Explanation]:
        """Which tensor goes which way and why; after the first call."""
        if self._chain is not None:
            forms = self._chain.forms
            kind = "a transformer" if isinstance(self._chain, Transformer) else "common layers"
            return [Explanation(name, forms.get(name, "vector"), f"{kind}, by hand") for name in self._parameters]
        if self._tape is None:
            return [Explanation(name, self.way or "not decided yet", self.why) for name in self._parameters]
        forms = {name: c.form for name, c in self._contractions.items()} | dict.fromkeys(self._tape.idle, "zero")
        outside = self._tape.outside or {}
        return [
            Explanation(name, "written out", outside[name])
            if name in outside
            else Explanation(name, forms.get(name, "vector"), self._tape.how[name])
            for name in self._parameters
        ]

    def _from_chain(self, chain: Chain | Transformer, images: Tensor, labels: Tensor, owner: Tensor) -> Products:
        cross, squared = chain(images, labels, owner)
        observed = self._norms[owner]
        return Products(cross, squared, observed, (squared - 2 * cross + observed).clamp_min(0))

    def _from_tape(self, tape: Tape, images: Tensor, labels: Tensor, owner: Tensor, secrets: Secrets) -> Products:
        parts = _by_name(tape(images, labels, self._of(owner), secrets))
        rows = [contraction(parts[name], owner) for name, contraction in self._contractions.items()]
        if self._vectors is not None:
            rows.append(self._vectors([parts[name] for name in self._small], owner))
        cross, squared = (_columns([getattr(row, key) for row in rows])[:, self._order] for key in ("cross", "squared"))
        observed = self._norms[owner]
        if not self._exact:
            return Products(cross, squared, observed, (squared - 2 * cross + observed).clamp_min(0))
        apart = [row.squared - 2 * row.cross if row.apart is None else row.apart for row in rows]
        given = torch.cat([torch.full_like(_columns([row.cross]), float(row.apart is None)) for row in rows], 1)
        total = _columns(apart)[:, self._order] + given[:, self._order] * observed
        return Products(cross, squared, observed, total.clamp_min(0))

    def _written_out(self, simulated: dict[str, Tensor], owner: Tensor) -> Products:
        cross, squared, apart = [], [], []
        for name, s in simulated.items():
            s, o = flat(s), flat(self._observed[name])[owner]  # (N, entries)
            cross.append((s * o).sum(1))
            squared.append(s.square().sum(1))
            apart.append((s - o).square().sum(1))
        return Products(torch.stack(cross, 1), torch.stack(squared, 1), self._norms[owner], torch.stack(apart, 1))

    def _choose(self, images: Tensor, labels: Tensor, secrets: Secrets) -> None:
        """The fastest way that gives the plain one's numbers on the first candidate and on two made up beside it.

        One candidate would not do: a model may mix the images of its batch, or overwrite what this one leaves as it is.
        Of large batches `FEW` images are tried, unless the model takes no other number of them than all.
        """
        whole = images.shape[1]
        few = whole if secrets or self._statistics or self._target.step is not None else min(FEW, whole)
        try:
            x, y, u, alone = self._plainly(images[:, :few], labels[:, :few], secrets)
        except (ModelError, *ODD):
            if few == whole:
                raise
            few = whole
            x, y, u, alone = self._plainly(images, labels, secrets)
        if not _agree(self._alone(x, y, u), alone):
            raise ModelError(
                "Two simulations of the same step differ: the model or loss draws random numbers. "
                "An attack needs a deterministic model; take the randomness out of it or express it as a defense."
            )
        reasons: list[str] = []

        def first(x: Tensor) -> Tensor:
            return torch.zeros(len(x), dtype=torch.long, device=x.device)

        ways: list[tuple[Way, Callable[[Tensor, Tensor], Callable[[Tensor], Products]]]] = [
            ("chain", lambda x, y: self._set_chain(Chain, x, labels, y, first(x))),
            ("chain", lambda x, y: self._set_chain(Transformer, x, labels, y, first(x))),
            ("tape", lambda x, y: self._set_tape(x, y, first(x), u, lifted=False)),
            ("tape", lambda x, y: self._set_tape(x, y, first(x), u, lifted=True)),
            ("vmap", lambda x, y: self._set_vmap(y, first(x), u)),
        ]
        for way, set_up in ways:
            if self._forced not in (None, way):
                continue
            reason = self._try(set_up, x, y, alone, closely=way != "chain" or x.dtype != torch.float32)
            if reason is None and few < whole:
                try:
                    set_up(images[:1].detach(), labels[:1])
                except (NotStraight, *ODD) as error:
                    reason = _first_line(error)
            if reason is None:
                self.way, self.why = way, "; ".join(reasons)
                return
            self._chain = self._tape = None
            reasons.append(f"{way} cannot take the model ({reason})")
        if self._forced not in (None, "one by one"):
            raise ModelError(f"The way {self._forced!r} does not work for this model: {'; '.join(reasons)}.")
        self.way, self.why = "one by one", "; ".join(reasons)

    def _plainly(
        self, images: Tensor, labels: Tensor, secrets: Secrets
    ) -> tuple[Tensor, Tensor, Secrets, tuple[Products, Tensor]]:
        """What ways are tried on, and its numbers by the plain one."""
        x, y, u = self._trial(images, labels, secrets)
        try:
            return x, y, u, self._alone(x, y, u)
        except RuntimeError as error:
            raise ModelError(f"The model cannot be differentiated twice: {_first_line(error)}.") from error

    def _trial(self, images: Tensor, labels: Tensor, secrets: Secrets) -> tuple[Tensor, Tensor, Secrets]:
        """The first candidate, and where the model stays finite on them also two of noise, all with its labels.

        Where clients train it is one of noise: several steps of several candidates take time and memory.
        """
        count = 3 if self._target.step is None else TRIED
        shape = (count - 1, *images.shape[1:])
        noise = torch.randn(shape, generator=stream(0, "trial"), dtype=images.dtype).to(images.device)
        if self._statistics:  # of one batch: on images that have nothing to do with it deep networks overflow
            noise = images[:1].detach() + 1e-4 * noise
        x = torch.cat([images[:1].detach(), noise])
        y = labels[:1].expand(count, *labels.shape[1:])
        u = {
            name: value[:1].detach()
            * torch.tensor([1.0, 0.5, -1.0][:count]).to(value).view(-1, *[1] * (value.ndim - 1))
            for name, value in secrets.items()
        }
        updates = self._one_by_one(x, y, torch.zeros(count, dtype=torch.long, device=x.device), u)
        finite = torch.stack([flat(u.detach()).isfinite().all(1) for u in updates.values()]).all(0)
        finite[0] = True
        return x[finite], y[finite], {name: value[finite] for name, value in u.items()}

    def _try(
        self,
        set_up: Callable[[Tensor, Tensor], Callable[[Tensor], Products]],
        x: Tensor,
        y: Tensor,
        alone: tuple[Products, Tensor],
        *,
        closely: bool,
    ) -> str | None:
        """Set a way up and compare it with the plain one; the reason where it cannot be used.

        Other roundings let an activation near its kink fall on the other side, where gradients jump. Unless it is to be
        compared closely, a way whose numbers are not far apart is therefore judged in float64, and as strictly as ever.
        """
        try:
            found = self._slope(set_up(x, y), x)
        except NotStraight as reason:
            return str(reason)
        except ODD as error:
            return _first_line(error)
        if _agree(found, alone) or (not closely and _agree(found, alone, jumps=JUMPS) and self._holds_in_double(x, y)):
            return None
        return "gives other numbers than autograd"

    def _holds_in_double(self, x: Tensor, y: Tensor) -> bool:
        """Whether the chain of this model gives autograd's numbers in float64, on the first victim.

        Candidates are looked at one by one, and two images of each: it is the program that is looked at, and a whole
        batch in float64, its second derivatives written out, would take several times what a tile takes.
        """
        if self._chain is None:
            return False
        kind, first = type(self._chain), torch.zeros(1, dtype=torch.long, device=x.device)
        model = copy.deepcopy(self._target.model).double()
        target = replace(self._target, model=model, mean=self._target.mean.double(), std=self._target.std.double())
        twin = Matcher(target, {name: o[:1].double() for name, o in self._observed.items()})

        def holds(x: Tensor, y: Tensor) -> bool:
            alone = twin._alone(x, y, {})
            return twin._try(lambda x, y: twin._set_chain(kind, x, y, y, first), x, y, alone, closely=True) is None

        try:
            return all(holds(x[at : at + 1, :2].double(), y[at : at + 1, :2]) for at in range(len(x)))
        except RuntimeError:  # such as a model with constants in float32
            return False

    def _set_chain(
        self, kind: type[Chain] | type[Transformer], x: Tensor, labels: Tensor, y: Tensor, first: Tensor
    ) -> Callable[[Tensor], Products]:
        if self._exact:
            raise NotStraight("entries are compared one by one")
        if self._target.secrets:
            raise NotStraight("clients draw numbers inside the model")
        if self._statistics:
            raise NotStraight("every victim's batch norms have statistics of their own")
        if labels.ndim != 2 or labels.dtype != torch.long or not bool((labels >= 0).all()):
            raise NotStraight("labels are not one class an image")
        self._chain = chain = kind(self._target, self._observed, x.shape[1])
        return lambda x: self._from_chain(chain, x, y, first)

    def _set_tape(
        self, x: Tensor, y: Tensor, first: Tensor, u: Secrets, *, lifted: bool
    ) -> Callable[[Tensor], Products]:
        if self._target.step is not None:
            raise NotStraight("the client trains locally, so weights differ between candidates")
        self._tape = tape = Tape(self._target, lifted=lifted)
        parts = _by_name(tape(x, y, self._of(first), u))
        if tape.branches:
            raise NotStraight("it branches on its data")
        large = {*(tape.outside or ()), *tape.idle}
        if tape.outside and not lifted:
            raise NotStraight(f"{min(tape.outside)!r} is used outside known layers")
        small = (n for n in self._parameters if n not in large)
        self._small = [n for n in small if all(isinstance(part, Vector) for part in parts[n])]
        self._contractions = {
            name: Contraction(self._observed[name], parts[name], entries=self._exact)
            for name in self._parameters
            if name not in self._small
        }
        if self._small:
            self._vectors = Vectors([self._observed[n] for n in self._small], entries=self._exact)
        computed = [*self._contractions, *self._small]
        self._order = torch.tensor([computed.index(name) for name in self._parameters], device=x.device)
        return lambda x: self._from_tape(tape, x, y, first, u)

    def _set_vmap(self, y: Tensor, first: Tensor, u: Secrets) -> Callable[[Tensor], Products]:
        if norms_by_batch(self._target.model):
            # In torch 2.13, by a thousandth or more: too little for a trial in float32 to find out.
            raise NotStraight("torch's second derivative of batch norm by the batch is wrong under vmap")
        return lambda x: self._written_out(self._together(x, y, first, u), first)

    def _alone(self, x: Tensor, y: Tensor, u: Secrets) -> tuple[Products, Tensor]:
        """The plain way, one candidate after another, so that only one of them is in memory."""
        first = torch.zeros(1, dtype=torch.long, device=x.device)

        def slope(n: int) -> tuple[Products, Tensor]:
            labels, secrets = rows((y, dict(u)), first + n)
            return self._slope(
                lambda x: self._written_out(self._one_by_one(x, labels, first, secrets), first), x[n, None]
            )

        found = [slope(n) for n in range(len(x))]
        products = (torch.cat(columns) for columns in zip(*(products for products, _ in found), strict=True))
        return Products(*products), torch.cat([slope for _, slope in found])

    def _slope(self, products: Callable[[Tensor], Products], x: Tensor) -> tuple[Products, Tensor]:
        """Products and the slope of a mixture of them."""
        x = x.detach().requires_grad_()
        found = products(x)
        if _once(found.cross):
            raise RuntimeError("a function in it allows a single derivative")
        scale = self._norms[:1].sum().clamp_min(1e-30)
        (slope,) = torch.autograd.grad(((found.cross + 0.3 * found.simulated) / scale).sum(), x)
        return Products(*(value.detach() for value in found)), slope

    def _of(self, owner: Tensor) -> Statistics:
        """The owners' statistics, {layer: (N, C) twice}."""
        return {name: (mean[owner], variance[owner]) for name, (mean, variance) in self._statistics.items()}

    def _simulate(self, images: Tensor, labels: Tensor, owner: Tensor, secrets: Secrets) -> dict[str, Tensor]:
        step = self._one_by_one if self.way == "one by one" else self._together
        return step(images, labels, owner, secrets)

    def _together(self, images: Tensor, labels: Tensor, owner: Tensor, secrets: Secrets) -> dict[str, Tensor]:
        step = vmap(self._update, in_dims=(None, 0, 0, 0, 0))
        return dict(step(self._parameters, self._of(owner), dict(secrets), images, labels))

    def _one_by_one(self, images: Tensor, labels: Tensor, owner: Tensor, secrets: Secrets) -> dict[str, Tensor]:
        given, steps = self._of(owner), []
        for n in torch.arange(len(images)):
            target = replace(self._target, statistics=rows(given, n), drawn=rows(secrets, n))
            x, y, step = images[n], labels[n], target.step
            steps.append(target.gradient(x, y) if step is None else step(target, self._parameters, x, y))
        return {name: torch.stack([s[name] for s in steps]) for name in self._parameters}

    def _update(
        self, parameters: Gradient, statistics: Statistics, secrets: Secrets, images: Tensor, labels: Tensor
    ) -> Gradient:
        """One candidate's, by `torch.func` alone."""
        target = replace(self._target, statistics=statistics, drawn=secrets)
        if target.step is not None:
            return target.step(target, parameters, images, labels)
        slopes: Gradient = grad(target.objective)(parameters, images, labels)
        return slopes


def _by_name(parts: list[Part]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for part in parts:
        found.setdefault(part.name, []).append(part)
    return found


def _columns(values: list[Tensor]) -> Tensor:
    """(N,) and (N, several) side by side."""
    return torch.cat([v.unsqueeze(1) if v.ndim == 1 else v for v in values], 1)


def _agree(one: tuple[Products, Tensor], other: tuple[Products, Tensor], jumps: float = 1.0) -> bool:
    """Equal but for rounding: every tensor's products on their own scale, down to a floor of all tensors' scale.

    With `jumps` they may be so many times as far apart.
    """
    single = one[1].dtype == torch.float32
    share, floor = (1e-2, 1e-6) if single else (1e-6, 1e-12)
    pairs = [(one[0].cross, other[0].cross), (one[0].simulated, other[0].simulated)]
    pairs.append((one[1].flatten(1).t(), other[1].flatten(1).t()))  # the slope, one candidate a column
    for a, b in pairs:
        allowed = jumps * (share * b.abs().amax(0) + floor * b.abs().max())
        if not bool(((a - b).abs().amax(0) <= allowed).all()):
            return False
    return True


def _once(value: Tensor) -> bool:
    """Whether some part of the graph cannot be differentiated, which autograd leaves out of a slope without a word."""
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            if node.name() == "torch::autograd::Error":
                return True
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return False


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

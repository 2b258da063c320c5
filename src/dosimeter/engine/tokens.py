"""A transformer's parts, read off one run of the model.

Every tensor of that run is known as a view: which entry of which value stands at each of its places. Whatever moves
entries (reshape, permute, chunk, indexing, ...) is done to the numbers of the entries instead, so that it does not
matter in which way a model cuts queries, keys and values out of what a layer gave. What computes becomes a node.
"""

from typing import Any

import torch
from torch import Tensor

from dosimeter.engine import attending
from dosimeter.engine.affine import Gain, Norm, Shift
from dosimeter.engine.attending import Scores
from dosimeter.engine.curves import CURVES
from dosimeter.engine.layers import two
from dosimeter.engine.nodes import Activation, Add, Mean, Place, Scale, parted
from dosimeter.engine.ops import Memory
from dosimeter.engine.projection import Projection
from dosimeter.engine.reading import NotStraight
from dosimeter.engine.tape import READS
from dosimeter.engine.views import IMAGES, Values, View, numbers
from dosimeter.networks.trace import CONV, Call, Trace, arguments
from dosimeter.types import Gradient, Target

MOVES = {
    *("reshape", "view", "flatten", "unflatten", "transpose", "permute", "swapaxes", "swapdims", "movedim", "t"),
    *("unbind", "chunk", "split", "tensor_split", "getitem", "select", "narrow", "squeeze", "unsqueeze", "get"),
    *("contiguous", "clone", "expand", "repeat", "detach", "unfold"),
}
PLUS = {"add", "iadd", "radd"}
TIMES = {"mul", "imul", "rmul", "multiply"}
OVER = {"div", "truediv", "itruediv", "true_divide", "divide"}
LESS = {"sub", "isub", "subtract"}
ATTENTION = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None}
NORM = {"normalized_shape": (), "weight": None, "bias": None, "eps": 1e-5}


class Learned(View):
    """A tensor as entries of a parameter, which is known by its place among all."""


Seen = View | Scores


class Reader:
    """Reads a model into `values`; raises `NotStraight` where it is no transformer of known parts."""

    def __init__(self, target: Target, observed: Gradient, batch: int, memory: Memory) -> None:
        self._observed, self._batch = observed, batch
        self._names = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}
        self._parameters = [p for p in target.model.parameters() if p.requires_grad]
        self._places = {id(p): place for place, p in enumerate(self._parameters)}
        self.values = Values(tuple(target.shape), memory, target.mean)
        self._seen: dict[int, Seen] = {}
        images = target.mean.new_zeros(IMAGES, *target.shape)
        try:
            trace = Trace(target.model, images, _refuse)
        except (RuntimeError, ValueError, TypeError, AssertionError) as reason:
            raise NotStraight(f"two blank images cannot pass ({type(reason).__name__})") from None
        self._seen[id(images)] = self.values.whole(0)
        for call in trace.calls:
            self._read(call)
        last = self._seen.get(id(trace.output)) if isinstance(trace.output, Tensor) else None
        if not isinstance(last, View) or isinstance(last, Learned) or last.entries.ndim != 2:
            raise NotStraight("the model gives something else than one row of scores an image")
        self.output = self.values.plain(last)

    def _look(self, tensor: Any) -> Seen | None:
        """What is known of a tensor; None for constants."""
        if not isinstance(tensor, Tensor):
            return None
        place = self._places.get(id(tensor))
        return self._seen.get(id(tensor)) if place is None else Learned(place, numbers(tuple(tensor.shape)))

    def _value(self, tensor: Any, name: str) -> View:
        known = self._look(tensor)
        if not isinstance(known, View) or isinstance(known, Learned):
            raise NotStraight(f"{name} of what it is used for is not run by hand")
        return known

    def _read(self, call: Call) -> None:
        inputs = [seen for tensor in call.inputs if (seen := self._look(tensor)) is not None]
        if not inputs:
            return
        known = self._look(call.args[0] if call.args else None)
        if call.name in MOVES and isinstance(known, View) and len(inputs) == 1:
            self._move(call, known)
            return
        if not isinstance(call.out, Tensor) and call.name != "multi_head_attention_forward":
            raise NotStraight(f"{call.name} gives several tensors")
        out = call.out if isinstance(call.out, Tensor) else call.out[0]
        found = self._computed(call.name, call.args, call.kwargs, out.ndim)
        if isinstance(found, View) and found.entries.shape != out.shape:
            raise NotStraight(f"{call.name} gives a shape that is not run by hand")
        self._seen[id(out)] = found

    def _move(self, call: Call, known: View) -> None:
        moved = call.func(known.entries, *call.args[1:], **call.kwargs)
        for out, entries in zip(call.outputs, [moved] if isinstance(moved, Tensor) else moved, strict=True):
            self._seen[id(out)] = known._replace(entries=entries)

    def _computed(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int) -> Seen:
        if name == "dropout":
            return self._unchanged(args, kwargs)
        if name == "softmax":
            return attending.softmax(self._look(args[0]), ndim, args[1:], kwargs)
        if name in ("matmul", "bmm") and len(args) == 2:
            return attending.product(self.values, self._look(args[0]), self._look(args[1]))
        if name == "scaled_dot_product_attention":
            q, k, v, *rest = arguments(args, kwargs, query=None, key=None, value=None, **ATTENTION)
            query, key, value = (self._value(part, name) for part in (q, k, v))
            return attending.by_function(self.values, query, key, value, rest)
        if name in PLUS | TIMES | LESS | OVER and len(args) == 2 and not kwargs:
            return self._arithmetic(name, *args)
        if name in ("cat", "concat"):
            return self._cat(args[0], *arguments(args[1:], kwargs, dim=0))
        if name == "multi_head_attention_forward":
            return self._multi_head(args, kwargs)
        known = self._value(args[0] if args else None, name)
        if name in ("linear", "layer_norm", "conv2d", "mean"):
            view: View = getattr(self, f"_{name}")(known, args[1:], kwargs)
            return view
        if name == "gelu" and arguments(args[1:], kwargs, approximate="none") == ["tanh"]:
            name = "gelu tanh"
        if name not in CURVES:
            raise NotStraight(f"{name} is not run by hand")
        return self.values.pointwise([known], lambda inputs, new: Activation(inputs, new, self.values.memory, name))

    def _unchanged(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        known, p, training = arguments(args, kwargs, input=None, p=0.5, training=True)
        seen = self._look(known)
        if seen is None or (training and p):
            raise NotStraight("dropout draws numbers")
        return seen

    def _arithmetic(self, name: str, one: Any, other: Any) -> Seen:
        left, right = self._look(one), self._look(other)
        if name in PLUS | TIMES and (left is None or isinstance(left, Learned)):
            one, other, left, right = other, one, right, left
        if right is None and left is not None and not isinstance(left, Learned):
            return self._constant(name, left, other)
        if name in TIMES and isinstance(right, Learned):
            return self._gain(self._value(one, name), right)
        if name not in PLUS or not isinstance(left, View) or not isinstance(right, View):
            raise NotStraight(f"{name} of what it is used for is not run by hand")
        if isinstance(right, Learned):
            return self._placed(self._value(one, name), right)
        if left.entries.shape != right.entries.shape:
            raise NotStraight("values of two shapes are added")
        return self.values.pointwise([left, right], lambda inputs, new: Add(inputs, new, self.values.memory))

    def _constant(self, name: str, left: Seen, constant: Any) -> Seen:
        like = self.values.like
        tensor = torch.as_tensor(constant, dtype=like.dtype, device=like.device).detach()
        if tensor.ndim == 0 and name in TIMES | OVER and not (isinstance(left, Scores) and left.chances):
            number = float(tensor)
            return left._replace(factor=left.factor * (number if name in TIMES else 1 / number))
        if isinstance(left, View) and tensor.ndim == left.entries.ndim and len(tensor) == 1:
            tensor = tensor[0]
        if isinstance(left, Scores) or tensor.ndim >= left.entries.ndim:
            raise NotStraight("attention is masked, or a constant is not the same for all images")
        one, zero = torch.ones_like(tensor), torch.zeros_like(tensor)
        if name in PLUS | LESS:
            factor, shift = one, tensor if name in PLUS else -tensor
        else:
            factor, shift = tensor if name in TIMES else 1 / tensor, zero
        value = self.values.plain(left)
        shape = self.values.shapes[value]
        if (torch.empty(shape, device="meta") + torch.empty(tensor.shape, device="meta")).shape != shape:
            raise NotStraight("a constant is larger than what it is added to")
        return self.values.add(Scale([value], self.values.new(shape), self.values.memory, factor, shift))

    def _placed(self, left: View, right: View) -> View:
        """A parameter added to rows of tokens."""
        value, axis = self.values.rows(left)
        entries = right.entries.expand(left.entries.shape).movedim(axis, 0)
        if len(self.values.shapes[value]) != 2 or not torch.equal(entries[0], entries[1]):
            raise NotStraight("a parameter is added to something else than rows of tokens")
        found = self._shift(value, right, 0, entries[0])
        return found._replace(entries=found.entries.movedim(0, axis))

    def _gain(self, left: View, right: View) -> View:
        parameter = self._parameters[right.value]
        name = self._name(parameter)
        value, axis = self.values.rows(left)
        shape = self.values.shapes[value]
        if tuple(right.entries.flatten().tolist()) != tuple(range(shape[-1])) or right.entries.shape[-1] != shape[-1]:
            raise NotStraight("a parameter is multiplied with something else than rows of tokens")
        node = Gain(
            [value],
            self.values.new(shape),
            self.values.memory,
            weight=parameter.detach(),
            name=name,
            observed=self._observed[name],
            batch=self._batch,
        )
        found = self.values.add(node)
        return found._replace(entries=found.entries.movedim(0, axis))

    def _shift(self, value: int, learned: View, first: int, entries: Tensor) -> View:
        parameter = self._parameters[learned.value]
        name = self._name(parameter)
        if learned.factor != 1:
            raise NotStraight("a parameter is scaled")
        return self.values.add(
            Shift(
                [value],
                self.values.new(self.values.shapes[value]),
                self.values.memory,
                parameter=parameter.detach(),
                name=name,
                observed=self._observed[name],
                first=first,
                order=entries.flatten().to(parameter.device),
                batch=self._batch,
            )
        )

    def _name(self, parameter: Tensor) -> str:
        if id(parameter) not in self._names:
            raise NotStraight("a layer's parameters are partly frozen or made from others")
        return self._names[id(parameter)]

    def _cat(self, parts: Any, dim: int) -> View:
        """One value among parameters, along the tokens."""
        seen = [part for tensor in parts if isinstance(part := self._look(tensor), View)]
        values = [place for place, part in enumerate(seen) if not isinstance(part, Learned)]
        if len(values) != 1 or len(seen) != len(parts) or any(p.ndim != 3 for p in parts) or dim not in (1, -2):
            raise NotStraight("something else than a value and tokens is put side by side")
        starts = [sum(part.shape[1] for part in parts[:place]) for place in range(len(parts) + 1)]
        value, tokens = self.values.plain(seen[values[0]]), starts[-1]
        count, width = self.values.shapes[value]
        new = self.values.new((tokens, width))
        found = self.values.add(Place([value], new, self.values.memory, starts[values[0]], count, tokens))
        for part, start in zip(seen, starts, strict=False):
            if isinstance(part, Learned):
                if not torch.equal(part.entries[0], part.entries[1]):
                    raise NotStraight("a parameter differs between images")
                found = self._shift(found.value, part, start, part.entries[0])
        return found

    def _linear(self, known: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
        value, axis = self.values.rows(known)
        found = self._projection(value, *arguments(args, kwargs, weight=None, bias=None))
        return found._replace(entries=found.entries.movedim(0, axis))

    def _projection(self, value: int, weight: Tensor, bias: Tensor | None) -> View:
        names = [self._name(p) for p in (weight, bias) if p is not None]
        observed = [self._observed[name] for name in names]
        return self.values.add(
            Projection(
                [value],
                self.values.new((*self.values.shapes[value][:-1], len(weight))),
                self.values.memory,
                weight=weight.detach().flatten(1),
                bias=None if bias is None else bias.detach(),
                names=names,
                observed=[observed[0].flatten(2), *observed[1:]],
                batch=self._batch,
            )
        )

    def _conv2d(self, known: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
        """Patches that share no pixel, as a linear layer; gives (B, W, rows, columns)."""
        weight, bias, stride, padding, dilation, groups = arguments(args, kwargs, **CONV)
        size = (weight.shape[2], weight.shape[3])
        height, width = known.entries.shape[2:]
        apart = groups == 1 and not isinstance(padding, str) and two(padding) == (0, 0) and two(dilation) == (1, 1)
        if not apart or two(stride) != size or height % size[0] or width % size[1]:
            raise NotStraight("a convolution has windows that overlap, padding or groups")
        cut = parted(parted(known.entries, 3, (-1, size[1])), 2, (-1, size[0]))  # (B, C, rows, p, columns, p)
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        found = self._projection(self.values.plain(known._replace(entries=patches)), weight, bias)
        grid = parted(found.entries, 1, (height // size[0], width // size[1]))
        return found._replace(entries=grid.permute(0, 3, 1, 2))

    def _layer_norm(self, known: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
        shape, weight, bias, eps = arguments(args, kwargs, **NORM)
        if len(shape) != 1 or (weight is None and bias is not None):
            raise NotStraight("a norm is over several axes")
        names = [self._name(p) for p in (weight, bias) if p is not None]
        value, axis = self.values.rows(known)
        found = self.values.add(
            Norm(
                [value],
                self.values.new(self.values.shapes[value]),
                self.values.memory,
                weight=None if weight is None else weight.detach(),
                bias=None if bias is None else bias.detach(),
                eps=eps,
                names=names,
                observed=[self._observed[name] for name in names],
                batch=self._batch,
            )
        )
        return found._replace(entries=found.entries.movedim(0, axis))

    def _mean(self, known: View, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
        dim, keep, kind = arguments(args, kwargs, dim=None, keepdim=False, dtype=None)
        dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
        if known.entries.ndim != 3 or dims not in ((1,), (-2,)) or kind is not None:
            raise NotStraight("a mean is over something else than tokens")
        value = self.values.plain(known)
        found = self.values.add(Mean([value], self.values.new(self.values.shapes[value][1:]), self.values.memory))
        return found._replace(entries=found.entries.unsqueeze(1)) if keep else found

    def _multi_head(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> View:
        """`nn.MultiheadAttention` of tokens (T, B, W) with themselves."""
        given = dict(zip(MULTI_HEAD, args, strict=False)) | kwargs
        masked = any(given.get(key) is not None for key in MASKS) or given["add_zero_attn"]
        drawn = given["dropout_p"] and given.get("training", True)
        apart = given.get("use_separate_proj_weight") or not given["query"] is given["key"] is given["value"]
        tokens = self._value(given["query"], "attention")
        if masked or drawn or apart or tokens.entries.ndim != 3:
            raise NotStraight("attention is masked, of several inputs or draws numbers")
        value, axis = self.values.rows(tokens)
        both = self._projection(value, given["in_proj_weight"], given["in_proj_bias"])
        heads = int(given["num_heads"])
        q, k, v = (
            both._replace(entries=parted(part, 2, (heads, -1)).transpose(1, 2)) for part in both.entries.chunk(3, 2)
        )
        mixed = attending.attend(self.values, q, k, v, q.entries.shape[-1] ** -0.5)
        rows = self.values.plain(mixed._replace(entries=mixed.entries.transpose(1, 2).flatten(2)))
        found = self._projection(rows, given["out_proj_weight"], given["out_proj_bias"])
        return found._replace(entries=found.entries.movedim(0, axis))


MULTI_HEAD = (
    *("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k"),
    *("bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias", "training", "key_padding_mask"),
    *("need_weights", "attn_mask", "use_separate_proj_weight"),
)
MASKS = ("bias_k", "bias_v", "key_padding_mask", "attn_mask", "static_k", "static_v")


def _refuse(name: str) -> None:
    """What a model may not call in a pass that is to be repeated."""
    if name in READS:
        raise NotStraight("it branches on its data")
    if name == "__setitem__":
        raise NotStraight("it sets entries of a tensor")

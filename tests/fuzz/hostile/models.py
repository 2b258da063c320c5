"""Models for images of 1x8x8 in ten classes. Those in SANE can be audited; all others must be refused in one line."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Sigmoid(), nn.Linear(12, 10))


class Around(nn.Module):
    """A good network inside, and something done to what goes in or comes out."""

    def __init__(self, before=lambda x: x, after=lambda x: x) -> None:
        super().__init__()
        self.net, self.before, self.after = net(), before, after

    def forward(self, x: Tensor) -> object:
        return self.after(self.net(self.before(x)))


def throw(error: BaseException):
    def raising(_: object) -> object:
        raise error

    return raising


def good():
    return net()


def in_place_relu():
    return nn.Sequential(
        nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(inplace=True), nn.Linear(12, 10)
    )


def in_place_input():
    return Around(before=lambda x: x.sub_(0.5).div_(0.25))


def in_place_output():
    return Around(after=lambda x: x.mul_(0.5))


def in_place_residual():
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            out = F.relu(self.one(x), inplace=True)
            out += x
            return self.two(out.flatten(1))

    return Residual()


def checkpointed():
    return Around(before=lambda x: checkpoint(torch.sin, x, use_reentrant=False))


def checkpointed_again():
    return Around(before=lambda x: checkpoint(torch.sin, x, use_reentrant=True))


def scripted():
    return torch.jit.script(net())


def traced():
    return torch.jit.trace(net(), torch.zeros(1, 1, 8, 8))


def parallel():
    return nn.DataParallel(net())


def compiled():
    return torch.compile(net(), backend="eager")


def frozen_half():
    model = net()
    model[1].requires_grad_(False)
    return model


def frozen():
    return net().requires_grad_(False)


def weightless():
    return nn.Flatten()


def dropout():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))


def shared():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10))
    model[2].weight = model[1].weight
    return model


def half():
    return net().half()


def double():
    return net().double()


def brain():
    return net().bfloat16()


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))


def on_meta():
    return net().to("meta")


def partly_on_meta():
    model = net()
    model[3].to("meta")
    return model


def asks_for_cuda():
    return net().cuda()


def moves_to_cuda():
    return Around(before=lambda x: x.cuda())


def complex_weights():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10, dtype=torch.complex64))


def whole_weights():
    model = net()
    model[1].weight = nn.Parameter(torch.zeros(12, 64, dtype=torch.long), requires_grad=False)
    return model


def quantised():
    return torch.ao.quantization.quantize_dynamic(net(), {nn.Linear})


def sparse_weights():
    model = net()
    model[1].weight = nn.Parameter(model[1].weight.detach().to_sparse())
    return model


def nan_weights():
    model = net()
    nn.init.constant_(model[1].weight, float("nan"))
    return model


def infinite_weights():
    model = net()
    nn.init.constant_(model[1].weight, 3e38)
    return model


def detaches():
    return Around(before=lambda x: x, after=lambda x: x.detach())


def detaches_input():
    return Around(before=lambda x: x.detach())


def data_of_input():
    return Around(before=lambda x: x.data)


def no_grad():
    class Without(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    return Without()


def inference():
    class Inference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                return self.net(x)

    return Inference()


def through_numpy():
    return Around(before=lambda x: torch.from_numpy(np.tanh(x.numpy())))


def through_numpy_detached():
    return Around(before=lambda x: torch.from_numpy(np.tanh(x.detach().numpy())))


def through_item():
    return Around(before=lambda x: x * (1 if x.mean().item() > 0.5 else 2))


def through_bytes():
    return Around(before=lambda x: (255 * x).byte().to(x.dtype))


def rounds_up():
    return Around(before=torch.ceil)


def embeds():
    class Embeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(256, 4), nn.Linear(256, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.words((255 * x).long().flatten(1)).flatten(1))

    return Embeds()


def embeds_floats():
    return nn.Sequential(nn.Flatten(), nn.Embedding(256, 4), nn.Flatten(), nn.Linear(256, 10))


def gives_a_tuple():
    return Around(after=lambda x: (x, x))


def gives_a_dictionary():
    return Around(after=lambda x: {"logits": x})


def gives_none():
    return Around(after=lambda _: None)


def gives_a_number():
    return Around(after=lambda _: 1.0)


def gives_a_scalar():
    return Around(after=lambda x: x.sum())


def gives_numpy():
    return Around(after=lambda x: x.detach().numpy())


def gives_one_axis():
    return Around(after=lambda x: x.flatten())


def gives_four_axes():
    return Around(after=lambda x: x[:, :, None, None])


def gives_too_few():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


def gives_none_at_all():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 0))


def gives_one_row():
    return Around(after=lambda x: x[:1])


def gives_integers():
    return Around(after=lambda x: x.long())


def gives_booleans():
    return Around(after=lambda x: x > 0)


def gives_complex():
    return Around(after=lambda x: x.to(torch.complex64))


def gives_sparse():
    return Around(after=lambda x: x.to_sparse())


def gives_meta():
    return Around(after=lambda x: x.to("meta"))


def gives_nan():
    return Around(after=lambda x: x * float("nan"))


def gives_infinity():
    return Around(after=lambda x: x * 1e38 * 1e10)


def raises_value():
    return Around(before=throw(ValueError("no such\nthing")))


def raises_key():
    return Around(before=throw(KeyError("thing")))


def raises_nothing_said():
    return Around(before=throw(AssertionError()))


def raises_memory():
    return Around(before=throw(MemoryError()))


def raises_recursion():
    return Around(before=lambda x: raises_recursion()(x))


def raises_stop():
    return Around(before=throw(StopIteration()))


def raises_exit():
    return Around(before=throw(SystemExit(0)))


def raises_file():
    return Around(before=throw(FileNotFoundError("no file")))


def raises_later():
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.calls = net(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 2:
                raise IndexError("called too often")
            return self.net(x)

    return Later()


def raises_in_training():
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                raise ZeroDivisionError("not with gradients")
            return self.net(x)

    return Picky()


def raises_in_reverse():
    class Torn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, back: Tensor) -> Tensor:
            raise OSError("no way back")

    return Around(after=Torn.apply)


def raises_on_copies():
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def __deepcopy__(self, memo: object) -> nn.Module:
            raise TypeError("only one of me")

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    return Single()


def raises_on_eval():
    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def train(self, mode: bool = True) -> nn.Module:
            raise PermissionError("never")

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    return Stubborn()


def holds_a_lock():
    import threading

    model = net()
    model.lock = threading.Lock()  # cannot be copied
    return model


def takes_two():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return self.net(x) * mask

    return Two()


def takes_none():
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self) -> None:
            return None

    return Nothing()


def without_forward():
    class Abstract(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

    return Abstract()


def without_init():
    class Forgot(nn.Module):
        def __init__(self) -> None:
            pass

        def forward(self, x: Tensor) -> Tensor:
            return x

    return Forgot()


def draws():
    return Around(before=lambda x: x + torch.randn_like(x))


def grows():
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.seen = net(), []

        def forward(self, x: Tensor) -> Tensor:
            self.seen.append(x)
            return self.net(x)

    return Grows()


def batch_normed():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))


def needs_other_images():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def needs_colours():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 10))


def kernel_too_large():
    return nn.Sequential(nn.Conv2d(1, 2, 9), nn.Flatten(), nn.Linear(2, 10))


def recurrent():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x[:, 0])[0][:, -1])

    return Recurrent()


def needs_a_setting(width: int):
    return net()


def needs_settings(*, width: int, depth: int = 2):
    return net()


def gives_no_model():
    return 7


def gives_a_class():
    return nn.Linear


def raises_when_made():
    raise LookupError("no\nmodel")


NOT_A_FUNCTION = 3

SANE = {
    "good", "in_place_relu", "in_place_input", "in_place_output", "in_place_residual", "checkpointed",
    "checkpointed_again", "parallel", "compiled", "frozen_half", "dropout", "shared", "half",
    "double", "brain", "through_item", "draws", "grows", "batch_normed", "recurrent", "holds_a_lock",
    "infinite_weights", "rounds_up",
}  # fmt: skip
"""What may be accepted; noise and steps within a model only make it harder to read."""

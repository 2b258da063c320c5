import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dosimeter.errors import ModelError
from dosimeter.models import LeNet, load_checkpoint

State = dict[str, Tensor]


def save_npz(state: State, path: Path, *, turn: bool = False) -> None:
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    np.savez(path, **{name: a.astype(a.dtype.newbyteorder()) if turn else a for name, a in arrays.items()})


def lenet(seed: int, **settings: object) -> nn.Module:
    torch.manual_seed(seed)
    return LeNet(shape=(1, 8, 8), classes=3, mean=(0.1 * seed,), **{"width": 2, "batch_norm": "all", **settings})


def refuse(model: nn.Module, path: Path, match: str) -> str:
    """The one line with which a file is refused; the model must stay as it was."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ModelError, match=match) as caught:
        load_checkpoint(model, path)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("weights.safetensors", save_file),
        ("weights.SAFETENSORS", save_file),
        ("weights.npz", save_npz),
        ("turned.npz", lambda s, path: save_npz(s, path, turn=True)),
        ("weights.pt", torch.save),
        ("weights.pth", torch.save),
        ("legacy.pth", lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False)),
        ("nested.pth", lambda state, path: torch.save({"epoch": 3, "state_dict": state}, path)),
        ("parallel.pth", lambda state, path: torch.save({f"module.{k}": v for k, v in state.items()}, path)),
        ("both.pt", lambda s, path: torch.save({"state_dict": {f"module.{k}": v for k, v in s.items()}}, path)),
        ("parallel.safetensors", lambda s, path: save_file({f"module.{k}": v for k, v in s.items()}, path)),
        (
            "double.pth",
            lambda s, p: torch.save({k: v.double() if v.is_floating_point() else v for k, v in s.items()}, p),
        ),
    ],
)
def test_what_was_saved_is_loaded(tmp_path: Path, name: str, save: Callable[[State, Path], None]) -> None:
    saved, model = lenet(1).train(), lenet(2)
    saved(torch.rand(3, 1, 8, 8))  # running statistics are loaded too
    save(saved.state_dict(), tmp_path / name)
    load_checkpoint(model, tmp_path / name)
    for key, tensor in saved.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor)
        assert model.state_dict()[key].dtype == tensor.dtype


def test_a_model_that_is_wrapped_itself_keeps_its_prefix(tmp_path: Path) -> None:
    saved, model = (nn.ModuleDict({"module": lenet(seed)}) for seed in (1, 2))
    save_file(saved.state_dict(), tmp_path / "weights.safetensors")
    load_checkpoint(model, str(tmp_path / "weights.safetensors"))
    assert torch.equal(model.state_dict()["module.classifier.weight"], saved.state_dict()["module.classifier.weight"])


def test_a_mismatch_names_the_first_tensors(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    state = lenet(1).state_dict()
    state["classifier.weight"] = state["classifier.weight"].T.contiguous()
    state["stranger"] = torch.zeros(2)
    for name in list(state)[:6]:
        del state[name]
    save_file(state, path)
    message = refuse(
        lenet(2), path, "does not fit LeNet: missing: normalise.mean, normalise.std, features.0.weight and 3"
    )
    assert "; extra: stranger; misshaped: classifier.weight 8x3 instead of 3x8; give" in message


def test_numbers_of_another_kind_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    state = lenet(1).state_dict()
    state["classifier.bias"] = state["classifier.bias"].long()
    torch.save(state, path)
    refuse(lenet(2), path, "misshaped: classifier.bias 3 of int64 instead of 3;")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(lenet(1, width=3).state_dict(), path)
    refuse(lenet(2), path, "misshaped: features.0.weight 3x1x5x5 instead of 2x1x5x5, .* more")
    torch.save(nn.Linear(2, 3).state_dict(), path)
    refuse(lenet(2), path, "missing: .* more; extra: weight, bias;")


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    path, touched = tmp_path / "weights.pth", tmp_path / "touched"

    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (touched,)

    torch.save({"state_dict": Evil()}, path)
    refuse(lenet(1), path, "holds Python objects, which could run code; save model.state_dict")
    path.write_bytes(pickle.dumps(Evil()))
    refuse(lenet(1), path, "holds Python objects")
    torch.save(lenet(1), path)
    refuse(lenet(2), path, "holds Python objects")
    np.savez(tmp_path / "weights.npz", evil=np.array([Evil()], dtype=object))
    refuse(lenet(1), tmp_path / "weights.npz", "holds Python objects")
    assert not touched.exists()


def test_what_is_no_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    model = lenet(1)
    refuse(model, tmp_path / "weights.bin", "ends in .safetensors, .npz, .pt or .pth; got ")
    refuse(model, tmp_path / "weights.pt", "There is no checkpoint ")
    (tmp_path / "folder.pt").mkdir()
    refuse(model, tmp_path / "folder.pt", "There is no checkpoint ")
    path = tmp_path / "other.pt"
    for content, match in [
        (torch.zeros(3), "holds a Tensor, expected tensors by name"),
        ({}, "holds a dict, expected tensors by name"),
        ({"epoch": 3}, "holds 'epoch': int, expected tensors by name alone"),
        ({0: torch.zeros(1)}, "holds 0: Tensor, expected"),
    ]:
        torch.save(content, path)
        refuse(model, path, match)


@pytest.mark.parametrize("kind", ["safetensors", "npz", "pt", "legacy"])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / (f"weights.{kind}" if kind in ("safetensors", "npz") else "weights.pt")
    state = lenet(1).state_dict()
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "npz":
        save_npz(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "pt")
    whole = path.read_bytes()
    generator = torch.Generator().manual_seed(0)
    damaged = [b"", b"\0", b"not a checkpoint", b"\x80\x02", bytes(range(256)), whole[:-1], whole[: len(whole) // 2]]
    damaged += [whole[: int(cut)] for cut in torch.randint(1, len(whole), (10,), generator=generator)]
    for content in damaged:
        path.write_bytes(content)
        refuse(lenet(2), path, "weights")

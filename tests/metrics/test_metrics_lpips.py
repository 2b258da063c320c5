"""LPIPS against its authors' values, a second plain writing of VGG-16, and files that are not weights."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dosimeter.errors import DataError
from dosimeter.metrics import Lpips, find_weights
from dosimeter.metrics.lpips import ALEXNET, VGG16, Backbone

DATA = Path(os.environ.get("DOSIMETER_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real(name: str, count: int) -> Tensor:
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not in the data folder; set DOSIMETER_DATA to one that holds it")
    with np.load(DATA / name) as arrays:
        return torch.from_numpy(arrays["test_images"][:count]).permute(0, 3, 1, 2).float() / 255


def random_state(backbone: Backbone) -> dict[str, Tensor]:
    """Weights of the right names and shapes, scaled so that features neither vanish nor explode."""
    generator = torch.Generator().manual_seed(0)
    state = {}
    for conv in backbone.convs:
        scale = (2 / (conv.shape[1] * conv.shape[2] ** 2)) ** 0.5
        state[f"features.{conv.place}.weight"] = scale * torch.randn(conv.shape, generator=generator)
        state[f"features.{conv.place}.bias"] = 0.1 * torch.randn(conv.shape[0], generator=generator)
    for i, channels in enumerate(conv.shape[0] for conv in backbone.convs if conv.read):
        state[f"lin{i}.model.1.weight"] = torch.rand(1, channels, 1, 1, generator=generator)
    return state


@pytest.fixture(scope="module")
def alex_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "alex.pth"
    torch.save(random_state(ALEXNET), path)
    return path


@pytest.fixture(scope="module")
def vgg_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "vgg.pth"
    torch.save(random_state(VGG16), path)
    return path


def published() -> Lpips:
    path = DATA / "lpips_alex.pth"
    if not path.is_file():
        pytest.skip("lpips_alex.pth is not in the data folder; set DOSIMETER_DATA to one that holds it")
    return Lpips.load(path)


def test_alexnet_gives_the_reference_values_on_photographs() -> None:
    images = real("imagenet_samples_224.npz", 4)
    a = images[[0, 2, 0]]
    b = torch.stack([images[1], images[3], images[0].flip(-1)])
    expected = torch.tensor([0.71201, 0.74183, 0.53262])
    torch.testing.assert_close(published()(a, b), expected, atol=2e-5, rtol=0)


def test_alexnet_gives_the_reference_value_at_32_pixels_in_either_dtype() -> None:
    first, second = real("cifar10.npz", 2).split(1)
    metric = published()
    assert metric(first, second).item() == pytest.approx(0.18379, abs=2e-5)
    double = metric(first.double(), second.double())
    assert double.dtype == torch.float64
    assert double.item() == pytest.approx(0.18379, abs=2e-5)


def plain_network(state: dict[str, Tensor], plan: str) -> nn.Sequential:
    """torchvision's `features` from its own shorthand: a number is a convolution with ReLU, M a pooling."""
    layers: list[nn.Module] = []
    channels = 3
    for entry in plan.split():
        if entry == "M":
            layers.append(nn.MaxPool2d(2, 2))
        else:
            layers += [nn.Conv2d(channels, int(entry), 3, padding=1), nn.ReLU()]
            channels = int(entry)
    network = nn.Sequential(*layers)
    network.load_state_dict({k.removeprefix("features."): v for k, v in state.items() if k.startswith("features.")})
    return network


def test_vgg_equals_a_plain_second_writing(vgg_file: Path) -> None:
    """From the paper: every layer of torchvision's shorthand, read after ReLU 2, 4, 7, 10 and 13."""
    state = random_state(VGG16)
    network = plain_network(state, "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512")
    images = torch.rand(4, 3, 40, 33, generator=torch.Generator().manual_seed(1))
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    x = ((images * 2 - 1) - shift[None, :, None, None]) / scale[None, :, None, None]
    expected, relus = torch.zeros(2), 0
    with torch.no_grad():
        for layer in network:
            x = layer(x)
            relus += isinstance(layer, nn.ReLU)
            if isinstance(layer, nn.ReLU) and relus in (2, 4, 7, 10, 13):
                unit = x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + 1e-10)
                head = state[f"lin{(2, 4, 7, 10, 13).index(relus)}.model.1.weight"]
                expected += nn.functional.conv2d((unit[:2] - unit[2:]) ** 2, head).mean(dim=(1, 2, 3))
    metric = Lpips.load(vgg_file)
    assert metric.name == "VGG-16"
    torch.testing.assert_close(metric(images[:2], images[2:]), expected, atol=1e-5, rtol=1e-5)


def test_grey_images_count_as_colour_images_of_equal_channels(alex_file: Path) -> None:
    a, b = torch.rand(2, 3, 1, 32, 32)
    metric = Lpips.load(alex_file)
    torch.testing.assert_close(metric(a, b), metric(a.repeat(1, 3, 1, 1), b.repeat(1, 3, 1, 1)))
    with pytest.raises(DataError, match="1 or 3 channels, got 2"):
        metric(torch.rand(1, 2, 32, 32), torch.rand(1, 2, 32, 32))


@pytest.mark.parametrize("file", ["alex_file", "vgg_file"])
def test_the_minimum_is_the_smallest_size_the_network_takes(file: str, request: pytest.FixtureRequest) -> None:
    metric = Lpips.load(request.getfixturevalue(file))
    smallest = metric.minimum
    too_small = Lpips(metric.backbone._replace(minimum=1), metric.weights, metric.biases, metric.heads)
    a, b = torch.rand(2, 1, 3, smallest, smallest)
    torch.testing.assert_close(metric(a, b), too_small(a, b))  # as it is, without enlarging
    with pytest.raises(RuntimeError, match="too small"):
        too_small(a[..., 1:, 1:], b[..., 1:, 1:])


def test_smaller_images_are_enlarged_to_32_pixels(alex_file: Path) -> None:
    a, b = torch.rand(2, 2, 1, 28, 28)
    metric = Lpips.load(alex_file)
    large = [nn.functional.interpolate(x, size=(32, 32), mode="bilinear", align_corners=False) for x in (a, b)]
    torch.testing.assert_close(metric(a, b), metric(*large))
    wide = torch.rand(2, 1, 3, 8, 12)
    torch.testing.assert_close(
        metric(wide[0], wide[1]),
        metric(*(nn.functional.interpolate(x, size=(32, 48), mode="bilinear", align_corners=False) for x in wide)),
    )


def test_chunks_change_nothing(alex_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch.rand(2, 5, 3, 32, 32)
    metric = Lpips.load(alex_file)
    whole = metric(a, b)
    monkeypatch.setattr("dosimeter.metrics.lpips.CHUNK", 2 * 32 * 32)
    torch.testing.assert_close(metric(a, b), whole)
    assert metric(a[:0], b[:0]).shape == (0,)


def test_the_heads_may_have_a_file_of_their_own_and_either_format(tmp_path: Path, alex_file: Path) -> None:
    state = random_state(ALEXNET)
    features = {name: value for name, value in state.items() if name.startswith("features")}
    heads = {name: value for name, value in state.items() if name.startswith("lin")}
    save_file(features | {"classifier.1.weight": torch.zeros(2, 2)}, tmp_path / "alexnet.safetensors")
    torch.save(heads, tmp_path / "alex.pth")
    a, b = torch.rand(2, 2, 3, 32, 32)
    metric = Lpips.load(str(tmp_path / "alexnet.safetensors"), heads=str(tmp_path / "alex.pth"))
    torch.testing.assert_close(metric(a, b), Lpips.load(alex_file)(a, b))
    with pytest.raises(DataError, match=r"alexnet\.safetensors.*lin0\.model\.1\.weight is missing.*heads"):
        Lpips.load(tmp_path / "alexnet.safetensors")


class Evil:
    """A pickled object whose loading would run code."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil",)


BROKEN = {
    "random bytes": np.random.default_rng(0).bytes(200),
    "empty": b"",
    "html": b"<!DOCTYPE html><html><body>404 Not Found</body></html>",
    "object": pickle.dumps({"features.0.weight": Evil()}, protocol=2),
}


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_is_not_weights_is_refused_in_one_line(
    kind: str, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(BROKEN[kind])
    with pytest.raises(DataError, match=f"broken{suffix}: not a file of plain tensors") as caught:
        Lpips.load(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "evil").exists()


def test_a_file_cut_short_is_refused(alex_file: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.pth").write_bytes(alex_file.read_bytes()[:100_000])
    with pytest.raises(DataError, match=r"cut\.pth: not a file"):
        Lpips.load(tmp_path / "cut.pth")


def test_a_missing_file_or_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.pth: cannot be read \(No such file"):
        Lpips.load(tmp_path / "none.pth")
    with pytest.raises(DataError, match="cannot be read"):
        Lpips.load(tmp_path)
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(DataError, match=r"list\.pth: holds a list"):
        Lpips.load(tmp_path / "list.pth")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features.3.bias": None}, r"features\.3\.bias is missing; get"),
        ({"features.3.weight": torch.zeros(192, 64, 3, 3)}, r"features\.3\.weight has shape \(192, 64, 3, 3\) instead"),
        (
            {"lin2.model.1.weight": torch.zeros(1, 64, 1, 1)},
            r"heads for AlexNet, but lin2.*of \(1, 384, 1, 1\)",
        ),
        ({"features.8.bias": torch.full((256,), torch.nan)}, r"features\.8\.bias is not made of finite"),
        ({"features.0.weight": torch.zeros(32, 3, 3, 3)}, r"AlexNet or VGG-16.*found.*\(32, 3, 3, 3\)"),
        ({"features.0.weight": torch.zeros(64, 3, 3, 3)}, r"VGG-16, but features\.2\.weight is missing.* and \d+ more"),
        ({"features.0.weight": None}, r"expected the features of AlexNet or VGG-16"),
    ],
)
def test_a_tensor_missing_or_misshaped_is_named(change: dict[str, Tensor | None], message: str, tmp_path: Path) -> None:
    state = {name: value for name, value in (random_state(ALEXNET) | change).items() if value is not None}
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(DataError, match=message) as caught:
        Lpips.load(tmp_path / "weights.pth")
    assert "weights.pth" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_are_found_in_the_folder_then_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.delenv("DOSIMETER_DATA", raising=False)
    assert find_weights(here) is find_weights(None) is None
    (there / "lpips_vgg.pth").touch()
    monkeypatch.setenv("DOSIMETER_DATA", str(there))
    assert find_weights(None) == find_weights(here) == there / "lpips_vgg.pth"
    (there / "lpips_alex.pth").touch()
    assert find_weights(None) == there / "lpips_alex.pth"
    (here / "lpips_vgg.pth").touch()
    assert find_weights(here) == here / "lpips_vgg.pth"

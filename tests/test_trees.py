from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from dosimeter import trees
from dosimeter.errors import UpdateError
from dosimeter.types import Ended, Outcome, Reconstruction, Trained

MODEL = {"a.weight": torch.ones(2, 3), "a.bias": torch.ones(2)}


class Pair(NamedTuple):
    left: Tensor
    right: tuple[Tensor, int]


def test_rows_choose_in_every_tensor_and_keep_the_rest() -> None:
    tree = Pair(torch.arange(3), (torch.arange(3) * 10, 7))
    chosen = trees.rows(tree, torch.tensor([2, 0]))
    assert isinstance(chosen, Pair)
    assert chosen.left.tolist() == [2, 0]
    assert chosen.right[0].tolist() == [20, 0]
    assert chosen.right[1] == 7
    assert trees.rows({"x": torch.arange(3)}, torch.tensor([1]))["x"].tolist() == [1]


def test_what_some_groups_of_victims_were_not_told_stays_with_its_own() -> None:
    def found(victims: int, **more: object) -> Reconstruction:
        images = torch.zeros(victims, 1, 1, 2, 2)
        ended = (Ended(Outcome.NOT_DETERMINED),) * victims
        return Reconstruction.without_steps(images, None, torch.zeros(victims), ended)._replace(**more)  # type: ignore[arg-type]

    unreached, solved = found(2), found(1, determined=({"image": 0.5},), trained=(Trained(3, 0.1),))
    both = trees.join([unreached, solved])
    assert both.determined == ({}, {}, {"image": 0.5})
    assert both.trained == ()
    assert trees.join([found(2), found(1)]).determined == ()
    labelled = found(1)._replace(labels=torch.zeros(1, 1))
    assert trees.join([unreached, labelled]).labels is None


def test_squared_norms_are_per_victim_and_tensor() -> None:
    gradient = {"a": torch.tensor([[[3.0, 4.0]], [[0.0, 1.0]]]), "b": torch.tensor([[2.0], [5.0]])}
    assert trees.squared_norms(gradient).tolist() == [[25.0, 4.0], [1.0, 25.0]]


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"a.weight": torch.ones(2, 3)}, "missing 'a.bias'"),
        ({**MODEL, "b": torch.ones(1)}, "not in the model 'b'"),
        ({**MODEL, "a.bias": torch.ones(3)}, "'a.bias' has shape (3,), expected (2,)"),
        ({**MODEL, "a.bias": torch.tensor([1.0, torch.nan])}, "'a.bias' contains NaN"),
        ({**MODEL, "a.weight": torch.full((2, 3), torch.inf)}, "'a.weight' contains infinity"),
    ],
)
def test_a_bad_update_is_named(update: dict[str, Tensor], says: str) -> None:
    with pytest.raises(UpdateError) as refused:
        trees.check_update(update, MODEL)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_good_update_passes_in_any_order() -> None:
    trees.check_update(dict(reversed(list(MODEL.items()))), MODEL)
    with pytest.raises(UpdateError, match=r"'p0', 'p1', 'p2' and 7 more"):
        trees.check_update({}, {f"p{i}": torch.ones(1) for i in range(10)})

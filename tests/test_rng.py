import torch
from hypothesis import given
from hypothesis import strategies as st

from dosimeter import rng

names = st.lists(st.text(max_size=5), max_size=3)


@given(st.integers(0, 2**31), names, names)
def test_streams_of_other_names_differ_and_of_the_same_agree(seed: int, a: list[str], b: list[str]) -> None:
    first, second = (torch.rand(4, generator=rng.stream(seed, *n)) for n in (a, b))
    joined = ["\x1f".join([str(seed), *n]) for n in (a, b)]
    assert torch.equal(first, second) == (joined[0] == joined[1])


def test_scoped_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with rng.scoped(0, "weights"):
        inside = torch.rand(3)
    with rng.scoped(0, "weights"):
        assert torch.equal(inside, torch.rand(3))
    assert torch.equal(before, torch.get_rng_state())

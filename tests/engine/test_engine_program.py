"""Programs repeat what was recorded, on new values in the same memory."""

import pytest
import torch
from torch import Tensor

from dosimeter.engine.program import OFTEN, Program, _script

ORDER = torch.tensor([2, 0])


def work(x: Tensor, kept: Tensor) -> Tensor:
    """Writing, reading and looking at tensors in another shape, with a result that has no place of its own."""
    torch.mul(x, 2, out=kept)
    kept.view(-1)[:3].add_(1)
    rows = kept.t().reshape(2, 6).view(4, 3)  # a copy
    picked = rows.index_select(0, ORDER)
    return (picked.softmax(1) - rows.sum()).clamp_min(-50.0) / 3


@pytest.mark.parametrize("runs", [1, OFTEN - 1, OFTEN, OFTEN + 3])
def test_a_run_gives_what_the_work_gives_now(runs: int) -> None:
    generator = torch.Generator().manual_seed(runs)
    x, kept = torch.randn(3, 4, generator=generator), torch.zeros(3, 4)
    program = Program(lambda: work(x, kept))
    assert torch.equal(program.given, work(x.clone(), torch.zeros(3, 4)))
    for _ in range(runs):
        x.copy_(torch.randn(3, 4, generator=generator))
        found = program.run()
        assert torch.equal(found, work(x.clone(), torch.zeros(3, 4)))


def test_looking_in_another_shape_is_not_repeated() -> None:
    x = torch.randn(3, 4)
    program = Program(lambda: x.t().view(2, 2, 3)[0].t().mul_(1.0))
    assert [str(call.operation) for call in program.calls] == ["aten.mul_.Tensor"]


def test_work_that_reads_values_is_refused() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="gives no tensor"):
        Program(lambda: x * 2 if bool(x.sum() > 0) else x)


def test_a_script_runs_all_calls_and_none_where_it_cannot_be_written() -> None:
    x, kept = torch.randn(3, 4), torch.zeros(3, 4)
    program = Program(lambda: work(x, kept))
    script = _script(program.calls)
    assert script is not None
    wanted = program.given.clone()
    program.given.zero_()
    script()
    assert torch.equal(program.given, wanted)
    broken = program.calls[0]._replace(kwargs={"unheard_of": 1})
    assert _script([broken]) is None

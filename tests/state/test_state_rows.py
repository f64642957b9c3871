"""Rows of a dual state: reading, writing, dtypes and refused indices."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fcco_lightning.errors import CheckpointError, NonFiniteError, StateIndexError
from fcco_lightning.state import DualState


def filled(num_rows=6, width=2, dtype=torch.float64):
    """Rows 0, 2, 4 hold their number, the others were never written."""
    state = DualState(num_rows, width, dtype)
    index = torch.arange(0, num_rows, 2)
    state.write(index, index.to(dtype).unsqueeze(1).expand(-1, width))
    return state


def snapshot(state):
    return state.rows.clone()


def assert_unchanged(state, before):
    assert torch.equal(state.rows.view(torch.int64), before.view(torch.int64))  # NaN of rows never written too


def test_reads_what_was_written_and_says_what_was_never_written():
    rows = filled().read(torch.tensor([4, 1, 2]))
    assert rows[[0, 2]].tolist() == [[4, 4], [2, 2]]
    assert rows[1].isnan().all()
    assert filled().seen_share() == 0.5


def test_writing_leaves_all_other_rows_alone():
    state = filled()
    state.write(torch.tensor([5, 0]), torch.tensor([[7.0, 8.0], [9.0, 10.0]], dtype=torch.float64))
    assert state.rows[[0, 2, 4, 5]].tolist() == [[9, 10], [2, 2], [4, 4], [7, 8]]
    assert state.seen.tolist() == [True, False, True, False, True, True]


def test_what_was_read_is_a_copy_without_graph():
    state = filled()
    for read in (state.read, state.gather):
        read(torch.tensor([2])).add_(1)
        assert state.rows[2].tolist() == [2, 2]
    for write in (state.write, state.scatter_):
        write(torch.tensor([1]), torch.ones(1, 2, dtype=torch.float64, requires_grad=True))
    state.scatter_(None, torch.ones(6, 2, requires_grad=True))
    assert not state.rows.requires_grad
    assert not state.gather(None).requires_grad


def test_rows_are_converted_to_the_dtype_of_the_state():
    state = DualState(2)
    state.write(torch.tensor([1]), torch.tensor([[0.1]], dtype=torch.float64))
    state.scatter_(torch.tensor([0]), torch.tensor([[0.7]], dtype=torch.float64))
    assert state.rows.dtype == torch.float32
    assert torch.equal(state.rows[:, 0], torch.tensor([0.7, 0.1]))


class Touched(TorchDispatchMode):
    """Counts operators, and names those that see a tensor of all n rows."""

    def __init__(self, num_rows):
        super().__init__()
        self.num_rows, self.calls, self.dense = num_rows, 0, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        if any(isinstance(a, torch.Tensor) and a.dim() and a.shape[0] >= self.num_rows for a in args):
            self.dense.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_reading_and_writing_touch_only_the_rows_of_the_batch():
    calls = []
    for n in (1_000, 100_000):
        state, index = DualState(n), torch.tensor([3, 700, 5])
        with Touched(n) as touched:
            state.read(index)
            state.write(index, torch.ones(3, 1))
            state.scatter_(index, state.gather(index))
        assert touched.dense == {"slice", "index_select", "index_copy_"}  # a view, and O(batch) each
        calls.append(touched.calls)
    assert calls[0] == calls[1]


@pytest.mark.parametrize("restore", ["load_state_dict", "by hand"])
def test_a_row_that_was_never_written_is_so_again_where_an_earlier_state_is_restored(restore):
    state, index = DualState(3), torch.tensor([1, 2])
    state.write(index, torch.ones(2, 1))
    earlier = {name: value.clone() if name != "_extra_state" else value for name, value in state.state_dict().items()}
    state.write(torch.tensor([0]), torch.ones(1, 1))
    assert state.read(torch.tensor([0, 1])).tolist() == [[1], [1]]
    if restore == "by hand":
        state.rows.copy_(earlier["rows"])
    else:
        state.load_state_dict(earlier)
    assert state.read(torch.tensor([0, 1])).isnan().tolist() == [[True], [False]]
    assert state.seen.tolist() == [False, True, True]


def test_values_whose_sum_overflows_are_finite():
    state, huge = DualState(3), torch.full((2, 1), 3e38)
    state.write(torch.tensor([0, 1]), huge)
    assert torch.equal(state.read(torch.tensor([1, 0])), huge)
    assert state.seen_share() == 2 / 3


def test_scale_is_dense():
    state = filled()
    state.scale_(0.5)
    assert state.rows[::2, 0].tolist() == [0, 1, 2]
    assert state.seen.tolist() == [True, False] * 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_every_whole_number_dtype_is_an_index(dtype):
    state = filled()
    index = torch.tensor([1, 4], dtype=dtype)
    state.write(index, torch.full((2, 2), 3.0, dtype=torch.float64))
    assert state.read(index).tolist() == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([0, 2, 6]), r"rows 0\.\.5, got index 6 at batch position 2"),
        (torch.tensor([0, -1, 9]), "got index -1 at batch position 1"),
        (torch.tensor([1.0, 2.0, 3.0]), "1-D tensor of whole numbers, got 1-D torch.float32"),
        (torch.tensor([True, False, True]), "got 1-D torch.bool"),
        (torch.tensor([[0], [1], [2]]), "got 2-D torch.int64"),
    ],
)
def test_a_wrong_index_changes_nothing(index, message):
    state = filled()
    before = snapshot(state)
    with pytest.raises(StateIndexError, match=message):
        state.read(index)
    with pytest.raises(StateIndexError, match=message):
        state.checked_index(index)
    with pytest.raises(StateIndexError, match=message):
        state.write(index, torch.ones(3, 2, dtype=torch.float64))
    assert_unchanged(state, before)


@pytest.mark.parametrize("sink", [False, True])
def test_a_step_without_a_look_refuses_a_wrong_index_too(sink):
    state = DualState(6, sink=sink)
    assert state.gather(torch.tensor([0, 5, *([6] if sink else [])])).isnan().all()
    for wrong in (-1, 7, *([] if sink else [6])):
        with pytest.raises(IndexError):
            state.gather(torch.tensor([0, wrong]))


def test_all_rows_at_once_in_their_order():
    state = filled()
    assert torch.equal(state.gather(None).nan_to_num(-1), state.read(torch.arange(6)).nan_to_num(-1))
    state.scatter_(None, torch.arange(12.0).view(6, 2))
    assert state.gather(None).flatten().tolist() == [*range(12)]
    assert state.seen_share() == 1


def test_the_sink_is_no_row():
    state, index = DualState(4, 2, torch.float64, sink=True), torch.tensor([4, 1, 4])
    state.scatter_(index, torch.tensor([[7.0, 7], [1, 2], [7, 7]]))
    read = state.gather(index)
    assert read[1].tolist() == [1, 2]
    assert state.rows.shape == (4, 2)
    assert state.rows.nan_to_num(-1).tolist() == [[-1, -1], [1, 2], [-1, -1], [-1, -1]]
    assert torch.equal(state.gather(None).isnan(), state.rows.isnan())
    assert state.seen.tolist() == [False, True, False, False]
    assert state.seen_share() == 0.25
    stored = state.state_dict()
    assert stored.keys() == {"rows", "_extra_state"}
    assert stored["rows"].shape == (4, 2)
    assert 7 not in stored["rows"]
    with pytest.raises(StateIndexError, match="got index 4 at batch position 0"):
        state.read(index)
    with pytest.raises(StateIndexError, match="got index 4 at batch position 0"):
        state.write(torch.tensor([4]), torch.ones(1, 2))
    state.scale_(0.5)
    assert state.rows[1].tolist() == [0.5, 1]


def test_the_first_and_last_row_and_no_row_are_fine():
    state = filled()
    assert state.read(torch.tensor([0, 5])).isnan().tolist() == [[False, False], [True, True]]
    assert state.read(torch.tensor([], dtype=torch.int64)).shape == (0, 2)
    before = snapshot(state)
    for write in (state.write, state.scatter_):
        write(torch.tensor([], dtype=torch.int64), torch.empty(0, 2, dtype=torch.float64))
    assert_unchanged(state, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_value_never_enters(bad):
    state = filled()
    before = snapshot(state)
    values = torch.ones(3, 2, dtype=torch.float64)
    values[1, 1] = bad
    with pytest.raises(NonFiniteError, match=r"row 5 of the dual state .*batch position 1.*skip_nonfinite"):
        state.write(torch.tensor([0, 5, 3]), values)
    assert_unchanged(state, before)


def test_a_value_that_overflows_the_rows_never_enters():
    state = DualState(2)
    with pytest.raises(NonFiniteError, match="row 1"):
        state.write(torch.tensor([1]), torch.tensor([[1e300]], dtype=torch.float64))
    assert not bool(state.seen.any())


@pytest.mark.parametrize(("num_rows", "width", "name"), [(0, 1, "num_rows"), (3, 0, "width"), (2.5, 1, "num_rows")])
def test_sizes_must_be_whole_and_positive(num_rows, width, name):
    assert DualState(1, 1).rows.shape == (1, 1)
    with pytest.raises(ValueError, match=f"{name} must be a whole number >= 1"):
        DualState(num_rows, width)


def test_state_dict_round_trip(tmp_path):
    state = filled()
    torch.save(state.state_dict(), tmp_path / "state.pt")
    other = DualState(6, 2, torch.float64)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_unchanged(other, snapshot(state))


@pytest.mark.parametrize(("num_rows", "width"), [(7, 2), (6, 1)])
def test_another_shape_is_refused_with_both_shapes(num_rows, width):
    state = DualState(num_rows, width, torch.float64)
    before = snapshot(state)
    with pytest.raises(CheckpointError, match=rf"shape \(6, 2\).*needs \({num_rows}, {width}\)"):
        state.load_state_dict(filled().state_dict())
    assert_unchanged(state, before)


def test_another_format_version_is_refused():
    stored = filled().state_dict()
    stored["_extra_state"] = {"version": 99}
    with pytest.raises(CheckpointError, match="format version 99"):
        filled().load_state_dict(stored)


def test_a_checkpoint_without_the_rows_is_refused():
    stored = filled().state_dict()
    del stored["rows"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "rows"'):
        filled().load_state_dict(stored)
    state = filled()
    before = snapshot(state)
    assert state.load_state_dict(stored, strict=False).missing_keys == ["rows"]
    assert_unchanged(state, before)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "held"'):
        state.load_state_dict(filled().state_dict() | {"held": torch.ones(7, 2)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_modules_of_half_precision_keep_the_rows_as_they_are(dtype):
    """Contrastive losses remember values up to 1e200, which no smaller type holds."""
    parent = torch.nn.Sequential(DualState(2, 1, torch.float64))
    parent[0].write(torch.tensor([0]), torch.tensor([[1e200 / 3]], dtype=torch.float64))
    parent.to(dtype)
    assert parent[0].rows.dtype == torch.float64
    assert parent[0].rows[0].item() == 1e200 / 3
    assert parent.state_dict().keys() == {"0.rows", "0._extra_state"}
    parent.to(torch.float32)
    assert parent[0].rows.dtype == torch.float32

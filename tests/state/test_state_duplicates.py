"""Repeated indices in a batch count once, with the mean of their values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcco_lightning.state import copies, replaced


def means_of(index, values):
    again = copies(index)
    return again.total(values) / again.count.unsqueeze(1)


ROUNDING = 1e-12  # a mean of at most 20 numbers below 100

occurrences = st.lists(
    st.tuples(st.integers(0, 5), st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=20
)


def split(pairs):
    return torch.tensor([p[0] for p in pairs]), torch.tensor([p[1:] for p in pairs], dtype=torch.float64)


@settings(deadline=None)
@given(occurrences)
def test_equal_indices_have_their_mean(pairs):
    table = {}
    for position, (i, *values) in enumerate(pairs):
        table.setdefault(i, []).append((position, values))
    index, values = split(pairs)
    again = copies(index)
    assert again.first.tolist() == [table[i][0][0] for i in index.tolist()]
    assert again.count.tolist() == [len(table[i]) for i in index.tolist()]
    means = means_of(index, values)
    for i, row in zip(index.tolist(), means.tolist(), strict=True):
        of_row = [held for _, held in table[i]]
        assert row == pytest.approx([sum(column) / len(of_row) for column in zip(*of_row, strict=True)], abs=ROUNDING)
    assert torch.equal(means[again.first], means)  # to the last bit
    assert torch.equal(again.total(torch.ones_like(index)), again.count)


@settings(deadline=None)
@given(occurrences, st.randoms(use_true_random=False))
def test_the_order_of_the_batch_does_not_matter(pairs, random):
    order = list(range(len(pairs)))
    random.shuffle(order)
    (index, values), (other, shuffled) = split(pairs), split([pairs[k] for k in order])
    means, again = means_of(index, values), means_of(other, shuffled)
    assert torch.allclose(means[order], again, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("size", [0, 1, 1024, 1025, 3000])
def test_a_batch_of_any_size(size):
    index = torch.randint(0, 700, (size,), generator=torch.Generator().manual_seed(0))
    again, first, count = copies(index), {}, torch.bincount(index, minlength=700)
    for position, i in enumerate(index.tolist()):
        first.setdefault(i, position)
    assert again.first.tolist() == [first[i] for i in index.tolist()]
    assert torch.equal(again.count, count[index])
    assert again.total(torch.ones(size, 2)).shape == (size, 2)


def test_the_gradient_flows_to_every_occurrence():
    index = torch.tensor([3, 1, 3, 3])
    values = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([6.0, 2.0, 0.0, 0.0], dtype=torch.float64)  # one entry of each row
    (weight.unsqueeze(1) * means_of(index, values)).sum().backward()
    assert values.grad[:, 0].tolist() == pytest.approx([2.0, 2.0, 2.0, 2.0])


def test_distinct_indices_have_their_own_values():
    again, values = copies(torch.tensor([3, 1])), torch.tensor([[0.1], [2.0]])
    assert again.first.tolist() == [0, 1]
    assert torch.equal(again.total(values), values)


rows_of_indices = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@settings(deadline=None)
@given(rows_of_indices, rows_of_indices)
def test_rows_are_replaced_where_others_are_known(index, at):
    rows = torch.arange(2.0 * len(index)).view(-1, 2)
    by = torch.tensor([[100.0 + i, float("nan") if i == 4 else -i] for i in at], dtype=torch.float64)
    before = rows.clone()
    found = replaced(rows, torch.tensor(index), torch.tensor(at), by)
    assert torch.equal(rows, before)
    assert found.dtype == rows.dtype
    for k, i in enumerate(index):
        expected = by[at.index(i)].float() if i in at else rows[k]
        assert torch.equal(found[k].nan_to_num(7), expected.nan_to_num(7))


def test_all_rows_are_those_of_their_indices():
    every, some, by = torch.zeros(5, 2), torch.tensor([3, 0, 3]), torch.tensor([[1.0, 2], [3, 4], [1, 2]])
    expected = torch.tensor([[3.0, 4], [0, 0], [0, 0], [1, 2], [0, 0]])
    assert torch.equal(replaced(every, None, some, by), expected)
    assert torch.equal(replaced(by, some, None, expected), by)
    assert torch.equal(replaced(every, None, None, expected), expected)

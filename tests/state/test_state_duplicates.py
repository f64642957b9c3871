import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fcco_lightning.state import merge_duplicates

ROUNDING = 1e-12  # a mean of at most 20 numbers below 100

occurrences = st.lists(
    st.tuples(st.integers(0, 5), st.floats(-100, 100), st.floats(-100, 100)), min_size=1, max_size=20
)


def split(pairs):
    return torch.tensor([p[0] for p in pairs]), torch.tensor([p[1:] for p in pairs], dtype=torch.float64)


@settings(deadline=None)
@given(occurrences)
def test_equal_indices_count_once_with_their_mean(pairs):
    table = {}
    for i, *values in pairs:
        table.setdefault(i, []).append(values)
    index, means = merge_duplicates(*split(pairs))
    assert sorted(index.tolist()) == sorted(table)
    for i, row in zip(index.tolist(), means.tolist(), strict=True):
        expected = [sum(column) / len(table[i]) for column in zip(*table[i], strict=True)]
        assert row == pytest.approx(expected, abs=ROUNDING)


@settings(deadline=None)
@given(occurrences, st.randoms(use_true_random=False))
def test_the_order_of_the_batch_does_not_matter(pairs, random):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    (a, first), (b, second) = (merge_duplicates(*split(p)) for p in (pairs, shuffled))
    assert torch.equal(a.sort().values, b.sort().values)
    assert torch.allclose(first[a.argsort()], second[b.argsort()], atol=ROUNDING, rtol=0)


def test_the_gradient_flows_to_every_occurrence():
    index = torch.tensor([3, 1, 3, 3])
    values = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
    merged, means = merge_duplicates(index, values)
    weight = torch.tensor([[2.0 if i == 1 else 6.0] for i in merged.tolist()], dtype=torch.float64)
    (weight * means).sum().backward()
    assert values.grad[:, 0].tolist() == pytest.approx([2.0, 2.0, 2.0, 2.0])


def test_distinct_indices_pass_as_they_are():
    index, values = torch.tensor([3, 1]), torch.tensor([[1.0], [2.0]])
    merged, same = merge_duplicates(index, values)
    assert merged is index
    assert same is values

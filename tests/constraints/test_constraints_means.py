import numpy as np
import pytest
import torch

from fcco_lightning.constraints import MeanAtMost, MeanDifferenceAtMost, MeanNear
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives import LogisticLoss, SoftRate
from fcco_lightning.outer import AbsoluteDifference, Hinge

EXACT = 1e-12  # means of at most 50 numbers of order one, float64


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(50, generator=generator, dtype=torch.float64, requires_grad=True)
    y, group = torch.randint(2, (2, 50), generator=generator)
    return scores, {"y": y, "group": group, "index": torch.arange(50)}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(data):
    return data[0].detach().numpy(), data[1]["y"].numpy(), data[1]["group"].numpy()


def test_false_positive_rate_cap(data):
    s, y, _ = arrays(data)
    cap = MeanAtMost(SoftRate(threshold=0.2, temperature=0.5), kappa=0.1, where={"y": 0}, name="fpr")
    direct, rows = cap.measure(*data)
    rate = sigmoid((s[y == 0] - 0.2) / 0.5).mean()
    assert direct is None
    assert cap.rows_of(data[1]) is None
    assert rows.weight.tolist() == [True]
    assert rows.values.tolist() == [[pytest.approx(rate, abs=EXACT)]]
    assert cap.violation(rows.values).tolist() == [pytest.approx(rate - 0.1, abs=EXACT)]
    assert cap.outer(Hinge(2.0, cap.kappa)) == Hinge(2.0, 0.1)
    assert (cap.names, cap.num_rows, cap.width) == (["fpr"], 1, 1)


def test_no_subset_is_everyone(data):
    s, _, _ = arrays(data)
    _, rows = MeanAtMost(SoftRate(), kappa=0.5).measure(data[0].unsqueeze(1), data[1])
    assert rows.values.item() == pytest.approx(sigmoid(s).mean(), abs=EXACT)


def test_equal_opportunity(data):
    s, y, group = arrays(data)
    equal = MeanDifferenceAtMost(SoftRate(), 0.02, {"y": 1, "group": 1}, {"y": 1, "group": 0}, name="tpr")
    _, rows = equal.measure(*data)
    a, b = (sigmoid(s[(y == 1) & (group == g)]).mean() for g in (1, 0))
    assert rows.weight.tolist() == [True]
    assert rows.values.tolist() == [pytest.approx([a, b], abs=EXACT)]
    assert equal.violation(rows.values).tolist() == [pytest.approx(abs(a - b) - 0.02, abs=EXACT)]
    assert equal.violation(rows.values.flip(1)).tolist() == [pytest.approx(abs(a - b) - 0.02, abs=EXACT)]
    phi = Hinge(3.0, equal.kappa)
    assert equal.outer(phi) == AbsoluteDifference(phi)
    assert (equal.names, equal.num_rows, equal.width) == (["tpr"], 1, 2)


def test_the_penalty_is_zero_exactly_where_the_constraint_holds(data):
    values = torch.tensor([[0.3, 0.281], [0.3, 0.279], [0.1, 0.3]], dtype=torch.float64)
    equal = MeanDifferenceAtMost(SoftRate(), 0.02, {"y": 1}, {"y": 0})
    phi = equal.outer(Hinge(3.0, equal.kappa)).value(values)
    assert phi.tolist() == pytest.approx((3 * equal.violation(values).clamp(min=0)).tolist(), abs=EXACT)
    assert (phi > 0).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("constraint", "width"),
    [
        (MeanAtMost(SoftRate(), 0.1, {"y": 2}), 1),
        (MeanDifferenceAtMost(SoftRate(), 0.1, {"y": 1}, {"y": 2}), 2),
        (MeanDifferenceAtMost(SoftRate(), 0.1, {"y": 2}, {"y": 1}), 2),
    ],
)
def test_an_empty_subset_leaves_the_row_out(data, constraint, width):
    _, rows = constraint.measure(*data)
    assert rows.weight.tolist() == [False]
    assert rows.values.shape == (1, width)
    assert rows.values.isfinite().all()
    (gradient,) = torch.autograd.grad((rows.values * rows.weight.unsqueeze(1)).sum(), data[0])
    assert torch.equal(gradient, torch.zeros(50, dtype=torch.float64))


def test_an_unknown_column_is_refused_by_name(data):
    with pytest.raises(DataError, match=r"\['sex'\], the batch has \['group', 'index', 'y'\]"):
        MeanAtMost(SoftRate(), 0.1, {"y": 1, "sex": 1}).measure(*data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SoftRate(temperature=0.0), "temperature must be a finite number > 0"),
        (lambda: MeanDifferenceAtMost(SoftRate(), -0.1, {"y": 1}, {"y": 0}), "kappa must be a finite number >= 0"),
        (lambda: MeanDifferenceAtMost(SoftRate(), 0.1, {"y": 1}, {"y": 1}), "same subset"),
        (lambda: MeanAtMost(SoftRate(), float("nan")), "kappa must be a finite number"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    MeanDifferenceAtMost(SoftRate(temperature=0.1), 0.0, {"y": 1}, {"y": 0})
    with pytest.raises(ConfigError, match=message):
        make()


def test_constraints_are_named_by_what_they_are_of():
    assert MeanAtMost(LogisticLoss(), 0.1, {"race": "Black", "age": "<25"}).names == [
        "logistic loss, race=Black, age<25"
    ]
    assert MeanNear(SoftRate(), 0.5).names == ["soft rate"]
    difference = MeanDifferenceAtMost(SoftRate(), 0.1, {"group": 1}, {"group": 0})
    assert difference.names == ["soft rate, group=1 against group=0"]
    assert MeanAtMost(SoftRate(), 0.1, name="ours").names == ["ours"]

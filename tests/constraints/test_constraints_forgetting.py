"""Protected tasks: h_k is the mean change of the loss over the samples of task k since the old model."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax
from torch.nn.functional import log_softmax

from fcco_lightning import Distillation, Hinge, NonForgetting, SquaredLoss
from fcco_lightning.errors import ConfigError, DataError

LOGITS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BATCH = {
    "y": torch.tensor([0, 1, 2, 1, 0, 2]),
    "task": torch.tensor([1, -1, 0, -2, 1, 0]),
    "protected_loss": torch.tensor([0.1, 9.0, 0.3, 9.0, 0.5, 0.7]),
}


def of_tasks(*names):
    return NonForgetting(names=names)


def test_the_old_model_changes_nothing():
    limit = of_tasks("a", "b")
    kept = limit.reference(LOGITS, BATCH)
    own = BATCH["task"] >= 0
    torch.testing.assert_close(kept["protected_loss"][own], -log_softmax(LOGITS, 1)[range(6), BATCH["y"]][own])
    assert torch.equal(limit.measure(LOGITS, BATCH | kept)[1].values, torch.zeros(2, 1, dtype=torch.float64))


def test_samples_of_no_task_may_have_any_label():
    limit, y = of_tasks("a", "b"), torch.where(BATCH["task"] >= 0, BATCH["y"], torch.tensor([9, -1]).repeat(3))
    others = BATCH | {"y": y}
    limit.check(LOGITS, others)
    assert torch.equal(limit.measure(LOGITS, others)[1].values, limit.measure(LOGITS, BATCH)[1].values)
    assert torch.equal(
        limit.reference(LOGITS, others)["protected_loss"], limit.reference(LOGITS, BATCH)["protected_loss"]
    )


def test_another_loss():
    outputs = torch.tensor([[1.0], [3.0]])
    limit = NonForgetting(SquaredLoss(), names=["a"])
    batch = {"y": torch.tensor([0.0, 1.0]), "task": torch.tensor([0, 0]), "protected_loss": torch.tensor([0.5, 0.5])}
    assert limit.measure(outputs, batch)[1].values.item() == pytest.approx((1 + 4) / 2 - 0.5)


def test_tasks_come_from_the_datamodule():
    limit = NonForgetting()
    assert limit.num_rows == 0
    limit.adapt(SimpleNamespace(task_names=["clear", "snowy"]))
    assert limit.names == ["clear", "snowy"]
    limit.adapt(None)
    assert limit.num_rows == 2
    with pytest.raises(ConfigError, match=r"\['rainy'\] of NonForgetting, but the data protects \['clear', 'snowy'\]"):
        of_tasks("rainy").adapt(SimpleNamespace(task_names=["clear", "snowy"]))
    for nothing in (None, SimpleNamespace(task_names=[])):
        with pytest.raises(ConfigError, match="no task to protect"):
            NonForgetting().adapt(nothing)


def test_bad_batches():
    for column in ("task", "protected_loss"):
        with pytest.raises(DataError, match=f"needs the column '{column}'"):
            of_tasks("a", "b").measure(LOGITS, {n: c for n, c in BATCH.items() if n != column})
    with pytest.raises(DataError, match="task must be < 1"):
        of_tasks("a").check(LOGITS, BATCH)
    assert of_tasks("a").measure(LOGITS, BATCH)[1].values.isnan().all()  # so that the engine asks


def test_samples_that_the_old_model_could_not_see_count_nowhere():
    old = torch.tensor([0.1, 9.0, float("nan"), 9.0, 0.5, 0.7])
    values, weight, *_ = of_tasks("a", "b").measure(LOGITS, BATCH | {"protected_loss": old})[1]
    alone = {name: column[[0, 1, 3, 4, 5]] for name, column in BATCH.items()}
    expected, *_ = of_tasks("a", "b").measure(LOGITS[[0, 1, 3, 4, 5]], alone)[1]
    assert weight.tolist() == [True, True]
    torch.testing.assert_close(values, expected, rtol=1e-14, atol=0)


# ---- distillation


def test_a_hinge_is_learning_without_forgetting():
    """``(rho/m) sum_k KL_k`` and its gradient, by scipy's relative entropies and the formula ``(p - p_old) / T``."""
    limit, logits = Distillation(temperature=2.0, names=["a", "b"]), LOGITS.clone().requires_grad_()
    old = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = limit.measure(logits, BATCH | {"old_logits": old})[1].values
    total = limit.outer(Hinge(0.7, limit.kappa))(values).mean()
    p, before = (softmax(z.detach().numpy() / 2, axis=1) for z in (logits, old))
    weight = np.where(BATCH["task"] >= 0, 1 / 4, 0)  # two of four in each of two tasks
    assert total.item() == pytest.approx(0.7 * weight @ rel_entr(before, p).sum(1), rel=1e-12)
    total.backward()
    np.testing.assert_allclose(logits.grad, 0.7 * weight[:, None] * (p - before) / 2, atol=1e-14)


def test_the_old_model_is_where_nothing_is_distilled_and_unseen_samples_count_nowhere():
    limit, logits = Distillation(names=["a", "b"]), LOGITS.clone().requires_grad_()
    old = limit.reference(LOGITS, BATCH)["old_logits"].double()
    assert limit.measure(LOGITS, BATCH | {"old_logits": old})[1].values.abs().max() < 1e-12
    old[2], old[0] = torch.nan, -1.0
    values = limit.measure(logits, BATCH | {"old_logits": old})[1].values
    alone = {name: column[[0, 4, 5]] for name, column in (BATCH | {"old_logits": old}).items()}
    torch.testing.assert_close(values, limit.measure(LOGITS[[0, 4, 5]], alone)[1].values, rtol=1e-13, atol=1e-15)
    values.sum().backward()
    assert logits.grad.isfinite().all()
    assert limit.subsets(BATCH | {"old_logits": old})[0][0].tolist() == [False] * 5 + [True]


def test_what_cannot_be_distilled_is_refused():
    with pytest.raises(ConfigError, match="kappa must be"):
        Distillation(kappa=-0.1)
    with pytest.raises(DataError, match=r"needs class logits, shape \(B, C\), got shape \(6,\)"):
        Distillation(names=["a", "b"]).measure(LOGITS[:, 0], BATCH | {"old_logits": LOGITS})

"""Every estimator against a second update, written by hand with Python floats."""

import math
import random

import pytest
import torch
from scipy.optimize import minimize_scalar

from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import EMA, CorrectedEMA, DualMirror, DualProx, Minibatch, Sampling, ScaledEMA
from fcco_lightning.outer import Hinge, LogSumExp, MoreauEnvelope, Softplus, Square, SquaredHinge

ROUNDING = 1e-12  # 50 steps in float64
ARGMIN = 1e-6  # scipy's minimiser
N, STEPS = 7, 50
RHO, LAM = 2.0, 0.3


def hinge_slope(u):
    return min(max(u / LAM, 0.0), RHO)


SMOOTHED = MoreauEnvelope(Hinge(RHO), LAM)


class Hand:
    """The papers' updates on dictionaries of floats; ``step`` returns the outer gradient of one sampled index."""

    def __init__(self, gamma=0.3, correction=0.0, fresh=False):
        self.gamma, self.correction, self.fresh, self.u = gamma, correction, fresh, {}

    def start(self, batch):
        pass

    def step(self, i, g, before):
        old = self.u.get(i)
        if old is None:
            self.u[i] = g
            return hinge_slope(g)
        self.u[i] = (1 - self.gamma) * old + self.gamma * g + self.correction * (g - before)
        return hinge_slope(self.u[i] if self.fresh else old)


class HandMOAP(Hand):
    def start(self, batch):
        self.batch = batch
        self.before = dict(self.u)
        for i in self.u:
            self.u[i] *= 1 - self.gamma

    def step(self, i, g, before):
        old = self.before.get(i)
        self.u[i] = g if old is None else (1 - self.gamma) * old + self.gamma * (N / len(self.batch)) * g
        return hinge_slope(self.u[i])


class HandDualProx(Hand):
    """argmax_y y g~ - lam/2 y^2 - tau/2 (y - y_t)^2 over [0, rho]: table of section 2."""

    def __init__(self, tau, theta):
        super().__init__()
        self.tau, self.theta = tau, theta

    def step(self, i, g, before):
        ahead = g if i not in self.u else g + self.theta * (g - before)
        y = (ahead + self.tau * self.u.get(i, 0.0)) / (LAM + self.tau)
        self.u[i] = min(max(y, 0.0), RHO)
        return self.u[i]


class HandBSGD(Hand):
    def step(self, i, g, before):
        return hinge_slope(g)


THEORY = 1 - 0.3 + (N - 3) / (3 * (1 - 0.3))
PAIRS = [
    (Minibatch(), HandBSGD()),
    (EMA(0.3), Hand()),
    (EMA(0.3, fresh=True), Hand(fresh=True)),
    (EMA(1.0, fresh=True), Hand(gamma=1.0, fresh=True)),
    (ScaledEMA(0.3), HandMOAP()),
    (CorrectedEMA(0.3, 0.1), Hand(correction=0.1)),
    (CorrectedEMA(0.3, 0.1, fresh=True), Hand(correction=0.1, fresh=True)),
    (CorrectedEMA(0.3, "theory"), Hand(correction=THEORY)),
    (DualMirror(0.3, 0.1), Hand(correction=0.1, fresh=True)),
    (DualProx(2.0, 0.5), HandDualProx(2.0, 0.5)),
    (DualProx(0.4, 0.0), HandDualProx(0.4, 0.0)),
]


@pytest.mark.parametrize(("estimator", "hand"), PAIRS, ids=[repr(e) for e, _ in PAIRS])
def test_fifty_steps_equal_the_update_by_hand(estimator, hand):
    draw = random.Random(0)  # noqa: S311 - not for secrets
    hand.u = {}
    rows, seen = torch.zeros(N, 1, dtype=torch.float64), torch.zeros(N, dtype=torch.bool)
    for _ in range(STEPS):
        batch = draw.sample(range(N), 3)
        now, before = ([draw.gauss(0.2, 1.0) for _ in batch] for _ in range(2))
        hand.start(batch)
        expected = [hand.step(i, g, b) for i, g, b in zip(batch, now, before, strict=True)]
        index = torch.tensor(batch)
        inner, previous = (torch.tensor(v, dtype=torch.float64).unsqueeze(1) for v in (now, before))
        tracked = estimator.track(
            rows[index], seen[index], inner, previous if estimator.needs_previous else None, SMOOTHED, Sampling(N, 3)
        )
        rows *= estimator.decay()
        rows[index], seen[index] = tracked.rows, True
        assert tracked.weights[:, 0].tolist() == pytest.approx(expected, abs=ROUNDING)
        if estimator.remembers:
            assert rows[:, 0].tolist() == pytest.approx([hand.u.get(i, 0.0) for i in range(N)], abs=ROUNDING)


def track_one(estimator, row, inner, previous=None, outer=SMOOTHED):
    values = [None if v is None else torch.tensor([[v]], dtype=torch.float64) for v in (row, inner, previous)]
    return estimator.update(*values, outer, Sampling(10, 2))


def test_stale_takes_the_row_before_the_step_and_fresh_the_row_after_it():
    square = Square()
    for kind in (EMA, CorrectedEMA):
        assert track_one(kind(0.5), 1.0, 3.0, outer=square).weights.item() == 2.0  # 2 u, u = 1
        assert track_one(kind(0.5, fresh=True), 1.0, 3.0, outer=square).weights.item() == 4.0  # u = 2


@pytest.mark.parametrize(
    ("n", "batch", "gamma", "expected"), [(30, 8, 0.1, 3.96), (16, 4, 0.5, 6.5), (1252, 8, 0.1, 173.7)]
)
def test_theoretical_correction_has_the_numbers_of_erratum_004_27(n, batch, gamma, expected):
    assert CorrectedEMA(gamma, "theory").correction(Sampling(n, batch)) == pytest.approx(expected, rel=2e-3)
    assert CorrectedEMA(gamma, 0.2).correction(Sampling(n, batch)) == 0.2


def conjugate_bregman_argmax(f_star, slope, y_old, ahead, tau, bounds):
    """argmax_y y ahead - f*(y) - tau (f*(y) - f*(y_old) - slope (y - y_old)), slope in the subdifferential at y_old."""

    def loss(y):
        return -(y * ahead - f_star(y) - tau * (f_star(y) - slope * y))

    return minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x


@pytest.mark.parametrize("tau", [0.25, 4.0])
@pytest.mark.parametrize(
    ("outer", "f_star", "bounds"),
    [
        (Square(0.7), lambda y: y * y / (4 * 0.7), (-50, 50)),
        (Softplus(1.0), lambda y: y * math.log(y) + (1 - y) * math.log(1 - y), (1e-12, 1 - 1e-12)),
        (SquaredHinge(1.5), lambda y: y * y / (2 * 1.5), (0, 50)),
        (SMOOTHED, lambda y: LAM * y * y / 2, (0, RHO)),
    ],
    ids=repr,
)
def test_mirror_form_is_the_argmax_of_its_definition(outer, f_star, bounds, tau):
    theta, u, g, before = 0.5, 0.4, 0.9, 0.5
    gamma = 1 / (1 + tau)
    tracked = track_one(DualMirror(gamma, gamma * theta), u, g, before, outer)
    y_old = outer.subgradient(torch.tensor([[u]], dtype=torch.float64)).item()
    expected = conjugate_bregman_argmax(f_star, u, y_old, g + theta * (g - before), tau, bounds)
    assert tracked.weights.item() == pytest.approx(expected, abs=ARGMIN)
    assert tracked.rows.item() == pytest.approx((tau * u + g + theta * (g - before)) / (1 + tau), abs=ROUNDING)


def hinge_steps(u, tau=1.0, g=0.5):
    """The outer gradient of the u-form, and that of the y-form with psi = f_lam* from y = grad f_lam(u)."""
    mirror = track_one(DualMirror(1 / (1 + tau), 0.0), u, g).weights.item()
    y = hinge_slope(u)
    return mirror, min(max((g + tau * LAM * y) / (LAM * (1 + tau)), 0.0), RHO)


@pytest.mark.parametrize("u", [0.0, 0.2, LAM * RHO])
def test_u_form_equals_y_form_where_the_smoothed_hinge_is_curved(u):
    mirror, y_form = hinge_steps(u)
    assert mirror == pytest.approx(y_form, abs=ROUNDING)


@pytest.mark.parametrize("u", [-1.0, -0.3, LAM * RHO + 0.5])
def test_u_form_differs_from_y_form_where_it_is_flat_or_linear(u):
    mirror, y_form = hinge_steps(u, g=0.5 if u < 0 else 0.1)
    assert abs(mirror - y_form) > 0.1  # erratum E-004-7


def test_dual_prox_of_a_non_smooth_hinge_starts_at_zero():
    first = DualProx(tau=2.0).track(
        torch.full((1, 1), 9.0), torch.tensor([False]), torch.tensor([[0.5]]), None, Hinge(RHO, 0.1), Sampling(10, 1)
    )
    assert first.weights.item() == pytest.approx(0.4 / 2.0)  # clip(0 + (g - kappa)/tau, 0, rho)


@pytest.mark.parametrize("estimator", [p[0] for p in PAIRS if not isinstance(p[0], DualProx)], ids=repr)
def test_first_visit_is_exact(estimator):
    inner, other = torch.tensor([[0.3]]), torch.tensor([[-5.0]])
    tracked = estimator.track(other, torch.tensor([False]), inner, other, SMOOTHED, Sampling(10, 1))
    assert torch.equal(tracked.rows, inner)
    assert torch.equal(tracked.weights, SMOOTHED.subgradient(inner))


def test_a_missing_previous_point_counts_as_the_present_one():
    for estimator in (CorrectedEMA(0.3, 0.2), DualMirror(0.3, 0.2), DualProx(2.0, 0.5)):
        assert torch.equal(track_one(estimator, 0.1, 0.4).rows, track_one(estimator, 0.1, 0.4, 0.4).rows)


def test_noise_floor_of_the_average_at_fixed_weights():
    # 004 Lemma B.3 with sigma_1 = 0: E u^2 = gamma s^2/(2 - gamma)
    gamma, s = 0.2, 0.7
    generator = torch.Generator().manual_seed(0)
    rows, total, steps = torch.zeros(4000, 1, dtype=torch.float64), 0.0, 60
    for t in range(2 * steps):
        noise = s * torch.randn(4000, 1, generator=generator, dtype=torch.float64)
        rows = CorrectedEMA(gamma, 0.1).update(rows, noise, noise, SMOOTHED, Sampling(4000, 4000)).rows
        total += rows.square().mean().item() / steps if t >= steps else 0.0
    assert total == pytest.approx(gamma * s**2 / (2 - gamma), rel=0.02)


def test_wide_rows_are_averaged_entry_by_entry():
    rows, inner = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 2.0, -1.0]])
    tracked = EMA(0.5, fresh=True).update(rows, inner, None, LogSumExp(), Sampling(10, 1))
    assert tracked.rows.tolist() == [[2.0, 2.0, 1.0]]
    assert torch.allclose(tracked.weights, torch.softmax(tracked.rows, dim=1))


@pytest.mark.parametrize(
    ("estimator", "needed"),
    [
        (CorrectedEMA(0.5, 0.0), False),
        (CorrectedEMA(0.5, 0.1), True),
        (CorrectedEMA(0.5, "theory"), True),
        (DualMirror(0.5, 0.0), False),
        (DualProx(1.0, 0.0), False),
        (DualProx(1.0, 0.1), True),
        (EMA(), False),
        (ScaledEMA(), False),
        (Minibatch(), False),
    ],
    ids=repr,
)
def test_a_second_forward_is_asked_for_only_where_its_weight_is_not_zero(estimator, needed):
    assert estimator.needs_previous is needed


@pytest.mark.parametrize("kind", [EMA, ScaledEMA, CorrectedEMA, DualMirror])
@pytest.mark.parametrize("gamma", [0.0, -0.1, 1.1, float("nan")])
def test_gamma_must_lie_in_zero_one(kind, gamma):
    kind(1.0)
    with pytest.raises(ConfigError, match=r"gamma must lie in \(0, 1\]"):
        kind(gamma)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CorrectedEMA(0.5, -0.1), "gamma_prime must be a finite number >= 0"),
        (lambda: CorrectedEMA(0.5, "theorie"), "gamma_prime must be a finite number >= 0, got 'theorie'"),
        (lambda: CorrectedEMA(1.0, "theory"), "divides by 1 - gamma"),
        (lambda: DualProx(0.0), "tau must be a finite number > 0"),
        (lambda: DualProx(1.0, -0.5), "theta must be a finite number >= 0"),
        (lambda: DualProx(1.0, float("nan")), "theta must be"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    CorrectedEMA(1.0, 0.0)
    CorrectedEMA(0.99, "theory")
    with pytest.raises(ConfigError, match=message):
        make()

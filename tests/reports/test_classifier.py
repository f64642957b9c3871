"""The classifier behind scikit-learn's interface."""

import itertools
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn import clone, config_context
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, confusion_matrix, log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.optim.lr_scheduler import PolynomialLR

from fcco_lightning import (
    AUC,
    ConstrainedClassifier,
    CVaRGroupDRO,
    DataError,
    DemographicParity,
    EqualizedOdds,
    MeanAtMost,
    SoftRate,
    WorstGroupDRO,
)
from fcco_lightning.constraints import Decisions
from fcco_lightning.data.datamodules.arrays import NamedArrays
from fcco_lightning.errors import ConfigError, FCCOError
from fcco_lightning.reports import classifier

QUICK = {"hidden": (16,), "max_epochs": 10, "learning_rate": 0.06, "batch_size": 100, "random_state": 0}


@pytest.fixture(scope="module")
def problem():
    X, y = make_classification(400, n_informative=4, random_state=0)
    sex = np.where(X[:, 0] + np.random.default_rng(0).standard_normal(400) > 0, "m", "f")
    return X, np.where(y == 1, "yes", "no"), sex


@pytest.fixture(scope="module")
def fair(problem):
    """A model under a constraint on two groups."""
    X, y, sex = problem
    return ConstrainedClassifier(constraints=[DemographicParity()], **QUICK).fit(X, y, sensitive_features=sex)


@pytest.mark.slow
@parametrize_with_checks(
    [ConstrainedClassifier(**QUICK | {"max_epochs": 12, "learning_rate": 0.03, "batch_size": 32})],
    expected_failed_checks=lambda _: dict.fromkeys(
        ["check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"],
        "batches of repeated samples are others than those of samples with weights",
    ),
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def rates(model, X, sex):
    positive = model.predict(X) == model.classes_[1]
    return [float(positive[sex == s].mean()) for s in ("f", "m")]


def test_a_constraint_changes_decisions(problem, capfd, caplog):
    X, y, sex = problem
    free = ConstrainedClassifier(**QUICK).fit(X, y)
    with warnings.catch_warnings(record=True) as caught:
        model = ConstrainedClassifier(constraints=[DemographicParity(kappa=0.02)], **QUICK)
        model.fit(X, y, sensitive_features=pd.Series(sex))
    assert capfd.readouterr() == ("", "")
    assert not [w for w in caught if "ightning" in str(w.message)]
    assert not [r for r in caplog.records if r.name.startswith("lightning")]
    gaps = [abs(a - b) for a, b in (rates(m, X, sex) for m in (free, model))]
    assert gaps[1] < gaps[0] / 2
    assert "constraint" in repr(model.report_)
    assert set(model.classes_) == {"yes", "no"}
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-model.decision_function(X))))


@pytest.mark.slow
def test_a_ranking_has_no_probabilities_until_it_is_calibrated(problem):
    X, y, _ = problem
    model = ConstrainedClassifier(AUC(), **QUICK)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match="predict_proba") as raised:
        _ = model.fit(X, y).predict_proba
    assert "CalibratedClassifierCV" in str(raised.value.__cause__)
    calibrated = CalibratedClassifierCV(model, cv=2).fit(X, y)
    assert calibrated.predict_proba(X)[:, 1].mean() == pytest.approx((y == model.classes_[1]).mean(), abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("max_epochs", [3, None])
def test_the_step_falls_to_zero_with_the_last_update(problem, monkeypatch, max_epochs):
    X, y, _ = problem
    made = []
    monkeypatch.setattr(classifier, "PolynomialLR", lambda *given: made.append(PolynomialLR(*given)) or made[-1])
    ConstrainedClassifier(**QUICK | {"max_epochs": max_epochs}).fit(X, y)
    (schedule,) = made
    updates = 4 * (max_epochs or 125)  # of 400 samples in batches of 100; by default at least 500 in whole epochs
    assert (schedule.total_iters, schedule.last_epoch) == (updates, updates)
    assert schedule.get_last_lr() == [0.0]


def test_what_a_training_leaves(fair, problem):
    assert list(fair.report_.figures["constraints"]) == ["selection rate: m - f"]
    assert "data:image/png" in fair.report_._repr_html_()  # which draws the pictures


@pytest.mark.slow
def test_the_report_tells_the_decisions_that_are_made(fair, problem, tmp_path):
    X, y, sex = problem
    told = fair.report_.figures
    expected = [
        {"true": name, "decided no": no, "decided yes": yes}
        for name, (no, yes) in zip(fair.classes_, confusion_matrix(y, fair.predict(X)).tolist(), strict=True)
    ]
    assert told["confusion_matrix"] == expected
    assert {one["group"]: one["positives"] for one in told["rates_by_group"]} == {
        "all": (y == "yes").sum(),
        **{g: (y[sex == g] == "yes").sum() for g in "fm"},
    }
    assert told["brier_loss"] == pytest.approx(brier_score_loss(y == "yes", fair.predict_proba(X)[:, 1]), abs=1e-5)
    assert tmp_path / "calibration.png" in fair.report_.draw(tmp_path)
    titles = [str(table.title) for table in fair.report_.tables]
    assert {"Confusion matrix (train)", "Rates by group (train)", "Calibration (train)"} <= {*titles}
    again = pickle.loads(pickle.dumps(fair))  # noqa: S301 - of this test
    np.testing.assert_array_equal(again.predict(problem[0]), fair.predict(problem[0]))


def test_inputs_of_many_kinds_give_one_model(fair, problem):
    X, y, sex = problem
    short = QUICK | {"max_epochs": 1, "batch_size": 400}  # of which a batch holds all
    made = clone(fair).set_params(**short)
    first = made.fit(X, y, sensitive_features=sex).decision_function(X)
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(X.shape[1])])
    np.testing.assert_array_equal(made.fit(table, y, sensitive_features=list(sex)).decision_function(table), first)
    by = ConstrainedClassifier(constraints=[DemographicParity(by="sex")], **short)
    groups = pd.DataFrame({"age": np.arange(len(y)) % 2, "sex": sex})
    np.testing.assert_array_equal(by.fit(X, y, sensitive_features=groups).decision_function(X), first)
    named = {name: pd.Series(groups[name].to_numpy(), index=range(400, 800)) for name in groups}  # and no other order
    np.testing.assert_array_equal(by.fit(X, y, sensitive_features=named).decision_function(X), first)
    groups = pd.DataFrame({"age": np.arange(len(y)) % 2, "group": sex})
    np.testing.assert_array_equal(made.fit(X, y, sensitive_features=groups).decision_function(X), first)
    np.testing.assert_array_equal(made.fit(X, y, sensitive_features=sex[:, None]).decision_function(X), first)
    np.testing.assert_array_equal(
        by.fit(X, y, sensitive_features=pd.Series(sex, name="sex")).decision_function(X), first
    )
    levels = pd.Series(pd.Categorical(sex, categories=["f", "m", "x"]))  # as it is left of more rows
    np.testing.assert_array_equal(made.fit(X, y, sensitive_features=levels).decision_function(X), first)
    groups = pd.DataFrame({"group": levels})
    np.testing.assert_array_equal(made.fit(X, y, sensitive_features=groups).decision_function(X), first)
    thin = sparse.csr_matrix(np.where(np.abs(X) > 0.5, X, 0))
    np.testing.assert_allclose(made.decision_function(thin), made.decision_function(thin.toarray()))
    longer = made.set_params(max_epochs=4).fit(thin, y, sensitive_features=sex)
    assert longer.score(thin, y) > 0.6


@pytest.mark.parametrize(
    ("where", "members"),
    [
        ({"age": "<25"}, lambda c: c["age"] < 25),
        ({"age": [20, 30]}, lambda c: c["age"].isin([20, 30])),
        ({"grade": 2, "sex": "f"}, lambda c: (c["grade"] == 2) & (c["sex"] == "f")),
        ({"y": 2, "age": ">=30"}, lambda c: (c["y"] == 2) & (c["age"] >= 30)),
    ],
    ids=["below", "several", "two columns", "label"],
)
def test_subsets_are_described_by_the_values_that_were_given(problem, where, members):
    X, y, sex = problem
    draw = np.random.default_rng(1)
    groups = pd.DataFrame({"sex": sex, "age": draw.integers(18, 40, len(y)), "grade": draw.integers(1, 4, len(y))})
    labels = np.where(y == "yes", 2, 1)
    limit = MeanAtMost(SoftRate(temperature=0.3), 0.9, where, name="rate")
    model = ConstrainedClassifier(constraints=[limit], **QUICK | {"max_epochs": 2})
    model.fit(X, labels, sensitive_features=groups)
    scores = model.decision_function(X)[members(groups.assign(y=labels))]
    expected = (1 / (1 + np.exp(-scores / 0.3))).mean() - 0.9
    assert model.report_.figures["constraints"]["rate"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("of", [np.asarray, sparse.csr_matrix])
def test_indicators_keep_their_size_and_numbers_are_standardised(problem, of):
    X, y, _ = problem
    rare, three = np.arange(400) % 50 == 0, np.arange(400) % 3 - 1
    X = np.column_stack([rare, X[:, :2], three, np.ones(400)])
    seen = ConstrainedClassifier(**QUICK | {"max_epochs": 1}).fit(of(X), y).features_.transform(of(X))
    np.testing.assert_allclose(np.ptp(seen[:, 0]), 1)
    np.testing.assert_allclose(seen[:, 1:4].std(0), 1)
    assert np.isfinite(seen).all()


@pytest.mark.slow
def test_pieces_learn_what_is_no_line():
    """A step, a bump and noise: 1,200 samples are cut in two by default, and in twelve where that is asked for."""
    X = np.random.default_rng(0).uniform(0, 12, (1200, 1))
    y = np.isin(X[:, 0].astype(int), [1, 4, 7, 8])
    quick = QUICK | {"max_epochs": 15}
    few = ConstrainedClassifier(**quick).fit(X, y)
    many = ConstrainedClassifier(**quick, pieces=12).fit(X, y)
    assert [len(model.features_.ends_[0]) - 1 for model in (few, many)] == [2, 12]
    assert many.score(X, y) > few.score(X, y) + 0.1
    linear = ConstrainedClassifier(**QUICK | {"hidden": (), "max_epochs": 1}).fit(X, y)
    assert linear.features_.ends_ == {}
    with pytest.raises(FCCOError, match="pieces=12 needs an array, and X is a sparse matrix"):
        many.fit(sparse.csr_matrix(X), y)


def test_several_classes_and_other_objectives(problem):
    X, _, _ = problem
    y = np.digitize(X[:, 1], [-0.5, 0.5])
    model = ConstrainedClassifier(**QUICK).fit(X, y)
    assert model.score(X, y) > 0.7
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    ranking = ConstrainedClassifier(AUC(), **QUICK).fit(X, y > 0)
    assert ranking.report_.figures["auc"] > 0.8


@pytest.mark.parametrize("objective", [CVaRGroupDRO(0.5), WorstGroupDRO()], ids=lambda o: type(o).__name__)
def test_sensitive_features_are_the_groups_of_an_objective_on_groups(problem, objective):
    X, y, sex = problem
    found = ConstrainedClassifier(objective, **QUICK).fit(X, y, sensitive_features=sex)
    told = type(objective)(*[0.5] * isinstance(objective, CVaRGroupDRO), num_groups=2)
    expected = ConstrainedClassifier(told, **QUICK).fit(X, y, sensitive_features=sex)
    np.testing.assert_array_equal(found.decision_function(X), expected.decision_function(X))
    with pytest.raises(DataError, match=f"{type(objective).__name__} needs groups, and sensitive_features has not"):
        ConstrainedClassifier(objective, **QUICK).fit(X, y)


def test_threads_give_the_models_of_one_after_the_other(problem):
    X, y, sex = problem
    made = [
        ConstrainedClassifier(constraints=[DemographicParity()], **QUICK | {"random_state": seed, "max_epochs": 3})
        for seed in range(4)
    ]

    def scores(model):
        return clone(model).fit(X, y, sensitive_features=sex).decision_function(X)

    with ThreadPoolExecutor(4) as threads:
        np.testing.assert_array_equal(list(threads.map(scores, made)), list(map(scores, made)))


@pytest.mark.slow
def test_searches_and_folds_pass_on_the_groups(problem):
    X, y, sex = problem
    quick = QUICK | {"max_epochs": 4}
    with config_context(enable_metadata_routing=True):
        made = ConstrainedClassifier(constraints=[DemographicParity()], **quick).set_fit_request(
            sensitive_features=True
        )
        pipeline = make_pipeline(StandardScaler(), made)
        predicted = cross_val_predict(pipeline, X, y, cv=2, params={"sensitive_features": sex})
        assert (predicted == y).mean() > 0.6
        search = GridSearchCV(made, {"hidden": [(8,)]}, cv=2).fit(X, y, sensitive_features=sex)
        assert search.best_estimator_.hidden == (8,)


@pytest.mark.parametrize(
    ("labels", "sensitive", "constraints", "text"),
    [
        (lambda y: np.full_like(y, "no"), None, [], "y holds the class 'no' only"),
        (lambda y: np.array([None, *y[1:]], dtype=object), None, [], r"1 missing label\(s\) .*first at position 0"),
        (None, lambda s: np.full_like(s, "m"), [DemographicParity()], "'group' has one group only, 'm'"),
        (None, lambda s: np.where(np.arange(400) == 7, None, s), [DemographicParity()], "1 of 400 cells.*row 7"),
        (
            None,
            lambda s: pd.DataFrame({"y": s}),
            [DemographicParity()],
            r"features \['y'\] are called",
        ),
        (None, lambda s: pd.DataFrame([s, s], ["sex", "sex"]).T, [DemographicParity()], r"\['sex'\] are called.*twice"),
        (None, lambda s: np.stack([s, s], 1), [DemographicParity()], r"the shape \(400, 2\)"),
        (None, lambda s: s[:-1], [DemographicParity()], "inconsistent numbers of samples"),
        (None, None, [DemographicParity()], r"DemographicParity compares the groups of 'group'.*sensitive_features="),
        (None, lambda s: pd.DataFrame({"sex": s}), [DemographicParity(by="race")], r"'race'.*\['group', 'sex'\]"),
        (None, None, [MeanAtMost(SoftRate(), 0.2, {"race": 1})], "race"),
        (None, None, [MeanAtMost(SoftRate(), 0.2, {"y": "maybe"})], "maybe"),
        (None, lambda s: s, DemographicParity(), "got one DemographicParity: put it in brackets"),
        (None, lambda s: s, ["DemographicParity"], "list of constraints.*got 'DemographicParity' for one"),
    ],
)
def test_bad_input_is_named(problem, labels, sensitive, constraints, text):
    X, y, sex = problem
    model = ConstrainedClassifier(constraints=constraints, **QUICK)
    with pytest.raises((FCCOError, ValueError), match=text):
        model.fit(X, y if labels is None else labels(y), sensitive_features=sensitive and sensitive(sex))
    assert not hasattr(model, "network_")


def test_a_linear_model_is_trained_to_the_end_where_nothing_is_said(problem):
    X, y, _ = problem
    model = ConstrainedClassifier(hidden=(), random_state=0).fit(X, y)
    least = log_loss(y, make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y).predict_proba(X))
    assert log_loss(y, model.predict_proba(X)) < least + 0.01  # with steps of .001 it is .1 above


def test_a_rare_class_is_known_to_be_rare_before_anything_is_learned():
    X, y = make_classification(1000, weights=[0.95], random_state=0)
    weight = np.where(y == 1, 3.0, 1.0)
    for weights in (None, weight):
        share = np.average(y, weights=weights)
        model = ConstrainedClassifier(max_epochs=1, random_state=0).fit(X, y, sample_weight=weights)
        assert model.predict_proba(X)[:, 1].mean() == pytest.approx(share, abs=0.02)  # 1/2 where scores begin at 0


def test_a_class_that_class_weight_does_not_name_costs_1(problem):
    X, y, _ = problem
    short = QUICK | {"max_epochs": 1}
    some, all_of_them = (
        ConstrainedClassifier(class_weight=costs, **short).fit(X, y).decision_function(X)
        for costs in ({"yes": 3}, {"no": 1, "yes": 3.0})
    )
    np.testing.assert_array_equal(some, all_of_them)
    for costs in ({"maybe": 3}, {"no": 1, "yes": 3, "maybe": 1}, 3.0):
        with pytest.raises(ConfigError, match=r"class_weight must be.*\['no', 'yes'\]"):
            ConstrainedClassifier(class_weight=costs, **short).fit(X, y)


def test_three_groups_are_compared_by_pairs(problem):
    X, y, _ = problem
    race = np.array(["a", "b", "c"])[np.arange(len(y)) % 3]
    model = ConstrainedClassifier(constraints=[DemographicParity()], **QUICK | {"max_epochs": 1})
    model.fit(X, y, sensitive_features=race)
    assert len(model.report_.figures["constraints"]) == 3


@pytest.mark.slow
def test_several_sensitive_features_are_crossed(problem):
    """As by fairlearn: what is constrained is the difference of all combinations that occur."""
    X, y, sex = problem
    race = np.array(["a", "b"])[np.arange(len(y)) % 2]
    table = pd.DataFrame({"sex": sex, "race": race})
    table.loc[(table["sex"] == "f") & (table["race"] == "b"), "race"] = "a"  # a combination that does not occur
    model = ConstrainedClassifier(constraints=[DemographicParity(kappa=0.02)], **QUICK)
    model.fit(X, y, sensitive_features=table)
    names = ["sex=f, race=a", "sex=m, race=a", "sex=m, race=b"]
    crossed = "sex=" + table["sex"] + ", race=" + table["race"]
    assert sorted(set(crossed)) == names
    assert {name.partition(": ")[2] for name in model.report_.figures["constraints"]} == {
        f"{later} - {earlier}" for earlier, later in itertools.combinations(names, 2)
    }
    once = clone(model).set_params(max_epochs=1)
    first = once.fit(X, y, sensitive_features=table).decision_function(X)
    np.testing.assert_array_equal(once.fit(X, y, sensitive_features=crossed).decision_function(X), first)
    rates = pd.Series(model.predict(X) == "yes").groupby(crossed).mean()
    free = clone(model).set_params(constraints=[]).fit(X, y)
    unequal = pd.Series(free.predict(X) == "yes").groupby(crossed).mean()
    assert np.ptp(rates) < 0.5 * np.ptp(unequal)


def test_arguments_are_not_changed(problem):
    X, y, sex = problem
    constraint = DemographicParity()
    names = list(constraint.names)
    ConstrainedClassifier(constraints=[constraint], **QUICK | {"max_epochs": 1}).fit(X, y, sensitive_features=sex)
    assert constraint.names == names
    with pytest.raises(DataError, match="one class"):
        ConstrainedClassifier(**QUICK).fit(X, np.zeros(len(y)))
    with pytest.raises(FCCOError, match="max_epochs must be"):
        ConstrainedClassifier(**QUICK | {"max_epochs": 0}).fit(X, y)


@pytest.mark.slow
def test_a_margin_is_kept_for_new_samples(problem):
    """The standard error of a difference of two rates is at most that of fair coins; half of kappa is the most."""
    X, y, sex = problem
    error = np.sqrt(sum(0.25 / (sex == s).sum() for s in ("f", "m")))
    assert 0.04 < error < 0.06
    enforced = {0.02: 0.01, 0.2: 0.2 - error}  # by kappa
    scores = {}
    for kappa, other in enforced.items():
        for name, limit, margin in (("auto", kappa, "auto"), ("none", kappa, 0), ("given", other, 0)):
            model = ConstrainedClassifier(
                constraints=[DemographicParity(limit)], margin=margin, **QUICK | {"max_epochs": 2}
            )
            scores[kappa, name] = model.fit(X, y, sensitive_features=sex).decision_function(X)
            assert model.report_.figures["constraints"] is not None
        np.testing.assert_allclose(scores[kappa, "auto"], scores[kappa, "given"], atol=1e-6)
        assert np.abs(scores[kappa, "auto"] - scores[kappa, "none"]).max() > 1e-4
    with pytest.raises(FCCOError, match="margin, unless 'auto', must be a finite number >= 0, got -1"):
        ConstrainedClassifier(margin=-1).fit(X, y, sensitive_features=sex)


@pytest.mark.slow
def test_margins_are_of_differences_that_have_none(problem):
    X, y, sex = problem
    own, cap = DemographicParity(0.2), MeanAtMost(SoftRate(), 0.4, where={"sex": "f"})
    own.tighten(0.15)
    for constraint in (own, cap):
        fitted = [
            ConstrainedClassifier(constraints=[constraint], margin=margin, **QUICK | {"max_epochs": 2})
            .fit(X, y, sensitive_features=pd.Series(sex, name="sex"))
            .decision_function(X)
            for margin in ("auto", 0)
        ]
        np.testing.assert_array_equal(*fitted)


@pytest.mark.slow
def test_a_constraint_on_decisions_is_judged_by_them():
    """Its smooth value differs from it: of a cap, which compares no groups, the smoothing does not cancel."""
    rng = np.random.default_rng(0)
    X, sex = rng.normal(size=(600, 3)), rng.choice(["f", "m"], 600)
    y = (X[:, 0] + rng.normal(size=600) > 0).astype(int)
    cap = MeanAtMost(SoftRate(), 0.3, where={"sex": "f"}, name="rate")
    model = ConstrainedClassifier(constraints=[cap], **QUICK | {"max_epochs": 30})
    model.fit(X, y, sensitive_features=pd.Series(sex, name="sex"))
    train = model.report_.figures
    rate = model.predict(X)[sex == "f"].mean()
    assert rate == pytest.approx(0.3, abs=0.02)
    assert train["constraints"]["rate"] - (rate - 0.3) > 0.02
    assert train["worst_violation"] == pytest.approx(rate - 0.3, abs=1e-6)
    assert ("The constraint holds on the training split" in model.report_.headline) == (rate <= 0.3)
    assert "(largest h of decisions" in model.report_.headline


def test_weights_of_samples_count_in_training_and_in_what_is_reported():
    """Positives are half of the samples and three quarters of their weight."""
    r = np.random.default_rng(0)
    y, group = np.arange(600) % 2, np.where(r.random(600) < 0.4, "a", "b")
    X = np.zeros((600, 1)) + r.normal(0, 1e-3, (600, 1))
    weight = np.where(y == 1, 3.0, 1.0) * r.uniform(0.5, 1.5, 600)
    share = (weight * y).sum() / weight.sum()
    model = ConstrainedClassifier(
        constraints=[DemographicParity(kappa=0.2)], hidden=(), max_epochs=20, learning_rate=0.1, batch_size=150,
        random_state=0,
    )  # fmt: skip
    model.fit(X, y, sensitive_features=group, sample_weight=weight)
    assert model.predict_proba(X)[:, 1].mean() == pytest.approx(share, abs=0.02)  # 1/2 without weights
    expected = roc_auc_score(y, model.decision_function(X), sample_weight=weight)
    assert model.report_.figures["auc"] == pytest.approx(expected, abs=1e-5)


def test_weights_of_samples_must_be_weights():
    X, y = np.ones((10, 1)), np.arange(10) % 2
    for weight, text in (([-1.0] * 10, "Negative"), ([1.0] * 9, "sample_weight"), ([0.0] * 10, "zero")):
        with pytest.raises(ValueError, match=text):
            ConstrainedClassifier(max_epochs=1).fit(X, y, sample_weight=weight)


def test_batches_hold_all_classes_of_all_groups_where_these_are_rare(monkeypatch):
    """Of a group of one in twenty and a class of one in ten a uniform batch of 64 holds one in every third batch."""
    r = np.random.default_rng(0)
    y, group = (np.arange(800) % 10 == 0).astype(int), np.where(r.random(800) < 0.05, "a", "b")
    seen = []
    monkeypatch.setattr(classifier, "NamedArrays", lambda *given: seen.append(given[2]) or NamedArrays(*given))
    for batch_size, constraints in ((64, [EqualizedOdds()]), (64, []), (800, [EqualizedOdds()])):
        model = ConstrainedClassifier(constraints=constraints, max_epochs=1, batch_size=batch_size, hidden=())
        model.fit(r.normal(size=(800, 2)), y, sensitive_features=group)
    assert [type(one).__name__ for one in seen] == ["CellSampling", "UniformSampling", "CellSampling"]
    (batch, *_) = (
        seen[0].plan({"y": torch.from_numpy(y), "group": torch.from_numpy((group == "a").astype(int))}).batches(0)
    )
    held = pd.crosstab(y[batch], group[batch])
    assert held.to_numpy().tolist() == [[16, 16], [16, 16]]


def test_a_budget_is_one_of_later_samples_where_these_are_looked_at_together():
    X, y = make_classification(600, weights=[0.8], random_state=0)
    model = ConstrainedClassifier(decisions=Decisions(share=0.1), hidden=(), max_epochs=2, random_state=0)
    model.fit(X[:400], y[:400])
    later = X[400:]
    one_by_one = np.concatenate([model.predict(row[None]) for row in later[:20]])
    assert (one_by_one == model.predict(later)[:20]).all()
    assert model.predict(X[:400]).sum() == 40
    together = model.rule_.decided(torch.as_tensor(model.decision_function(later)), among_themselves=True)
    assert int(together.sum()) == 20
    rates = model.report(later, y[400:]).figures["rates_by_group"][0]
    assert rates["chosen"] == pytest.approx(0.1)


@pytest.mark.slow
def test_weights_decay_more_where_costly_mistakes_are_constrained():
    """Of 1,140 and 60 samples that count alike in sum: as many say as much as 228 equal ones, 4 * 1,200 * .95 * .05."""
    r = np.random.default_rng(0)
    X, y, group = r.normal(size=(1200, 3)), (np.arange(1200) % 20 == 0).astype(int), r.choice(["a", "b"], 1200)

    def scores(decay, **given):
        model = ConstrainedClassifier(weight_decay=decay, max_epochs=2, random_state=0, **given)
        return model.fit(X, y, sensitive_features=group).decision_function(X)

    balanced, constraint = {"decisions": "balanced"}, {"constraints": [EqualizedOdds()]}
    for given, decay in ((balanced | constraint, 0.02), (balanced, 0.01), (constraint, 10 / 1200)):
        np.testing.assert_array_equal(scores(None, **given), scores(decay, **given))
        assert np.abs(scores(None, **given) - scores(decay / 2, **given)).max() > 0


@pytest.mark.slow
def test_rates_of_few_negatives_are_equal_in_what_is_decided():
    """Of 16,638 samples 11% are negative, 769 of them in a group of 16% that is measured too low."""
    r, n = np.random.default_rng(0), 16_638
    group = r.permutation(n) < 0.16 * n
    ability = r.normal(size=n) - 0.7 * group
    X = np.column_stack(
        [ability - 0.15 * group + scale * r.normal(size=n) for scale in (0.3, 0.5, 0.8)] + [r.normal(size=(n, 4))]
    )
    score, y = 4 * ability + r.logistic(0, 1, n), np.ones(n, dtype=int)
    for members, negatives in ((group, 769), (~group, 1061)):
        y[np.flatnonzero(members)[np.argsort(score[members])[:negatives]]] = 0
    model = ConstrainedClassifier(constraints=[EqualizedOdds(0.02)], random_state=0)
    decided = model.fit(X, y, sensitive_features=group).predict(X)
    rates = pd.Series(decided).groupby([y, group]).mean().unstack()
    assert (rates[True] - rates[False]).abs().max() <= 0.025
    assert rates.loc[0].max() < 0.9  # and not nearly all are decided alike


def test_a_group_that_is_a_number_and_a_text_is_one():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y, group = (X[:, 0] > 0).astype(int), np.array([1, "1", "b"] * 20, dtype=object)
    model = ConstrainedClassifier(constraints=[DemographicParity(kappa=0.5)], max_epochs=1, random_state=0)
    report = model.fit(X, y, sensitive_features=group).report(X, y, sensitive_features=group)
    again = model.report(X, y, sensitive_features=np.array(["1", "1", "b"] * 20))
    assert report.figures["constraints"] == again.figures["constraints"] != {}
    with pytest.raises(DataError, match="has one group only, '1'"):
        model.fit(X, y, sensitive_features=np.array([1, "1"] * 30, dtype=object))

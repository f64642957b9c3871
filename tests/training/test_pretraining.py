"""Two phases of training in one run: first another objective, then the main one."""

import logging
import math
import warnings

import pytest
import torch
from lightning.pytorch.callbacks import BaseFinetuning, EarlyStopping, LambdaCallback, LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import make_classification
from sklearn.metrics import average_precision_score
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from fcco_lightning import (
    ALEXR2,
    AUC,
    NDCG,
    PDSCA,
    SGD,
    SONEX,
    SOX,
    AdamType,
    AdaptivePenalty,
    AveragePrecision,
    CheckpointError,
    ConfigError,
    CrossEntropy,
    CVaRGroupDRO,
    Decisions,
    Drawn,
    Engine,
    FCCOModule,
    GradedLists,
    HeavyBall,
    LinearWarmUp,
    ListNet,
    LogisticLoss,
    MeanAtMost,
    MeanAveragePrecision,
    Pretraining,
    Quantity,
    QuerySampling,
    RecallAtK,
    ROCFairness,
    Schedule,
    StepAtFractions,
    SyntheticDataModule,
    TabularMLP,
    TensorDataModule,
    UniformBatches,
    UniformSampling,
    WeightAverage,
)
from fcco_lightning.algorithms import ICPPAC
from fcco_lightning.models import head_of, renew
from tests import jobs
from tests.tables import make_data, make_frame
from tests.training.conftest import quick


def first_batches(look):
    """Calls a function at the start of the first batch of every epoch."""

    def start(trainer, module, batch, batch_idx):
        if batch_idx == 0:
            look(trainer, module)

    return LambdaCallback(on_train_batch_start=start)


def weights(module):
    return {name: p.detach().clone() for name, p in module.network.named_parameters()}


def ranked(**changes):
    """One row per positive, constraints, dropout, and another optimizer in each phase."""
    parts = {
        "objective": jobs.SoftRank(),
        "algorithm": SONEX(0.5, 0.1, lam=0.01),
        "optimizer": lambda p: HeavyBall(p, lr=0.05),
        "schedule": Schedule(lambda o: LambdaLR(o, lambda k: 1 / (1 + k)), "step"),
        "pretrain": Pretraining(2, optimizer=lambda p: AdamType(p, lr=0.01)),
    }
    return parts | changes


@pytest.mark.parametrize("kind", quick(["rows", "inner loop"], "rows"))
def test_resume_across_the_switch_equals_uninterrupted(kind, make_module, make_trainer, tmp_path):
    """Saved within either phase and in the last batch of the first; ALEXR2's inner loop in the second phase."""
    changes = {} if kind == "rows" else {"algorithm": ALEXR2(K=4, objective_gamma=0.5)}

    def fit(callbacks=(), ckpt_path=None):
        torch.manual_seed(3 if ckpt_path is None else 99)
        trainer = make_trainer(max_epochs=4, callbacks=list(callbacks))
        trainer.fit(make_module(**ranked(**changes)), make_data(), ckpt_path=ckpt_path)
        return trainer

    at = [(0, 4), (1, 9), (2, 3)]
    whole = fit([jobs.save_at(*place, tmp_path / f"{place}.ckpt") for place in at])
    assert "problem.terms.0.state.rows" in jobs.everything(whole)
    for place in at:
        jobs.require_same(fit(ckpt_path=tmp_path / f"{place}.ckpt"), whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:pretrain.epochs")
@pytest.mark.parametrize("constraints", [False, True])
def test_the_first_phase_is_plain_training_on_its_objective(constraints, make_module, make_trainer):
    """To the last bit, with the random streams of a run that has that objective only."""
    algorithm = SOX if constraints else SGD

    def fit(**changes):
        torch.manual_seed(3)
        module, trainer = make_module(**changes), make_trainer(max_epochs=2)
        trainer.fit(module, make_data())
        return weights(module), trainer.optimizers[0].state_dict()["state"]

    first = Pretraining(2, algorithm=algorithm() if constraints else None, constraints=constraints)
    found, expected = fit(**ranked(pretrain=first)), fit(**ranked(
        objective=CrossEntropy(), algorithm=algorithm(), pretrain=None, schedule=Schedule()
    ))  # fmt: skip
    assert all(torch.equal(found[0][name], expected[0][name]) for name in expected[0])
    assert str(found[1]) == str(expected[1])
    if constraints:
        without = fit(**ranked(pretrain=Pretraining(2)))
        assert not all(torch.equal(without[0][name], expected[0][name]) for name in expected[0])


@pytest.mark.parametrize("new_head", [True, False])
def test_the_head_is_new_and_nothing_else_has_moved(new_head, make_module, make_trainer):
    seen = []

    module = make_module(**ranked(pretrain=Pretraining(1, new_head=new_head)))
    look = lambda _, module: seen.append(weights(module))  # noqa: E731
    trainer = make_trainer(max_epochs=2, callbacks=[LambdaCallback(on_train_epoch_end=look), first_batches(look)])
    trainer.fit(module, make_data())
    before, pretrained, switched, after = seen
    head = [name for name in before if name.startswith("layers.3")]
    assert len(head) == 2
    for name in before:
        assert not torch.equal(before[name], pretrained[name])
        assert torch.equal(pretrained[name], switched[name]) == (not new_head or name not in head)
        assert not torch.equal(switched[name], after[name])
    if new_head:
        bound = 1 / 8**0.5  # of nn.Linear's start, 8 inputs
        assert switched[head[0]].abs().max() <= bound
        assert not torch.equal(switched[head[0]], before[head[0]])


def test_rows_optimizer_and_schedules_start_afresh(make_module, make_trainer):
    seen = []

    def look(trainer, module):
        group, states = trainer.optimizers[0].param_groups[0], module.problem.states
        seen.append(
            (
                type(trainer.optimizers[0]).__name__,
                group["lr"],
                len(states),
                trainer.accumulate_grad_batches,
            )
        )

    first = Pretraining(
        2, optimizer=lambda p: torch.optim.SGD(p, lr=1.0), scheduler=lambda o: StepAtFractions(o, fractions=[0.5])
    )
    module = make_module(
        algorithm=ALEXR2(K=3),
        optimizer=lambda p: HeavyBall(p, lr=2.0),
        schedule=Schedule(lambda o: StepAtFractions(o, fractions=[0.5])),
        pretrain=first,
    )
    trainer = make_trainer(max_epochs=6, callbacks=[first_batches(look)])
    trainer.fit(module, make_data())
    assert seen == [
        ("SGD", pytest.approx(1.0), 0, 1),
        ("SGD", pytest.approx(0.1), 0, 1),
        ("HeavyBall", pytest.approx(2.0), 1, 3),
        ("HeavyBall", pytest.approx(2.0), 1, 3),
        ("HeavyBall", pytest.approx(0.2), 1, 3),
        ("HeavyBall", pytest.approx(0.2), 1, 3),
    ]
    batches = trainer.num_training_batches
    assert trainer.global_step == 2 * batches + 4 * -(-batches // 3)


@pytest.mark.slow
def test_a_schedule_by_steps_knows_the_length_of_its_phase(make_module, make_trainer):
    totals = []

    def look(trainer, module):
        totals.append(trainer.lr_scheduler_configs[0].scheduler.total)

    module = make_module(
        algorithm=ALEXR2(K=3),
        schedule=Schedule(StepAtFractions, "step"),
        pretrain=Pretraining(2, scheduler=StepAtFractions),
    )
    trainer = make_trainer(max_epochs=5, callbacks=[first_batches(look)])
    trainer.fit(module, make_data())
    batches = trainer.num_training_batches
    assert totals == 2 * [2 * batches] + 3 * [3 * -(-batches // 3)]
    make_trainer(max_epochs=4, callbacks=[first_batches(look)]).fit(
        module, make_data()
    )  # in the second phase throughout
    assert totals[5:] == 4 * [4 * -(-batches // 3)]


def test_estimates_of_the_phases_have_names_of_their_own(make_module, make_trainer, tmp_path):
    logger = CSVLogger(tmp_path, name="")
    trainer = make_trainer(
        max_epochs=4, logger=logger, log_every_n_steps=1, callbacks=[LearningRateMonitor(logging_interval="epoch")]
    )
    trainer.fit(make_module(**ranked()), make_data())
    columns = (tmp_path / "version_0/metrics.csv").read_text().splitlines()[0].split(",")
    assert {"pretrain_objective", "train_objective", "train_penalty"} <= set(columns)
    assert "pretrain_penalty" not in columns


def test_a_parameter_of_either_objective_is_trained_in_its_phase_only(make_module, make_trainer):
    """Two CVaR objectives with thresholds of their own."""
    seen = []

    look = LambdaCallback(on_train_epoch_end=lambda *_: seen.append((first.threshold.item(), second.threshold.item())))
    first, second = (CVaRGroupDRO(0.5, num_groups=2, threshold=0.3) for _ in range(2))
    pretrain, schedule = Pretraining(1, first, SONEX()), Schedule(objective_lr=0.1)
    module = make_module(objective=second, constraints=[], pretrain=pretrain, schedule=schedule)
    make_trainer(max_epochs=2, callbacks=[look]).fit(module, make_data())
    assert seen[0][0] != seen[1][1] or seen[0][0] != pytest.approx(0.3)
    assert seen[0][1] == pytest.approx(0.3)
    assert seen[1][0] == seen[0][0]
    assert seen[1][1] != pytest.approx(0.3)


# ----------------------------------------------------------------------------------------------------------- refusals


def save(make_module, make_trainer, path, epochs, **parts):
    trainer = make_trainer(max_epochs=epochs)
    trainer.fit(make_module(**parts), make_data())
    trainer.save_checkpoint(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:pretrain.epochs")
def test_checkpoints_of_the_phases_and_runs_without_pretraining(make_module, make_trainer, tmp_path):
    path, plain = tmp_path / "a.ckpt", ranked(pretrain=None)
    save(make_module, make_trainer, path, 1, **ranked())
    with pytest.raises(CheckpointError, match=r"written while pretraining.*--model\.pretrain"):
        make_trainer(max_epochs=4).fit(make_module(**plain), make_data(), ckpt_path=path)
    save(make_module, make_trainer, path, 3, **ranked())
    make_trainer(max_epochs=4).fit(make_module(**plain), make_data(), ckpt_path=path)  # the second phase needs no first
    direct = make_trainer().test(make_module(**plain), make_data(), ckpt_path=path, verbose=False)
    assert make_trainer().test(make_module(**ranked()), make_data(), ckpt_path=path, verbose=False) == direct


def test_a_run_without_pretraining_is_continued_in_the_second_phase(make_module, make_trainer, tmp_path):
    path = tmp_path / "a.ckpt"
    save(make_module, make_trainer, path, 1, **ranked(pretrain=None))
    module = make_module(**ranked())
    make_trainer(max_epochs=2).fit(module, make_data(), ckpt_path=path)
    assert not module.phases.pretraining


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pretraining(0), r"epochs must be a whole number >= 1, or a share .* in \(0, 1\), got 0"),
        (lambda: Pretraining(1.5), "epochs must be a whole number >= 1, .*, got 1.5"),
        (lambda: Pretraining(True), "epochs must be a whole number >= 1, .*, got True"),
        (
            lambda: Pretraining(0.5, seamless=True, new_head=True),
            r"pretrain\.seamless uses the same parts in both phases, but pretrain\.new_head",
        ),
        (
            lambda: FCCOModule(
                TabularMLP([4]), pretrain=Pretraining(1, CVaRGroupDRO(0.5, num_groups=2), seamless=True)
            ),
            "pretrain.objective=CVaRGroupDRO has parameters of its own",
        ),
        (
            lambda: FCCOModule(nn.Linear(3, 1), pretrain=Pretraining(1)),
            r"Linear does not name its last layer \(the head\)\. Name it \(head: fc\)",
        ),
        (
            lambda: FCCOModule(TabularMLP([4]), pretrain=Pretraining(1, head="fc")),
            r"head='fc' is no part of TabularMLP. Its last layers are layers.0, layers.2",
        ),
        (
            lambda: FCCOModule(TabularMLP([4]), constraints=[ROCFairness()], pretrain=Pretraining(1, constraints=True)),
            r"pretrain\.constraints=True, but SGD ignores constraints",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_head_that_cannot_start_afresh():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.by = nn.Parameter(torch.ones(()))

    with pytest.raises(ConfigError, match="the head contains a Scale, which has no reset_parameters"):
        head_of(nn.Sequential(Scale()), "0")


def test_renewing_a_head_depends_on_the_seed_alone():
    one, two = nn.Linear(4, 2), nn.Linear(4, 2)
    state = torch.get_rng_state()
    renew(one, 5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    renew(two, 5)
    assert torch.equal(one.weight, two.weight)
    torch.manual_seed(0)
    assert not torch.equal(nn.Linear(4, 2).weight, one.weight)


@pytest.mark.parametrize(
    ("algorithm", "objective", "total"),
    [(ICPPAC(K=4), CrossEntropy(), 2), (ALEXR2(K=5), CrossEntropy(), 2), (SOX(0.5), CrossEntropy(), 10)],
)
def test_a_schedule_of_the_whole_run_counts_updates(algorithm, objective, total, make_module, make_trainer):
    """Ten batches make ten updates, or two of a double loop with five batches each."""
    module = make_module(
        objective=objective, algorithm=algorithm, penalty=None, schedule=Schedule(LinearWarmUp, "step")
    )
    trainer = make_trainer(max_epochs=2)
    trainer.fit(module, make_data(train=make_frame(160, 0), batches=UniformSampling(32)))
    assert trainer.global_step == total
    assert trainer.lr_scheduler_configs[0].scheduler.total == total


@pytest.mark.parametrize(("max_epochs", "warned"), [(2, True), (3, False)])
def test_a_run_that_ends_with_pretraining_says_so(max_epochs, warned, make_module, make_trainer):
    module = make_module(pretrain=Pretraining(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make_trainer(max_epochs=max_epochs).fit(module, make_data(train=make_frame(160, 0)))
    said = [w for w in caught if "covers all of max_epochs=2" in str(w.message)]
    assert bool(said) == warned


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_layers_are_unfrozen_after_the_pretraining(epoch, make_module, make_trainer):
    """The optimizer of the second phase is a new one, which would not have what was added to the first."""

    class Later(BaseFinetuning):
        def freeze_before_training(self, pl_module):
            self.freeze(pl_module.network.layers[0])

        def finetune_function(self, pl_module, now, optimizer):
            if now == epoch:
                self.unfreeze_and_add_param_group(pl_module.network.layers[0], optimizer, lr=1e-3)

    trainer = make_trainer(max_epochs=4, callbacks=[Later()])
    module = make_module(**ranked(schedule=Schedule()))
    if epoch < 3:
        with pytest.raises(ConfigError, match="Unfreeze layers when epoch 3 starts or later"):
            trainer.fit(module, make_data())
        return
    trainer.fit(module, make_data())
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == [0.05, 1e-3]


# ------------------------------------------------------------------------------------------------ seamless pretraining


def seamless(**changes):
    """What an objective that recommends a start does by default, with constraints, momentum and a schedule."""
    return ranked(pretrain=Pretraining(0.5, seamless=True)) | changes


def fitted(make_module, make_trainer, parts, *, ckpt_path=None, callbacks=(), epochs=4, **given):
    torch.manual_seed(3 if ckpt_path is None else 99)
    trainer = make_trainer(max_epochs=epochs, callbacks=list(callbacks), **given)
    trainer.fit(make_module(**parts), make_data(), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["rows", "inner loop", "no constraints", "averaged"], "inner loop"))
def test_a_seamless_run_continues_bit_for_bit_from_either_phase(kind, make_module, make_trainer, tmp_path):
    changes = {
        "rows": {},
        "inner loop": {"algorithm": ALEXR2(K=4, objective_gamma=0.5)},
        "no constraints": {"constraints": [], "optimizer": lambda p: AdamType(p, lr=0.01)},
        "averaged": {"average": WeightAverage(decay=0.9), "penalty": None},
    }[kind]
    at = [(0, 4), (1, 9), (2, 3), (3, 2)]
    saving = [jobs.save_at(*place, tmp_path / f"{place}.ckpt") for place in at]
    whole = fitted(make_module, make_trainer, seamless(**changes), callbacks=saving)
    assert "problem.terms.0.state.rows" in jobs.everything(whole)
    for place in at:
        continued = fitted(make_module, make_trainer, seamless(**changes), ckpt_path=tmp_path / f"{place}.ckpt")
        jobs.require_same(continued, whole)


@pytest.mark.slow
def test_nothing_but_the_objective_changes(make_module, make_trainer):
    """With the objective itself in the first phase it is the run without: head, moments, rates, rows of constraints."""
    plain = {"objective": CrossEntropy(), "optimizer": lambda p: AdamType(p, lr=0.01), "algorithm": SOX(0.5)}
    expected = fitted(make_module, make_trainer, ranked(**plain, pretrain=None))
    found = fitted(make_module, make_trainer, seamless(**plain))
    assert not found.lightning_module.phases.pretraining
    jobs.require_same(found, expected)


def test_constraints_and_their_multipliers_go_on(make_module, make_trainer):
    seen = []

    def look(trainer, module):
        seen.append((module.phases.pretraining, module.multipliers()))

    ends = LambdaCallback(on_train_epoch_end=look)
    fitted(make_module, make_trainer, seamless(penalty=None), callbacks=[first_batches(look), ends])
    phases = [pretraining for pretraining, _ in seen]
    assert phases == [True] * 4 + [False] * 4
    start, before, after = seen[0][1], seen[3][1], seen[4][1]
    assert before.keys() == after.keys()
    assert before != start
    assert before == after


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "epochs"),
    [({"max_epochs": 10}, 7), ({"max_epochs": -1, "max_steps": 35}, 2), ({"max_epochs": 3, "max_steps": 1000}, 2)],
)
def test_a_share_is_one_of_the_run(length, epochs, make_module, make_trainer):
    """Ten batches make an epoch."""
    module = make_module(objective=CrossEntropy(), constraints=[], pretrain=Pretraining(0.7, seamless=True))
    trainer = make_trainer(**length)
    trainer.fit(module, make_data(train=make_frame(160, 0), batches=UniformSampling(16)))
    assert trainer.num_training_batches == 10
    assert module.phases.start == epochs


def test_a_schedule_of_updates_counts_those_of_both_phases(make_module, make_trainer):
    parts = seamless(
        algorithm=ALEXR2(K=3), objective=CrossEntropy(), constraints=[], schedule=Schedule(LinearWarmUp, "step")
    )
    trainer = fitted(make_module, make_trainer, parts)
    batches = trainer.num_training_batches
    assert trainer.global_step == 2 * batches + 2 * -(-batches // 3)
    assert trainer.lr_scheduler_configs[0].scheduler.total == trainer.global_step
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0


# ----------------------------------------------------------------------------------------- what objectives recommend


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.fixture
def said():
    handler, logger = Said(), logging.getLogger("lightning.pytorch.utilities.rank_zero")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def test_average_precision_begins_with_cross_entropy(make_module, make_trainer, said):
    parts = {"objective": AveragePrecision(), "constraints": [], "algorithm": None}
    fitted(make_module, make_trainer, parts)
    told = "CrossEntropy is minimised until epoch 3 begins, then AveragePrecision beside 10 times the cross-entropy"
    assert any(told in line for line in said)
    first = fitted(make_module, make_trainer, parts | {"objective": CrossEntropy(), "algorithm": SGD()}, epochs=3)
    by_default = fitted(make_module, make_trainer, parts, max_steps=first.global_step)
    assert by_default.global_step == first.global_step


def test_a_run_that_is_made_longer_behind_its_start_says_so(make_module, make_trainer, tmp_path, said):
    parts, path, told = {"objective": AveragePrecision(), "constraints": [], "algorithm": None}, tmp_path / "a.ckpt", []
    save(make_module, make_trainer, path, 3, **parts)
    for epochs in (3, 5):
        said.clear()
        make_trainer(max_epochs=epochs).fit(make_module(**parts), make_data(), ckpt_path=path)
        told.append(
            [
                line
                for line in said
                if line.startswith("Pretraining is over: the checkpoint was pretrained for 2 epochs")
            ]
        )
    assert [len(lines) for lines in told] == [0, 1]
    assert told[1][0].endswith("A new run of this length would have 3 such epochs.")


def test_the_start_of_average_precision_is_cross_entropy(make_module, make_trainer):
    """Its weights, when epoch 3 of 4 begins, are those of three epochs of cross-entropy."""
    parts, at_epochs = {"constraints": [], "algorithm": None}, {}
    look = first_batches(lambda trainer, module: at_epochs.update({trainer.current_epoch: weights(module)}))
    alone = fitted(make_module, make_trainer, parts | {"objective": CrossEntropy()}, epochs=3)
    whole = fitted(make_module, make_trainer, parts | {"objective": AveragePrecision()}, callbacks=[look])
    for name, expected in weights(alone.lightning_module).items():
        torch.testing.assert_close(at_epochs[3][name], expected, rtol=0, atol=0)
        assert not torch.equal(weights(whole.lightning_module)[name], expected)


def test_callbacks_find_the_objective_in_both_phases(make_module, make_trainer):
    parts = {"objective": AveragePrecision(cross_entropy=0), "constraints": [], "algorithm": None}
    seen = []
    look = LambdaCallback(on_train_epoch_end=lambda t, _: seen.append(float(t.callback_metrics["train_objective"])))
    trainer = fitted(make_module, make_trainer, parts, callbacks=[look, EarlyStopping("train_objective")])
    assert trainer.current_epoch == 4
    assert min(seen[:3]) > 0 > seen[3]  # cross-entropy, and minus an average precision


def test_cross_entropy_stays_beside_where_training_is_as_recommended(make_module, make_trainer):
    """With a tenth of the ratios, unless one says otherwise; the objective alone, in any other loop, is the papers'."""
    scores, columns = torch.tensor([0.5, -1.0, 2.0]), {"y": torch.tensor([1, 0, 1]), "index": torch.arange(3)}
    mean = torch.nn.functional.binary_cross_entropy_with_logits(scores, columns["y"].float()).item()

    def beside(objective, **given):
        parts = {"objective": objective, "constraints": [], "algorithm": None, **given}
        module = fitted(make_module, make_trainer, parts, epochs=1).lightning_module
        g0, rows = module.objective.measure(scores, columns)
        return 0.0 if g0 is None else g0.item(), float(rows.weight.max())

    again = AveragePrecision()
    assert beside(again) == pytest.approx((mean, 0.1))
    assert beside(again, pretrain=None) == (0, 1)  # of an objective that another module was given, too
    assert beside(AveragePrecision(cross_entropy=2), pretrain=None) == pytest.approx((2 * mean, 1))
    assert beside(AveragePrecision(cross_entropy=0)) == (0, 1)
    assert beside(AveragePrecision(sigmoid=False)) == (0, 1)


@pytest.mark.parametrize("algorithm", [SOX, lambda: PDSCA(alpha=0.1)], ids=["switched off", "PDSCA"])
def test_the_start_is_switched_off(algorithm, make_module, make_trainer, said):
    """By one argument, and where the algorithm takes its features from cross-entropy by itself."""
    given = {} if algorithm is not SOX else {"pretrain": None}
    module = make_module(objective=AveragePrecision(), constraints=[], algorithm=algorithm(), **given)
    assert module.phases.pretrain is None


@pytest.mark.parametrize("objective", [AUC(), CrossEntropy()], ids=lambda o: type(o).__name__)
def test_other_objectives_recommend_nothing(objective, make_module):
    assert make_module(objective=objective, constraints=[]).phases.pretrain is None


@pytest.mark.parametrize("cross_entropy", [None, 0], ids=["as recommended", "alone"])
def test_the_first_lines_say_what_stands_beside_the_objective(cross_entropy, make_module, make_trainer, said):
    fitted(make_module, make_trainer, {"objective": AUC(cross_entropy=cross_entropy), "constraints": []}, epochs=1)
    lines = [line for line in said if "the cross-entropy is minimised" in line]
    expected = (
        "The loss of AUC beside 33.3 times the cross-entropy is minimised (AUC alone: --model.objective.cross_entropy "
        "0)."
    )
    assert lines == ([expected] if cross_entropy is None else [])


def test_a_run_too_short_for_a_start_is_the_run_without(make_module, make_trainer, said):
    parts = {"objective": AveragePrecision(cross_entropy=0), "constraints": [], "algorithm": SOX(0.5)}
    found = fitted(make_module, make_trainer, parts, epochs=1)
    assert any("Pretraining on CrossEntropy is skipped" in line for line in said)
    jobs.require_same(found, fitted(make_module, make_trainer, parts | {"pretrain": None}, epochs=1))


@pytest.mark.slow
def test_average_precision_by_default_is_not_far_behind_cross_entropy(make_trainer):
    """On a small table with a tenth of positives, where raw scores from random weights are .1 behind."""
    x, y = make_classification(1500, 20, n_informative=6, weights=[0.9], random_state=0)
    columns = {"x": torch.tensor(x).float(), "y": torch.tensor(y)}
    train, test = ({name: column[rows] for name, column in columns.items()} for rows in (slice(750), slice(750, None)))
    data = TensorDataModule({"train": train, "test": test}, batches=UniformSampling(64))
    reached = []
    for objective in (AveragePrecision(), CrossEntropy()):
        torch.manual_seed(0)
        module = FCCOModule(TabularMLP([32]), objective, optimizer=lambda p: torch.optim.Adam(p, lr=3e-3))
        make_trainer(max_epochs=20).fit(module, data)
        with torch.no_grad():
            reached.append(average_precision_score(test["y"], module.network(test["x"])))
    assert reached[0] > reached[1] - 0.02


def test_what_does_not_fit_the_data_is_refused_before_the_start(make_module, make_trainer):
    """And not where the objective proper takes over."""
    split = {"x": torch.randn(40, 3), "y": torch.arange(40) % 2, "group": torch.arange(40) // 10}
    data = TensorDataModule({"train": split, "test": split}, batches=UniformSampling(8))
    data.num_groups = 4
    module = FCCOModule(TabularMLP([4]), CVaRGroupDRO(0.1))
    with pytest.raises(ConfigError, match=r"alpha=0\.1 of 4 groups"):
        make_trainer(max_epochs=4).fit(module, data)
    assert module.global_step == 0


def test_a_loss_with_parameters_has_no_start():
    class Scaled(torch.nn.Module, Quantity):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def __call__(self, outputs, batch):
            return self.scale * LogisticLoss()(outputs, batch)

    assert FCCOModule(TabularMLP([4]), CVaRGroupDRO(0.5, Scaled(), num_groups=2)).phases.pretrain is None
    assert FCCOModule(TabularMLP([4]), CVaRGroupDRO(0.5, num_groups=2)).phases.pretrain is not None


def test_units_are_of_the_size_of_the_objective_beside_cross_entropy():
    """In a batch that lacks a class, too, where batches with pairs are rare."""
    y = (torch.arange(400) < 4).long()
    drawn = Drawn({"y": y, "index": torch.arange(400)}, UniformBatches(400, 10, seed=0))
    constraint = MeanAtMost(LogisticLoss(), 0.1)
    algorithm, parts = SOX(), {"num_samples": 400, "sampling": {"target": drawn}}
    problem = algorithm.pose(AUC(cross_entropy=1), [constraint], AdaptivePenalty(), **parts)
    assert problem.direct_weight > 5
    network = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(network.weight)
    torch.nn.init.zeros_(network.bias)
    engine = Engine(network, problem, algorithm)
    index = torch.arange(100, 110)
    engine.train_batch({"x": torch.randn(10, 1), "y": y[index], "index": index}, torch.optim.SGD(engine.params, lr=0.0))
    (multipliers,) = problem.multipliers_of_terms
    assert multipliers.unit.item() == pytest.approx(math.log(2), rel=1e-5)


@pytest.mark.parametrize("objective", [MeanAveragePrecision(), RecallAtK(3)], ids=lambda o: type(o).__name__)
def test_all_objectives_beside_which_cross_entropy_stands_are_announced(objective, said):
    module = FCCOModule(TabularMLP([4]), objective)
    module.objective.recommended = True
    module.phases.announce(None)
    assert any(f"{type(objective).__name__} beside" in line and "cross_entropy 0" in line for line in said)


def test_ndcg_has_no_start_under_constraints_and_a_refusal_of_its_start_says_how_to_do_without(make_trainer):
    """Multipliers would keep the unit of ListNet, which is several times as large."""
    assert FCCOModule(TabularMLP([4]), NDCG(), [MeanAtMost(LogisticLoss(), 0.5)]).phases.pretrain is None
    data = SyntheticDataModule(20, 4, problem=GradedLists(), batches=QuerySampling())
    module = FCCOModule(TabularMLP([4]), NDCG(), algorithm=ALEXR2())
    with pytest.raises(ConfigError, match=r"not convex.*of ListNet, with which NDCG begins: --model.pretrain null"):
        make_trainer(max_epochs=4).fit(module, data)


def test_decisions_of_what_is_no_score_of_a_class_are_warned_of():
    with pytest.warns(UserWarning, match="outputs that ListNet trains are not class scores"):
        FCCOModule(TabularMLP([4]), ListNet(), decisions=Decisions(share=0.1))


def test_a_start_with_inner_functions_keeps_the_algorithm_of_the_run():
    """Which remembers them; plain training takes the place of SONEX and others where there are none."""
    of_lists = FCCOModule(TabularMLP([4]), NDCG(), algorithm=SOX(0.5))
    assert isinstance(of_lists.phases.first.objective, ListNet)
    assert of_lists.phases.first.algorithm is of_lists.algorithm
    of_samples = FCCOModule(TabularMLP([4]), AveragePrecision(), algorithm=SOX(0.5))
    assert isinstance(of_samples.phases.first.algorithm, SGD)

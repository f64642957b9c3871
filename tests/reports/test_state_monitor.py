"""What the monitor logs and draws, against a computation by hand, and that training does not notice it."""

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import Logger

from fcco_lightning import SGD, ConfigError, Execution, MeanAtMost, SoftRate
from fcco_lightning.reports.state_monitor import StateMonitor, Values, Watch, figures_of, plot_dual_states
from fcco_lightning.state import DualState
from tests import drawing, jobs
from tests.drawing import heights
from tests.launch import launch, values

drawn = drawing.drawn

NAMES = {"objective": "problem.terms.0.state", "penalty": "problem.terms.1.state"}
BATCHES = 8  # an epoch of 203 rows in batches of 24


class Recorder(Logger):
    """Keeps what is logged, on every process."""

    name = version = None

    def __init__(self):
        self.records = []

    def log_metrics(self, metrics, step=None):
        algo = {k.removeprefix("algo/"): v for k, v in metrics.items() if k.startswith("algo/")}
        if algo:
            self.records.append((step, algo))

    def log_hyperparams(self, *args, **kwargs):
        pass


class Spy(Callback):
    """Takes the place of the loggers, and keeps all rows after every update."""

    def __init__(self):
        self.recorder, self.rows = Recorder(), {}

    def setup(self, trainer, pl_module, stage):
        trainer.loggers = [self.recorder]

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.rows[trainer.global_step] = {k: s.rows.clone() for k, s in pl_module.dual_states().items()}


def fit(job, *callbacks):
    """Outcome of a small fit, what was logged as ``algo/...`` with its step, and the rows after every update."""
    spy = Spy()
    job = {"objective": "rank", "rows": 203, "epochs": 3, **job}
    job["trainer"] = {"log_every_n_steps": 4, **job.get("trainer", {})}
    outcome = jobs.fit({**job, "callbacks": [*job.get("callbacks", ()), *callbacks, spy]})
    return outcome, spy.recorder.records, spy.rows


def fit_with_monitor(job, **arguments):
    return fit(job, StateMonitor(**arguments))


def by_hand(looks, epoch_ends, chosen=None):
    """What must be logged: from ``{step: table}`` to ``{step: {figure: value}}``.

    Args:
        looks: the table of one state at every look, in order.
        epoch_ends: steps at which the share of rows seen is that of the table.
        chosen: rows of the sample; all by default.
    """
    expected, changed, before = {}, {}, None
    for step, table in looks.items():
        rows = {i: row for i, row in enumerate(table.tolist()) if chosen is None or i in chosen}
        now = {i: row for i, row in rows.items() if not math.isnan(row[0])}
        flat = [v for row in now.values() for v in row]
        seen = len(now) / len(rows)
        if step in epoch_ends:
            seen = sum(not math.isnan(row[0]) for row in table.tolist()) / len(table)
        figures = {"seen": seen, "rms": math.sqrt(sum(v * v for v in flat) / len(flat)), "bytes": table.nbytes}
        for i, row in now.items():
            if before is None or before.get(i) != row:
                changed[i] = step
        if before is not None:
            ages = [step - changed[i] for i in now]
            moves = [abs(a - b) for i in now if i in before for a, b in zip(now[i], before[i], strict=True)]
            figures |= {"age_mean": sum(ages) / len(ages), "age_max": max(ages), "drift": sum(moves) / len(moves)}
        expected[step], before = figures, now
    return expected


def of_state(records, name):
    """``{step: {figure: value}}`` of one state; steps as updates, i.e. one more than on the x-axis."""
    prefix = f"{name}/"
    return {
        step + 1: {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
        for step, found in records
    }


def assert_equal_figures(got, expected):
    assert got.keys() == expected.keys()
    for step, figures in expected.items():
        assert got[step] == pytest.approx(figures, rel=1e-9), step


# ------------------------------------------------------------------------------------------------------------- figures


def test_every_figure_by_hand():
    _, records, rows = fit_with_monitor({}, every_n_steps=3, picture=False)
    ends = [BATCHES, 2 * BATCHES, 3 * BATCHES]
    steps = [3, 6, 8, 9, 12, 15, 16, 18, 21, 24]
    assert [step for step, _ in records] == [step - 1 for step in steps]
    for name, state in NAMES.items():
        expected = by_hand({step: rows[step][state] for step in steps}, ends)
        assert_equal_figures(of_state(records, name), expected)
    last = of_state(records, "objective")[24]
    assert last["age_max"] > 3  # a row is visited once an epoch: the test says something about ages
    assert last["drift"] > 0
    assert all(found["exchange_seconds"] == found["exchange_bytes"] == 0 for _, found in records)


def test_a_sample_is_fixed_and_the_end_of_an_epoch_exact():
    monitor = StateMonitor(every_n_steps=3, sample=20, seed=5, picture=False)
    chosen = []

    class Look(Callback):
        def on_train_start(self, trainer, pl_module):
            chosen.extend(watch.positions.tolist() for watch in monitor._watches)

    _, records, rows = fit({}, monitor, Look())
    assert len(set(chosen[0])) == 20
    assert chosen[1] == list(range(6))
    ends = [BATCHES, 2 * BATCHES, 3 * BATCHES]
    for own, (name, state) in zip(chosen, NAMES.items(), strict=True):
        expected = by_hand({step + 1: rows[step + 1][state] for step, _ in records}, ends, set(own))
        assert_equal_figures(of_state(records, name), expected)


def test_samples_by_seed_and_shard():
    def positions(seed, rank=0, size=1, rows=1000):
        state = DualState(rows, processes=SimpleNamespace(size=size, rank=rank), layout="sharded")
        return Watch("", "", state, 50, seed).positions.tolist()

    assert positions((0, 0)) == positions((0, 0)) == sorted(set(positions((0, 0))))
    assert positions((0, 0)) != positions((1, 0))
    assert positions((0, 0)) != positions((0, 1))
    assert positions((0, 0), rank=0, size=2) != positions((0, 0), rank=1, size=2)
    assert max(positions((0, 0), rank=1, size=2)) < 500
    assert positions((0, 0), rank=3, size=4, rows=3) == []


def test_shares_of_unequal_shards_count_by_their_rows():
    shards = [DualState(150, 2), DualState(50, 2), DualState(7, 2)]
    watches = [Watch("", "", shard, 10, (0, 0)) for shard in shards]
    for watch in watches:
        watch.look(5)
    shards[0].rows.fill_(1.0)
    shards[1].rows.fill_(3.0)
    for step in (6, 8):
        figures = figures_of([watch.look(step) for watch in watches])
    assert figures["seen"] == pytest.approx(200 / 207)
    assert figures["rms"] == pytest.approx(math.sqrt((150 + 50 * 9) / 200))
    assert (figures["age_mean"], figures["age_max"], figures["drift"]) == (2, 2, 0)


def test_a_process_without_rows():
    watch = Watch("", "", DualState(3, processes=SimpleNamespace(size=4, rank=3), layout="sharded"), 10, (0, 0))
    assert [figures_of([watch.look(step)]) for step in (1, 2)] == [{}, {}]


def test_looks_follow_updates_not_batches():
    """ALEXR2 with K = 4 makes 2 updates an epoch."""
    _, records, _ = fit_with_monitor(
        {"algorithm": "ALEXR2", "objective": "auc", "epochs": 4}, every_n_steps=3, picture=False
    )
    assert [step + 1 for step, _ in records] == [2, 3, 4, 6, 8]


def test_a_fit_that_ends_in_the_middle_of_an_epoch():
    _, records, _ = fit_with_monitor({"trainer": {"max_steps": 11}}, every_n_steps=3, picture=False)
    assert [step + 1 for step, _ in records] == [3, 6, 8, 9, 11]
    _, records, _ = fit_with_monitor({"trainer": {"max_steps": 12}}, every_n_steps=3, picture=False)
    assert [step + 1 for step, _ in records] == [3, 6, 8, 9, 12]


def test_a_look_costs_the_sample_not_the_table():
    """Whatever went through a table of 4 TB, or asked for a flag per row, would not come back."""
    state = DualState(1)
    state.held = torch.full((1, 1), 2.0).expand(10**12, 1)
    watch = Watch("", "", state, 4096, (0, 0))
    assert [figures_of([watch.look(step)])["rms"] for step in (1, 2)] == [2, 2]
    assert len(set(watch.positions.tolist())) == 4096


def test_several_constraints_and_algorithms_without_rows():
    def two_constraints(module, data):
        more = [MeanAtMost(SoftRate(g), where={"group": g}, kappa=0.1, name=f"rate{g}") for g in (0, 1)]
        module.constraints.extend(more)

    def no_rows(module, data):
        module.algorithm = SGD()

    _, records, _ = fit_with_monitor({"before": two_constraints, "epochs": 1}, picture=False)
    prefixes = {k.rpartition("/")[0] for k in records[0][1]} - {""}
    assert prefixes == {"objective", "penalty0", "penalty1", "penalty2"}
    _, records, _ = fit_with_monitor({"before": no_rows, "objective": "auc", "epochs": 1})
    assert [set(found) for _, found in records] == [{"exchange_seconds", "exchange_bytes"}]
    assert not list(Path.cwd().rglob("dual_state.png"))


# ------------------------------------------------------------------------------------------------- training is the same


@pytest.mark.parametrize("algorithm", ["SONEX", "ALEXR2"])
def test_training_is_bitwise_the_same(algorithm, tmp_path):
    job = {"algorithm": algorithm, "folder": tmp_path, "objective": "auc" if algorithm == "ALEXR2" else "rank"}
    without, nothing, _ = fit(job)
    random = torch.get_rng_state(), np.random.get_state()[1].tolist()
    watched, records, _ = fit_with_monitor(job, every_n_steps=1)
    jobs.assert_same_run(without, watched)
    assert nothing == []
    assert len(records) == watched["global_step"] > 3
    assert torch.equal(random[0], torch.get_rng_state())
    assert random[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize("at", [(1, 2), (1, 7)], ids=["mid-epoch", "epoch's end"])
def test_a_resumed_run_continues(at, tmp_path):
    path = tmp_path / "at.ckpt"
    arguments = {"every_n_steps": 3, "sample": 50, "picture": False}
    whole, expected, _ = fit_with_monitor({"save": (*at, path)}, **arguments)
    assert not [k for k in torch.load(path, weights_only=True)["callbacks"] if "StateMonitor" in k]
    resumed, records, _ = fit_with_monitor({"resume": path, "seed": 3}, **arguments)
    jobs.assert_same_run(whole, resumed)
    expected = expected[-len(records) :]
    assert len(records) == {2: 6, 7: 3}[at[1]]
    assert [step for step, _ in records] == [step for step, _ in expected]
    (_, first), *later = records
    assert first == {k: v for k, v in expected[0][1].items() if not k.endswith(("drift", "age_mean", "age_max"))}
    for (_, got), (_, other) in zip(later, expected[1:], strict=True):
        assert got.keys() == other.keys()
        assert {k: v for k, v in got.items() if "age" not in k} == {k: v for k, v in other.items() if "age" not in k}
        assert got["objective/age_max"] <= other["objective/age_max"]


# --------------------------------------------------------------------------------------------------- several processes


def test_three_processes(tmp_path):
    """Between the ends of epochs the rows held here; at the ends those of all, on every process."""
    job = {"module": {"execution": Execution(state_layout="sharded")}, "epochs": 2}
    plain = values(launch(fit, 3, job))
    watched = values(launch(partial(fit_with_monitor, every_n_steps=3), 3, {**job, "folder": str(tmp_path)}))
    for (without, *_), (outcome, *_) in zip(plain, watched, strict=True):
        jobs.assert_same_run(without, outcome)
    ends, steps = [BATCHES, 2 * BATCHES], [3, 6, 8, 9, 12, 15, 16]
    state = NAMES["objective"]
    whole = {s: torch.cat([rows[s][state] for _, _, rows in watched]) for s in steps}
    assert whole[3].shape == (203, 1)
    of_all = by_hand(whole, ends)
    for _, records, rows in watched:
        own = by_hand({s: rows[s][state] for s in steps}, [])
        expected = {s: of_all[s] | {"bytes": own[s]["bytes"]} if s in ends else own[s] for s in steps}
        assert_equal_figures(of_state(records, "objective"), expected)
        replicated = by_hand({s: rows[s][NAMES["penalty"]] for s in steps}, ends)
        assert_equal_figures(of_state(records, "penalty"), replicated)
        for _, found in records:
            assert found["exchange_seconds"] > 0
            assert found["exchange_bytes"] > 100
    sent = [found["exchange_bytes"] for _, found in watched[0][1]]
    assert max(sent[3:]) <= 1.1 * min(sent[3:])  # neither validation nor the monitor's own exchanges are counted
    assert (tmp_path / "dual_state.png").is_file()


# ------------------------------------------------------------------------------------------------------------- picture


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_the_picture_of_a_fit(drawn, tmp_path):
    outcome, _, _ = fit_with_monitor({"folder": tmp_path, "epochs": 1})
    picture = matplotlib.image.imread(tmp_path / "dual_state.png")
    assert picture[..., :3].std() > 0.05
    objective, penalty = drawn[0].axes
    (_, _, rows), (_, _, small) = outcome["rows"].values()
    written = rows[~rows[:, 0].isnan()].double()
    assert objective.get_title() == f"objective\n{len(written) / 203:.1%} of 203 rows written"
    assert sum(heights(objective)) == pytest.approx(100)
    assert heights(objective) == pytest.approx(
        np.histogram(written.numpy(), len(heights(objective)))[0] * 100 / len(written)
    )
    assert labels(penalty) == ["penalty: ROCFairness\n100.0% of 6 rows written"]
    assert penalty.lines[0].get_xdata().tolist() == small.double().flatten().tolist()


def state(title, values, seen=1.0, rows=100):
    return Values(title, torch.linspace(0, 1, values, dtype=torch.float64), seen, rows)


def test_many_states_are_grouped(drawn, tmp_path):
    large = [state(f"penalty{k}: recall", 100, 0.5, 100 + k) for k in range(8)]
    few = [state(f"penalty{k}: rate", 1, rows=1) for k in range(8, 30)]
    path = plot_dual_states([*large, *few], tmp_path / "new" / "a.png")
    assert path.is_file()
    *panels, dots = drawn[0].axes
    titles = [axes.get_title() for axes in panels]
    assert titles[:4] == [f"penalty{k}: recall\n50.0% of {100 + k} rows written" for k in range(4)]
    assert titles[4:] == ["penalty4 to penalty7\n50.0% of 422 rows written"]
    assert all(sum(heights(axes)) == pytest.approx(100) for axes in panels)
    assert labels(dots)[0] == "penalty8: rate\n100.0% of 1 row written"
    assert labels(dots)[-1] == "penalty15 to penalty29\n100.0% of 15 rows written"
    assert [len(line.get_xdata()) for line in dots.lines] == [1] * 7 + [15]
    renderer = drawn[0].canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in dots.get_yticklabels()]
    assert all(below.y1 <= above.y0 + 1 for above, below in pairwise(boxes))  # no text on text


@pytest.mark.parametrize("small", [0, 1])
def test_six_panels(small, drawn, tmp_path):
    """With the shares of almost all rows and of none."""
    large = [state(f"s{k}", 40, 0.9999) for k in range(6 - small)]
    plot_dual_states([*large, *[state("b", 0, 0.0)] * small], tmp_path / "a.png")
    titles = [axes.get_title() for axes in drawn[0].axes]
    assert titles == [f"s{k}\n99.9% of 100 rows written" for k in range(6 - small)] + ["every value"] * small
    assert not small or "0.0% of 100 rows" in labels(drawn[0].axes[-1])[0]


def test_no_picture_and_none_at_all(tmp_path):
    fit_with_monitor({"folder": tmp_path, "epochs": 1}, picture=False)
    _, records, _ = fit_with_monitor({"folder": tmp_path, "epochs": 1}, enabled=False, every_n_steps=1)
    assert records == []
    assert not list(tmp_path.iterdir())
    fit_with_monitor({"epochs": 1}, folder=str(tmp_path / "elsewhere"))
    assert (tmp_path / "elsewhere" / "dual_state.png").is_file()


@pytest.mark.parametrize(("argument", "value"), [("every_n_steps", 0), ("sample", 0), ("sample", 1.5), ("seed", -1)])
def test_arguments(argument, value):
    with pytest.raises(ConfigError, match=f"{argument} must be a whole number"):
        StateMonitor(**{argument: value})

"""Shorthands and defaults of the command line."""

import json
from pathlib import Path

import pytest

from fcco_lightning import ConfigError, DataError
from fcco_lightning.cli import run
from fcco_lightning.cli.shorthands import written_out


@pytest.fixture
def table(tmp_path):
    def write(labels, name="t.csv"):
        rows = [f"{i % 7},{'mf'[i % 3 == 0]},{label}" for i, label in enumerate(labels)]
        (tmp_path / name).write_text("\n".join(["age,sex,y", *rows]))
        return str(tmp_path / name)

    return write


def listed(words):
    return {name: value for name, _, value in (word.partition("=") for word in words)}


@pytest.mark.parametrize(
    ("typed", "adding", "classes"),
    [
        (" EqualizedOdds", "", [("EqualizedOdds", {})]),
        ("=EqualizedOdds,ROCFairness", "", [("EqualizedOdds", {}), ("ROCFairness", {})]),
        ("+=ROCFairness", "+", [("ROCFairness", {})]),
        ("+= ROCFairness", "+", [("ROCFairness", {})]),
        ("+=ROCFairness,EqualizedOdds", "+", [("ROCFairness", {}), ("EqualizedOdds", {})]),
        (
            " EqualizedOdds,DemographicParity --model.constraints.kappa 0.02 --trainer.max_epochs 3",
            "",
            [("EqualizedOdds", {"kappa": 0.02}), ("DemographicParity", {"kappa": 0.02})],
        ),
        ("+=DemographicParity --model.constraints.by=race", "+", [("DemographicParity", {"by": "race"})]),
    ],
)
def test_constraints_by_name(typed, adding, classes):
    pairs = [word.split("=", 1) for word in written_out(f"fit --model.constraints{typed}".split()) if "=" in word]
    given = [json.loads(value) for name, value in pairs if name == f"--model.constraints{adding}"]
    given = given if adding else given[0]
    assert [(one["class_path"], one.get("init_args", {})) for one in given] == classes
    assert "--model.constraints.kappa" not in dict(pairs)


@pytest.mark.parametrize(
    "typed",
    [
        ["--model.constraints", "[{class_path: EqualizedOdds}]"],
        ["--model.constraints=constraints.yaml"],
    ],
)
def test_what_is_no_name_stays_as_it_is(typed):
    assert written_out(["fit", *typed]) == ["fit", *typed]


@pytest.mark.parametrize("before", [["--print_config"], ["--data.columns.missing", ""]])
def test_a_configuration_after_an_option_without_a_value_is_found_by_name(before):
    *words, path = written_out(["fit", *before, "-c", "roc_fairness/synthetic_sonex"])
    assert words == ["fit", *before, "-c"]
    assert path.endswith("synthetic_sonex.yaml")


def test_other_options_stay_as_they_are():
    words = ["fit", "--data=TabularDataModule", "--trainer.max_epochs", "3", "--data.train=x.csv"]
    assert written_out(words) == words


@pytest.mark.parametrize(
    ("labels", "more", "expected"),
    [
        (["yes", "no"] * 4, [], {"--model.objective": "AUC", "--data.splits.test_fraction": "0.2"}),
        (["yes", "no"] * 500, [], {"--trainer.max_epochs": "125", "--model.optimizer.weight_decay": "10"}),
        (["yes", "no"] * 3000, [], {"--trainer.max_epochs": "56", "--data.batches.batch_size": "512"}),
        (["yes", "no"] * 3000, [], {"--model.optimizer.weight_decay": "2.08", "--model.schedule.interval": "step"}),
        (
            ["yes", "no"] * 3000,
            ["--model.optimizer", "SGD"],
            {"--model.optimizer.lr": None, "--model.schedule.interval": None},
        ),
        # which AdamW does not have
        (["yes", "no"] * 3000, ["--model.optimizer.beta", "0.5"], {"--model.optimizer": None}),
        (["yes", "no"] * 3000, ["--model.schedule.objective_lr", "0.1"], {"--model.optimizer": "AdamW"}),
        (["yes", "no"] * 3000, ["--data.batches.drop_last", "false"], {"--data.batches": None}),
        (
            (["no"] * 19 + ["yes"]) * 400,
            ["--data.columns.sensitive", "sex", "--model.penalty.rho", "30"],
            {"--model.penalty": None, "--model.margin": None},
        ),
        (  # what is typed takes the place of what is assumed, and the decay is as much per update as before
            ["yes", "no"] * 3000,
            ["--lr", "0.1"],
            {
                "--model.optimizer": "AdamW",
                "--model.optimizer.weight_decay": "0.0208",
                "--model.schedule.interval": "step",
            },
        ),
        (["yes", "no"] * 3000, ["--lr", "few"], {"--model.optimizer.weight_decay": "2.08"}),  # which the parser refuses
        (
            ["yes", "no"] * 3000,
            ["--batch_size", "64"],
            {"--data.batches": "UniformSampling", "--trainer.max_epochs": "12"},
        ),
        (
            (["no"] * 19 + ["yes"]) * 400,
            ["--data.columns.sensitive", "sex", "--batch_size", "256", "--model.penalty.rate", "0.1"],
            {
                "--data.batches": "CellSampling",
                "--model.penalty": "AdaptivePenalty",
                "--model.penalty.decisions": "true",
                "--model.margin": "auto",
            },
        ),
        (["yes", "no"] * 3000, ["--model.objective", "PNormPush"], {"--trainer.max_epochs": "20"}),
        (["yes", "no"] * 3000, ["--model.objective", "AveragePrecision"], {"--model.optimizer": "AdamW"}),
        (
            (["no"] * 19 + ["yes"]) * 200,  # of which 1,600 by 20 count as 3,200 * 4 * .05 * .95
            ["--decisions", "balanced"],
            {"--model.optimizer.weight_decay": "10", "--data.batches": "UniformSampling"},
        ),
        (
            (["no"] * 19 + ["yes"]) * 600,  # of which 9,600 count as 1,824
            ["--decisions", "balanced", "--model.constraints", "DemographicParity"],
            {"--model.optimizer.weight_decay": "13.7"},  # 25/n, and at most .02
        ),
        (
            (["no"] * 19 + ["yes"]) * 200,
            ["--decisions", "balanced", "--data.columns.sensitive", "sex"],
            {"--model.optimizer.weight_decay": "20"},
        ),
        (
            (["no"] * 19 + ["yes"]) * 400,
            ["--data.columns.sensitive", "sex"],
            {"--model.optimizer.weight_decay": "1.56"},
        ),
        (["approved", "denied"] * 4, [], {"--data.columns.positive": "denied"}),
        (["approved", "denied"] * 4, ["--data.columns.positive", "approved"], {"--data.columns.positive": None}),
        ([1, 0] * 4, [], {"--data.columns.positive": None}),
        (["yes", "no"] * 75, [], {"--data.batches": "UniformSampling", "--data.batches.batch_size": "30"}),
        (["yes", "no"] * 128, ["--model.objective", "PNormPush"], {"--data.batches": None}),
        (["yes", "no"] * 75, ["--model.objective", "PNormPush"], {"--data.batches.batch_size": "37"}),
        (["yes", "no"] * 128, [], {"--data.batches.batch_size": "51", "--data.splits.val_fraction": None}),
        (
            ["yes", "no"] * 128,
            ["--model.objective", "KLPartialAUC", "--model.objective.sigmoid", "false"],
            {"--data.batches.batch_size": "46", "--data.splits.val_fraction": "0.1"},
        ),
        (["yes", "no"] * 128, ["--model.objective.cross_entropy", "0"], {"--data.splits.val_fraction": "0.1"}),
        (["yes", "no"] * 128, ["--model.pretrain", "null"], {"--data.splits.val_fraction": "0.1"}),
        (  # too few to hold some out
            ["yes"] * 99 + ["no"] * 200,
            ["--model.objective", "AUCMargin"],
            {"--data.splits.val_fraction": None},
        ),
        (["yes", "no"] * 128, ["--data.splits.val_fraction", "0.2"], {"--data.splits.val_fraction": "0.2"}),
        (["yes", "no"] * 128, ["--model.objective", "AUCMargin"], {"--data.splits.val_fraction": "0.1"}),
        (["yes", "no"] * 128, ["--model.objective", "CrossEntropy"], {"--data.splits.val_fraction": None}),
        (["yes", "no"] * 128, ["--model.objective", "AveragePrecision"], {"--data.splits.val_fraction": None}),
        (["yes", "no"] * 128, ["--model.objective", "CVaRPartialAUC"], {"--data.splits.val_fraction": None}),
        (["yes", "no"] * 128, ["--data.columns.sensitive", "sex"], {"--data.splits.val_fraction": None}),
        (
            ["yes", "no"] * 200,  # of one of the groups 67 each
            ["--data.columns.sensitive", "sex", "--model.objective", "AUC", "--model.objective.cross_entropy", "0"],
            {"--data.splits.val_fraction": None},
        ),
        (
            ["yes", "no"] * 400,
            ["--data.columns.sensitive", "sex", "--model.objective", "AUC", "--model.objective.cross_entropy", "0"],
            {"--data.splits.val_fraction": "0.1"},
        ),
        (["yes", "no"] * 4, ["--data.batches", "BalancedSampling"], {"--data.batches.batch_size": None}),
        (["yes", "no"] * 4, ["--trainer.max_steps", "5"], {"--trainer.max_epochs": None}),
        (["yes", "no"] * 4, ["--model.constraints", "EqualizedOdds"], {"--model.objective": "CrossEntropy"}),
        (["yes", "no"] * 4, ["--model.constraints+=EqualizedOdds"], {"--model.penalty": "AdaptivePenalty"}),
        (["yes", "no"] * 128, ["--data.groups.by", "[sex]"], {"--data.splits.val_fraction": None}),
        (list("abc") * 4, [], {"--model.objective": "CrossEntropy", "--model.network.out_features": "3"}),
        (list(range(3)) * 4, [], {"--model.objective": "CrossEntropy", "--model.network.out_features": "3"}),
        ([f"t{i}" for i in range(30)], [], {"--model.network.out_features": "30"}),
        (
            [10.5, 20.0, 30.0] * 4,
            [],
            {
                "--data.columns.target": "number",
                "--model.objective": "SquaredError",
                "--model.network.offset": "20.17",
                "--model.network.scale": "8.32",
            },
        ),
        (
            [20240.0, 20242.5, 20245.0] * 4,  # far from 0 beside their deviation
            [],
            {"--model.network.offset": "20242.5", "--model.network.scale": "2.13"},
        ),
        (list(range(30)), ["--model.network", "TabularMLP"], {"--model.objective": "SquaredError"}),
        (list(range(30)), ["--data.columns.positive", "3"], {"--model.objective": "AUC"}),
        (list(range(30)), ["--data.columns.target", "class"], {"--model.network.out_features": "30"}),
        ([1, 2, 3] * 4, ["--data.columns.target", "number"], {"--model.objective": "SquaredError"}),
        ([1, 2, 3] * 4, ["--model.objective", "SquaredError"], {"--data.columns.target": "number"}),
        ([1, 2, 3] * 4, ["--model.objective", "CrossEntropy"], {"--model.evaluation": "ClassEvaluation"}),
        ([1, 2, 3] * 4, ["--model.network", "TabularMLP"], {"--model.network.out_features": "3"}),
        (
            ["yes", "no"] * 4,
            ["--data.columns.sensitive", "sex"],
            {"--data.columns.favoured": "m", "--model.objective": "CrossEntropy", "--data.batches": "CellSampling"},
        ),
        (
            ["yes", "no"] * 4,
            ["--data.columns.sensitive", "sex"],
            {"--model.penalty": "AdaptivePenalty", "--model.penalty.decisions": "true", "--model.margin": "auto"},
        ),
        (
            (["yes"] + ["no"] * 9) * 20,
            ["--model.constraints", "EqualizedOdds", "--model.constraints.by", "sex"],
            {"--data.batches": "CellSampling", "--data.batches.batch_size": "40"},
        ),
        ((["yes"] + ["no"] * 9) * 20, ["--decisions", "balanced"], {"--data.batches": "UniformSampling"}),
        (["yes", "no"] * 4, ["--decisions", "balanced"], {"--model.objective": "CrossEntropy"}),
        (["yes", "no"] * 4, ["--decisions.costs", "[1,10]"], {"--model.objective": "CrossEntropy"}),
        (["yes", "no"] * 4, ["--model.decisions.threshold", "0.2"], {"--model.objective": "CrossEntropy"}),
        (["yes", "no"] * 4, ["--decisions.share", "0.1"], {"--model.objective": "CrossEntropy"}),
        (["yes", "no"] * 4, [], {"--model.network.offset": None}),
        ((["yes"] + ["no"] * 9) * 20, [], {"--model.network.offset": "-2.2"}),  # log(1 / 9)
        ((["no"] + ["yes"] * 9) * 20, ["--data.columns.positive", "no"], {"--model.network.offset": "-2.2"}),
        ((["yes"] + ["no"] * 9) * 20, ["--decisions.costs", "[1,3]"], {"--model.network.offset": "-1.1"}),
        ((["yes"] + ["no"] * 9) * 20, ["--decisions.share", "0.1"], {"--model.network.offset": "-2.2"}),
        ((["yes"] + ["no"] * 9) * 20, ["--decisions", "balanced"], {"--model.network.offset": None}),
        ((["yes"] + ["no"] * 9) * 20, ["--data.batches", "BalancedSampling"], {"--model.network.offset": None}),
        ((["yes"] + ["no"] * 9) * 20, ["--model.constraints", "EqualizedOdds"], {"--model.network.offset": None}),
        (["yes", "no"] * 4, ["--data.test", "u.csv"], {"--data.splits.test_fraction": None}),
        (["yes", "no"] * 4, [], {"--model.network": "TabularMLP", "--data.encoding.pieces": "auto"}),
        (
            ["yes", "no"] * 4,
            ["--model.network", "TabularMLP"],
            {"--model.network": None, "--data.encoding.pieces": None},
        ),
        (["yes", "no"] * 4, ["--data.encoding.quantiles", "3"], {"--data.encoding.pieces": None}),
        (["yes", "no"] * 4, ["--data.encoding.missing", "impute"], {"--data.encoding.pieces": "auto"}),
        (["yes", "no"] * 4, ["--data.splits.val_fraction", "0.2"], {"--data.splits.test_fraction": "0.2"}),
        (["yes", "no"] * 4, ["--model.objective", "AveragePrecision"], {"--model.objective": None}),
    ],
)
def test_a_table_without_a_configuration(table, capsys, labels, more, expected):
    typed = ["--data.train", table(labels), "--data.columns.label", "y", *more]
    words = written_out(["fit", *typed])
    found = listed(words)
    assert found["--data"] == "TabularDataModule"
    assert {name: found.get(name) or None for name in expected if name not in more} == {
        name: value for name, value in expected.items() if name not in more
    }
    said = capsys.readouterr().err
    assert "Defaults for this table, unless you set them: --data TabularDataModule" in said
    alike = "--data.columns.sensitive" in more and "AUC" not in more
    assert ("--model.constraints EqualizedOdds" in said) == alike


def test_several_labels_are_ranked_one_by_one(table):
    labels = ["--data.columns.label", "[y,sex]", "--data.columns.positive", "m"]
    found = listed(written_out(["fit", "--data.train", table("mf" * 4), *labels]))
    assert found["--model.objective"] == "MeanAveragePrecision"
    assert found["--model.network.out_features"] == "2"


def test_nothing_is_assumed_where_it_is_said(table, capsys, tmp_path):
    (tmp_path / "c.yaml").write_text("data: {class_path: TabularDataModule}")
    for more in (["--config", str(tmp_path / "c.yaml")], ["--data", "TensorDataModule"]):
        words = ["fit", *more, "--data.train", table(["a", "b"]), "--data.columns.label", "y"]
        assert written_out(words) == words
    assert capsys.readouterr().err == ""


CONFIG = """
model:
  constraints: [{class_path: MeanNear, init_args: {quantity: SoftRate, target: 0.2}}]
  optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.5}}
data: {columns: {label: y}}
trainer: {max_epochs: 3}
"""


@pytest.mark.parametrize("option", [["--config", "c.yaml"], ["--config=c.yaml"], ["-c", "c.yaml"]])
def test_a_configuration_and_options_say_together_what_is_not_assumed(table, option):
    Path("c.yaml").write_text(CONFIG)
    found = listed(written_out(["fit", *option, "--data.train", table(["yes", "no"] * 40)]))
    assert found["--data"] == "TabularDataModule"
    assert found["--data.columns.positive"] == "yes"
    assert found["--model.objective"] == "CrossEntropy"  # as there are constraints
    said = {"--model.constraints", "--model.optimizer", "--model.optimizer.lr", "--trainer.max_epochs"}
    assert not said & found.keys()


def test_short_words_are_the_options_that_they_mean(table):
    path = table(["yes", "no"] * 40)
    of_constraint = "onstraints my.Part --{}constraints.kappa 1"
    short = f"fit {path} --label y --seed 3 --epochs=5 --batch_size 8 --lr .01 --c{of_constraint.format('')}"
    long = (
        f"fit --data.train {path} --data.columns.label y --seed_everything 3 --trainer.max_epochs=5 "
        f"--data.batches.batch_size 8 --model.optimizer.lr .01 --model.c{of_constraint.format('model.')}"
    )
    words = written_out(short.split())
    assert words == written_out(long.split())
    found = listed(words)
    assert json.loads(found["--model.constraints"]) == [{"class_path": "my.Part", "init_args": {"kappa": 1}}]
    assert written_out(["test", "--seed", "3"]) == ["test", "--seed", "3"]


def test_a_table_is_no_datamodule(table):
    with pytest.raises(ConfigError, match=r"names no datamodule: a table is given by --data.train .*t\.csv"):
        written_out(["fit", "--data", table("ab"), "--data.columns.label", "y"])
    with pytest.raises(ConfigError, match=r"a table is predicted by fcco predict CKPT \S*t\.csv\."):
        written_out(["predict", "--ckpt_path", "last.ckpt", "--data", table("ab")])


def test_words_are_no_numbers_to_predict(table):
    """The data module refuses them, and says how."""
    words = written_out(
        ["fit", "--data.train", table("ab"), "--data.columns.label", "y", "--model.objective", "SquaredError"]
    )
    assert "--data.columns.target=number" in words
    assert not [word for word in words if word.startswith("--model.network.")]


def test_of_more_groups_than_two_none_is_favoured(table):
    words = ["fit", "--data.train", table(["yes", "no"] * 4), "--data.columns.label", "y"]
    words += ["--data.columns.sensitive", "age"]
    assert "--data.columns.favoured" not in listed(written_out(words))
    assert "--data.columns.favoured" in written_out([*words, "--data.columns.favoured", "3"])


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        (["none.csv", "--data.columns.label", "y"], r"data.train='none.csv': no such file"),
        (["{}", "--data.columns.label", "yy"], "columns.label='yy' is not a column of.*Did you mean 'y'"),
        (["{}", "--data.columns.label", "y", "--data.columns.sensitive", "sexx"], "columns.sensitive='sexx' is not"),
    ],
)
def test_what_is_not_there_is_named(table, typed, text):
    path = table(["yes", "no"] * 4)
    with pytest.raises(DataError, match=text):
        written_out(["fit", "--data.train", *(path if word == "{}" else word for word in typed)])


def test_an_empty_value_is_one():
    words = ["predict", "--data.columns.missing", "", "--seed_everything", "1"]
    assert written_out(words) == words


def test_null_of_a_record_of_the_data_is_none():
    given = ["test", "--data.splits.test_fraction", "null", "--data.columns.positive=None", "--seed_everything"]
    expected = ['--data.splits={"test_fraction": null}', '--data.columns={"positive": null}', "--seed_everything"]
    assert written_out(given)[1:] == expected
    others = ["predict", "--model.average.decay", "null", "--data.batches.drop_last=null", "--data.splits.seed", "1"]
    assert written_out(others) == others


def test_numbers_with_decimal_commas_are_numbers_which_the_data_module_refuses(table):
    cells = [f'"{k % 50},{k % 7}"' for k in range(300)]
    words = f"fit --data.train {table(cells)} --data.columns.label y"
    found = listed(written_out(words.split()))
    assert found["--data.columns.target"] == "number"
    assert "--model.network.out_features" not in found


@pytest.mark.parametrize("numbers", [[0.5, 1.5, float("inf")], [0.5, 1.5, 1e300], [2.5] * 9, [2.5], [""] * 3], ids=str)
def test_labels_of_which_nothing_can_be_said_are_left_to_the_data_module(numbers, table):
    words = ["fit", table(numbers), "--label", "y", "--data.columns.target", "number"]
    found = listed(written_out(words))
    assert found["--data"] == "TabularDataModule"
    assert not {"--model.network.offset", "--model.network.scale"} & found.keys()


def test_a_label_may_be_called_group_and_stand_beside_no_group(tmp_path):
    for rows in (["yes,m,1", "no,f,2", "no,m,3"], [",m,1", ",f,2", "yes,,3", "no,,4"]):
        (tmp_path / "t.csv").write_text("\n".join(["group,sex,age", *rows * 9]))
        found = listed(written_out(["fit", str(tmp_path / "t.csv"), "--label", "group", "--sensitive", "sex"]))
        assert found["--data.columns.positive"] == "yes"


def test_labels_that_are_not_known(table):
    words = [
        "fit",
        "--data.train",
        table([0, 1] * 200),
        "--data.columns.label",
        "[sex,y]",
        "--data.columns.missing",
        "-1",
    ]
    assert listed(written_out(words))["--model.objective.missing"] == "-1"
    assert "--model.objective.missing" not in listed(written_out([*words, "--model.objective", "AUC"]))
    assert "--model.objective.missing" not in listed(written_out(words[:-2]))


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        (["--decisions", "balanced"], "--model.decisions=balanced"),
        (["--decisions=balanced"], "--model.decisions=balanced"),
        (["--decisions.share", "0.1"], '--model.decisions={"share": 0.1}'),
        (["--decisions.costs", "[1, 10]"], '--model.decisions={"costs": [1, 10]}'),
        (["--decisions.tpr=0.8"], '--model.decisions={"tpr": 0.8}'),
    ],
)
def test_what_decisions_are_for(typed, written):
    assert written_out(["fit", *typed]) == ["fit", written]


@pytest.mark.parametrize("typed", ["blanced", "0.1", "[1,10]", "true"])
def test_what_decisions_cannot_be_for(typed):
    with pytest.raises(ConfigError, match=r"is no purpose of decisions. Use --decisions balanced, or one"):
        written_out(["fit", "--decisions", typed])
    for value in ("null", "Decisions", "{share: 0.1}"):
        assert written_out(["fit", "--decisions", value]) == ["fit", f"--model.decisions={value}"]


def test_a_misspelt_option_of_the_data_is_asked_about_where_no_table_is_given(table, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["fit", "--data.trian", table(["a", "b"] * 20), "--label", "y"])
    assert "Did you mean data.train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--sensitve", "sensitive"),
        ("--lable", "label"),
        ("--epoch", "epochs"),
        ("--batches", "data.batches or --batch_size"),
        ("--max_epochs", "trainer.max_epochs or --epochs"),
    ],
)
def test_a_misspelt_short_word_is_asked_about(typed, meant, table, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["fit", table(["a", "b"] * 20), "--label", "y", typed, "3"])
    assert f"unrecognized arguments: {typed} 3. Did you mean --{meant}?" in capsys.readouterr().err


def test_arguments_before_the_class_of_a_constraint_are_refused_with_their_order(table, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["fit", table(["a", "b"] * 20), "--label", "y", "--model.constraints.kappa", "0.1"])
    assert "(fcco_lightning.Constraint is abstract). Put --model.constraints CLASS before" in capsys.readouterr().err

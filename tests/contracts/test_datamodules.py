"""Properties of every data module: splits, batches and checkpoints."""

import inspect
from functools import partial
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image

from fcco_lightning import (
    Architecture,
    BagSampling,
    BlockDistributions,
    Classes,
    Columns,
    ConfigError,
    ContinualCLIPDataModule,
    DataError,
    DigitBags,
    DigitImages,
    DigitsCLIPDataModule,
    EventSampling,
    FCCOError,
    Garnet,
    GradedLists,
    GroupedImageDataModule,
    GroupedTextDataModule,
    Groups,
    GroupSampling,
    ImageSplits,
    ImageTransform,
    LabelledImages,
    LabelledTexts,
    LatentChoice,
    ManyClasses,
    PairDataModule,
    Pairs,
    ProportionalHazards,
    QuerySampling,
    Splits,
    SyntheticDataModule,
    SyntheticTensorDataModule,
    TabularDataModule,
    TensorDataModule,
    TextTokens,
    UniformSampling,
)
from fcco_lightning.data import datamodules
from fcco_lightning.training.resuming.progress import LoopProgress
from tests.texts import make_texts

FRAME = pd.DataFrame(
    {
        "a": np.random.default_rng(0).normal(size=600),
        "sex": ["M", "F", "M", "F"] * 150,
        "y": ["no", "no", "yes", "yes"] * 150,
    }
)


def split(seed=0):
    return Splits(test_fraction=0.2, val_fraction=0.25, seed=seed)


def tensors(data_seed=0, **arguments):
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(data_seed))
    columns = {"x": x, "y": torch.arange(300) % 2}
    return TensorDataModule({"test": columns, "train": columns}, **arguments)


def table(roles, data_seed=0, **arguments):
    return TabularDataModule(FRAME, splits=split(data_seed), **roles, **arguments)


SENSITIVE = {"columns": Columns("y", positive="yes", sensitive="sex", favoured="M")}
GROUPED = {"columns": Columns("y", positive="yes"), "groups": Groups(["sex", "y"]), "batches": GroupSampling(2, 8)}


def texts(data_seed=0, **arguments):
    return GroupedTextDataModule(
        LabelledTexts(make_texts(400)),
        columns=Columns("spam", positive="spam"),
        groups=Groups(["spam", "list"]),
        splits=ImageSplits("fractions", [0.5, 0.25, 0.25], data_seed),
        tokens=TextTokens(vocabulary=120),
        batches=GroupSampling(2, 4),
        eval_train=True,
        **arguments,
    )


def images(data_seed=0, **arguments):
    pixels = np.random.default_rng(0).integers(0, 255, (64, 8, 8), dtype=np.uint8)
    content = {
        "image": [Image.fromarray(grey) for grey in pixels],
        "sex": ["M", "F"] * 32,
        "y": ["no"] * 32 + ["yes"] * 32,
    }
    return GroupedImageDataModule(
        LabelledImages("datasets", source=datasets.Dataset.from_dict(content)),
        columns=Columns("y", positive="yes"),
        groups=Groups(["sex", "y"]),
        splits=ImageSplits("fractions", [0.5, 0.25, 0.25], data_seed),
        transform=ImageTransform(8, augment=True),
        batches=GroupSampling(2, 4),
        eval_train=True,
        **arguments,
    )


def pairs(data_seed=0, **arguments):
    small = DigitImages(200, 60, data_seed)
    return DigitsCLIPDataModule(
        digits=small, batches=UniformSampling(16), task_batches=GroupSampling(3, 2), **arguments
    )


def image_text(data_seed=0, **arguments):
    pixels = np.random.default_rng(0).integers(0, 255, (64, 16, 16), dtype=np.uint8)
    content = {"image": [Image.fromarray(grey) for grey in pixels], "caption": [f"image {i}" for i in range(64)]}
    source = Pairs(datasets.Dataset.from_dict(content))
    return PairDataModule(
        pairs=source, model=Architecture("tiny"), split_seed=data_seed, batches=UniformSampling(8), **arguments
    )


KINDS = {
    "table": partial(table, SENSITIVE),
    "groups": partial(table, GROUPED),
    "tensors": tensors,
    "texts": texts,
    "images": images,
    "pairs": pairs,
    "image text": image_text,
    "two groups": partial(SyntheticDataModule, 600, 100, val_fraction=0.2),
    "survival": partial(SyntheticDataModule, 600, 100, problem=ProportionalHazards(), batches=EventSampling()),
    "queries": partial(SyntheticDataModule, 40, 10, problem=GradedLists(), val_fraction=0.25, batches=QuerySampling()),
    "classes": partial(SyntheticTensorDataModule, ManyClasses(num_classes=200), 600, 100, others_per_batch=64),
    "latent": partial(SyntheticTensorDataModule, LatentChoice(), 600, 100, others_per_batch=32),
    "garnet": partial(SyntheticTensorDataModule, Garnet(num_states=40), 20, 5, batches=GroupSampling(32, 4)),
    "distributions": partial(SyntheticTensorDataModule, BlockDistributions(), 60, 20, batches=GroupSampling(5, 4)),
    "bags": partial(SyntheticTensorDataModule, DigitBags(), 60, 20, batches=BagSampling()),
}


@pytest.fixture(params=KINDS)
def make(request):
    def made(*, ready=True, **arguments):
        module = KINDS[request.param](**arguments)
        if ready:
            module.setup()
        return module

    return made


def placed(module, rank=0, world_size=1, device="cpu"):
    module.trainer = SimpleNamespace(
        global_rank=rank,
        world_size=world_size,
        limit_train_batches=1.0,
        strategy=SimpleNamespace(root_device=torch.device(device)),
    )
    return module


def indices(batch):
    """Part of a batch -> numbers of its rows."""
    batch = batch[0] if isinstance(batch, tuple) else batch  # of a CombinedLoader
    parts = {"target": batch} if "index" in batch else batch
    return {part: rows["index"].tolist() for part, rows in parts.items()}


def contents(batch):
    """Part of a batch -> sum of what the network is given: the same if it is augmented the same."""
    parts = {"target": batch} if "index" in batch else batch
    return {part: float(rows["x"].sum()) for part, rows in parts.items()}


class Plain(LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen, self.evaluated = [], {}

    def training_step(self, batch, batch_idx):
        self.seen.append((indices(batch), contents(batch)))
        return self.weight.sum()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.evaluated.setdefault(dataloader_idx, []).extend(batch["index"].tolist())

    def predict_step(self, batch, batch_idx):
        return batch["index"]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def configure_callbacks(self):
        return [LoopProgress()]  # which an FCCOModule brings along


def quiet(folder, **limits):
    return Trainer(
        **limits,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def test_every_split_is_evaluated_in_order(make):
    module = make(eval_batch_size=64)
    assert list(module.val_dataloader()) == module.val_names
    unevaluated = {"train"} if isinstance(module, PairDataModule) else set()  # recall among all pairs of training
    assert {"train", "test", *module.val_names} - unevaluated == set(module.evaluation_loaders())
    for name, loader in module.evaluation_loaders().items():
        columns = module.tables[name].columns
        batches = list(loader)
        assert all(len(batch["index"]) <= 64 for batch in batches)
        for column, whole in columns.items():
            assert torch.equal(torch.cat([batch[column] for batch in batches]), whole)
        assert columns["index"].tolist() == list(range(len(module.tables[name])))


def test_training_batches_follow_the_plan_and_the_seed(make):
    module, again, other = make(seed=3), make(seed=3), make(seed=4)
    drawn = [indices(batch) for batch in module.train_dataloader()]
    assert drawn
    for part, known in module.sampling().items():
        plan = [rows.tolist() for rows in known.plan.batches(0)]
        assert [batch[part] for batch in drawn] == plan[: len(drawn)]
        assert plan == [rows.tolist() for rows in again.sampling()[part].plan.batches(0)]
        assert plan != [rows.tolist() for rows in other.sampling()[part].plan.batches(0)]


def test_processes_share_the_union_batch(make):
    loaders = [placed(make(), rank, 2).train_dataloader() for rank in range(2)]
    plans = {part: known.plan for part, known in placed(make(), 0, 2).sampling().items()}
    unions = zip(*(plan.batches(0) for plan in plans.values()), strict=False)
    for union, *shares in zip(unions, *loaders, strict=True):
        for part, rows in zip(plans, union, strict=True):
            assert [i for share in shares for i in indices(share)[part]] == rows.tolist()


def test_a_run_is_continued_exactly(make, tmp_path):
    limits = {"max_epochs": -1, "limit_val_batches": 0}
    whole, first, second = Plain(), Plain(), Plain()
    quiet(tmp_path, max_steps=9, **limits).fit(whole, datamodule=make(ready=False))
    trainer = quiet(tmp_path, max_steps=4, **limits)
    trainer.fit(first, datamodule=make(ready=False))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trainer = quiet(tmp_path, max_steps=9, **limits)
    trainer.fit(second, datamodule=make(ready=False), ckpt_path=tmp_path / "a.ckpt")
    assert len(whole.seen) == 9
    assert first.seen + second.seen == whole.seen


def test_a_trainer_evaluates_what_has_a_name(make, tmp_path):
    module, plain = make(), Plain()
    quiet(tmp_path).validate(plain, datamodule=module, verbose=False)
    expected = [module.tables[name].columns["index"].tolist() for name in module.val_names]
    assert [plain.evaluated[i] for i in range(len(expected))] == expected
    outputs = quiet(tmp_path).predict(plain, datamodule=module)
    assert torch.equal(torch.cat(outputs), module.tables["test"].columns["index"])


def test_a_checkpoint_belongs_to_its_training_split(make, tmp_path):
    torch.save(make().state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    make().load_state_dict(state)
    with pytest.raises(DataError, match=r"another training split.*What differs: .*"):
        make(data_seed=1).load_state_dict(state)
    late, allowed = (make(ready=False, data_seed=1, allow_changed=allowed) for allowed in (False, True))
    late.load_state_dict(state)
    with pytest.raises(DataError, match="another training split"):
        late.setup()
    allowed.load_state_dict(state)
    with pytest.warns(UserWarning, match="another training split"):
        allowed.setup()


def test_before_and_after_setup(make):
    module = make(ready=False)
    with pytest.raises(DataError, match=rf"does not exist before {type(module).__name__}\.setup"):
        module.evaluation_loaders()
    module.setup()
    tables = dict(module.tables)
    module.setup("fit")
    assert all(module.tables[name] is made for name, made in tables.items())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_for_a_gpu_are_pinned(make, device):
    module = make()
    assert not module.test_dataloader().pin_memory
    assert placed(module, device=device).test_dataloader().pin_memory == (device == "cuda")


@pytest.mark.parametrize("name", [name for name in datamodules.__all__ if name.endswith("DataModule")])
def test_a_datamodule_takes_at_most_eight_arguments(name):
    own = inspect.signature(getattr(datamodules, name)).parameters.values()
    assert sum(argument.kind is not argument.VAR_KEYWORD for argument in own) <= 8, "put some into a record"


PARTS = [
    (GroupedImageDataModule, "images batches columns groups noise splits transform"),
    (GroupedTextDataModule, "texts batches columns groups splits tokens"),
    (ContinualCLIPDataModule, "images batches classes pairs splits task_batches"),
    (DigitsCLIPDataModule, "batches digits task_batches"),
    (PairDataModule, "batches model pairs"),
    (TabularDataModule, "batches columns encoding groups splits"),
    (TensorDataModule, "batches"),
    (SyntheticDataModule, "batches problem"),
    (SyntheticTensorDataModule, "batches problem"),
]


@pytest.mark.parametrize("value", ["here", pd.DataFrame({"text": ["long"] * 99})], ids=["a text", "a table"])
@pytest.mark.parametrize(
    ("kind", "argument"), [(kind, argument) for kind, names in PARTS for argument in names.split()]
)
def test_another_thing_in_the_place_of_a_part_is_refused_in_a_line(kind, argument, value):
    """It ended in an AttributeError, of batches only when they were drawn."""
    parts = {
        GroupedImageDataModule: {"images": LabelledImages(root=".")},
        GroupedTextDataModule: {
            "texts": LabelledTexts(make_texts(9)),
            "columns": Columns("spam"),
            "groups": Groups(["list"]),
            "tokens": TextTokens(vocabulary=120),
        },
        ContinualCLIPDataModule: {
            "images": LabelledImages(root="."),
            "classes": Classes(["cat"]),
            "model": Architecture("tiny"),
        },
        PairDataModule: {"pairs": Pairs("pairs.tsv"), "model": Architecture("tiny")},
        TabularDataModule: {"train": FRAME, "columns": Columns("y"), "splits": split()},
        TensorDataModule: {"splits": {"train": {}, "test": {}}},
        SyntheticTensorDataModule: {"problem": DigitBags()},
    }
    with pytest.raises(ConfigError, match=rf"^{argument} must be a \w+.*, got .* Pass {argument}=") as refused:
        kind(**(parts.get(kind, {}) | {argument: value}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"num_workers": -1}, "num_workers must be a whole number >= 0"),
        ({"num_groups": 0}, "num_groups must be a whole number >= 1"),
        ({"splits": [{}, {}]}, "splits must hold 'train' and 'test', each with its columns by name, got list"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_numbers_and_splits_of_tensors_are_refused_by_name(arguments, rule):
    columns = {"x": torch.zeros(4, 2), "y": torch.arange(4) % 2}
    with pytest.raises(FCCOError, match=rule):
        TensorDataModule(**({"splits": {"train": columns, "test": columns}} | arguments))

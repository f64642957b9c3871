"""An untrusted checkpoint runs no code, makes no other file be read, and fills no memory."""

import json
import pickle
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import fcco_lightning.models
from fcco_lightning import FCCOModule, TabularDataModule, TabularMLP, TimmModel
from fcco_lightning.cli import run
from fcco_lightning.data.texts import TextTokens
from fcco_lightning.errors import CheckpointError, ConfigError, FCCOError
from fcco_lightning.inference import export, load
from fcco_lightning.inference.networks import LAYERS, NETWORKS, network_of
from fcco_lightning.state import archives
from fcco_lightning.training.resuming.row_checkpoints import RowsCheckpointIO
from tests.conftest import QUIET
from tests.tables import make_data, make_frame

RUNS_CODE = {
    "class_path": "torch.fx.graph_module.reduce_graph_module",
    "init_args": {
        "body": {"_code": "\nforward=lambda self:0\n"},
        "import_block": "import pathlib; pathlib.Path('ran').touch()",
    },
}
MLP = {"class_path": "fcco_lightning.TabularMLP", "init_args": {"hidden": [3], "in_features": 6}}
WEIGHTS = TabularMLP([3], in_features=6).state_dict()


def described(kind, **arguments):
    return {"class_path": f"fcco_lightning.{kind}", "init_args": arguments}


@pytest.fixture
def make_trainer(tmp_path):
    return lambda **flags: Trainer(**(QUIET | {"accelerator": "cpu", "default_root_dir": tmp_path} | flags))


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """What a fit has saved, without what it says it is made of, which a hostile author would leave out."""
    trainer = Trainer(**QUIET, max_steps=2, accelerator="cpu")
    data = make_data(train=make_frame(60, 0), test=make_frame(20, 1), batch_size=12)
    trainer.fit(FCCOModule(TabularMLP([3])), data)
    path = tmp_path_factory.mktemp("content") / "whole.ckpt"
    trainer.save_checkpoint(path)
    return torch.load(path, weights_only=True)


def with_network(content, network, **others):
    return content | {"fcco": content["fcco"] | {"config": {"model": {"network": network}}}} | others


NESTED = {
    "alone": RUNS_CODE,
    "inside": described("TwoViews", network=RUNS_CODE),
    "twice inside": described("TwoViews", network=described("GaussianPerturbation", network=RUNS_CODE)),
    "in a list": described("TabularMLP", hidden=[RUNS_CODE]),
    "in a mapping": described("TextClassifier", config={"model_type": "bert", "more": {"deep": RUNS_CODE}}),
    "in further arguments": described("TimmModel", name="resnet18") | {"dict_kwargs": {"block": RUNS_CODE}},
    "in a layer": {"class_path": "torch.nn.TransformerEncoder", "init_args": {"encoder_layer": RUNS_CODE}},
}


@pytest.mark.parametrize("where", NESTED)
def test_no_function_makes_a_network(where, content, capsys):
    torch.save(with_network(content, NESTED[where]), "hostile.ckpt")
    make_frame(4, 2).to_csv("new.csv", index=False)
    for words in (["predict", "hostile.ckpt", "new.csv"], ["export", "hostile.ckpt", "out.pt"]):
        assert run(words) == 2
        assert "names the class 'torch.fx.graph_module.reduce_graph_module'" in capsys.readouterr().err
    assert {path.name for path in Path().iterdir()} == {"hostile.ckpt", "new.csv"}


def callables_of_torch():
    """Full names of all that can be called in the modules of torch that are loaded."""
    for module in sorted(name for name in sys.modules if name.partition(".")[0] == "torch"):
        for name, value in list(vars(sys.modules[module]).items()):
            if callable(value):
                yield f"{module}.{name}", value


def test_nothing_of_torch_makes_a_network_but_the_listed_layers():
    known, refused = 0, 0
    for name, value in callables_of_torch():
        try:
            network_of({"class_path": name}, WEIGHTS, (), "file")
        except ConfigError as error:
            assert f"names the class {name!r}" in str(error)  # noqa: PT017
            refused += 1
            continue
        except CheckpointError:  # a layer that needs arguments
            pass
        assert value in LAYERS
        known += 1
    assert known >= len(LAYERS)
    assert refused > 5000
    assert all(isinstance(kind, type) and issubclass(kind, nn.Module) for kind in (*LAYERS, *NETWORKS))


def test_all_networks_of_the_package_are_listed():
    exported = [getattr(fcco_lightning.models, name) for name in fcco_lightning.models.__all__]
    networks = [one for one in exported if isinstance(one, type) and issubclass(one, nn.Module)]
    assert {one for one in networks if "__init__" in vars(one)} == set(NETWORKS)


@pytest.mark.parametrize(
    "network",
    [
        described("models.mlp.TabularMLP", hidden=[4, 4], in_features=5, activation="tanh"),
        described("TwoViews", network=MLP, std=0.1),
        described("models.GaussianPerturbation", network=MLP),
        described("LatentMixture", features=MLP, num_latent=3, dim=1),
        described("ClassVectorNetwork", features=MLP, num_classes=4, dim=1),
        described("CLIPModel", name="tiny"),
        described("TimmModel", name="resnet18", num_outputs=3) | {"dict_kwargs": {"global_pool": "max"}},
        described("TextClassifier", config={"model_type": "distilbert", "vocab_size": 99, "dim": 8, "n_heads": 2}),
        {"class_path": "torch.nn.Linear", "init_args": {"in_features": 3, "out_features": 1}},
        {"class_path": "torch.nn.modules.linear.LazyLinear", "init_args": {"out_features": 1}},
    ],
    ids=lambda network: network["class_path"].rpartition(".")[2],
)
def test_ordinary_networks_need_no_trust(network):
    """As jsonargparse makes them of the user's own configuration."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--network", type=nn.Module)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = parser.instantiate_classes(parser.parse_object({"network": network})).network
    weights = {k: v for k, v in expected.state_dict().items() if not nn.parameter.is_lazy(v)}
    torch.manual_seed(0)
    found = network_of(network, weights, (), "file").state_dict()
    assert found.keys() == expected.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in weights.items())


class Own(TabularMLP):
    """A network of the user's."""


def test_a_class_is_trusted_by_its_full_name():
    name = f"{Own.__module__}.Own"
    network = described("TwoViews", network={"class_path": name, "init_args": {"hidden": [3], "in_features": 6}})
    with pytest.raises(ConfigError, match=rf"names the class '{name}'.*pass trusted=\['{name}'\] \(--trusted {name}\)"):
        network_of(network, WEIGHTS, (), "file")
    assert isinstance(network_of(network, WEIGHTS, [name], "file").network, Own)
    for other in ("os.system", "os", "tests", "json.JSONDecoder", "no_such.Network", f"{Own.__module__}.make_data"):
        with pytest.raises(ConfigError, match=f"trusted='{other}' must be the full name of a class of networks"):
            network_of(network, WEIGHTS, [other], "file")
    with pytest.raises(ConfigError, match=rf"trusted must be a list, got '{name}'\. Put it in brackets"):
        network_of(network, WEIGHTS, name, "file")


@pytest.mark.parametrize("text", ["os.system", "../secret", "C:\\secret", "hf-hub:a/b", '{"class_path": "os.system"}'])
def test_texts_that_refer_to_something_outside_the_file_are_refused(text):
    for network in (described("TabularMLP", activation=text), described("TextClassifier", config={"a": [text]})):
        with pytest.raises(ConfigError, match="which refers to something outside the file"):
            network_of(network, WEIGHTS, (), "file")


class Touch:
    def __reduce__(self):
        return Path.touch, (Path("ran"),)


def test_weights_in_other_files_are_not_read(content):
    Path("evil.pth").write_bytes(pickle.dumps(Touch()))
    timm = described("TimmModel", name="resnet18", checkpoint_path="evil.pth", pretrained=True)
    for network in (timm, described("TwoViews", network=timm)):
        weights = {"enough": torch.zeros(11_200_000)}
        assert any(isinstance(part, TimmModel) for part in network_of(network, weights, (), "file").modules())
    torch.save(with_network(content, described("CLIPModel", name="tiny", pretrained="evil.pth")), "clip.ckpt")
    with pytest.raises(CheckpointError, match="weights of another network"):
        load("clip.ckpt")
    assert not Path("ran").exists()


@pytest.mark.parametrize("offered", [{}, {"trust_remote_code": True}])
def test_code_beside_a_text_network_is_not_run(offered, content):
    """As a folder beside a checkpoint, or the hub, may offer it."""
    folder = Path("beside")
    folder.mkdir()
    homes = {"AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Net", "AutoTokenizer": "code.T"}
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text(json.dumps({"model_type": "unheard_of", "auto_map": homes}))
    (folder / "code.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    with pytest.raises((ConfigError, CheckpointError), match=r"could not be loaded|cannot be made"):
        network_of(described("TextClassifier", name="beside") | {"dict_kwargs": offered}, WEIGHTS, (), "file")
    with pytest.raises(ConfigError, match="could not be loaded"):
        TextTokens(tokenizer="beside").made([])
    texts = {"column": "text", "max_length": 8, "pretrained": "beside", "tokenizer": None}
    torch.save(with_network(content, MLP, Texts={"train_split": {}, "texts": texts}), "texts.ckpt")
    with pytest.raises(FCCOError):
        load("texts.ckpt", TabularMLP([3], in_features=6))
    assert not Path("ran").exists()


BLOCK = {
    "class_path": "torch.nn.TransformerEncoderLayer",
    "init_args": {"d_model": 64, "nhead": 2, "batch_first": True},
}


@pytest.mark.parametrize(
    "network",
    [
        {"class_path": "torch.nn.Linear", "init_args": {"in_features": 10**12, "out_features": 1}},
        {"class_path": "torch.nn.Embedding", "init_args": {"num_embeddings": 10**8, "embedding_dim": 100}},
        described("TabularMLP", hidden=[3000] * 100, in_features=6),
        described("TimmModel", name="vit_tiny_patch16_224") | {"dict_kwargs": {"embed_dim": 3 * 10**9}},
        {"class_path": "torch.nn.TransformerEncoder", "init_args": {"encoder_layer": BLOCK, "num_layers": 300}},
        {"class_path": "torch.nn.LSTM", "init_args": {"input_size": 1, "hidden_size": 1, "num_layers": 10**9}},
    ],
    ids=["one tensor", "that would fit in memory", "many tensors", "of a library", "copies", "many layers"],
)
def test_no_network_is_made_that_is_much_larger_than_its_weights(network):
    with pytest.raises(FCCOError, match=r"much larger than its weights|cannot be made"):
        network_of(network, WEIGHTS, (), "file")


def holding_itself():
    made = [None]
    made[0] = made
    return made


def doubled():
    made = [None]
    for _ in range(40):
        made = [made, made]
    return made


BOMBS = {
    "holds itself": holding_itself(),
    "doubled 40 times": doubled(),
    "a tensor without values": torch.zeros(1).expand(10**12),
    "a sparse tensor": torch.eye(2).to_sparse(),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_has_no_sane_size_is_refused(bomb, content, monkeypatch):
    monkeypatch.setattr(archives, "_MOST_VALUES", 50_000)  # a million are counted in a second, three times
    torch.save(content | {"bomb": BOMBS[bomb]}, "bomb.ckpt")
    for way in (load, FCCOModule.load_from_checkpoint, TabularDataModule.load_from_checkpoint):
        with pytest.raises(CheckpointError, match=r"checkpoint bomb.ckpt: not written by .* or incomplete: "):
            way("bomb.ckpt")


@pytest.mark.parametrize("entry", ["hyper_parameters", "hparams", "module_arguments", "datamodule_hyper_parameters"])
def test_hyper_parameters_do_not_choose_what_makes_a_module(entry, content):
    kind = TabularDataModule if entry.startswith("data") else FCCOModule
    hostile = {"_instantiator": "lightning.pytorch.cli.instantiate_module", "network": RUNS_CODE, "train": RUNS_CODE}
    torch.save(content | {entry: hostile}, "hostile.ckpt")
    with pytest.raises(CheckpointError, match=f"its entry `{entry}` contains code"):
        kind.load_from_checkpoint("hostile.ckpt")
    assert not Path("ran").exists()


def test_a_checkpoint_that_is_continued_removes_no_file_outside_its_run(content, make_trainer, tmp_path):
    """Lightning removes what a checkpoint says was the worst of the best."""
    (tmp_path / "precious").mkdir()
    kept = [tmp_path / "precious" / name for name in ("a.txt", "b.txt", "c.txt")]
    for path in kept:
        path.write_text("precious")
    folder = tmp_path / "run"
    saver = partial(ModelCheckpoint, folder, monitor="train_auc", mode="max", save_top_k=1, save_last=True)
    away, low = f"{folder}/../precious/", torch.tensor(-9.0)
    state = {
        "monitor": "train_auc", "dirpath": str(folder), "best_model_score": low, "current_score": low,
        "best_model_path": away + "a.txt", "best_k_models": {away + "b.txt": low}, "kth_value": low,
        "kth_best_model_path": away + "b.txt", "last_model_path": away + "c.txt",
    }  # fmt: skip
    torch.save(content | {"callbacks": {saver().state_key: state}}, "hostile.ckpt")
    trainer = make_trainer(max_epochs=3, callbacks=[saver()], enable_checkpointing=True)
    data = make_data(train=make_frame(60, 0), test=make_frame(20, 1), batch_size=12)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trainer.fit(FCCOModule(TabularMLP([3])), data, ckpt_path="hostile.ckpt")
    told = " ".join(str(one.message) for one in said)
    assert "b.txt is not removed: no callback of this run has written it." in told
    assert [path.read_text() for path in kept] == ["precious"] * 3
    assert len(list(folder.glob("*.ckpt"))) == 2  # its own are removed as before


def test_files_that_a_callback_without_folder_has_written_are_removed(make_trainer, tmp_path):
    trainer = make_trainer(max_epochs=1)
    trainer.fit(FCCOModule(TabularMLP([3])), make_data(train=make_frame(60, 0), batch_size=12))
    assert isinstance(trainer.strategy.checkpoint_io, RowsCheckpointIO)
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    trainer.strategy.remove_checkpoint(tmp_path / "own.ckpt")
    assert not (tmp_path / "own.ckpt").exists()


def test_files_of_rows_lie_beside_their_checkpoint(content):
    for save_id in ("../elsewhere", "/etc", ""):
        header = content["fcco"] | {"save_id": save_id}
        torch.save(content | {"fcco": header}, "hostile.ckpt")
        with pytest.raises(CheckpointError, match=r"`fcco.save_id` is '.*', and must be letters and digits"):
            load("hostile.ckpt")


def test_what_a_checkpoint_says_does_not_command_the_terminal(content, capsys):
    header = content["fcco"] | {"engine": {"algorithm": {"name": "[/bold]\x1b[2J"}}}
    torch.save(content | {"fcco": header}, "hostile.ckpt")
    assert run(["inspect", "hostile.ckpt"]) == 0
    assert r"[/bold]\x1b[2J" in capsys.readouterr().out
    torch.save(content | {"fcco": header | {"states": ["\x1b[2J"]}}, "hostile.ckpt")
    assert run(["inspect", "hostile.ckpt"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_exports_refuse_in_the_same_way(content):
    torch.save(with_network(content, RUNS_CODE), "hostile.ckpt")
    with pytest.raises(ConfigError, match="names the class"):
        export("hostile.ckpt", "out.pt2")

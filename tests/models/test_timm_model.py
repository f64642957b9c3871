"""Image networks of timm with a new head: arguments, frozen backbones, local weights."""

import pytest
import timm
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.models import TimmModel

NAME = "test_resnet"
IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_equals_the_network_of_timm():
    torch.manual_seed(0)
    ours = TimmModel(NAME, 2).eval()
    torch.manual_seed(0)
    theirs = timm.create_model(NAME, num_classes=2).eval()
    assert torch.equal(ours(IMAGES), theirs(IMAGES))


def test_further_arguments_reach_timm():
    model = TimmModel(NAME, in_chans=1, drop_rate=0.25, global_pool="max")
    assert model.model.conv1[0].in_channels == 1
    assert model.model.drop_rate == 0.25
    assert model.model.global_pool.pool_type == "max"
    with pytest.raises(ConfigError, match=r"does not take these arguments.*no_such"):
        TimmModel(NAME, no_such=1)


def test_unknown_name_lists_close_ones():
    with pytest.raises(ConfigError, match=r"name='resnet_18' is not a model of timm. Did you mean 'resnet18'"):
        TimmModel("resnet_18")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"drop_rate": 1.0}, "drop_rate"), ({"num_outputs": 0}, "num_outputs"), ({"in_chans": 0}, "in_chans")],
)
def test_rejects(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TimmModel(NAME, **arguments)


def test_what_the_network_expects_of_images():
    config = TimmModel(NAME).data_config
    assert config["input_size"] == (3, 160, 160)
    assert config["mean"] == (0.5, 0.5, 0.5)


def test_frozen_backbone_keeps_its_weights_and_its_batch_statistics():
    model = TimmModel(NAME, freeze_backbone=True)
    assert not model.model.bn1.training  # from the start: a fit does not call train()
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    model(IMAGES).sum().backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"model.fc.weight", "model.fc.bias"}


def test_no_connection_names_the_way_out(monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", fail)
    with pytest.raises(
        ConfigError, match=r"'test_resnet' could not be loaded \(ConnectionError: no route.*checkpoint_path"
    ):
        TimmModel(NAME, pretrained=True)


def saved(path, model):
    torch.save(model.state_dict(), path)
    return str(path)


def test_local_file_with_another_head(tmp_path):
    source = timm.create_model(NAME, num_classes=7)
    model = TimmModel(NAME, checkpoint_path=saved(tmp_path / "w.pth", source))
    assert model.model.fc.weight.shape == (1, 96)
    theirs = source.state_dict()
    for name, value in model.model.state_dict().items():
        assert name.startswith("fc.") or torch.equal(value, theirs[name])
    assert "state_dict" not in model.model.pretrained_cfg


def test_local_file_with_the_same_head_keeps_it(tmp_path):
    source = timm.create_model(NAME, num_classes=1).eval()
    model = TimmModel(NAME, checkpoint_path=saved(tmp_path / "w.pth", source)).eval()
    assert torch.equal(model(IMAGES), source(IMAGES).squeeze(1))


def test_local_file_for_grey_images(tmp_path):
    source = timm.create_model(NAME, num_classes=7)
    model = TimmModel(NAME, in_chans=1, checkpoint_path=saved(tmp_path / "w.pth", source))
    # a grey image through the adapted layer is the same image in all three channels through the first one
    torch.testing.assert_close(model.model.conv1[0].weight, source.conv1[0].weight.sum(1, keepdim=True))


def test_refuses_files_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint_path='nowhere.pth': no such file"):
        TimmModel(NAME, checkpoint_path="nowhere.pth")
    other = saved(tmp_path / "other.pth", timm.create_model("test_vit", num_classes=7))
    with pytest.raises(ConfigError, match=r"other.pth' does not hold the weights of 'test_resnet'"):
        TimmModel(NAME, checkpoint_path=other)
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ConfigError, match=r"text.pth' does not hold"):
        TimmModel(NAME, checkpoint_path=str(tmp_path / "text.pth"))
    with pytest.raises(ConfigError, match="both give weights"):
        TimmModel(NAME, pretrained=True, checkpoint_path=other)

import pytest
import timm
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.models import TimmModel

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("outputs", "shape"), [(1, (2,)), (3, (2, 3))])
def test_output_shapes(outputs, shape):
    assert TimmModel("resnet18", outputs)(IMAGES).shape == shape


def test_equals_the_network_of_timm():
    torch.manual_seed(0)
    ours = TimmModel("resnet18", 2).eval()
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=2).eval()
    assert torch.equal(ours(IMAGES), theirs(IMAGES))


def test_further_arguments_reach_timm():
    model = TimmModel("resnet18", in_chans=1, drop_rate=0.25, global_pool="max")
    assert model.model.conv1.in_channels == 1
    assert model.model.drop_rate == 0.25
    assert model.model.global_pool.pool_type == "max"
    with pytest.raises(ConfigError, match=r"does not take these arguments.*no_such"):
        TimmModel("resnet18", no_such=1)


def test_unknown_name_lists_close_ones():
    with pytest.raises(ConfigError, match=r"name='resnet_18' is not a model of timm. Did you mean 'resnet18'"):
        TimmModel("resnet_18")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"drop_rate": 1.0}, "drop_rate"), ({"num_outputs": 0}, "num_outputs"), ({"in_chans": 0}, "in_chans")],
)
def test_rejects(arguments, message):
    with pytest.raises(ConfigError, match=message):
        TimmModel("resnet18", **arguments)


def test_what_the_network_expects_of_images():
    config = TimmModel("resnet18").data_config
    assert config["input_size"] == (3, 224, 224)
    assert config["mean"] == (0.485, 0.456, 0.406)


def test_frozen_backbone_keeps_its_weights_and_its_batch_statistics():
    model = TimmModel("resnet18", freeze_backbone=True)
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
    with pytest.raises(ConfigError, match=r"'resnet18' could not be had \(ConnectionError: no route.*checkpoint_path="):
        TimmModel("resnet18", pretrained=True)


def saved(path, model):
    torch.save(model.state_dict(), path)
    return str(path)


def test_local_file_with_another_head(tmp_path):
    source = timm.create_model("resnet18", num_classes=7)
    model = TimmModel("resnet18", checkpoint_path=saved(tmp_path / "w.pth", source))
    assert model.model.fc.weight.shape == (1, 512)
    theirs = source.state_dict()
    for name, value in model.model.state_dict().items():
        assert name.startswith("fc.") or torch.equal(value, theirs[name])
    assert "state_dict" not in model.model.pretrained_cfg


def test_local_file_with_the_same_head_keeps_it(tmp_path):
    source = timm.create_model("resnet18", num_classes=1).eval()
    model = TimmModel("resnet18", checkpoint_path=saved(tmp_path / "w.pth", source)).eval()
    assert torch.equal(model(IMAGES), source(IMAGES).squeeze(1))


def test_local_file_for_grey_images(tmp_path):
    source = timm.create_model("resnet18", num_classes=7)
    model = TimmModel("resnet18", in_chans=1, checkpoint_path=saved(tmp_path / "w.pth", source))
    # a grey image through the adapted layer is the same image in all three channels through the first one
    torch.testing.assert_close(model.model.conv1.weight, source.conv1.weight.sum(1, keepdim=True))


def test_refuses_files_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"checkpoint_path='nowhere.pth': no such file"):
        TimmModel("resnet18", checkpoint_path="nowhere.pth")
    other = saved(tmp_path / "other.pth", timm.create_model("resnet10t", num_classes=7))
    with pytest.raises(ConfigError, match=r"other.pth' does not hold the weights of 'resnet18'"):
        TimmModel("resnet18", checkpoint_path=other)
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(ConfigError, match=r"text.pth' does not hold"):
        TimmModel("resnet18", checkpoint_path=str(tmp_path / "text.pth"))
    with pytest.raises(ConfigError, match="both give weights"):
        TimmModel("resnet18", pretrained=True, checkpoint_path=other)

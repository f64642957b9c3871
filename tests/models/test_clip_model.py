"""The CLIP model against open_clip: embeddings, temperatures, precision, cached class embeddings."""

import copy
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import open_clip
import pytest
import timm.optim
import torch
from safetensors.torch import save_file
from torch import nn
from torch.func import functional_call

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import CLIPModel
from fcco_lightning.models.clip_config import ByteTokenizer, clip_config, tokenizer
from fcco_lightning.models.outputs import Embeddings

TEXT = {"context_length": 12, "vocab_size": 258, "width": 16, "heads": 2, "layers": 2}
VIT = {"image_size": 16, "patch_size": 8, "width": 16, "layers": 3, "head_width": 8}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
TIMM = {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "token"}
FORMS = {
    "plain": {"vision_cfg": VIT},
    "custom_text": {"vision_cfg": VIT, "custom_text": True},
    "resnet": {"vision_cfg": RESNET},
    "timm": {"vision_cfg": TIMM, "custom_text": True},
    "siglip": {"vision_cfg": VIT, "init_logit_bias": -10.0, "nonscalar_logit_scale": True},
}
NAMES, TEMPLATES = ["one", "two", "three"], ["a {}", "the {}."]


def config_file(folder, form="plain", **changes):
    path = folder / f"{form}.json"
    content = {"embed_dim": 8, "text_cfg": TEXT, **FORMS[form], "tokenizer": "bytes", **changes}
    path.write_text(json.dumps(content))
    return str(path)


@pytest.fixture
def small(tmp_path):
    def make(form="plain", /, **arguments):
        return with_classes(CLIPModel(config_file(tmp_path, form), **arguments))

    return make


def with_classes(model):
    tokens = ByteTokenizer(12)([t.format(n) for n in NAMES for t in TEMPLATES]).view(3, 2, 12)
    model.adapt(SimpleNamespace(class_tokens=tokens))
    return model


def images(model, n=4, seed=0):
    size = model.config.image_size
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def pairs(model, n=4):
    return {"x": images(model, n), "text": ByteTokenizer(12)([f"pair {i}" for i in range(n)])}


def parts(model):
    return {"target": pairs(model), "protected": {"x": images(model, 5, seed=1)}}


def loss_of(outputs):
    """Something that depends on all outputs of a batch of parts."""
    pair, logits = outputs["target"], outputs["protected"]
    return (pair.image @ pair.text.T).square().sum() + logits.logsumexp(1).sum() - logits[:, 0].sum()


class Calls:
    """Counts how often the towers run, and on how many rows."""

    def __init__(self, model):
        self.images, self.texts = [], []
        text = getattr(model.model, "text", model.model).transformer
        model.model.visual.register_forward_hook(lambda module, inputs, output: self.images.append(len(inputs[0])))
        text.register_forward_hook(lambda module, inputs, output: self.texts.append(len(inputs[0])))


# --- what comes out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_pairs_and_class_logits_are_those_of_open_clip(small, form):
    ours = small(form).eval()
    theirs, batch = ours.model, pairs(ours)
    with torch.no_grad():
        embedded, logits = ours(batch), ours({"x": batch["x"]})
        torch.testing.assert_close(embedded.image, theirs.encode_image(batch["x"], normalize=True))
        torch.testing.assert_close(embedded.text, theirs.encode_text(batch["text"], normalize=True))
        classifier = open_clip.build_zero_shot_classifier(theirs, ByteTokenizer(12), NAMES, TEMPLATES)
        torch.testing.assert_close(logits, embedded.image @ classifier / 0.07)  # open_clip starts at log(1 / 0.07)
    assert isinstance(embedded, Embeddings)


def test_equals_a_model_that_open_clip_made_itself(tmp_path, monkeypatch):
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "RN50", {"embed_dim": 8, "text_cfg": TEXT, **FORMS["plain"]})
    theirs = open_clip.create_model("RN50").eval()
    torch.save(theirs.state_dict(), tmp_path / "w.pt")
    ours = CLIPModel(config_file(tmp_path), str(tmp_path / "w.pt")).eval()
    batch = pairs(ours)
    image, text, scale = theirs(batch["x"], batch["text"])
    embedded = ours(batch)
    assert torch.equal(embedded.image, image)
    assert torch.equal(embedded.text, text)
    assert ours.model.logit_scale.exp() == scale


def test_class_temperature_divides(small):
    model = small(class_temperature=0.5).eval()
    batch = images(model)
    logits = model({"x": batch})
    model.class_temperature = None
    nn.init.constant_(model.model.logit_scale, 2.0)
    torch.testing.assert_close(model({"x": batch}), logits * 0.5 * torch.tensor(2.0).exp())


@pytest.mark.parametrize("training", [True, False])
def test_parts_are_what_each_is_alone_but_share_the_calls(small, training):
    model = small().train(training)
    batch = parts(model)
    alone = {name: model(part) for name, part in batch.items()}
    model.train(training)  # forgets the classes
    calls = Calls(model)
    together = model(batch)
    assert list(together) == ["target", "protected"]
    torch.testing.assert_close(together["target"], alone["target"])
    torch.testing.assert_close(together["protected"], alone["protected"])
    model({"a": pairs(model), "b": pairs(model, 2)})  # which need no classes
    assert calls.images == [9, 6]
    assert calls.texts == [4 + 6, 6]


def test_every_trained_parameter_gets_a_gradient_from_pairs(small):
    for form in ("plain", "custom_text", "resnet", "siglip"):
        model = small(form)
        pair = model(pairs(model))
        (pair.image @ pair.text.T).square().sum().backward()
        # DDP would stop at a parameter that takes no part
        assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
        assert not model.model.logit_scale.requires_grad
        assert model.model.logit_bias is None or not model.model.logit_bias.requires_grad


def test_float32_comes_out_of_autocast_and_float64_stays(small):
    model = small().eval()
    batch = parts(model)
    exact = model.double()({k: {n: v.double() if n == "x" else v for n, v in p.items()} for k, p in batch.items()})
    assert exact["target"].image.dtype == exact["protected"].dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.float()(batch)
    for name, value in {"image": rough["target"].image, "text": rough["target"].text}.items():
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.norm(dim=1), torch.ones(4), msg=name)  # bfloat16 rows would be 0.4 % off
    assert rough["protected"].dtype == torch.float32
    torch.testing.assert_close(rough["protected"].double(), exact["protected"], rtol=0, atol=0.4)
    assert not torch.equal(rough["protected"], rough["protected"].bfloat16().float())


def test_temperature_of_a_bfloat16_model_is_not_rounded(small):
    model = small().eval().bfloat16()
    batch = {"x": images(model).bfloat16()}
    logits = model(batch)
    model.class_temperature = 1 / model.model.logit_scale.double().exp().item()
    torch.testing.assert_close(logits, model(batch))
    assert logits.dtype == torch.float32


def test_what_cannot_be_computed_is_refused(tmp_path):
    model = CLIPModel(config_file(tmp_path))
    with pytest.raises(ConfigError, match="the datamodule has no class_tokens"):
        model({"x": images(model)})
    with pytest.raises(DataError, match=r"part 'protected' of the batch has no images 'x', only \['y'\]"):
        model({"target": pairs(model), "protected": {"y": torch.ones(2)}})


# --- classes that are kept ---------------------------------------------------------------------------------------


def fresh(model, batch):
    """Class logits without anything kept."""
    with torch.no_grad():
        return copy.deepcopy(model)(batch)


def test_classes_are_kept_until_the_text_tower_or_the_prompts_change(small):
    model = small().eval()
    batch, calls = {"x": images(model)}, Calls(model)
    with torch.inference_mode():
        first = model(batch)
        assert torch.equal(model(batch), first)
        model(pairs(model))
    assert calls.texts == [6, 4]
    with torch.no_grad():
        model.model.visual.proj.mul_(-1)
        model(batch)
        assert calls.texts == [6, 4]
        bias = model.model.ln_final.bias
        for change in (lambda: bias.add_(1.0), lambda: setattr(bias, "data", torch.arange(16.0))):
            before = model(batch)
            change()
            torch.testing.assert_close(model(batch), fresh(model, batch))
            assert not torch.allclose(model(batch), before)
        model.adapt(SimpleNamespace(class_tokens=ByteTokenizer(12)(["x", "y"]).view(2, 1, 12)))
        assert model(batch).shape == (4, 2)


def test_classes_are_forgotten_where_weights_change_behind_the_back(small):
    """Lightning's averaging writes to ``.data``, which the version does not count, but always switches the mode."""
    model = small().eval()
    batch = {"x": images(model)}
    with torch.no_grad():
        before = model(batch)
        model.model.ln_final.weight.data.neg_()
        after = model.eval()(batch)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, fresh(model, batch))


def test_kept_classes_are_not_those_of_other_weights(small):
    model = small().eval()
    other = {name: value + 0.1 for name, value in model.state_dict().items()}
    batch = {"x": images(model)}
    with torch.no_grad():
        own = model(batch)
        swapped = functional_call(model, other, (batch,))
        assert torch.equal(model(batch), own)
        copied = copy.deepcopy(model)
        copied.load_state_dict(other)
        torch.testing.assert_close(swapped, copied(batch))
        assert not torch.allclose(swapped, own)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(batch), copy.deepcopy(model)(batch))
        assert torch.equal(model(batch), own)
    assert pickle.loads(pickle.dumps(model))._cached_classes is None  # noqa: S301


def test_kept_classes_are_not_those_of_weights_that_lay_in_the_same_place(small):
    model, name = small().eval(), "model.ln_final.bias"
    batch = {"x": images(model)}
    memory = np.zeros(16, dtype=np.float32)
    with torch.no_grad():
        functional_call(model, {name: torch.from_numpy(memory)}, (batch,))
        memory[:] = np.arange(16)
        called = functional_call(model, {name: torch.from_numpy(memory)}, (batch,))
        model.model.ln_final.bias.copy_(torch.arange(16))
        torch.testing.assert_close(called, fresh(model, batch))


def test_classes_of_a_frozen_text_tower_are_kept_in_training_too(small):
    model = small(freeze_text=True)
    batch, calls = parts(model), Calls(model)
    with torch.inference_mode():
        model({"x": batch["target"]["x"]})
    for _ in range(2):
        loss_of(model(batch)).backward()
    assert calls.texts == [6, 4, 4]
    assert model.model.visual.proj.grad.norm() > 0


def test_classes_have_gradients_where_the_text_tower_learns(small):
    model = small()
    model({"x": images(model)})[:, 0].sum().backward()
    assert model.model.text_projection.grad.norm() > 0


# --- what is trained ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("plain", {"freeze_image": True}),
        ("plain", {"freeze_text": True}),
        ("resnet", {"freeze_image": True}),
        ("resnet", {"freeze_image": 2}),
        ("timm", {"freeze_image": True, "freeze_text": 1}),
        ("custom_text", {"freeze_text": True, "freeze_image": 1}),
    ],
)
def test_what_is_frozen_does_not_move(small, form, arguments):
    model = small(form, **arguments)  # right after being made, and after a change to training
    for _ in range(2):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        loss_of(model(parts(model))).backward()
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0).step()
        moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
        images_moved = {name for name in moved if name.startswith("model.visual.")}
        assert bool(images_moved) == (arguments.get("freeze_image") is not True)
        assert bool(moved - images_moved) == (arguments.get("freeze_text") is not True)
        assert all((p.grad is not None) == p.requires_grad for p in model.parameters())
        model.eval().train()
    if form == "resnet" and arguments["freeze_image"] == 2:
        top = tuple(f"model.visual.{name}." for name in ("layer3", "layer4", "attnpool"))
        assert all(name.startswith(top) for name in images_moved)
        assert "model.visual.layer3.0.bn1.running_mean" in moved


@pytest.mark.parametrize("form", ["plain", "custom_text"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_partly_frozen_as_open_clip_locks(small, form, blocks):
    ours = small(form, freeze_image=blocks, freeze_text=blocks) if blocks == 1 else small(form, freeze_image=blocks)
    theirs = small(form).model
    theirs.lock_image_tower(unlocked_groups=blocks + 1)  # its groups count the projection
    if blocks == 1:
        theirs.lock_text_tower(unlocked_layers=blocks + 1)
    theirs.logit_scale.requires_grad_(False)
    assert trained(ours.model) == trained(theirs)


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_frozen_towers_build_no_graph(small):
    for frozen, learning in (("image", "text"), ("text", "image")):
        model, recording = small(**{f"freeze_{frozen}": True}), {}
        for tower, top in (("image", model.model.visual.ln_post), ("text", model.model.ln_final)):
            top.register_forward_hook(lambda *_, t=tower, r=recording: r.update({t: torch.is_grad_enabled()}))
        pair = model(pairs(model))
        assert recording == {frozen: False, learning: True}
        assert not getattr(pair, frozen).requires_grad
        assert getattr(pair, learning).requires_grad


@pytest.mark.parametrize(
    ("form", "arguments", "message"),
    [
        ("plain", {"freeze_image": True, "freeze_text": True}, "freeze the whole network"),
        ("plain", {"freeze_image": 4}, "freeze_image=4, but the tower has only 3 blocks"),
        ("plain", {"freeze_text": 0}, "freeze_text must be a whole number >= 1, got 0"),
        ("plain", {"layer_decay": 0.0}, r"layer_decay must lie in \(0, 1\], got 0.0"),
        ("plain", {"class_temperature": 0.0}, "class_temperature must be a finite number > 0, got 0"),
        ("resnet", {"grad_checkpointing": True}, "open_clip does not offer it for the ResNet"),
    ],
)
def test_rejects(small, form, arguments, message):
    with pytest.raises(ConfigError, match=message):
        small(form, **arguments)


@pytest.mark.parametrize("form", FORMS)
def test_decay_is_what_timm_decides(small, form):
    model = small(form)
    exempt = model.model.no_weight_decay()
    if form == "timm":
        exempt |= {f"visual.trunk.{n}" for n in model.model.visual.trunk.no_weight_decay()}
    no_decay, decay = timm.optim.param_groups_weight_decay(model.model, 0.1, no_weight_decay_list=exempt)
    groups = {group.decay: set(map(id, group.params)) for group in model.parameter_groups()}
    assert len(model.parameter_groups()) == 2
    assert groups == {False: set(map(id, no_decay["params"])), True: set(map(id, decay["params"]))}
    assert {g.lr_scale for g in model.parameter_groups()} == {1.0}


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "plain",
            {
                "visual.proj": 0,
                "visual.ln_post.weight": 0,
                "visual.transformer.resblocks.2.attn.out_proj.weight": 1,
                "visual.transformer.resblocks.0.mlp.c_proj.bias": 3,
                "visual.class_embedding": 4,
                "visual.conv1.weight": 4,
                "text_projection": 0,
                "ln_final.bias": 0,
                "transformer.resblocks.1.ln_1.weight": 1,
                "transformer.resblocks.0.ln_1.weight": 2,
                "token_embedding.weight": 3,
                "positional_embedding": 3,
            },
        ),
        ("custom_text", {"text.text_projection": 0, "text.transformer.resblocks.0.ln_1.weight": 2}),
        ("custom_text", {"text.ln_final.weight": 0, "text.token_embedding.weight": 3}),
        ("resnet", {"visual.attnpool.q_proj.weight": 0, "visual.layer4.0.conv1.weight": 1}),
        ("resnet", {"visual.layer1.0.bn1.bias": 4, "visual.conv3.weight": 5, "visual.bn1.weight": 5}),
        ("timm", {"visual.head.proj.weight": 0, "visual.trunk.norm.weight": 1, "visual.trunk.cls_token": 7}),
        ("timm", {"visual.trunk.blocks.5.attn.proj.weight": 1, "visual.trunk.blocks.0.mlp.fc1.weight": 6}),
    ],
)
def test_learning_rates_fall_from_the_top(small, form, expected):
    model = small(form, layer_decay=0.5)
    groups = model.parameter_groups()
    scale = {id(p): group.lr_scale for group in groups for p in group.params}
    assert sum(len(group.params) for group in groups) == len(scale) == len(trained(model))
    assert {name: scale[id(model.model.get_parameter(name))] for name in expected} == {
        name: 0.5**depth for name, depth in expected.items()
    }
    assert all(p.ndim > 1 for group in groups if group.decay for p in group.params)


@pytest.mark.parametrize("form", ["plain", "custom_text"])
def test_checkpointing_gives_the_same_gradients(small, form):
    plain = small(form)
    checkpointed = small(form, grad_checkpointing=True)
    checkpointed.load_state_dict(plain.state_dict())
    blocks = getattr(checkpointed.model, "text", checkpointed.model).transformer.resblocks
    runs = []
    blocks[0].register_forward_pre_hook(lambda *_: runs.append(1))
    for model in (plain, checkpointed):
        loss_of(model(parts(model))).backward()
    assert len(runs) == 2  # once more in the backward pass
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


# --- weights -----------------------------------------------------------------------------------------------------


def save_as(kind, folder, model):
    state, path = model.model.state_dict(), folder / f"weights.{kind}"
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "ckpt":  # as Lightning writes it: other parts of the problem, optimizer states, hyperparameters
        network = {f"network.{name}": value for name, value in model.state_dict().items()}
        others = {"estimator.rows": torch.ones(3)}
        torch.save({"epoch": 3, "state_dict": {**network, **others}, "optimizer_states": [{"state": {}}]}, path)
    elif kind == "pt":  # as open_clip's training writes it
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}}, path)
    else:
        torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("form", ["plain", "custom_text", "resnet"])
@pytest.mark.parametrize("kind", ["bin", "pt", "safetensors", "ckpt"])
def test_local_weights(small, tmp_path, form, kind):
    source = small(form)
    nn.init.constant_(source.model.logit_scale, 1.25)
    loaded = small(form, pretrained=save_as(kind, tmp_path, source))
    assert not torch.equal(small(form).model.visual.conv1.weight, source.model.visual.conv1.weight)
    for name, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.parametrize("kind", ["bin", "safetensors", "ckpt"])
def test_weights_of_another_architecture_are_refused(small, tmp_path, kind):
    path = save_as(kind, tmp_path, CLIPModel(config_file(tmp_path, vision_cfg={**VIT, "layers": 4})))
    with pytest.raises(ConfigError, match=r"weights\.\w+' does not hold the weights of .*resblocks\.3"):
        small(pretrained=path)


def test_damaged_and_missing_weights_are_refused(small, tmp_path):
    with pytest.raises(
        ConfigError, match=r"stage_one\.ckpt' is neither a tag .* If a first stage writes it, train that"
    ):
        small(pretrained="runs/stage_one.ckpt")
    with pytest.raises(ConfigError, match=r"pretrained='nowhere\.pt' is neither a tag that open_clip has"):
        small(pretrained="nowhere.pt")
    for kind in ("bin", "safetensors", "ckpt"):
        path = tmp_path / f"text.{kind}"
        path.write_text("no weights")
        with pytest.raises(ConfigError, match=rf"text.{kind}' does not hold the weights"):
            small(pretrained=str(path))
    torch.save({"state_dict": {"network.layers.0.weight": torch.ones(1)}}, tmp_path / "other.ckpt")
    with pytest.raises(ConfigError, match=r"its network is no CLIPModel.*network.layers.0.weight"):
        small(pretrained=str(tmp_path / "other.ckpt"))


def test_weights_are_read_without_running_code(small, tmp_path):
    class Harmful:
        def __reduce__(self):
            return (tmp_path / "made").mkdir, ()

    for kind in ("ckpt", "pt"):
        torch.save({"state_dict": Harmful()}, tmp_path / f"harmful.{kind}")
        with pytest.raises(ConfigError, match="does not hold the weights"):
            small(pretrained=str(tmp_path / f"harmful.{kind}"))
    assert not (tmp_path / "made").exists()


def pretend(monkeypatch, folder, download, **settings):
    """Make open_clip take the small file for a "RN50" and its weights for the tag "cc12m"."""
    content = json.loads(Path(config_file(folder)).read_text())
    del content["tokenizer"]
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "RN50", content)
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED["RN50"], "cc12m", {"hf_hub": "some/where/", **settings})
    monkeypatch.setattr(open_clip, "download_pretrained", download)


def test_tags_are_fetched(small, monkeypatch, tmp_path):
    source = small()
    pretend(monkeypatch, tmp_path, lambda _: save_as("bin", tmp_path, source), mean=(0.1, 0.2, 0.3))
    loaded = CLIPModel("RN50", "cc12m")
    assert torch.equal(loaded.model.visual.proj, source.model.visual.proj)
    assert loaded.config.mean == (0.1, 0.2, 0.3)


def test_no_connection_names_the_way_out(monkeypatch, tmp_path):
    def fail(weights):
        raise ConnectionError("no route")

    pretend(monkeypatch, tmp_path, fail)
    with pytest.raises(
        ConfigError, match=r"could not be loaded \(ConnectionError: no route.*huggingface.co/some/where"
    ):
        CLIPModel("RN50", "cc12m")
    with pytest.raises(ConfigError, match=r"'opena' is neither a tag .* nor a file.*Tags are 'openai'"):
        CLIPModel("RN50", "opena")


def test_weights_of_another_activation_are_refused(monkeypatch, tmp_path):
    pretend(monkeypatch, tmp_path, None, quick_gelu=True)
    with pytest.raises(ConfigError, match=r"the activation QuickGELU.*Use name='RN50-quickgelu'"):
        CLIPModel("RN50", "cc12m")


def test_what_open_clip_cannot_build_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot build name=.*no_such"):
        CLIPModel(config_file(tmp_path, no_such=1))
    with pytest.raises(ConfigError, match="CoCa"):
        CLIPModel("coca_ViT-B-32")


# --- the datamodule ----------------------------------------------------------------------------------------------


def test_adapts_to_data_of_the_same_architecture(small):
    model = small()
    config = model.config
    tokens = torch.ones(4, 1, 12, dtype=torch.int64)
    data = SimpleNamespace(class_tokens=tokens, image_size=16, context_length=12, vocab_size=258, mean=config.mean)
    model.adapt(data)
    assert model({"x": images(model)}).shape == (4, 4)
    model.adapt(None)
    with pytest.raises(ConfigError, match="datamodule has no class_tokens"):
        model({"x": images(model)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"image_size": 224}, "image_size is 224, that of .*plain.json' is 16: .*Give data.model.name the same"),
        ({"context_length": 77}, "context_length is 77, that of .* is 12"),
        ({"vocab_size": 49408}, "vocab_size is 49408, that of .* is 258"),
        ({"mean": (0.5, 0.5, 0.5)}, r"mean is \(0.5, 0.5, 0.5\), that of"),
        ({"class_tokens": torch.ones(3, 2, 77, dtype=torch.int64)}, "context_length is 77"),
        ({"class_tokens": torch.ones(3, 12, dtype=torch.int64)}, r"got torch.int64 of shape \(3, 12\)"),
        ({"class_tokens": torch.ones(3, 2, 12)}, r"class_tokens must be int64 .* got torch.float32"),
        ({"class_tokens": torch.ones(0, 2, 12, dtype=torch.int64)}, "none of them 0"),
    ],
)
def test_refuses_data_of_another_architecture(small, data, message):
    with pytest.raises(ConfigError, match=message):
        small().adapt(SimpleNamespace(**data))


# --- configurations and tokenizers -------------------------------------------------------------------------------


def test_tiny_is_small():
    model, config = CLIPModel("tiny"), clip_config("tiny")
    assert sum(p.numel() for p in model.parameters()) <= 500_000
    assert (config.image_size, config.context_length, config.vocab_size, config.embed_dim) == (16, 32, 258, 64)
    pair = model({"x": images(model), "text": tokenizer(config)(["a", "b", "c", "d"])})
    assert pair.image.shape == pair.text.shape == (4, 64)


def test_names_of_open_clip():
    config = clip_config("ViT-B-32-quickgelu")
    assert config.model == open_clip.get_model_config("ViT-B-32-quickgelu")
    assert (config.image_size, config.context_length, config.vocab_size, config.embed_dim) == (224, 77, 49408, 512)
    assert (config.mean, config.std) == (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
    assert config.interpolation == "bicubic"
    assert clip_config("ViT-B-16-SigLIP").mean == (0.5, 0.5, 0.5)
    assert clip_config("ViT-L-14").mean == open_clip.OPENAI_DATASET_MEAN
    assert clip_config("ViT-L-14", "laion2b-s32b-b82k").mean == (0.5, 0.5, 0.5)


def test_what_a_config_holds_belongs_to_it():
    clip_config("tiny").model["vision_cfg"]["layers"] = 99
    assert clip_config("tiny").model["vision_cfg"]["layers"] == 3


def test_files_as_the_hub_stores_them(tmp_path):
    path = tmp_path / "open_clip_config.json"
    content = {"model_cfg": {"embed_dim": 8, "vision_cfg": {**VIT, "image_size": [16, 16]}, "text_cfg": TEXT}}
    content["preprocess_cfg"] = {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear"}
    path.write_text(json.dumps({**content, "tokenizer": "bytes"}))
    config = clip_config(str(path))
    assert (config.mean, config.std, config.interpolation) == ((0, 0, 0), (1, 1, 1), "bilinear")
    assert config.image_size == 16
    assert isinstance(tokenizer(config), ByteTokenizer)
    CLIPModel(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_cfg": {**VIT, "image_size": [16, 32]}}, "square images"),
        ({"vision_cfg": None}, "is not an architecture in open_clip's form"),
        ({"tokenizer": "words"}, '"tokenizer" must be "bytes" or left out, got \'words\''),
        ({"text_cfg": {**TEXT, "vocab_size": 200}}, "needs text_cfg.vocab_size >= 258, got 200"),
        ({"preprocess_cfg": {"mean": [0.5]}}, "three numbers"),
    ],
)
def test_refuses_files_that_are_no_architecture(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        clip_config(config_file(tmp_path, **changes))


def test_refuses_unknown_names(tmp_path):
    with pytest.raises(ConfigError, match=r"name='ViT-B16' is neither.* Did you mean 'ViT-B-16'"):
        clip_config("ViT-B16")
    with pytest.raises(ConfigError, match=r"name='no\.json': no such file"):
        clip_config("no.json")
    (tmp_path / "damaged.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        clip_config(str(tmp_path / "damaged.json"))
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds a list"):
        clip_config(str(tmp_path / "list.json"))


def test_bytes_of_texts():
    ids = pickle.loads(pickle.dumps(ByteTokenizer(8)))(["Ä1", "much too long", ""])  # noqa: S301
    assert ids.dtype == torch.int64
    assert ids.tolist() == [
        [256, *"ä1".encode(), 257, 0, 0, 0],
        [256, *b"much t", 257],
        [256, 257, 0, 0, 0, 0, 0, 0],
    ]
    assert ids.argmax(1).tolist() == [4, 7, 1]  # where open_clip's pooling looks
    with pytest.raises(ConfigError, match="context_length must be at least 3"):
        ByteTokenizer(2)


def test_tokens_of_open_clip():
    ours = pickle.loads(pickle.dumps(tokenizer(clip_config("ViT-B-16"))))  # noqa: S301
    texts = ["a photo of a dog", "weather: foggy " * 40]
    assert torch.equal(ours(texts), open_clip.get_tokenizer("ViT-B-16")(texts))


def test_tokenizers_that_do_not_fit_or_cannot_be_had(tmp_path, monkeypatch):
    path = config_file(tmp_path, tokenizer="open_clip")
    with pytest.raises(ConfigError, match=r'has 49408 ids, but text_cfg\.vocab_size is 258.*"tokenizer": "bytes"'):
        tokenizer(clip_config(path))

    def fail(*args, **kwargs):
        raise ModuleNotFoundError("No module named 'transformers'")

    monkeypatch.setattr("open_clip.tokenizer.HFTokenizer", fail)
    with pytest.raises(ConfigError, match=r"of 'roberta-ViT-B-32' could not be loaded \(ModuleNotFound.*transformers"):
        tokenizer(clip_config("roberta-ViT-B-32"))

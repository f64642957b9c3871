"""Text classifiers: padding, weights from a folder, and refused combinations of arguments."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from fcco_lightning import ConfigError, TextClassifier
from fcco_lightning.engine.micro_batches import recomputed
from fcco_lightning.models.head import head_of, renew
from tests.texts import TINY

KINDS = {
    "bert": TINY,
    "distilbert": {"model_type": "distilbert", "vocab_size": 120, "dim": 8, "n_layers": 1, "n_heads": 2}
    | {"hidden_dim": 8},
    "roberta": TINY | {"model_type": "roberta"},
    "gpt2": {"model_type": "gpt2", "vocab_size": 120, "n_embd": 8, "n_layer": 1, "n_head": 2, "eos_token_id": 119},
    "gpt2 of few tokens": {"model_type": "gpt2", "vocab_size": 120, "n_embd": 8, "n_layer": 1, "n_head": 2},
}
LENGTHS = (3, 9, 5, 9)


@pytest.fixture(params=KINDS)
def network(request):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return TextClassifier(config=KINDS[request.param]).eval()


def texts():
    rows = [torch.randint(5, 100, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    return rows, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def scores(network, x):
    return network({"target": {"x": x}})["target"]


def gradients(network):
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def test_padding_changes_neither_loss_nor_gradient(network):
    rows, x = texts()
    y = torch.tensor([0.0, 1.0, 1.0, 0.0])
    loss = loss_of(scores(network, x), y)
    loss.backward()
    together = gradients(network)
    network.zero_grad()
    alone = torch.stack([loss_of(scores(network, row[None]), y[i : i + 1]) for i, row in enumerate(rows)]).mean()
    alone.backward()
    torch.testing.assert_close(loss, alone)
    torch.testing.assert_close(together, gradients(network), rtol=1e-4, atol=1e-6)
    wider = torch.nn.functional.pad(x, (0, 7), value=-1)
    torch.testing.assert_close(scores(network, wider), scores(network, x))


def test_scores_are_those_of_the_library(network):
    rows, x = texts()
    for row, score in zip(rows, scores(network, x), strict=True):
        expected = network.model(input_ids=row[None]).logits
        torch.testing.assert_close(score, expected[0, 0])


def test_parts_and_micro_batches():
    network = TextClassifier(config=TINY, num_outputs=3).train()
    _, x = texts()
    batch = {"target": {"x": x}, "dual": {"x": x[:2, :5]}}
    outputs = network(batch)
    assert {name: tuple(out.shape) for name, out in outputs.items()} == {"target": (4, 3), "dual": (2, 3)}
    outputs["target"].square().sum().backward()
    whole = gradients(network)
    network.zero_grad()
    recomputed(network, {"target": {"x": x}}, 2, network)["target"].square().sum().backward()
    torch.testing.assert_close(gradients(network), whole, rtol=1e-4, atol=1e-6)


def test_weights_from_a_folder(tmp_path, network):
    network.model.save_pretrained(tmp_path)
    _, x = texts()
    again = TextClassifier(str(tmp_path)).eval()
    torch.testing.assert_close(scores(again, x), scores(network, x))
    wider = TextClassifier(str(tmp_path), 4)
    assert scores(wider, x).shape == (4, 4)
    fresh = TextClassifier(str(tmp_path), pretrained=False)
    (name, kept), *_ = network.model.base_model.named_parameters()
    assert torch.equal(dict(wider.model.base_model.named_parameters())[name], kept)
    assert not torch.equal(dict(fresh.model.base_model.named_parameters())[name], kept)
    assert wider.training


def test_biases_and_norms_do_not_decay(network):
    decayed, others = network.parameter_groups()
    assert (decayed.decay, others.decay) == (True, False)
    assert len(decayed.params) + len(others.params) == len(list(network.parameters()))
    names = {name for name, p in network.named_parameters() if any(p is q for q in others.params)}
    marks = ("bias", "norm", "ln_")
    assert names == {n for n, _ in network.named_parameters() if any(mark in n.lower() for mark in marks)}


def test_the_head_can_start_afresh(network):
    before = {name: p.clone() for name, p in network.named_parameters()}
    renew(head_of(network), 1)
    changed = {name for name, p in network.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert not any(name.startswith(f"model.{network.model.base_model_prefix}.") for name in changed)


def test_what_a_datamodule_has_must_fit():
    network = TextClassifier(config=TINY)
    for fits in (None, SimpleNamespace(), SimpleNamespace(vocab_size=120, max_length=512)):
        network.adapt(fits)
    for known in ({"vocab_size": 121}, {"max_length": 513}):
        ((name, value),) = known.items()
        with pytest.raises(
            ConfigError, match=rf"datamodule's {name} is {value}, but BertFor.* allows at most {value - 1}"
        ):
            network.adapt(SimpleNamespace(**known))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Exactly one of name and config"),
        ({"name": "a", "config": TINY}, "Exactly one of name and config must be given, got name='a'"),
        ({"config": TINY, "num_outputs": 0}, "num_outputs must be a whole number >= 1"),
        ({"config": TINY | {"model_type": "bret"}}, "'model_type': 'bret'.*bert or distilbert"),
        ({"config": {"vocab_size": 3}}, "'model_type': None"),
        ({"config": TINY | {"num_attention_heads": 3}}, "does not describe a network that classifies texts"),
        ({"config": {"model_type": "vit"}}, "does not describe a network that classifies texts"),
        ({"name": "no/such"}, "name='no/such': the network could not be loaded.*pass that folder"),
    ],
)
def test_mistakes_are_named_in_a_line(arguments, message, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=message) as error:
        TextClassifier(**arguments)
    assert "\n" not in str(error.value)


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(ConfigError, match="its folder holds none"):
        TextClassifier(str(tmp_path))
    transformers.AutoConfig.for_model("bert").save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="could not be loaded"):
        TextClassifier(str(tmp_path))

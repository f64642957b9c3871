"""Logarithms of means of exponentials, at once and by blocks, against double sums and finite differences."""

import pytest
import torch

from fcco_lightning.objectives import log_means as module
from fcco_lightning.objectives.log_means import by_table, log_means, on_diagonal
from fcco_lightning.state.processes import Processes

SIZE, WIDTH = 7, 4


def uneven(logits, anchors, others):
    """Weights that are not symmetric: log(1 + i + 2 j), and twice that of the anchor itself."""
    every = torch.arange(SIZE, dtype=torch.float64)
    table = (1 + every.unsqueeze(1) + 2 * every + (1 + 3 * every).diag()).log()
    logits += table[anchors, others]


LOGS = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
WEIGHTS = {
    "equal": on_diagonal(-1.5),
    "without itself": on_diagonal(-torch.inf),
    "uneven": uneven,
}


def weights(name):
    """Anew, as a table is formed, or not, when the weights are made."""
    return by_table(lambda anchors, others: LOGS[anchors, others], SIZE) if name == "table" else WEIGHTS[name]


def drawn(seed=0):
    generator = torch.Generator().manual_seed(seed)
    image, text = (torch.randn(SIZE, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    taus = 0.3 + torch.rand(SIZE, 2, generator=generator, dtype=torch.float64)
    return image.requires_grad_(), text.requires_grad_(), taus.requires_grad_()


def by_hand(image, text, tau, name):
    table, rows = torch.zeros(SIZE, SIZE, dtype=torch.float64), []
    weights(name)(table, slice(0, SIZE), slice(0, SIZE))
    for i in range(SIZE):
        row = []
        for side in range(2):
            gaps = [(text if side == 0 else image)[j] @ (image if side == 0 else text)[i] for j in range(SIZE)]
            exponents = [(gap - image[i] @ text[i]) / tau[i, side] for gap in gaps]
            row.append(sum(table[i, j].exp() * exponent.exp() for j, exponent in enumerate(exponents)).log())
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.fixture(params=[2**22, 3 * SIZE, 1], ids=["at once", "blocks of 3", "blocks of 1"])
def block(request, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", request.param)
    return request.param


@pytest.mark.parametrize("name", [*WEIGHTS, "table"])
@pytest.mark.parametrize("own", [False, True], ids=["one temperature", "own temperatures"])
def test_values_and_gradients_are_those_of_double_sums(block, name, own):
    image, text, taus = drawn()
    tau = taus if own else taus[0, 0].expand(SIZE, 2)
    upstream = torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, expected = log_means(image, text, tau, weights(name)), by_hand(image, text, tau, name)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((upstream * v).sum(), (image, text, taus)) for v in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_a_fixed_temperature_has_no_gradient(block):
    image, text, taus = drawn()
    tau = taus.detach()
    log_means(image, text, tau, weights("equal")).sum().backward()
    assert image.grad.abs().min() > 0
    found = log_means(image.detach(), text.detach(), tau.requires_grad_(), weights("equal")).sum()
    (by_tau,) = torch.autograd.grad(found, tau)
    expected = torch.autograd.grad(by_hand(image.detach(), text.detach(), tau, "equal").sum(), tau)[0]
    torch.testing.assert_close(by_tau, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("own", [slice(0, 3), slice(2, 6), slice(0, 0)])
def test_a_process_has_the_gradient_by_its_own_embeddings(own, monkeypatch):
    """The others' values come from them: here from a gather that knows all."""
    image, text, taus = drawn()
    everything = log_means(image, text, taus, uneven)
    expected = torch.autograd.grad(everything.sum(), (image, text, taus))

    class Among(Processes):
        def gather(self, tensors, mark=0, **options):
            (columns,) = tensors
            assert len(columns) == own.stop - own.start
            parts = [columns if s == own else self.of(s) for s in (slice(0, own.start), own, slice(own.stop, SIZE))]
            return super().gather([torch.cat(parts)])

        def of(self, rows):
            blocks = module._Blocks(image, text, taus, uneven, rows)
            return torch.cat([blocks.anchors(side, learnt=True)[0] for side in range(2)], dim=1).detach()

    found = log_means(image, text, taus, uneven, own, Among(alone=True))
    torch.testing.assert_close(found, everything)
    by_image, by_text, by_tau = torch.autograd.grad(found.sum(), (image, text, taus))
    for mine, whole in ((by_image, expected[0]), (by_text, expected[1])):
        torch.testing.assert_close(mine[own], whole[own], rtol=1e-11, atol=1e-12)
        assert mine[: own.start].eq(0).all()
        assert mine[own.stop :].eq(0).all()
    torch.testing.assert_close(by_tau, expected[2], rtol=1e-11, atol=1e-12)


def test_a_block_at_a_time_is_in_memory(monkeypatch):
    """Nothing as large as all similarities is kept for the backward pass, nor made on the way."""
    size = 64
    monkeypatch.setattr(module, "BLOCK", 8 * size)
    made = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(t.numel() for t in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(t))
            return result

    image, text = (torch.randn(size, 2, requires_grad=True) for _ in range(2))
    with Sizes():
        log_means(image, text, torch.full((size, 2), 0.1), on_diagonal(-1.5)).sum().backward()
    assert max(made) == 8 * size


def test_large_gaps_do_not_overflow(block):
    """s_ij / tau of up to 250, in float32."""
    image = torch.eye(SIZE)[:, :WIDTH].requires_grad_()
    text = (-torch.eye(SIZE)[:, :WIDTH]).requires_grad_()
    tau = torch.full((SIZE, 2), 0.004)
    found = log_means(image, text, tau, weights("equal"))
    exact = by_hand(image.double(), text.double(), tau.double(), "equal")
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    found.sum().backward()
    assert image.grad.isfinite().all()


def test_views_are_compared_with_all_other_views(block):
    """Views 2i and 2i + 1 are those of one sample: double sums over all others."""
    draw = torch.Generator().manual_seed(3)
    views = torch.randn(8, WIDTH, generator=draw, dtype=torch.float64).requires_grad_()
    taus = (0.3 + torch.rand(8, 1, generator=draw, dtype=torch.float64)).requires_grad_()
    found = log_means(views, None, taus, on_diagonal(-torch.inf))
    terms = [[((views[i] @ views[j] - views[i] @ views[i ^ 1]) / taus[i, 0]).exp() for j in range(8)] for i in range(8)]
    expected = torch.stack([sum(row[:i] + row[i + 1 :]).log() for i, row in enumerate(terms)]).unsqueeze(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(8, 1, generator=draw, dtype=torch.float64)
    gradients = [torch.autograd.grad((upstream * v).sum(), (views, taus)) for v in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)

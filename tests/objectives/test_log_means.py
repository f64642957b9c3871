"""Means of exponentials of similarities, at once and by blocks, against double sums and finite differences."""

import pytest
import torch

from fcco_lightning.distributed import Processes
from fcco_lightning.objectives import log_means as module
from fcco_lightning.objectives.contrastive import EqualNegatives
from fcco_lightning.objectives.log_means import Shared, log_means

SIZE, WIDTH = 7, 4


def uneven(logits, anchors, others):
    """Weights that are not symmetric: log(1 + i + 2 j), and twice that of the anchor itself."""
    every = torch.arange(SIZE, dtype=torch.float64)
    table = (1 + every.unsqueeze(1) + 2 * every + (1 + 3 * every).diag()).log()
    logits += table[anchors, others]
    return 0.25


EQUAL = EqualNegatives(-3.0, -1.5)
WITHOUT = EqualNegatives(-torch.inf, -1.5)
WEIGHTS = {
    "equal": (EQUAL, torch.full((SIZE, SIZE), -1.5).fill_diagonal_(-3.0).double()),
    "without itself": (WITHOUT, torch.full((SIZE, SIZE), -1.5).fill_diagonal_(-torch.inf).double()),
    "uneven": (uneven, None),
}


def drawn(seed=0):
    generator = torch.Generator().manual_seed(seed)
    image, text = (torch.randn(SIZE, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    taus = 0.3 + torch.rand(SIZE, 2, generator=generator, dtype=torch.float64)
    return image.requires_grad_(), text.requires_grad_(), taus.requires_grad_()


def by_hand(image, text, tau, name):
    weigh, table = WEIGHTS[name]
    if table is None:
        table = torch.zeros(SIZE, SIZE, dtype=torch.float64)
        table += weigh(table, slice(0, SIZE), slice(0, SIZE))
    rows = []
    for i in range(SIZE):
        row = []
        for side in range(2):
            t = tau[i, side] if tau.dim() else tau
            gaps = [(text if side == 0 else image)[j] @ (image if side == 0 else text)[i] for j in range(SIZE)]
            terms = [table[i, j].exp() * ((gap - image[i] @ text[i]) / t).exp() for j, gap in enumerate(gaps)]
            row.append(torch.stack(terms).sum().log())
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.fixture(params=[2**22, 3 * SIZE, 1], ids=["at once", "blocks of 3", "blocks of 1"])
def block(request, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", request.param)
    return request.param


def shared(name):
    return Shared(slice(0, SIZE), Processes(alone=True), WEIGHTS[name][0])


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("own", [False, True], ids=["one temperature", "own temperatures"])
def test_values_and_gradients_are_those_of_double_sums(block, name, own):
    image, text, taus = drawn()
    tau = taus if own else taus[0, 0]
    weights = torch.randn(SIZE, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, expected = log_means(image, text, tau, shared(name)), by_hand(image, text, tau, name)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((weights * v).sum(), (image, text, taus)) for v in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


def test_a_fixed_temperature_has_no_gradient(block):
    image, text, taus = drawn()
    tau = taus.detach()
    log_means(image, text, tau, shared("equal")).sum().backward()
    assert image.grad.abs().min() > 0
    found = log_means(image.detach(), text.detach(), tau.requires_grad_(), shared("equal")).sum()
    (by_tau,) = torch.autograd.grad(found, tau)
    expected = torch.autograd.grad(by_hand(image.detach(), text.detach(), tau, "equal").sum(), tau)[0]
    torch.testing.assert_close(by_tau, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("own", [slice(0, 3), slice(2, 6), slice(0, 0)])
def test_a_process_has_the_gradient_by_its_own_embeddings(own, monkeypatch):
    """The others' values come from them: here from a gather that knows all."""
    image, text, taus = drawn()
    everything = log_means(image, text, taus, shared("uneven"))
    expected = torch.autograd.grad(everything.sum(), (image, text, taus))

    class Among(Processes):
        def gather(self, tensors, mark=0):
            (columns,) = tensors
            assert len(columns) == own.stop - own.start
            parts = [columns if s == own else self.of(s) for s in (slice(0, own.start), own, slice(own.stop, SIZE))]
            return super().gather([torch.cat(parts)])

        def of(self, rows):
            sides = module._by_blocks(image, text, taus, Shared(rows, self, uneven), learnt=True)
            pair = (image[rows] * text[rows]).sum(1)
            return torch.stack([pair, *(s.mass for s in sides), *(s.mean for s in sides)], dim=1).detach()

    found = log_means(image, text, taus, Shared(own, Among(alone=True), uneven))
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
    monkeypatch.setattr(module, "BLOCK", 4 * size)
    made = []

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made.extend(t.numel() for t in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(t))
            return result

    image, text = (torch.randn(size, 2, requires_grad=True) for _ in range(2))
    with Sizes():
        whole = Shared(slice(0, size), Processes(alone=True), EQUAL)
        log_means(image, text, torch.tensor(0.1), whole).sum().backward()
    assert max(made) == 4 * size


def test_large_gaps_do_not_overflow(block):
    """s_ij / tau of up to 250, in float32."""
    image = torch.eye(SIZE)[:, :WIDTH].requires_grad_()
    text = (-torch.eye(SIZE)[:, :WIDTH]).requires_grad_()
    found = log_means(image, text, torch.tensor(0.004), shared("equal"))
    exact = by_hand(image.double(), text.double(), torch.tensor(0.004, dtype=torch.float64), "equal")
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    found.sum().backward()
    assert image.grad.isfinite().all()

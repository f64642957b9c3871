"""The global random streams, for checkpoints."""

import random
from typing import Any

import numpy as np
import torch


def random_streams() -> dict[str, Any]:
    """State of the global streams that user code may draw from, as tensors and primitives."""
    _, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [list(numbers), gauss],
        "numpy": [legacy[0], torch.from_numpy(legacy[1].astype(np.int64)), *legacy[2:]],
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_streams(state: dict[str, Any]) -> None:
    """Continue the streams of :func:`random_streams`; CUDA's only on as many devices as there were."""
    torch.set_rng_state(state["torch"].cpu())
    numbers, gauss = state["python"]
    random.setstate((3, tuple(numbers), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))  # noqa: NPY002
    if "cuda" in state and torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])

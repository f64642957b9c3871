"""Check of a batch of one sample, with which an epoch may end."""

from functools import partial

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.engine.engine import Engine
from fcco_lightning.engine.estimates import Outputs
from fcco_lightning.errors import ConfigError, DataError


def require_single(engine: Engine, outputs: Outputs) -> None:
    """Try a batch of one sample, the first of each part, where an epoch is going to end with one.

    Rows, buffers and random streams stay as they are.

    Raises:
        ConfigError: if the network, the objective, a constraint or the algorithm cannot process it.
    """
    cut = partial(pytree.tree_map_only, Tensor, lambda leaf: leaf[:1])
    with torch.no_grad(), engine.functions.elsewhere([p.data for p in engine.params]):
        try:
            now = engine.functions.outputs(cut(engine.batch))
            single = Outputs(now, cut(outputs.columns), None, None, now)
            engine.measure(single)
            engine.algorithm.check(single)
        except (DataError, ConfigError, ValueError) as error:
            raise ConfigError(
                f"the last batch of every epoch contains a single sample, which is not enough: {error} Drop that "
                "batch (drop_last=True of the loader, --data.batches.drop_last true), or choose another batch_size."
            ) from error

"""Tables whose rows form many groups, drawn group by group."""

from typing import Any

from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns
from fcco_lightning.data.sampling import GroupSampling, Sampling


class GroupedTabularDataModule(TabularDataModule):
    """A :class:`TabularDataModule` with groups by the joint values of some columns, of which batches hold a few.

    Args:
        train: training table.
        columns: what the columns of the table mean; the label is never a feature, but may define groups.
        groups: which columns define the groups.
        pool: tables appended to ``train`` before groups are decided and anything is split off.
        batches: how training batches are drawn.
        **table: ``test``, ``splits`` and ``encoding``, see :class:`TabularDataModule`; ``seed``, ``eval_batch_size``,
            ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.
    """

    _identifying = "train, pool, columns, groups, splits and encoding"

    def __init__(
        self,
        train: str | Any,
        *,
        columns: Columns,
        groups: Groups,
        pool: list[str | Any] | None = None,
        batches: Sampling = GroupSampling(),  # noqa: B008 - frozen
        **table: Any,
    ) -> None:
        super().__init__(train, columns=columns, groups=groups, pool=pool, batches=batches, **table)

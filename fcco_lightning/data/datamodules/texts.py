"""Texts whose labels and attributes form groups, for Lightning."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import torch
from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]

from fcco_lightning.checks import one_of
from fcco_lightning.data import layouts
from fcco_lightning.data.columns import require_columns
from fcco_lightning.data.datamodules.grouped import told_of_groups
from fcco_lightning.data.datamodules.grouped_samples import GroupedSamplesDataModule
from fcco_lightning.data.datamodules.labelled import ROW, ImageSplits
from fcco_lightning.data.fingerprint import contents_of, digest_of, fingerprint
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, LabelledFrame
from fcco_lightning.data.sampling import GroupSampling, Sampling
from fcco_lightning.data.sources import is_hub_id, read_table
from fcco_lightning.data.texts import TextTable, TextTokens, texts_in, tokens_of
from fcco_lightning.errors import ConfigError

TextLayout = Literal["table", "amazon", "civilcomments"]


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with a table of their labels, in one of the layouts that are known.

    Args:
        source: for "table": path to .csv or .parquet, folder of ``datasets.save_to_disk``, hub id "owner/name:split",
            DataFrame, ``datasets.Dataset`` or dict of columns.
        layout: "table", or "amazon" or "civilcomments" as WILDS distributes them, see
            :mod:`fcco_lightning.data.layouts`.
        root: folder of the files; for every layout but "table".
        column: column of the texts.
        empty: "error" refuses empty and missing texts, "keep" trains on them as empty texts.

    Raises:
        ConfigError: if the layout is none of these, or has no root or source where it needs one.
    """

    source: str | Any | None = None
    layout: TextLayout = "table"
    root: str | None = None
    column: str = "text"
    empty: Literal["error", "keep"] = "error"

    def __post_init__(self) -> None:
        one_of("texts.layout", self.layout, get_args(TextLayout))
        one_of("texts.empty", self.empty, ("error", "keep"))
        needed, other = ("source", "root") if self.layout == "table" else ("root", "source")
        if getattr(self, needed) is None or getattr(self, other) is not None:
            raise ConfigError(f"texts.layout={self.layout!r} needs texts.{needed}, and no texts.{other}.")

    def prepare(self) -> None:
        """Download hub data."""
        if is_hub_id(self.source):
            read_table(self.source, "texts.source")

    def read(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the columns of all samples with :data:`ROW` (their positions among the texts), and the texts."""
        if self.layout == "table":
            frame, where = read_table(self.source, "texts.source"), "the table of the texts"
        else:
            readers = {"amazon": layouts.amazon, "civilcomments": layouts.civilcomments}
            frame, where = readers[self.layout](self.root or ""), f"the layout {self.layout!r}"
        require_columns(frame, {"texts.column": [self.column]}, where)
        texts = texts_in(frame.pop(self.column), self.empty, where)
        return frame.assign(**{ROW: np.arange(len(frame))}), texts


class GroupedTextDataModule(GroupedSamplesDataModule):
    """Texts whose rows form groups by the joint values of some columns, split, tokenised once and loaded by group.

    Batches are dicts with ``x`` (B, L) int64, the tokens of every text with -1 behind its end, L being those of the
    longest text of the batch; ``y`` (B,) int64 (float32 if the label is a number), ``group`` (B,) int64, further
    columns by their names, and ``index`` (B,) int64: the position of the sample within its own split.

    With ``splits.by="fractions"`` groups are decided on all rows, and every split holds every group.  With "column"
    they are decided on the training rows, as 0..G-1; combinations that only other splits hold (another reviewer) are
    numbered from G on, and rows of combinations too small for a group are left out.

    Args:
        texts: where the texts and the table of their labels are.
        columns: what the columns of that table mean; the label may define groups.
        groups: which columns define the groups.
        tokens: how texts become tokens.
        splits: how the texts are divided.
        batches: how training batches are drawn.
        eval_batch_size: number of rows in an evaluation batch of one process.
        **samples: ``eval_train``, whether validation and the report go through the training texts too; ``seed``,
            ``num_workers`` and ``allow_changed``, see :class:`SplitDataModule`.

    Attributes:
        tokenizer: of ``transformers``; None before ``setup``.
        max_length: the largest number of tokens of a text; None before ``setup``.
        cut: split -> number of texts that were longer.

    Raises:
        ConfigError: from ``__init__`` if ``columns`` names a sensitive column or several labels; from ``setup`` if the
            tokenizer cannot be had.
        DataError: from ``setup`` if the data are not what the arguments announce.
    """

    _identifying = "texts, columns, groups, tokens and splits"
    _kind = "texts"

    def __init__(
        self,
        texts: LabelledTexts,
        *,
        columns: Columns,
        groups: Groups,
        tokens: TextTokens,
        splits: ImageSplits = ImageSplits(),  # noqa: B008 - frozen
        batches: Sampling = GroupSampling(),  # noqa: B008
        eval_batch_size: int = 256,
        **samples: Any,
    ) -> None:
        super().__init__(
            texts,
            columns=columns,
            groups=groups,
            splits=splits,
            batches=batches,
            eval_batch_size=eval_batch_size,
            **samples,
        )
        self._column, self.tokens = texts.column, tokens
        self.tokenizer: Any = None
        self.max_length: int | None = None
        self.cut: dict[str, int] = {}
        self._learnt: str | None = None
        self._digest = ""
        self._announced = False

    @property
    def vocab_size(self) -> int:
        """Number of tokens that there are."""
        self._table("train")
        return len(self.tokenizer)

    def setup(self, stage: str | None = None) -> None:
        """Read the table, form groups, split and tokenise; a second call changes nothing.

        Before training it says how many texts are cut off.
        """
        if not self.tables:
            splits = self._read_splits()
            texts = {name: [self._samples[i] for i in split.features[ROW]] for name, split in splits.items()}
            self.tokenizer = self.tokens.made(texts["train"], self._learnt)
            self.max_length = self.tokens.longest(self.tokenizer)
            self.tables = {name: self._tokenised(name, split, texts[name]) for name, split in splits.items()}
            self._digest = digest_of(texts["train"])
            self._samples = []  # the tokens are all that is needed from here on
            self._require_expected_split()
        if stage == "fit" and not self._announced:
            self._announced = True
            rank_zero_info(self._summary())

    @property
    def _texts(self) -> TextTable:
        table = self._table("train")
        assert isinstance(table, TextTable)  # noqa: S101  (_tokenised)
        return table

    def _tokenised(self, name: str, split: LabelledFrame, texts: list[str]) -> TextTable:
        tokens = tokens_of(self.tokenizer, texts, self.max_length or 0)
        self.cut[name] = tokens.cut
        self._rows[name] = split.table.drop(columns=ROW)
        return TextTable(tokens, split.columns)

    def _summary(self) -> str:
        """What is said before training."""
        table = self._texts
        cut = ", ".join(f"{cut} of {len(self.tables[name])} texts in {name}" for name, cut in self.cut.items())
        sizes = torch.bincount(table.columns["group"], minlength=self.num_groups)
        return (
            f"{told_of_groups(sizes, self.group_names)}; {sum(self.dropped.values())} rows of no group dropped.\n"
            f"Longer than max_length={self.max_length} tokens, and cut off there: {cut}. A training text keeps "
            f"{int(table.tokens.lengths.median())} tokens in the median; there are {self.vocab_size}."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return how texts become tokens, and what identifies the training split, as plain values."""
        learnt = None if self.tokens.vocabulary is None else self.tokenizer.backend_tokenizer.to_str()
        texts = {"column": self._column, "max_length": self.max_length, "pretrained": self.tokens.tokenizer}
        return {"texts": {**texts, "tokenizer": learnt}, **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a learnt tokenizer, and make sure that the rows of a checkpoint mean the same samples.

        Raises:
            DataError: if the training split is another one (at once, or in ``setup`` if that comes later).
        """
        super().load_state_dict(state_dict)
        if not self.tables:
            self._learnt = state_dict["texts"]["tokenizer"]

    def _fingerprint(self) -> dict[str, Any]:
        """Sizes, and digests of all names, of the texts, of their tokens, and of the order of labels and groups."""
        table = self._texts
        own = {name: column for name, column in table.columns.items() if name not in self._added}
        made = {"tokens": table.tokens.values, "lengths of the texts": table.tokens.lengths}
        contents = contents_of({**own, **made}) | {"texts": self._digest}
        return {
            **fingerprint(own, [*self.class_names, *self.grouping.names], contents),
            "classes": self.num_classes,
            "groups": self.num_groups,
        }

"""The datamodule of texts whose labels and attributes define groups."""

from typing import Any

from fcco_lightning.checks import made_of
from fcco_lightning.data.columns import ROW
from fcco_lightning.data.datamodules.labelled import LabelledTexts
from fcco_lightning.data.datamodules.samples import StoredDataModule
from fcco_lightning.data.fingerprint import contents_of, digest_of
from fcco_lightning.data.grouping import Groups
from fcco_lightning.data.roles import Columns, TableRows
from fcco_lightning.data.splits import ImageSplits
from fcco_lightning.data.table import TensorTable
from fcco_lightning.data.texts import TextTokens, Tokens, tokens_of


class GroupedTextDataModule(StoredDataModule):
    """Texts with groups defined by combinations of the values of some columns, split, tokenised and loaded by group.

    Batches are dicts with ``x`` (B, L) int64, the tokens of every text padded with -1, where L is the length of the
    longest text in the batch; ``y`` (B,) int64 (float32 if the label is a number), ``group`` (B,) int64, further
    columns by their names, and ``index`` (B,) int64: the position of the sample within its own split.  For the
    definition of groups see :class:`StoredDataModule`.

    Args:
        texts: the texts and the table of their labels.
        columns: the roles of that table's columns; the label may define groups.
        groups: which columns define the groups.
        tokens: how texts become tokens.
        splits: how the texts are divided.
        **samples: ``batches``, ``eval_batch_size``, ``eval_train``, ``seed``, ``num_workers`` and ``allow_changed``,
            see :class:`StoredDataModule`.

    Attributes:
        tokenizer: the tokenizer, an object of ``transformers``; None before ``setup``.
        max_length: the largest number of tokens of a text; None before ``setup``.
        cut: split -> number of texts that were truncated.

    Raises:
        ConfigError: from ``__init__`` if ``columns`` names a sensitive column or several labels; from ``setup`` if the
            tokenizer cannot be loaded.
        DataError: from ``setup`` if the data do not fit the arguments.
    """

    _identifying = "texts, columns, groups, tokens and splits"
    _kind = "texts"
    origin: LabelledTexts

    def __init__(
        self,
        texts: LabelledTexts,
        *,
        columns: Columns,
        groups: Groups,
        tokens: TextTokens,
        splits: ImageSplits = ImageSplits(),  # noqa: B008 - frozen
        **samples: Any,
    ) -> None:
        super().__init__(made_of("texts", texts, LabelledTexts), columns, groups, splits, **samples)
        self.tokens = made_of("tokens", tokens, TextTokens)
        self.tokenizer: Any = None
        self.max_length: int | None = None
        self.cut: dict[str, int] = {}
        self._lost: dict[str, tuple[list[int], int]] = {}
        self._learnt: str | None = None
        self._digest = ""
        self._tokens: dict[str, Tokens] = {}  # tokens of every split

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        self._table("train")
        return len(self.tokenizer)

    def _tables_of(self, splits: dict[str, TableRows]) -> dict[str, TensorTable]:
        texts = {name: [self._samples[i] for i in split.table[ROW]] for name, split in splits.items()}
        self.tokenizer = self.tokens.made(texts["train"], self._learnt)
        self.max_length = self.tokens.longest(self.tokenizer)
        self._digest = digest_of(texts["train"])
        self._samples = []  # only the tokens are needed from now on
        self._tokens = {name: tokens_of(self.tokenizer, part, self.max_length) for name, part in texts.items()}
        self.cut = {name: len(tokens.cut) for name, tokens in self._tokens.items()}
        empty = {name: [i for i, text in enumerate(part) if not text.strip()] for name, part in texts.items()}
        lost = {f"texts of {name} longer than max_length": (self._tokens[name].cut, len(texts[name])) for name in texts}
        lost |= {f"texts of {name} that are empty": (rows, len(texts[name])) for name, rows in empty.items()}
        self._lost = {description: (rows, total) for description, (rows, total) in lost.items() if rows}
        return {
            name: TensorTable(split.columns, size=len(split), inputs=self._tokens[name].inputs)
            for name, split in splits.items()
        }

    def lost(self) -> dict[str, tuple[list[int], int]]:
        """Return the empty and the truncated texts, see :meth:`SplitDataModule.lost`."""
        return self._lost

    def _summary(self) -> str:
        cut = ", ".join(f"{cut} of {len(self.tables[name])} texts in {name}" for name, cut in self.cut.items())
        median = int(self._tokens["train"].lengths.median())
        return (
            f"{super()._summary()}\nLonger than max_length={self.max_length} tokens, and cut off there: {cut}. A "
            f"training text keeps {median} tokens in the median; there are "
            f"{self.vocab_size}."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the tokenization and the fingerprint of the training split, as plain values."""
        learnt = None if self.tokens.vocabulary is None else self.tokenizer.backend_tokenizer.to_str()
        texts = {"column": self.origin.column, "max_length": self.max_length, "pretrained": self.tokens.tokenizer}
        return {"texts": {**texts, "tokenizer": learnt}, **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a learnt tokenizer, and check that the rows of a checkpoint belong to the same samples."""
        super().load_state_dict(state_dict)
        if not self.tables:
            self._learnt = state_dict["texts"]["tokenizer"]

    def _inputs(self) -> tuple[list[str], dict[str, str]]:
        tokens = self._tokens["train"]
        contents = contents_of({"tokens": tokens.values, "lengths of the texts": tokens.lengths})
        return [], contents | {"texts": self._digest}

"""Tokens of texts, which are computed once and padded to the longest text of a batch."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fcco_lightning.checks import at_least, package
from fcco_lightning.data.columns import require_columns
from fcco_lightning.errors import ConfigError, DataError

PADDING = -1
"""The token that fills a text up to the longest of its batch."""
_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_LEARNT_LENGTH = 512  # default max_length of a learnt tokenizer, which has no model
_UNLIMITED = 1_000_000  # transformers has 1e30 for a tokenizer without a limit
_AT_ONCE = 4096
_LONG_WORD = re.compile(r"[^\W_]{101,}")  # words of more than 100 characters are unknown to WordPiece
_FEWEST_CHARACTERS = 40  # smallest size of the learnt alphabet


@dataclass(frozen=True)
class TextTokens:
    """How texts become tokens.

    Args:
        tokenizer: local folder of a tokenizer of ``transformers``, or hub id such as "distilbert-base-uncased".
        vocabulary: instead of a tokenizer, the number of lower-case WordPieces that are learnt from the training split;
            the result is deterministic.
        max_length: largest number of tokens of a text, with markers; longer texts are truncated at the end.  None for
            the limit of the tokenizer's model, or 512 for a learnt tokenizer.

    Raises:
        ConfigError: unless exactly one of ``tokenizer`` and ``vocabulary`` is given, or if a number is out of range.
    """

    tokenizer: str | None = None
    vocabulary: int | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        if (self.tokenizer is None) == (self.vocabulary is None):
            raise ConfigError(
                f"Exactly one of tokens.tokenizer and tokens.vocabulary must be given, got tokenizer="
                f"{self.tokenizer!r} and vocabulary={self.vocabulary!r}. Pass the folder or hub id of the network's own"
                " tokenizer, or for a network that starts from random weights a number of WordPieces, such as 4000."
            )
        if self.vocabulary is not None:
            at_least("tokens.vocabulary", self.vocabulary, 100)
        if self.max_length is not None:
            at_least("tokens.max_length", self.max_length, 4)

    def made(self, texts: Sequence[str], learnt: str | None = None) -> Any:
        """Return the tokenizer, an object of ``transformers``.

        Args:
            texts: texts of the training split, to learn from.
            learnt: the result of an earlier :func:`learnt_word_pieces`, to be used instead of learning.

        Raises:
            ConfigError: if it cannot be loaded, or has no limit for the length of a text.
        """
        if self.vocabulary is not None:
            return _piece_tokenizer(learnt_word_pieces(texts, self.vocabulary) if learnt is None else learnt)
        return _pretrained(str(self.tokenizer))

    def longest(self, tokenizer: Any) -> int:
        """Return the largest number of tokens of a text.

        Raises:
            ConfigError: if it is not known, or exceeds the limit of the tokenizer's model.
        """
        limit = int(min(tokenizer.model_max_length, _UNLIMITED))
        if self.max_length is None and limit == _UNLIMITED:
            raise ConfigError(
                f"tokens.max_length must be given, since the tokenizer {self.tokenizer!r} does not say how many tokens "
                "its model takes. Set it, for example to 512."
            )
        if self.max_length is not None and self.max_length > limit:
            raise ConfigError(
                f"tokens.max_length={self.max_length} must be at most {limit}, the most that the model of the "
                f"tokenizer {self.tokenizer or 'learnt'!r} takes. Lower it, or leave it out."
            )
        return limit if self.max_length is None else self.max_length


class Tokens(NamedTuple):
    """The concatenated tokens of n texts.

    Attributes:
        values: all tokens, shape (N,), int32.
        starts: position of the first token of every text, and N, shape (n + 1,), int64.
        cut: positions of the texts that were truncated.

    Example:
        >>> Tokens(torch.tensor([7, 8, 9]), torch.tensor([0, 1, 3]), []).inputs(torch.tensor([1, 0]))["x"]
        tensor([[ 8,  9],
                [ 7, -1]])
    """

    values: Tensor
    starts: Tensor
    cut: list[int]

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of every text, shape (n,), int64."""
        return self.starts.diff()

    def inputs(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the texts ``rows`` (B,) as ``x`` (B, L) int64.

        L is the number of tokens of the longest of them; others are padded with :data:`PADDING`.
        """
        texts = [self.values[slice(*self.starts[i : i + 2])].long() for i in rows]
        return {"x": pad_sequence(texts, batch_first=True, padding_value=PADDING)}


def tokens_of(tokenizer: Any, texts: Sequence[str], longest: int) -> Tokens:
    """Tokenize n texts by a tokenizer of ``transformers``, with its markers, truncated to ``longest`` tokens each.

    Raises:
        DataError: naming a text without any token.
    """
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    rows: list[Any] = []
    for start in range(0, len(texts), _AT_ONCE):
        encoded = tokenizer(list(texts[start : start + _AT_ONCE]), **options)["input_ids"]
        rows += [np.asarray(row, dtype=np.int32) for row in encoded]
    long = [i for i, row in enumerate(rows) if len(row) > longest]
    for i in long:
        shorter = tokenizer(texts[i], truncation=True, max_length=longest, **options)["input_ids"]
        rows[i] = np.asarray(shorter, dtype=np.int32)
    lengths = np.array([len(row) for row in rows])
    if not lengths.all():
        i = int(lengths.argmin())
        raise DataError(
            f"The tokenizer makes no token of the text {texts[i][:40]!r}, and a network needs one at least. Remove the "
            "rows of such texts, or use a tokenizer that marks the start of a text."
        )
    starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int64))
    return Tokens(torch.from_numpy(np.concatenate(rows)), starts, long)


class TextEncoder:
    """Encodes the text column of a table as the network's input, in the same way as the training texts.

    Args:
        column: name of the text column.
        max_length: largest number of tokens of a text.
        tokenizer: a tokenizer of ``transformers``.
    """

    def __init__(self, column: str, max_length: int, tokenizer: Any) -> None:
        self.column, self.max_length, self.tokenizer = column, max_length, tokenizer
        self._cut = self._empty = 0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "TextEncoder":
        """Return the encoder of a checkpoint of :class:`GroupedTextDataModule`.

        Raises:
            ConfigError: if its tokenizer cannot be loaded.
        """
        learnt = state["tokenizer"]
        tokenizer = _pretrained(state["pretrained"]) if learnt is None else _piece_tokenizer(learnt)
        return cls(state["column"], state["max_length"], tokenizer)

    def batches(self, frame: pd.DataFrame, size: int) -> Iterator[Tensor]:
        """Yield the tokens x (B, L) of successive blocks of ``size`` rows, padded as by :meth:`Tokens.inputs`.

        Missing cells are empty texts.

        Raises:
            DataError: if the column is absent, or a cell is no text.
        """
        require_columns(frame, {"the column of texts": [self.column]}, "the table")
        texts = texts_in(frame[self.column], "keep", "the table")
        self._cut, self._empty = 0, sum(not text.strip() for text in texts)
        for start in range(0, len(texts), size):
            tokens = tokens_of(self.tokenizer, texts[start : start + size], self.max_length)
            self._cut += len(tokens.cut)
            yield tokens.inputs(torch.arange(len(tokens.lengths)))["x"]

    def remarks(self, rows: int) -> list[str]:
        """Warnings about truncated and empty texts in the latest table, which has ``rows`` rows."""
        cut = [f"{self._cut} of {rows} texts have more than {self.max_length} tokens, and are cut off there."]
        empty = [f"{self._empty} of {rows} texts are empty or missing: their predictions mean nothing."]
        return [*(cut if self._cut else []), *(empty if self._empty else [])]


def texts_in(column: pd.Series, empty: Literal["error", "keep"], where: str) -> list[str]:
    """Return the cells of a text column; "error" refuses empty and missing cells, "keep" makes them empty texts.

    Raises:
        DataError: naming the first cell that is no text, in the table ``where``.
    """
    cells = column.astype(object).where(column.notna(), "").tolist()
    name = f"texts.column={str(column.name)!r} of {where}"
    others = [i for i, cell in enumerate(cells) if not isinstance(cell, str)]
    if others:
        raise DataError(
            f"{name} must hold texts, but {len(others)} of {len(cells)} cells do not (first: row {others[0]}, "
            f"{cells[others[0]]!r}). Name the column of texts, or write these cells as text."
        )
    blank = [i for i, cell in enumerate(cells) if not cell.strip()]
    if blank and empty == "error":
        raise DataError(
            f"{name} has {len(blank)} of {len(cells)} texts that are empty or missing (first: row {blank[0]}). Remove "
            "those rows, or set texts.empty='keep' to train on them as empty texts."
        )
    return cells


def learnt_word_pieces(texts: Sequence[str], size: int) -> str:
    """Learn ``size`` lower-case WordPieces, including five markers; return the JSON of a tokenizer of ``tokenizers``.

    Words of more than 100 characters are unknown, and so are all characters except the max(40, ``size // 10``) most
    frequent ones.
    """
    tokenizers = package("tokenizers", "text", f"tokens.vocabulary={size}")
    learner = _word_tokenizer(tokenizers, {"[UNK]": 0})
    texts = [_LONG_WORD.sub(" ", learner.normalizer.normalize_str(text)) for text in texts]  # unknown later, too
    counts = Counter(c for text in texts for c in text if not c.isspace())
    alphabet = sorted(sorted(counts, key=lambda c: (-counts[c], c))[: max(size // 10, _FEWEST_CHARACTERS)])
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        # The package numbers characters within words in an order that differs from run to run, and breaks ties by these
        # numbers; as special tokens they have fixed numbers.
        special_tokens=[*_SPECIAL.values(), *(f"##{c}" for c in alphabet)],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    pieces = learner.get_vocab()
    learnt = _word_tokenizer(tokenizers, pieces)
    markers = [(name, pieces[name]) for name in ("[CLS]", "[SEP]")]
    learnt.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=markers)
    learnt.add_special_tokens(list(_SPECIAL.values()))
    return str(learnt.to_str())


def _word_tokenizer(tokenizers: Any, pieces: dict[str, int]) -> Any:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(pieces, unk_token=_SPECIAL["unk_token"]))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _piece_tokenizer(learnt: str) -> Any:
    transformers = package("transformers", "text", "tokens.vocabulary")
    tokenizers = package("tokenizers", "text", "tokens.vocabulary")
    tokenizer = tokenizers.Tokenizer.from_str(learnt)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=_LEARNT_LENGTH, **_SPECIAL)


def _pretrained(name: str) -> Any:
    transformers = package("transformers", "text", f"tokens.tokenizer={name!r}")
    try:
        return transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # the hub's client and readers raise errors of many classes
        fault = "its folder holds none" if Path(name).is_dir() else "it is no folder here, and the hub gave none"
        raise ConfigError(
            f"tokens.tokenizer={name!r} could not be loaded: {fault} (working directory: {Path.cwd()}; "
            f"{type(error).__name__}). Without a connection save it elsewhere (AutoTokenizer.from_pretrained(NAME)"
            ".save_pretrained(FOLDER)) and pass that folder, or learn one (tokens.vocabulary: 4000)."
        ) from error

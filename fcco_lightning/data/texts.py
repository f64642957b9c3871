"""Texts as the tokens of a tokenizer: made once, and padded to the longest text of a batch."""

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
_LEARNT_LENGTH = 512  # of a learnt tokenizer, which belongs to no model
_UNLIMITED = 1_000_000  # transformers says 1e30 where a tokenizer has no limit
_AT_ONCE = 4096
_LONG_WORD = re.compile(r"[^\W_]{101,}")  # WordPiece takes none of more than 100 characters
_FEWEST_CHARACTERS = 40  # that are learnt, each as the start of a word and within one


@dataclass(frozen=True)
class TextTokens:
    """How texts become tokens.

    Args:
        tokenizer: local folder of a tokenizer of ``transformers``, or hub id such as "distilbert-base-uncased".
        vocabulary: instead of a tokenizer: number of lower-case WordPieces to be learnt from the training split; the
            same texts give the same pieces.
        max_length: largest number of tokens of a text, markers included; what is longer is cut off at its end.  None
            for as many as the tokenizer's model takes, 512 for a learnt one.

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
        """Return the tokenizer, of ``transformers``.

        Args:
            texts: of the training split, to learn from.
            learnt: a tokenizer learnt before, as :func:`learnt_word_pieces` returns it, to be taken instead.

        Raises:
            ConfigError: if it cannot be had, or does not say how long a text may be.
        """
        if self.vocabulary is not None:
            return _piece_tokenizer(learnt_word_pieces(texts, self.vocabulary) if learnt is None else learnt)
        return _pretrained(str(self.tokenizer))

    def longest(self, tokenizer: Any) -> int:
        """Return the largest number of tokens of a text.

        Raises:
            ConfigError: if it is not known, or the model of the tokenizer does not take it.
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
    """The tokens of n texts, one text behind the other.

    Attributes:
        values: all tokens, shape (N,), int32.
        starts: where every text starts, and N, shape (n + 1,), int64.
        cut: positions of the texts that were longer than allowed.

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

        L is the number of tokens of the longest of them; :data:`PADDING` stands behind the end of others.
        """
        texts = [self.values[slice(*self.starts[i : i + 2])].long() for i in rows]
        return {"x": pad_sequence(texts, batch_first=True, padding_value=PADDING)}


def tokens_of(tokenizer: Any, texts: Sequence[str], longest: int) -> Tokens:
    """Return what a tokenizer of ``transformers`` makes of n texts, with its markers, each cut to ``longest`` tokens.

    Raises:
        DataError: naming a text of which the tokenizer makes no token.
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
    """From the column of texts of a table to a network's input, as the training texts were prepared.

    Args:
        column: column of the texts.
        max_length: number of tokens that a text is cut to.
        tokenizer: of ``transformers``.
    """

    def __init__(self, column: str, max_length: int, tokenizer: Any) -> None:
        self.column, self.max_length, self.tokenizer = column, max_length, tokenizer
        self._cut = self._empty = 0

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "TextEncoder":
        """Return the encoder that a checkpoint of :class:`GroupedTextDataModule` describes.

        Raises:
            ConfigError: if its tokenizer cannot be had.
        """
        learnt = state["tokenizer"]
        tokenizer = _pretrained(state["pretrained"]) if learnt is None else _piece_tokenizer(learnt)
        return cls(state["column"], state["max_length"], tokenizer)

    def batches(self, frame: pd.DataFrame, size: int) -> Iterator[Tensor]:
        """Yield the tokens x (B, L) of ``size`` rows after the other, as :meth:`Tokens.inputs` pads them.

        Empty and missing texts are empty ones.

        Raises:
            DataError: if the column is not there, or a cell is no text.
        """
        require_columns(frame, {"the column of texts": [self.column]}, "the table")
        texts = texts_in(frame[self.column], "keep", "the table")
        self._cut, self._empty = 0, sum(not text.strip() for text in texts)
        for start in range(0, len(texts), size):
            tokens = tokens_of(self.tokenizer, texts[start : start + size], self.max_length)
            self._cut += len(tokens.cut)
            yield tokens.inputs(torch.arange(len(tokens.lengths)))["x"]

    def remarks(self, rows: int) -> list[str]:
        """Warnings on the latest table, of ``rows`` rows: what was cut off, and what is empty."""
        cut = [f"{self._cut} of {rows} texts have more than {self.max_length} tokens, and are cut off there."]
        empty = [f"{self._empty} of {rows} texts are empty or missing: their predictions mean nothing."]
        return [*(cut if self._cut else []), *(empty if self._empty else [])]


def texts_in(column: pd.Series, empty: Literal["error", "keep"], where: str) -> list[str]:
    """Return the cells of a column of texts; "error" refuses empty and missing ones, "keep" makes empty texts of them.

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
    """Learn ``size`` lower-case WordPieces, five markers included; return the JSON of a tokenizer of ``tokenizers``.

    Words of more than 100 characters are unknown, and so are rare characters: all but the ``size // 10`` most frequent
    ones, or 40 if that is more.
    """
    tokenizers = package("tokenizers", "text", f"tokens.vocabulary={size}")
    learner = _word_tokenizer(tokenizers, {"[UNK]": 0})
    texts = [_LONG_WORD.sub(" ", learner.normalizer.normalize_str(text)) for text in texts]  # not known later either
    counts = Counter(c for text in texts for c in text if not c.isspace())
    alphabet = sorted(sorted(counts, key=lambda c: (-counts[c], c))[: max(size // 10, _FEWEST_CHARACTERS)])
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        # The package numbers characters within words as it meets them, in an order that differs from run to run, and
        # breaks ties by these numbers: as special tokens they get fixed ones.
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
    except Exception as error:  # the hub's client and the readers of formats raise errors of no common class
        fault = "its folder holds none" if Path(name).is_dir() else "it is no folder here, and the hub gave none"
        raise ConfigError(
            f"tokens.tokenizer={name!r} could not be had: {fault} (working directory: {Path.cwd()}; "
            f"{type(error).__name__}). Without a connection save it elsewhere (AutoTokenizer.from_pretrained(NAME)"
            ".save_pretrained(FOLDER)) and pass that folder, or learn one (tokens.vocabulary: 4000)."
        ) from error

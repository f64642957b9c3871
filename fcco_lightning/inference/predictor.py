"""A trained network with its encoder and decision rule, loaded from a checkpoint."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from fcco_lightning import objectives
from fcco_lightning.checks import at_least
from fcco_lightning.constraints import DecisionRule
from fcco_lightning.data.columns import as_texts, as_written, require_columns, text_of
from fcco_lightning.data.encoding import TabularEncoder
from fcco_lightning.data.schema import require_seen
from fcco_lightning.data.sources import read_table, with_features
from fcco_lightning.data.texts import TextEncoder
from fcco_lightning.engine import outputs_of_columns
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.inference.networks import network_of
from fcco_lightning.inference.tables import NO_PROBABILITIES, Kind, prediction_table
from fcco_lightning.objectives import SquaredError
from fcco_lightning.state.checkpoint_files import in_words, load_weights, read_file, weights_of_network

_FEWEST_JUDGED = 10  # fewer rows may all have new categories by chance


class Predictor(nn.Module):
    """A network in evaluation mode that is called with its inputs, or predicts the rows of a table.

    Args:
        network: the trained network.
        encoder: encodes the columns of a table as the network's inputs; None if these do not come from a table, such as
            images.
        kind: the meaning of the outputs, see :func:`~fcco_lightning.inference.prediction_table`.
        names: names of the classes or labels.
        group_columns: the columns of a table that define groups.
        decided_elsewhere: warnings about constraints that were enforced on other decisions than the network's.
        rule: the decision rule.
    """

    def __init__(
        self,
        network: nn.Module,
        encoder: TabularEncoder | TextEncoder | None = None,
        kind: Kind = "values",
        names: Sequence[str] = (),
        group_columns: Sequence[str] = (),
        decided_elsewhere: Sequence[str] = (),
        rule: DecisionRule | None = None,
    ) -> None:
        super().__init__()
        self.rule = rule or DecisionRule()
        self.network, self.decided_elsewhere = network, list(decided_elsewhere)
        self.encoder = encoder
        self.kind = kind
        self.names = list(names)
        self.group_columns = list(group_columns)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        """The network's outputs for inputs x with first dimension B."""
        return outputs_of_columns(self.network, {"x": x})

    @torch.no_grad()
    def predict(
        self, source: Any, *, id_column: str | None = None, threshold: float | None = None, batch_size: int = 4096
    ) -> pd.DataFrame:
        """Predict the rows of a table: for every row its number or id, its groups if known, and the predictions.

        Under a budget, the given share of this table with the highest scores is chosen, so that the decision on a row
        depends on the others (a single row is never chosen).  ``rule.decided(scores)`` decides on rows independently,
        by the threshold from the validation split.

        Args:
            source: a table, as for a datamodule (file, folder, hub id, DataFrame); labels are not needed.
            id_column: column of identifiers of the rows, read literally from a .csv; None for numbers from 0 in
                ``index``.
            threshold: threshold of probabilities, in (0, 1]; None for the decision rule, with a warning if constraints
                were enforced on other decisions.
            batch_size: number of rows that pass through the network at once; use less if memory is short.

        Returns: see :func:`~fcco_lightning.inference.prediction_table`.

        Raises:
            ConfigError: if the network was not trained on a table or on texts, or has no probabilities for a threshold.
            DataError: if the table lacks a column or cells that the encoder needs, if more than a tenth of a numeric
                column are no numbers, or if more than half of at least 10 rows have an unknown value in a categorical
                column.
        """
        frame = self.read(source)
        if id_column is not None:
            require_columns(frame, {"id": [id_column]}, "the table")
        ids: dict[str, Any] = {id_column: _ids(frame, source, id_column)} if id_column else {"index": frame.index}
        ids |= {
            name: text_of(frame[name]) for name in self.group_columns if name in frame.columns and name != id_column
        }
        outputs = self.outputs_of(frame, batch_size)
        for remark in self.decided_elsewhere if threshold is None and self.kind != "values" else ():
            warnings.warn(remark, stacklevel=3)  # one level is torch's decorator
        kind, names = self.scores_of(outputs)
        if threshold is not None and (kind == "values" or (kind == "classes" and outputs.numel() > len(outputs))):
            raise ConfigError(
                f"threshold={threshold!r} is of probabilities, and this network predicts "
                f"{'numbers' if kind == 'values' else 'the most probable of several classes'}: leave it out."
            )
        table = prediction_table(outputs, ids, kind=kind, names=names, threshold=threshold, rule=self.rule)
        if kind != "values" and not any(name.startswith("probability") for name in map(str, table)):
            warnings.warn(f"no probability is written: {NO_PROBABILITIES}", stacklevel=3)
        return table

    def read(self, source: Any, texts: Sequence[str] = ()) -> pd.DataFrame:
        """The rows of a table with the columns of the training split.

        Args:
            source: as for :meth:`predict`.
            texts: further columns, in addition to those of the encoding, that held texts in training.

        Raises:
            ConfigError: if the network was not trained on a table or on texts.
            DataError: if there is no such table, or it has no rows.
        """
        if self.encoder is None:
            raise ConfigError(
                "the checkpoint was not written with a datamodule of tables or texts, so there is no way from a table "
                "to the network's inputs. Call the loaded network with tensors, or use `fcco predict --config CONFIG "
                "--ckpt_path CKPT` (or fcco test), which takes the config's test split."
            )
        if isinstance(self.encoder, TextEncoder):
            return as_texts(read_table(source, "data", [self.encoder.column]), source, texts)
        frame = as_texts(read_table(source, "data"), source, [*self.encoder.texts, *texts])
        return with_features(frame, [column.name for column in self.encoder.columns])

    @torch.no_grad()
    def outputs_of(self, frame: pd.DataFrame, batch_size: int = 4096) -> Tensor:
        """The network's outputs for the rows of a table that was :meth:`read`, with the encoder's warnings.

        Raises:
            DataError: as :meth:`predict`, or if an output is not finite.
        """
        encoder = self.encoder
        assert encoder is not None  # noqa: S101 - read() needs it, too
        parts = [self(x) for x in encoder.batches(frame, at_least("batch_size", batch_size, 1))]
        if isinstance(encoder, TabularEncoder) and len(frame) >= _FEWEST_JUDGED:
            shares = {name: count / len(frame) for name, count in encoder.unknown_counts.items()}
            inferred = [c for c in encoder.columns if c.name not in encoder.encoding.categorical]
            require_seen(inferred, shares, frame, "the table")
        for remark in encoder.remarks(len(frame)):
            warnings.warn(remark, stacklevel=4)
        outputs = torch.cat(parts)
        if nonfinite := (~outputs.reshape(len(frame), -1).isfinite().all(1)).nonzero()[:, 0].tolist():
            raise DataError(
                f"the network's outputs for {len(nonfinite)} of {len(frame)} rows of the table are not finite (first: "
                f"row {nonfinite[0]}): a number there is too far from those of training, or the weights have diverged. "
                "Correct such cells, or remove the rows."
            )
        return outputs

    def scores_of(self, outputs: Tensor) -> tuple[Kind, Sequence[str]]:
        """The kind and names of outputs; they are values if their number differs from that of the classes."""
        width = outputs[:1].numel()
        if self.kind == "classes" and width != len(self.names) and (width, len(self.names)) != (1, 2):
            return "values", ()
        return self.kind, self.names


def _ids(frame: pd.DataFrame, source: Any, column: str) -> pd.Series:
    """The identifiers of the rows, as literal texts if a .csv has texts that pandas would change to numbers."""
    texts = as_written(frame, Path(source), [column])[column] if isinstance(source, (str, PathLike)) else frame[column]
    return frame[column] if texts.equals(frame[column].astype(str)) else texts


def load(path: str | Path, network: nn.Module | None = None, *, trusted: Sequence[str] = ()) -> Predictor:
    """Load the network of a checkpoint for inference.

    A checkpoint of ``fcco fit`` describes its network.  One of a Trainer in Python does not, and needs ``network``.

    Args:
        path: path of a checkpoint.
        network: a network of the trained architecture; its weights are replaced.
        trusted: full names of the user's own classes, such as my_package.MyNetwork, that the checkpoint may name in
            addition to the package's networks and layers of ``torch.nn``; making an object runs the class's code.

    Raises:
        CheckpointError: if the file is no checkpoint, or its weights belong to another network.
        ConfigError: if the network is not known, or of a class that is not trusted.

    Example:
        >>> load("last.ckpt").predict("new.csv")  # doctest: +SKIP
    """
    return predictor_of(read_file(path, whole=True), network, trusted=trusted, file=f"checkpoint {path}")


def predictor_of(
    content: Mapping[str, Any], network: nn.Module | None = None, *, trusted: Sequence[str] = (), file: str
) -> Predictor:
    """Do the same as :func:`load` for the content of a checkpoint, which is called ``file`` in messages."""
    header = content["fcco"]
    config = header.get("config") or {}
    if network is None:
        described = config.get("model", {}).get("network")
        if described is None:
            raise ConfigError(
                f"{file} does not say how its network is made: it was not written by `fcco fit`. Pass network=..., of "
                "the architecture that was trained."
            )
        network = network_of(described, weights_of_network(content), trusted, file)
    load_weights(network, content, file)
    with torch.no_grad(), in_words(f"{file}: how a table becomes inputs of the network"):
        encoder = _encoder(content)
        if isinstance(encoder, TabularEncoder):  # initialises lazy layers
            outputs_of_columns(network.eval(), {"x": torch.zeros(1, len(encoder.feature_names))})
    model = config.get("model", {})
    kind, names, groups = _described(config.get("data"), header.get("classes") or [])
    objective = model.get("objective")
    name = str(objective.get("class_path")).rpartition(".")[2] if isinstance(objective, Mapping) else ""
    if name == SquaredError.__name__ or not getattr(getattr(objectives, name, None), "scores_classes", True):
        names = names if kind == "labels" else []
        kind = "values"  # predicted numbers and log risks are no logits
    elsewhere = list(_decided_elsewhere(model.get("constraints") or []))
    with in_words(f"{file}: its decisions"):
        rule = DecisionRule.of(header["decisions"]) if header.get("decisions") else None
    if rule is not None and not rule.known and len(names) == 2:
        elsewhere.append(
            f"decisions are for {rule.decisions.describe()}, and the run has evaluated no split by which to divide the "
            "scores: a row is decided positive here above a score of 0, which means nothing. Validate while training."
        )
    return Predictor(network, encoder, kind, names, groups, elsewhere, rule)


def _encoder(content: Mapping[str, Any]) -> TabularEncoder | TextEncoder | None:
    for state in content.values():
        if not isinstance(state, Mapping) or "train_split" not in state:
            continue
        if isinstance(state.get("encoder"), Mapping):
            encoder = TabularEncoder()
            encoder.load_state_dict(state["encoder"])
            return encoder
        if isinstance(state.get("texts"), Mapping):
            return TextEncoder.of(state["texts"])
    return None


def _described(data: Mapping[str, Any] | None, classes: Sequence[str]) -> tuple[Kind, list[str], list[str]]:
    """The kind of the outputs, the names of classes or labels, and the columns that define groups."""
    arguments = (data or {}).get("init_args") or {}
    columns = arguments.get("columns") or {}
    parts = (arguments.get("groups") or {}).get("by") or []
    groups = [part if isinstance(part, str) else part.get("column") for part in parts]
    sensitive = columns.get("sensitive") or []
    groups += [sensitive] if isinstance(sensitive, str) else sensitive
    if isinstance(columns.get("label"), list):
        return "labels", columns["label"], groups
    return ("classes" if classes else "values"), list(classes), groups


def _arguments(part: Any) -> Mapping[str, Any]:
    """The arguments of a part of a configuration; empty if it has none."""
    arguments = part.get("init_args") if isinstance(part, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}


def _decided_elsewhere(constraints: Sequence[Any]) -> Iterator[str]:
    """Descriptions of the constraints whose rates refer to other decisions than those by a positive score."""
    for constraint in constraints:
        arguments = _arguments(constraint)
        for rate in (arguments.get("rate"), arguments.get("quantity")):
            if not isinstance(rate, Mapping):
                continue
            args, name = _arguments(rate), str(constraint["class_path"]).rpartition(".")[2]
            score = args.get("threshold")
            if isinstance(score, int | float) and score != 0:
                probability = (1 + math.tanh(score / 2)) / 2
                yield (
                    f"{name} was enforced on decisions for scores above {score:g}, and a row is decided positive here "
                    f"above a score of 0. --threshold {probability:.4g} (threshold=) takes the same."
                )
            elif isinstance(args.get("share"), int | float):
                yield (
                    f"{name} was enforced on decisions for the highest {args['share']:g} of the scores, and a row is "
                    "decided positive here above a score of 0. Take the highest scores of the table instead."
                )

"""Lightning's progress bars on one line, with few figures and short names."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from rich import get_console
from rich.progress import ProgressColumn, TimeRemainingColumn
from rich.table import Column

SHORT_NAMES = {"auc": "AUC", "worst_group_accuracy": "worst group", "worst_change": "worst change"}
TQDM_FORMAT = "{desc}|{bar}| {n_fmt}/{total_fmt} [{remaining}{postfix}]"


class OneLine(Callback):
    """Keeps the progress bar on one line of a terminal of 80 columns.

    It shows three of the figures that are logged for the bar: the estimate of the objective and, on the last split on
    which validation runs, the worst violation max h and the last figure of the evaluation's ``bar`` (AUC, accuracy of
    the worst group).  Methods that the user's own subclass of a bar defines are kept.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Change the Trainer's bar, if it is one of Lightning's classes."""
        bar = _visible(trainer)
        if bar is None:
            return

        def metrics(trainer: Trainer, module: Any) -> dict[str, str]:
            splits = getattr(getattr(trainer, "datamodule", None), "val_names", ["val"])
            return chosen_figures(trainer.progress_bar_metrics, splits, module.evaluation.bar)

        if isinstance(bar, RichProgressBar):
            described = bar._get_train_description  # says "Epoch 0/-2" if only steps are limited
            _replace(
                bar,
                RichProgressBar,
                get_metrics=metrics,
                configure_columns=lambda trainer: _columns(bar, trainer),
                _get_train_description=lambda epoch: described(epoch).replace("/-2", "   "),
            )
        elif isinstance(bar, TQDMProgressBar):
            _replace(bar, TQDMProgressBar, get_metrics=metrics, BAR_FORMAT=TQDM_FORMAT)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Close the bar before the run's report is printed below it."""
        bar = trainer.progress_bar_callback
        if isinstance(bar, RichProgressBar):
            bar._stop_progress()


def _visible(trainer: Trainer) -> ProgressBar | None:
    """The Trainer's bar; replaced by the ``tqdm`` bar in a notebook without ipywidgets, where Rich's is invisible."""
    bar = trainer.progress_bar_callback
    unseen = type(bar) is RichProgressBar and get_console().is_jupyter and find_spec("ipywidgets") is None
    if bar is None or not unseen:
        return bar
    text_bar = TQDMProgressBar()
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks[callbacks.index(bar)] = text_bar
    text_bar.setup(trainer, trainer.lightning_module, stage=str(trainer.state.fn))
    return text_bar


def _replace(bar: ProgressBar, owner: type[ProgressBar], **parts: Any) -> None:
    """Set those attributes of the bar that it inherits from Lightning's class."""
    for name, value in parts.items():
        if getattr(type(bar), name) is getattr(owner, name):
            setattr(bar, name, value)


def chosen_figures(metrics: Mapping[str, float], splits: Sequence[str], figures: Sequence[str]) -> dict[str, str]:
    """At most three figures, by a short name and as text.

    Args:
        metrics: the figures that were logged for the bar, by ``<split>_<figure>``.
        splits: the splits on which validation runs; the last one with a figure is shown.
        figures: names of the evaluation's figures; the last one that was logged is shown.

    Example:
        >>> logged = {"train_objective": 0.4712, "train_auc": 0.8, "train_worst_violation": -0.001}
        >>> chosen_figures(logged, ["train"], ["auc"])
        {'objective': '0.471', 'max h': '-0.001', 'AUC': '0.800'}
        >>> chosen_figures(logged | {"val_auc": 0.7}, ["train", "val"], ["auc"])["val AUC"]
        '0.700'
    """
    texts = {"objective": f"{metrics['train_objective']:.3f}"} if "train_objective" in metrics else {}
    for split in reversed(splits):
        if f"{split}_worst_violation" in metrics:
            texts["max h"] = f"{metrics[f'{split}_worst_violation']:+.3f}"
            break
    for split, figure in ((s, f) for s in reversed(splits) for f in reversed(figures)):
        if f"{split}_{figure}" in metrics:
            name = SHORT_NAMES.get(figure, figure.replace("_", " "))
            texts[name if split == "train" else f"{split} {name}"] = f"{metrics[f'{split}_{figure}']:.3f}"
            break
    return texts


def _columns(bar: RichProgressBar, trainer: Trainer) -> list[ProgressColumn]:
    """The columns before the figures: epoch, bar, batches and remaining time; only the bar may shrink."""
    description, progress, batches, *_ = RichProgressBar.configure_columns(bar, trainer)
    time_left = TimeRemainingColumn(compact=True)
    for column in (description, batches, time_left, bar._metric_component):
        if column is not None:
            column._table_column = Column(no_wrap=True)
    return [description, progress, batches, time_left]

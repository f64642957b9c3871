"""The schema of checkpoints: the form of every entry that this package reads, and messages for other values.

A form is plain data, as the values are that it describes:

- a type: a value of it; ``int`` and ``float`` exclude True and False, ``object`` is any value, None is None,
- ``{"a": form, "b?": form}``: a mapping with texts as keys; "b" may be missing, other entries are not checked,
- ``{str: form}``: a mapping from any keys of a type to values of one form,
- ``[form]``: a list or tuple of any length; ``(form, form)``: of two members,
- a set of texts: one of them,
- :class:`Either` of several forms.

Entries that Lightning, torch and user code read themselves are arbitrary mappings; errors in loading them are reported
by :func:`~fcco_lightning.state.checkpoint_files.in_words`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fcco_lightning.errors import CheckpointError

Form = Any


class Either(tuple[Form, ...]):
    """Several forms, of which a value has one."""

    __slots__ = ()

    def __new__(cls, *forms: Form) -> "Either":
        return super().__new__(cls, forms)


# --------------------------------------------------------------------------------------------------- parts of the state

SAMPLES = {"rows": int, "contents": {str: str}}
"""The identity of a training split: its number of rows, and digests of its columns."""

PROBLEM = {"objective": str, "constraints": [(str, [str])], "enforcement": str}
"""The objective and the constraints to which rows belong."""

AVERAGES = {
    "sums?": {str: (Tensor, Tensor)},
    "batches?": [([(str, Tensor, float, Either(Tensor, None), Either(Tensor, None))], int)],
}
"""The averages of estimates: weighted sums and their weights, and summands and sizes of batches not yet added."""

ENGINE = {
    "algorithm": {"name": str},
    "samples_before?": {str: Tensor},
    "estimates?": {str: Tensor},
    "data?": Either(SAMPLES, None),
    "problem?": PROBLEM,
    "parameters?": {str: Tensor},
    "remembers?": bool,
    "optimizer?": Either(str, None),
    "averages?": AVERAGES,
}
"""The state of an :class:`~fcco_lightning.Engine` besides rows; the entries of an algorithm are not checked."""

CRITERION = {"problem": {str: object}, "engine": ENGINE}
"""The state of a :class:`~fcco_lightning.Criterion`."""

ROWS = {"version": int, "num_rows": int, "first": int}
"""The range of rows of a :class:`~fcco_lightning.state.DualState`."""

LOADER = {"epoch": int, "given": int, "batch_size": int}
"""The position of a :class:`~fcco_lightning.ResumableLoader` in its data."""

PART_FILE = {"save_id": str, "rank": int, "parts": {str: Tensor}}
"""A file beside a checkpoint, see :mod:`~fcco_lightning.state.parts`."""

# -------------------------------------------------------------------------------------------- the entry "fcco", by part

_PART = {"class_path": str, "init_args?": Either({str: object}, None)}
_COLUMNS = {"label?": Either(str, [str], None), "sensitive?": Either(str, [str], None)}
_GROUPS = {"by?": Either([Either(str, {"column?": str})], None)}
_CONFIG = {  # of `fcco fit`, as far as it is read
    "model?": {
        "network?": _PART,
        "objective?": Either(_PART, str, None),
        "constraints?": Either([Either(_PART, str)], None),
    },
    "data?": Either(
        {"init_args?": Either({"columns?": Either(_COLUMNS, None), "groups?": Either(_GROUPS, None)}, None)}, None
    ),
}
_RANDOM = {
    "torch": Tensor,
    "python": ([int], Either(float, None)),
    "numpy": (str, Tensor, int, int, float),
    "loaders?": [object],
    "cuda?": [Tensor],
}
_CALIBRATION = Either({"slope": float, "intercept": float}, {"scores": [float], "probabilities": [float]}, None)
_DECISIONS = {
    "asked": {str: Either(float, str, [float])},
    "costs": [float],
    "division": float,
    "calibration": _CALIBRATION,
    "known": bool,
    "proper": bool,
}
_HEADER = {
    "version": int,
    "world_size": int,
    "num_samples": int,
    "skipped_batches": int,
    "optimizer": {"class": str, "typed?": [{str: object}]},
    "states": [str],
    "save_id?": str,
    "config?": _CONFIG,
    "classes?": [str],
    "engine": ENGINE,
    "random?": _RANDOM,
    "phase?": {"name": {"main", "pretraining"}, "epoch": int},
    "trained?": [str],
    "schedule?": Either({"class": str, "interval": str}, None),
    "of_steps?": [str],
    "finished?": bool,
    "average?": Either({"count": int, "weights": {str: Tensor}}, None),
    "eased_decay?": Either({"share": float, "sums": Either(Tensor, None)}, None),
    "references?": Either(({str: str}, Either({str: {str: Tensor}}, None)), None),
    "decisions?": _DECISIONS,
}

# ------------------------------------------------------------------------- what Lightning, torch and callbacks write

_COUNT = {"ready": int, "completed": int, "started": int, "processed": int}
_COUNTS = {"total": _COUNT, "current": _COUNT}
_UPDATES = {"ready": int, "completed": int}
_FIT_LOOP = {
    "state_dict": {"combined_loader?": [object]},
    "epoch_progress": _COUNTS,
    "epoch_loop.state_dict": {"_batches_that_stepped?": int},
    "epoch_loop.batch_progress": _COUNTS | {"is_last_batch": bool},
    "epoch_loop.val_loop.batch_progress": _COUNTS | {"is_last_batch": bool},
    "epoch_loop.manual_optimization.optim_step_progress": {"total": _UPDATES, "current": _UPDATES},
}
_EVALUATION = {"batch_progress": _COUNTS}
_LOOPS = {"fit_loop": _FIT_LOOP} | {f"{name}_loop?": _EVALUATION for name in ("validate", "test", "predict")}
_OPTIMIZER = {
    "state": {Either(int, str): {str: object}},
    "param_groups": [{"params": [Either(int, str)]}],
}
_SCHEDULE: dict[str, Form] = {
    "last_epoch?": int,
    "base_lrs?": [Either(float, Tensor)],
    "_step_count?": int,
    "_last_lr?": [Either(float, Tensor)],
    "_milestones?": [int],
}
_SCHEDULE["_schedulers?"] = [_SCHEDULE]  # of a chained one
_MODEL_CHECKPOINT = {
    "best_model_path": str,
    "best_model_score": Either(Tensor, None),
    "best_k_models": {str: Tensor},
    "kth_best_model_path": str,
    "kth_value": Tensor,
    "last_model_path": str,
}
_CANDIDATE = {"epoch": int, "feasible": bool, "worst_violation": float, "vacuous?": bool, "bound?": float}
_CALLBACKS: dict[str, Form] = {
    "Checkpoints": _MODEL_CHECKPOINT,
    "ModelCheckpoint": _MODEL_CHECKPOINT,
    "EarlyStopping": {"wait_count": int, "stopped_epoch": int, "best_score": Tensor, "patience": int},
    "Report": {"history": [{str: object}], "kappas": {str: float}},
    "Baseline": {  # empty or complete
        "network?": {str: object},
        "objective?": {str: object},
        "optimizer?": _OPTIMIZER,
        "gradients?": [Either(Tensor, None)],
        "batches?": int,
    },
    "BestFeasible": {  # empty or complete
        "chosen?": _CANDIDATE,
        "weights?": {str: Tensor},
        "rule?": _DECISIONS,
        "margins?": [float],
        "asked?": {str: object},
    },
}

_NUMBERS = {"name": str, "mean": float, "std": float, "median": float, "ends?": [float], "periods?": [float]}
_BINS = {"name": str, "edges": [float], "median": float}
_DATA = {  # the state of a datamodule, stored under the name of its class
    "train_split": {str: object},
    "groups_by?": {str: [str]},
    "encoder?": {
        "missing": str,
        "columns": [Either(_NUMBERS, _BINS, {"name": str, "categories": [str]})],
        "quantiles?": Either(int, None),
        "pieces?": Either(int, str),
        "categorical?": [str],
        "numeric?": [str],
        "dates?": [str],
    },
    "texts?": {"column": str, "max_length": int, "pretrained": Either(str, None), "tokenizer": Either(str, None)},
}
_CONTENT = {
    "state_dict": {str: object},
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
    "fcco": _HEADER,
    "loops?": _LOOPS,
    "callbacks?": {str: {str: object}},
    "optimizer_states?": [_OPTIMIZER],
    "lr_schedulers?": [_SCHEDULE],
    "logged_results?": {str: Tensor},
}
_TO_CONTINUE = ("loops", "callbacks", "optimizer_states", "lr_schedulers"), ("random",)
"""Additional entries of a checkpoint, and of its entry ``fcco``, that are needed to continue training."""
_VERSION = re.compile(r"[2-9]\d*(\.\d+)*((a|b|rc|\.?dev|\.?post)\d+)*(\+[\w.]+)?")

# ------------------------------------------------------------------------------------------- the content of checkpoints


def misfit_of_checkpoint(content: Mapping[str, Any], *, to_continue: bool) -> str | None:
    """A phrase on the first entry of a checkpoint that violates the schema; None if there is none.

    Args:
        content: content of the file.
        to_continue: whether training is to be continued, which needs more than weights and rows.
    """
    return next(_misfits_of_checkpoint(content, to_continue), None)


def _misfits_of_checkpoint(content: Mapping[str, Any], to_continue: bool) -> Iterator[str]:
    yield from _misfits(content, _CONTENT, "")
    header, (required, required_of_header) = content["fcco"], _TO_CONTINUE if to_continue else ((), ())
    yield from (f"its entry `{name}` is missing" for name in required if name not in content)
    yield from (f"its entry `fcco.{name}` is missing" for name in required_of_header if name not in header)
    if to_continue and "typed" not in header["optimizer"]:
        yield "its entry `fcco.optimizer.typed` is missing"
    if not _VERSION.fullmatch(content["pytorch-lightning_version"]):
        yield f"its entry `pytorch-lightning_version` is {_short(content['pytorch-lightning_version'])}, not a version"
    if not header.get("save_id", "0").isalnum():  # it is the name of a folder beside the checkpoint
        yield f"its entry `fcco.save_id` is {_short(header['save_id'])}, and must be letters and digits"
    yield from _misfits_of_parts(content)


def _misfits_of_parts(content: Mapping[str, Any]) -> Iterator[str]:
    """Violations in entries whose names depend on the run."""
    for name, value in content["state_dict"].items():
        if not isinstance(value, Tensor) and not name.endswith("_extra_state"):
            yield _wrong_value(f"state_dict.{name}", value, Tensor)
    yield from _misfit_of_different("fcco.states", content["fcco"]["states"])
    for name in content["fcco"]["states"]:
        yield from _misfits_of_rows(f"{name}.rows", content)
    parts: list[tuple[str, Any, Form]] = [
        (name, state, _DATA) for name, state in content.items() if "train_split" in _mapping(state)
    ]
    for name, state in content.get("callbacks", {}).items():
        parts.append((f"callbacks.{name}", state, _CALLBACKS.get(name.partition("{")[0], {str: object})))
    loaders = content["loops"]["fit_loop"]["state_dict"].get("combined_loader", ()) if "loops" in content else ()
    place = "loops.fit_loop.state_dict.combined_loader"
    parts += [(place, loader, LOADER) for loader in loaders if "given" in _mapping(loader)]
    for name, state, form in parts:
        yield from _misfits(state, form, name)
        if form is _DATA:
            yield from _misfits_of_names(name, state)
    yield from _misfit_of_different("fcco.classes", content["fcco"].get("classes", []))


def _misfits_of_names(name: str, state: Mapping[str, Any]) -> Iterator[str]:
    """What names columns, categories and groups must tell them apart."""
    columns = state["encoder"]["columns"] if "encoder" in state else []
    yield from _misfit_of_different(f"{name}.encoder.columns", [column["name"] for column in columns])
    for place, column in enumerate(columns):
        yield from _misfit_of_different(f"{name}.encoder.columns.{place}.categories", column.get("categories", []))
    for column, groups in state.get("groups_by", {}).items():
        yield from _misfit_of_different(f"{name}.groups_by.{column}", groups)


def _misfit_of_different(entry: str, names: Sequence[str]) -> Iterator[str]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        yield f"its entry `{entry}` contains {_short(twice)} twice"


def _mapping(value: Any) -> Mapping[Any, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _misfits_of_rows(name: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Violations in the rows of a dual state, which are in the checkpoint, or in the files that its save names."""
    rows = content["state_dict"].get(name)
    if rows is None:
        yield f"its entry `state_dict.{name}` is missing"
    elif rows.dim() != 2 or min(rows.shape) < 1 or str(rows.dtype) not in ("torch.float32", "torch.float64"):
        kind = f"{rows.dtype} of shape {tuple(rows.shape)}".removeprefix("torch.")
        yield f"its entry `state_dict.{name}` is {kind}, and must be float32 or float64 of shape (rows, width)"
    elif rows.is_meta and "save_id" not in content["fcco"]:
        yield f"its entry `state_dict.{name}` has no values, and `fcco.save_id`, which names their files, is missing"


# --------------------------------------------------------------------------------------------------------- the checking


def require(value: Any, form: Form, name: str) -> None:
    """Refuse a state that does not have the required form.

    Args:
        value: the state.
        form: the form, see the module.
        name: name of the state in messages.

    Raises:
        CheckpointError: naming the first entry that differs, its value and what is required.
    """
    for misfit in _misfits(value, form, ""):
        raise CheckpointError(f"{name}: {misfit}. Use a complete state, as it was saved.")


def _misfits(value: Any, form: Form, entry: str) -> Iterator[str]:
    """Differences between a value and a form, entry by entry."""
    if isinstance(form, Either):  # the closest form: one of the value's own type, if there is any, with the fewest
        misfits = [list(_misfits(value, kind, entry)) for kind in form]
        same_type = [found for found, kind in zip(misfits, form, strict=True) if _is(value, kind)]
        if all(misfits):
            yield from min(same_type, key=len) if same_type else [_wrong_value(entry, value, form)]
    elif not _is(value, form):
        yield _wrong_value(entry, value, form)
    elif isinstance(form, dict):
        yield from _misfits_of_mapping(value, form, entry)
    elif isinstance(form, list | tuple):
        kinds = form if isinstance(form, tuple) else form * len(value)
        for place, (member, kind) in enumerate(zip(value, kinds, strict=True)):
            yield from _misfits(member, kind, _path(entry, place))


def _misfits_of_mapping(value: Mapping[Any, Any], form: dict[Any, Form], entry: str) -> Iterator[str]:
    named = isinstance(next(iter(form)), str)
    key_type = str if named else next(iter(form))
    for key, member in value.items():
        if not _is(key, key_type):
            yield f"{_subject(entry)} has the key {_short(key)}, and keys must be {_type_name(key_type)}"
        elif not named:
            yield from _misfits(member, form[key_type], _path(entry, key))
    for name, kind in form.items() if named else ():
        key = name.removesuffix("?")
        if key in value:
            yield from _misfits(value[key], kind, _path(entry, key))
        elif key == name:
            yield f"its entry `{_path(entry, key)}` is missing"


def _is(value: Any, form: Form) -> bool:
    """Whether a value is of the type of a form, without regard to its members."""
    if isinstance(form, Either):
        return any(_is(value, kind) for kind in form)
    if isinstance(form, set):
        return isinstance(value, str) and value in form
    if isinstance(form, tuple):
        return isinstance(value, list | tuple) and len(value) == len(form)
    if form in (int, float):
        return isinstance(value, int if form is int else int | float) and not isinstance(value, bool)
    kinds: Any = {dict: Mapping, list: (list, tuple), type(None): type(None)}.get(type(form), form)
    return isinstance(value, kinds)


def _wrong_value(entry: str, value: Any, form: Form) -> str:
    return f"{_subject(entry)} is {_short(value)}, and must be {_type_name(form)}"


def _subject(entry: str) -> str:
    return f"its entry `{entry}`" if entry else "it"


_NAMES: dict[Form, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", Tensor: "a tensor", None: "None",
}  # fmt: skip


def _type_name(form: Form) -> str:
    if isinstance(form, Either):
        return " or ".join(dict.fromkeys(map(_type_name, form)))
    if isinstance(form, set):
        return " or ".join(map(repr, sorted(form)))
    if isinstance(form, list | tuple):
        return f"a list of {len(form)}" if isinstance(form, tuple) else "a list"
    return "a mapping" if isinstance(form, dict) else _NAMES[form]


def _short(value: Any) -> str:
    """A short description of a value."""
    if isinstance(value, str | int | float | None):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:36]}..."
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _path(entry: str, key: Any) -> str:
    return f"{entry}.{key}" if entry else str(key)

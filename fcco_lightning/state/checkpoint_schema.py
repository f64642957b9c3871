"""The schema of checkpoints: the type of every entry that this package reads, and messages for other values.

Entries that Lightning, torch and user code read themselves are arbitrary mappings; errors in loading them are reported
by :func:`~fcco_lightning.state.checkpoint_files.in_words`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from torch import Tensor

from fcco_lightning.errors import CheckpointError

# --------------------------------------------------------------------------------------------------------- the schema


class _Part(TypedDict):
    class_path: str
    init_args: NotRequired[dict[str, Any] | None]


class _NamedColumn(TypedDict):
    name: str


class _RowFile(TypedDict):
    table: str
    file: str
    first: int
    count: int
    width: int
    dtype: Literal["float32", "float64"]
    sums: list[int]


class ManifestFile(TypedDict):
    """``manifest.json`` of the row files of a save, see :class:`~fcco_lightning.state.row_files.Manifest`."""

    save_id: str
    tables: dict[str, int]
    parts: list[_RowFile]


class _Table(TypedDict):
    """A dual state; its rows are ``state_dict["NAME.rows"]``, or in files beside the checkpoint."""

    num_rows: int
    width: int
    dtype: Literal["float32", "float64"]
    checksum: str


class RowsState(TypedDict):
    """The range of rows of a :class:`~fcco_lightning.state.DualState`."""

    version: int
    num_rows: int
    first: int


class AveragesState(TypedDict, total=False):
    """The averages of estimates: weighted sums and their weights, and summands and sizes of batches not yet added.

    Earlier versions wrote the sums over all batches as ``so_far``, too.
    """

    sums: dict[str, tuple[Tensor, Tensor]]
    batches: list[tuple[list[tuple[str, Tensor, float, Tensor | None, Tensor | None]], int]]
    so_far: dict[str, tuple[Tensor, Tensor]]


class _Samples(TypedDict):
    """The identity of a training split: its number of rows, and digests of its columns."""

    rows: int
    contents: dict[str, str]


class _Problem(TypedDict):
    """The objective and the constraints to which rows belong."""

    objective: str
    constraints: list[tuple[str, list[str]]]
    enforcement: str


class EngineState(TypedDict):
    """The state of an :class:`~fcco_lightning.Engine` besides rows; the entries of an algorithm are not checked."""

    algorithm: _NamedColumn
    samples_before: NotRequired[dict[str, Tensor]]
    estimates: NotRequired[dict[str, Tensor]]
    data: NotRequired[_Samples | None]
    problem: NotRequired[_Problem]
    parameters: NotRequired[dict[str, Tensor]]
    remembers: NotRequired[bool]
    optimizer: NotRequired[str | None]
    averages: NotRequired[AveragesState]


class CriterionState(TypedDict):
    """The state of a :class:`~fcco_lightning.Criterion`."""

    problem: dict[str, Any]
    engine: EngineState


class _Columns(TypedDict, total=False):
    """The roles of a table's columns, as far as predictions need them."""

    label: str | list[str] | None
    sensitive: str | list[str] | None


class _Group(TypedDict, total=False):
    column: str


class _Groups(TypedDict, total=False):
    """The columns of a table that define groups."""

    by: list[str | _Group] | None


class _DataArguments(TypedDict, total=False):
    """The arguments of a datamodule that predictions need."""

    columns: _Columns | None
    groups: _Groups | None


class _Data(TypedDict, total=False):
    """A datamodule in a configuration."""

    init_args: _DataArguments | None


class _Model(TypedDict, total=False):
    """The model in a configuration, as far as it is read."""

    network: _Part
    objective: _Part | str | None
    constraints: list[_Part | str] | None


class _Config(TypedDict, total=False):
    """The configuration of ``fcco fit``."""

    model: _Model
    data: _Data | None


class _Random(TypedDict):
    """The states of the random generators."""

    torch: Tensor
    python: tuple[list[int], float | None]
    numpy: tuple[str, Tensor, int, int, float]
    loaders: NotRequired[list[Any]]
    cuda: NotRequired[list[Tensor]]


_ScheduleKind = TypedDict("_ScheduleKind", {"class": str, "interval": str})
_OptimizerKind = TypedDict("_OptimizerKind", {"class": str, "typed": NotRequired[list[dict[str, Any]]]})


class _Phase(TypedDict):
    """The phase of a run, and the epoch in which it began."""

    name: Literal["main", "pretraining"]
    epoch: int


class _Average(TypedDict):
    """An average of weights: the number of averaged weights, and the average."""

    count: int
    weights: dict[str, Tensor]


class _EasedDecay(TypedDict):
    """Statistics of scores for the decay of weights, see ``EasedDecay``."""

    share: float
    sums: Tensor | None


class _Platt(TypedDict):
    slope: float
    intercept: float


class _Isotonic(TypedDict):
    scores: list[float]
    probabilities: list[float]


class _Decisions(TypedDict):
    """The state of a :class:`~fcco_lightning.constraints.DecisionRule`."""

    asked: dict[str, float | str | list[float]]
    costs: list[float]
    division: float
    calibration: _Platt | _Isotonic | None
    known: bool
    proper: bool


class _Header(TypedDict):
    """The entry ``fcco``."""

    version: int
    world_size: int
    algorithm: str
    num_samples: int
    skipped_batches: int
    optimizer: _OptimizerKind
    tables: dict[str, _Table]
    save_id: NotRequired[str]
    config: NotRequired[_Config]
    classes: NotRequired[list[str]]
    engine: NotRequired[EngineState]
    random: NotRequired[_Random]
    problem: NotRequired[_Problem]
    phase: NotRequired[_Phase]
    trained: NotRequired[list[str]]
    schedule: NotRequired[_ScheduleKind | None]
    of_steps: NotRequired[list[str]]
    finished: NotRequired[bool]
    average: NotRequired[_Average | None]
    eased_decay: NotRequired[_EasedDecay | None]
    references: NotRequired[tuple[dict[str, str], dict[str, dict[str, Tensor]] | None] | None]
    decisions: NotRequired[_Decisions]


class _Count(TypedDict):
    """Progress of a Lightning loop in batches or epochs."""

    ready: int
    completed: int
    started: int
    processed: int


class _Updates(TypedDict):
    """Progress of a Lightning loop in updates."""

    ready: int
    completed: int


class _Counts(TypedDict):
    total: _Count
    current: _Count


class _Batches(_Counts):
    is_last_batch: bool


class _Steps(TypedDict):
    total: _Updates
    current: _Updates


class LoaderPlace(TypedDict):
    """The position of a :class:`~fcco_lightning.ResumableLoader` in its data."""

    epoch: int
    given: int
    batch_size: int


class _Loaders(TypedDict, total=False):
    combined_loader: list[Any]


class _EpochLoopState(TypedDict, total=False):
    _batches_that_stepped: int


_FitLoop = TypedDict(
    "_FitLoop",
    {
        "state_dict": _Loaders,
        "epoch_progress": _Counts,
        "epoch_loop.state_dict": _EpochLoopState,
        "epoch_loop.batch_progress": _Batches,
        "epoch_loop.val_loop.batch_progress": _Batches,
        "epoch_loop.manual_optimization.optim_step_progress": _Steps,
    },
)


class _Evaluation(TypedDict):
    batch_progress: _Counts


class _Loops(TypedDict):
    fit_loop: _FitLoop
    validate_loop: NotRequired[_Evaluation]
    test_loop: NotRequired[_Evaluation]
    predict_loop: NotRequired[_Evaluation]


class _ParameterGroup(TypedDict):
    params: list[int | str]


class _OptimizerState(TypedDict):
    """The state of a torch optimizer; the entries of single parameters are not checked."""

    state: dict[int | str, dict[str, Any]]
    param_groups: list[_ParameterGroup]


class _Schedule(TypedDict, total=False):
    """The state of a torch schedule, also of a chained one; other entries are not checked."""

    last_epoch: int
    base_lrs: list[float | Tensor]
    _step_count: int
    _last_lr: list[float | Tensor]
    _schedulers: "list[_Schedule]"
    _milestones: list[int]


class _ModelCheckpointState(TypedDict):
    """The state of a ``ModelCheckpoint``: the written files."""

    best_model_path: str
    best_model_score: Tensor | None
    best_k_models: dict[str, Tensor]
    kth_best_model_path: str
    kth_value: Tensor
    last_model_path: str


class _EarlyStoppingState(TypedDict):
    """The state of an ``EarlyStopping``."""

    wait_count: int
    stopped_epoch: int
    best_score: Tensor
    patience: int


class _ReportState(TypedDict):
    """The state of a ``Report``."""

    history: list[dict[str, Any]]
    kappas: dict[str, float]


class _BaselineState(TypedDict, total=False):
    """The model without constraints of a ``Baseline``; empty or complete."""

    network: dict[str, Any]
    objective: dict[str, Any]
    optimizer: _OptimizerState
    gradients: list[Tensor | None]
    batches: int


class _Candidate(TypedDict):
    epoch: int
    feasible: bool
    worst_violation: float
    vacuous: NotRequired[bool]
    bound: NotRequired[float]


class _BestFeasibleState(TypedDict, total=False):
    """The weights chosen by a ``BestFeasible``; empty or complete."""

    chosen: _Candidate
    weights: dict[str, Tensor]
    rule: _Decisions
    margins: list[float]
    asked: dict[str, Any]


_CALLBACKS: dict[str, Any] = {
    "Checkpoints": _ModelCheckpointState, "ModelCheckpoint": _ModelCheckpointState,
    "EarlyStopping": _EarlyStoppingState, "Report": _ReportState,
    "Baseline": _BaselineState, "BestFeasible": _BestFeasibleState,
}  # fmt: skip


class _Numbers(_NamedColumn):
    mean: float
    std: float
    median: float
    ends: NotRequired[list[float]]
    periods: NotRequired[list[float]]


class _Bins(_NamedColumn):
    edges: list[float]
    median: float


class _Categories(_NamedColumn):
    categories: list[str]


class _Encoder(TypedDict):
    """The encoding of a table's columns as features."""

    missing: str
    columns: list[_Numbers | _Bins | _Categories]
    quantiles: NotRequired[int | None]
    pieces: NotRequired[int | str]
    categorical: NotRequired[list[str]]
    numeric: NotRequired[list[str]]
    dates: NotRequired[list[str]]


class _Texts(TypedDict):
    """The tokenisation of texts."""

    column: str
    max_length: int
    pretrained: str | None
    tokenizer: str | None


class _DataState(TypedDict):
    """The state of a datamodule, stored under the name of its class."""

    train_split: dict[str, Any]
    groups_by: NotRequired[dict[str, list[str]]]
    encoder: NotRequired[_Encoder]
    texts: NotRequired[_Texts]


_Content = TypedDict(
    "_Content",
    {
        "state_dict": dict[str, Any],
        "epoch": int,
        "global_step": int,
        "pytorch-lightning_version": str,
        "fcco": _Header,
        "loops": NotRequired[_Loops],
        "callbacks": NotRequired[dict[str, dict[str, Any]]],
        "optimizer_states": NotRequired[list[_OptimizerState]],
        "lr_schedulers": NotRequired[list[_Schedule]],
        "logged_results": NotRequired[dict[str, Tensor]],
    },
)
_TO_CONTINUE = ("loops", "callbacks", "optimizer_states", "lr_schedulers"), ("engine", "random", "problem")
"""Additional entries of a checkpoint, and of its entry ``fcco``, that are needed to continue training."""
_VERSION = re.compile(r"[2-9]\d*(\.\d+)*((a|b|rc|\.?dev|\.?post)\d+)*(\+[\w.]+)?")


def misfit_of_checkpoint(content: Mapping[str, Any], *, to_continue: bool) -> str | None:
    """A phrase on the first entry of a checkpoint that violates the schema; None if there is none.

    Args:
        content: content of the file.
        to_continue: whether training is to be continued, which needs more than weights and rows.
    """
    return next(_misfits_of_checkpoint(content, to_continue), None)


def _misfits_of_checkpoint(content: Mapping[str, Any], to_continue: bool) -> Iterator[str]:
    yield from _misfits(content, _Content, "")
    header, (required, required_of_header) = content["fcco"], _TO_CONTINUE if to_continue else ((), ())
    yield from (f"its entry `{name}` is missing" for name in required if name not in content)
    yield from (f"its entry `fcco.{name}` is missing" for name in required_of_header if name not in header)
    if to_continue and "typed" not in header["optimizer"]:
        yield "its entry `fcco.optimizer.typed` is missing"
    if not _VERSION.fullmatch(content["pytorch-lightning_version"]):
        yield f"its entry `pytorch-lightning_version` is {_short(content['pytorch-lightning_version'])}, no version"
    if not header.get("save_id", "0").isalnum():  # it is the name of a folder beside the checkpoint
        yield f"its entry `fcco.save_id` is {_short(header['save_id'])}, and must be letters and digits"
    yield from _misfits_of_parts(content)


def _misfits_of_parts(content: Mapping[str, Any]) -> Iterator[str]:
    """Violations in entries whose names depend on the run."""
    for name, value in content["state_dict"].items():
        if not isinstance(value, Tensor) and not name.endswith("_extra_state"):
            yield _wrong_value(f"state_dict.{name}", value, Tensor)
    for name, table in content["fcco"]["tables"].items():
        yield from _misfits_of_rows(name, table, content)
    parts: list[tuple[str, Any, Any]] = [
        (name, state, _DataState) for name, state in content.items() if "train_split" in _mapping(state)
    ]
    for name, state in content.get("callbacks", {}).items():
        parts.append((f"callbacks.{name}", state, _CALLBACKS.get(name.partition("{")[0], dict[str, Any])))
    loaders = content["loops"]["fit_loop"]["state_dict"].get("combined_loader", ()) if "loops" in content else ()
    place = "loops.fit_loop.state_dict.combined_loader"
    parts += [(place, loader, LoaderPlace) for loader in loaders if "given" in _mapping(loader)]
    for name, state, form in parts:
        yield from _misfits(state, form, name)
        if form is _DataState:
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
        yield f"its entry `{entry}` names {_short(twice)} twice"


def _mapping(value: Any) -> Mapping[Any, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _misfits_of_rows(name: str, table: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """Violations in the rows of a dual state: they must be as the header describes, or in the files that it names."""
    rows, shape = content["state_dict"].get(f"{name}.rows"), (table["num_rows"], table["width"])
    if min(shape) < 1:
        yield f"its entry `fcco.tables.{name}` says {shape[0]} rows of width {shape[1]}, and both must be at least 1"
    elif rows is None and "save_id" not in content["fcco"]:
        yield f"its entry `state_dict.{name}.rows` is missing"
    elif rows is not None and (tuple(rows.shape) != shape or str(rows.dtype) != f"torch.{table['dtype']}"):
        kind = f"{rows.dtype} of shape {tuple(rows.shape)}".removeprefix("torch.")
        yield f"its entry `state_dict.{name}.rows` is {kind}, and must be {table['dtype']} of shape {shape}"


# ------------------------------------------------------------------------------------------------------- the checking


def require(value: Any, form: Any, name: str) -> None:
    """Refuse a state that does not have the required type.

    Args:
        value: the state.
        form: the type, one of those used in this module.
        name: name of the state in messages.

    Raises:
        CheckpointError: naming the first entry that differs, its value and what is required.
    """
    for misfit in _misfits(value, form, ""):
        raise CheckpointError(f"{name}: {misfit}. Give a state that was saved whole.")


def _misfits(value: Any, form: Any, entry: str) -> Iterator[str]:
    """Differences between a value and a type, entry by entry."""
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        yield from _misfits_of_union(value, inner, entry)
    elif not _is(value, form):
        yield _wrong_value(entry, value, form)
    elif is_typeddict(form):
        yield from _misfits_of_entries(value, form, entry)
    elif origin is dict:
        for key, member in value.items():
            if _is(key, inner[0]):
                yield from _misfits(member, inner[1], _entry_path(entry, key))
            else:
                yield _wrong_key(entry, key, inner[0])
    elif origin in (list, tuple):
        kinds = inner if origin is tuple else inner * len(value)
        for place, (member, kind) in enumerate(zip(value, kinds, strict=True)):
            yield from _misfits(member, kind, _entry_path(entry, place))


def _misfits_of_entries(value: Mapping[Any, Any], form: Any, entry: str) -> Iterator[str]:
    yield from (_wrong_key(entry, key, str) for key in value if not isinstance(key, str))
    for key, kind in _entries(form).items():
        if key in value:
            yield from _misfits(value[key], kind, _entry_path(entry, key))
        elif key in form.__required_keys__:
            yield f"its entry `{_entry_path(entry, key)}` is missing"


def _misfits_of_union(value: Any, kinds: tuple[Any, ...], entry: str) -> Iterator[str]:
    """The differences from the closest kind: one of the value's own type, if there is any, with the fewest."""
    misfits = [list(_misfits(value, kind, entry)) for kind in kinds]
    if all(misfits):
        same_type = [misfit for kind, misfit in zip(kinds, misfits, strict=True) if _is(value, kind)]
        yield from min(same_type, key=len) if same_type else [_wrong_value(entry, value, Union[kinds])]  # noqa: UP007 - of kinds in a variable


@cache
def _entries(form: Any) -> dict[str, Any]:
    return get_type_hints(form)


def _is(value: Any, form: Any) -> bool:
    """Whether a value is of a type, without regard to its members."""
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, UnionType):
        return any(_is(value, kind) for kind in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(inner)
    if form in (int, float):
        return isinstance(value, int if form is int else int | float) and not isinstance(value, bool)
    return isinstance(value, _PYTHON.get(origin or form, Mapping if is_typeddict(form) else form))


_PYTHON: dict[Any, Any] = {Any: object, dict: Mapping, list: (list, tuple)}


def _wrong_value(entry: str, value: Any, form: Any) -> str:
    return f"{f'its entry `{entry}`' if entry else 'it'} is {_short(value)}, and must be {_type_name(form)}"


def _wrong_key(entry: str, key: Any, form: Any) -> str:
    return f"{f'its entry `{entry}`' if entry else 'it'} has the key {_short(key)}, and keys must be {_type_name(form)}"


def _type_name(form: Any) -> str:
    origin, inner = get_origin(form), get_args(form)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_type_name, inner)))
    if origin is tuple:
        return f"a list of {len(inner)}"
    return _NAMES.get(origin or form, "a mapping")


_NAMES: dict[Any, str] = {
    int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list", Tensor: "a tensor",
    type(None): "None",
}  # fmt: skip


def _short(value: Any) -> str:
    """A short description of a value."""
    if isinstance(value, str | int | float | None):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:36]}..."
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _entry_path(entry: str, key: Any) -> str:
    return f"{entry}.{key}" if entry else str(key)

"""Makes data modules from flat keyword arguments, so that a test can vary one at a time, or from nested mappings."""

from typing import Any

from fcco_lightning import (
    Architecture,
    BalancedSampling,
    Classes,
    Columns,
    DigitImages,
    Encoding,
    Groups,
    GroupSampling,
    ImageSplits,
    ImageTransform,
    LabelledImages,
    Pairs,
    Splits,
    UniformSampling,
)

TABLE = {
    "columns": (Columns, "label positive target sensitive favoured use_sensitive drop extra"),
    "groups": (Groups, "group_by:by min_size small use_group_columns:as_features"),
    "splits": (Splits, "test_fraction val_fraction split_seed:seed"),
    "encoding": (Encoding, "categorical missing quantiles pieces"),
}
IMAGES = {
    "images": (LabelledImages, "layout root source metadata file_column image_column corrupt"),
    "columns": TABLE["columns"],
    "groups": TABLE["groups"],
    "splits": (ImageSplits, "split_by:by fractions split_seed:seed limit whole"),
    "transform": (ImageTransform, "image_size:size mean std crop_pct augment"),
}
CLIP = {
    "images": IMAGES["images"],
    "model": (Architecture, "model:name pretrained"),
    "classes": (
        Classes,
        "label target protected classes:known class_names:names templates caption_templates augment_protected:augment",
    ),
    "splits": IMAGES["splits"],
    "pairs": (
        Pairs,
        "pairs:sources pair_image_column:image_column caption_column limit_pairs:limit target_pairs:of_target "
        "of_others augment pair_corrupt:corrupt",
    ),
}
DIGITS = {"digits": (DigitImages, "num_train num_test data_seed:seed num_val augment")}
BATCHES = {
    "batches": "batch_size drop_last positive_fraction groups_per_batch samples_per_group replacement num_batches",
    "task_batches": "tasks_per_batch:groups_per_batch samples_per_task:samples_per_group",
}


def composed(flat: dict[str, Any], kinds: dict[str, tuple[Any, str]], *, plain: bool = False) -> dict[str, Any]:
    """Return ``flat`` with its entries put into the components ``kinds``, as objects or as plain nested mappings."""
    left, made = dict(flat), {}
    for argument, (kind, names) in kinds.items():
        if fields := _taken(left, names):
            made[argument] = fields if plain else kind(**fields)
    if fields := _taken(left, BATCHES["batches"]):
        made["batches"] = _sampling(fields, plain=plain)
    if fields := _taken(left, BATCHES["task_batches"]):
        made["task_batches"] = _sampling({"groups_per_batch": None} | fields, plain=plain)
    return left | made


def _taken(left: dict[str, Any], names: str) -> dict[str, Any]:
    """Remove the entries listed in ``names`` from ``left``, and return them under the names of the fields."""
    pairs = [name.partition(":")[::2] for name in names.split()]
    return {field or name: left.pop(name) for name, field in pairs if name in left}


def _sampling(fields: dict[str, Any], *, plain: bool) -> Any:
    kind: Any = UniformSampling if "batch_size" in fields else GroupSampling
    if "batch_size" in fields:
        fields = {k: v for k, v in fields.items() if k not in ("groups_per_batch", "samples_per_group")}
    if fields.get("positive_fraction") is not None:
        kind = BalancedSampling
    return {"class_path": kind.__name__, "init_args": fields} if plain else kind(**fields)

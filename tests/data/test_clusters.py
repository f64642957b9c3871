"""Clusters of samples: the column that a user names, and its values in evaluation batches."""

import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from fcco_lightning import GroupedImageDataModule
from fcco_lightning.data import Columns, Splits
from fcco_lightning.data.datamodules import DigitsCLIPDataModule, TabularDataModule, TensorDataModule
from fcco_lightning.data.datamodules.digits_clip import DigitImages
from fcco_lightning.errors import DataError
from tests.components import IMAGES, composed


def table(rows=60):
    patient = [f"p{i // 3}" for i in range(rows)]
    return pd.DataFrame(
        {"a": range(rows), "y": [i % 2 for i in range(rows)], "patient": patient, "ward": [1, 2, 3] * (rows // 3)}
    )


def tabular(frame, **roles):
    data = TabularDataModule(frame, columns=Columns("y", **roles), splits=Splits(test_fraction=0.3))
    data.setup()
    return data


def together(data, name, split):
    """Which pairs of rows of a split have one number."""
    numbers = torch.cat([batch[name] for batch in data.evaluation_loaders()[split]])
    return numbers[:, None] == numbers[None, :]


@pytest.mark.parametrize("roles", [{}, {"drop": ["patient"]}])
def test_any_column_of_a_table_and_features_stay_what_they_are(roles):
    data, plain = tabular(table(), **roles), tabular(table(), **roles)
    before = data.state_dict()
    name = data.add_clusters("patient")
    assert data.add_clusters("patient") == name == "cluster of patient"
    assert data.feature_names == plain.feature_names
    assert data._fingerprint() == before["train_split"]
    for split, rows in data._rows.items():
        patients = rows["patient"].to_numpy()
        assert torch.equal(together(data, name, split), torch.from_numpy(patients[:, None] == patients[None, :]))


def test_columns_of_batches_come_first():
    data = tabular(table(), extra={"unit": "ward"})
    assert data.add_clusters("unit") == "unit"
    assert data.add_clusters("y") == "y"


def test_what_is_not_there_is_named_with_what_is():
    with pytest.raises(DataError, match=r"feasible\.clusters='x' is not a column of the data, whose .* 'patient', "):
        tabular(table()).add_clusters("x")
    tensors = TensorDataModule({s: {"x": torch.zeros(4, 1), "eye": torch.arange(4)} for s in ("train", "test")})
    tensors.setup()
    assert tensors.add_clusters("eye") == "eye"
    with pytest.raises(DataError, match=r"whose columns are \['eye'\]\. Name the one that says which samples belong"):
        tensors.add_clusters("patient")


def test_an_empty_cell_belongs_to_no_cluster():
    frame = table()
    frame.loc[:9, "patient"] = None
    data = tabular(frame, drop=["patient"])
    with pytest.raises(DataError, match=r"Column 'patient' \(feasible\.clusters\) of the (train|test) split has \d+"):
        data.add_clusters("patient")


def test_columns_of_the_table_of_images(tmp_path):
    for i in range(40):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"{i}.png")
    columns = {"y": [0, 1] * 20, "sex": ["M", "M", "F", "F"] * 10, "camera": [i % 7 for i in range(40)]}
    frame = pd.DataFrame({"file_name": [f"{i}.png" for i in range(40)], **columns})
    frame.to_csv(tmp_path / "metadata.csv", index=False)
    arguments = {"root": str(tmp_path), "label": "y", "positive": 1, "group_by": ["sex"], "split_by": "fractions"}
    arguments |= {"image_size": 8, "mean": [0.0] * 3, "std": [1.0] * 3, "crop_pct": 1.0, "eval_train": True}
    arguments |= {"groups_per_batch": 2, "samples_per_group": 2}
    data = GroupedImageDataModule(**composed(arguments, IMAGES))
    data.setup()
    before = data.state_dict()
    name = data.add_clusters("camera")
    assert data._fingerprint() == before["train_split"]
    for split in ("train", "test"):
        camera = data._rows[split]["camera"].to_numpy()
        assert torch.equal(together(data, name, split), torch.from_numpy(camera[:, None] == camera[None, :]))
    (marks,), (number, cameras) = data.add_subset({"camera": ">4"}), data.add_groups("camera")
    assert cameras == [str(i) for i in range(7)]
    for split in ("train", "test"):
        camera = torch.tensor(data._rows[split]["camera"].tolist())
        batches = list(data.evaluation_loaders()[split])
        assert torch.equal(torch.cat([batch[marks] for batch in batches]), (camera > 4).long())
        assert torch.equal(torch.cat([batch[number] for batch in batches]), camera)


def test_digits_have_their_handwriting():
    data = DigitsCLIPDataModule(target=[8], digits=DigitImages(200, 100, num_val=100))
    data.setup()
    name, labels, seen = data.add_clusters("handwriting"), load_digits().target, set()
    for split in ("train", "val", "test"):
        rows = data._rows[split]["handwriting"].to_numpy()
        batches = list(data.evaluation_loaders()[split])
        assert labels[rows].tolist() == torch.cat([batch["y"] for batch in batches]).tolist()
        own = set(torch.cat([batch[name] for batch in batches]).tolist())
        assert len(own) == len(set(rows.tolist()))
        assert not own & seen  # no handwriting is in two splits
        seen |= own

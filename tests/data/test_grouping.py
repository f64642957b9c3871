"""The definition of groups by columns: combinations, bins, renamed values, small groups, and refused tables."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.data.grouping import GroupBy, Grouping, Groups
from fcco_lightning.data.splits import grouped_split
from fcco_lightning.errors import ConfigError, DataError


def make_frame(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 80, rows),
            "job": rng.choice(["cook", "smith", "poet"], rows, p=[0.6, 0.39, 0.01]),
            "code": rng.integers(1, 4, rows).astype(float),
        }
    )


BY = ["job", {"column": "age", "bins": [30, 45]}, GroupBy("code", values={"1": "one"}, other="more")]


def fitted(frame, by=BY, min_size=1, small="drop"):
    return Grouping(Groups(by, min_size, small)).fit(frame)


def names_by_hand(frame):
    """The name of every row's group, one row at a time."""
    ages = ["<=30" if age <= 30 else "(30,45]" if age <= 45 else ">45" for age in frame["age"]]
    codes = ["one" if code == 1 else "more" for code in frame["code"]]
    return [f"job={j}, age={a}, code={c}" for j, a, c in zip(frame["job"], ages, codes, strict=True)]


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_the_combinations_of_parts(seed):
    frame, names = make_frame(seed=seed), names_by_hand(make_frame(seed=seed))
    grouping = fitted(frame)
    assert [grouping.names[i] for i in grouping.assign(frame)] == names
    assert set(grouping.names) == set(names)
    assert grouping.left_out == {}


def test_order_of_groups_does_not_depend_on_the_order_of_rows():
    frame = make_frame()
    names = fitted(frame).names
    assert fitted(frame.sample(frac=1, random_state=1)).names == names
    assert names[:6] == [
        f"job=cook, age={age}, code={c}" for age in ("<=30", "(30,45]", ">45") for c in ("more", "one")
    ]


def test_small_groups_are_dropped_refused_or_merged():
    frame, counts = make_frame(), Counter(names_by_hand(make_frame()))
    large = {name for name, count in counts.items() if count >= 20}
    assert 0 < len(large) < len(counts)
    small = {name: count for name, count in counts.items() if name not in large}
    dropped = fitted(frame, BY, 20)
    assert set(dropped.names) == large
    assert dropped.left_out == small
    assert (dropped.assign(frame) == -1).sum() == sum(small.values())
    merged = fitted(frame, BY, 20, "merge")
    assert merged.names == [*dropped.names, "other"]
    assert torch.equal(merged.assign(frame), torch.where(dropped.assign(frame) < 0, len(large), dropped.assign(frame)))
    with pytest.raises(DataError, match=rf"{len(small)} groups of the table have fewer than min_size=20 rows: .*merge"):
        fitted(frame, BY, 20, "error")
    assert fitted(frame, small="merge").names == fitted(frame, small="error").names
    assert fitted(frame, ["job"], 1000, "merge").names == ["other"]
    with pytest.raises(DataError, match="No group of the table has min_size=1000 rows; the largest"):
        fitted(frame, BY, 1000)


def test_rows_of_unknown_groups():
    train, test = pd.DataFrame({"job": ["a"] * 5 + ["b"]}), pd.DataFrame({"job": ["a", "b", "new"]})
    assert fitted(train, ["job"], 2).assign(test).tolist() == [0, -1, -1]
    assert fitted(train, ["job"], 2, "merge").assign(test).tolist() == [0, 1, 1]
    assert fitted(train, ["job"], 1, "merge").assign(test).tolist() == [0, 1, -1]  # no group of the rest was made


@pytest.mark.parametrize("kind", [int, float])
def test_bins_end_at_their_edges(kind):
    cells = pd.DataFrame({"v": np.array([-9, 0, 1, 2, 3, 99]).astype(kind)})
    parts = GroupBy("v", bins=[0, 2]).read(cells, "the table")
    assert parts.tolist() == ["<=0", "<=0", "(0,2]", "(0,2]", ">2", ">2"]
    assert parts.tolist() == [
        {"(-inf, 0.0]": "<=0", "(0.0, 2.0]": "(0,2]", "(2.0, inf]": ">2"}[str(cell)]
        for cell in pd.cut(cells["v"], [-np.inf, 0.0, 2.0, np.inf])
    ]


def test_values_rename_numbers_however_they_are_stored():
    by = GroupBy("c", values={1: "x", " 2 ": "y"})
    for column in ([1, 2, 1], [1.0, 2.0, 1.0], ["1", "2 ", "1"]):
        assert by.read(pd.DataFrame({"c": column}), "the table").tolist() == ["x", "y", "x"]


def test_rejects_tables():
    frame = make_frame()
    with pytest.raises(DataError, match=r"groups\.by='jobb' is not a column of the table\. Did you mean 'job'"):
        fitted(frame, ["jobb"])
    with pytest.raises(DataError, match=r"'age' \(groups\.by\) of the table has 1 missing cells \(first: row 3\)"):
        fitted(frame.assign(age=frame["age"].where(frame.index != 3)), [BY[1]])
    with pytest.raises(DataError, match=r"groups\.by='job' has bins=\[1\.5\], which cut numbers, but"):
        fitted(frame, [GroupBy("job", bins=[1.5])])
    with pytest.raises(DataError, match=r"does not mention \['poet', 'smith'\], found in \d+ rows of the table"):
        fitted(frame, [GroupBy("job", values={"cook": "cook"})])
    with pytest.raises(
        DataError, match=r"names \['cok'\], which do not occur in the table.*\['cook', 'poet', 'smith'\]"
    ):
        fitted(frame, [GroupBy("job", values={"cok": "cook"}, other="x")])
    with pytest.raises(DataError, match="not fitted"):
        Grouping(Groups(["job"])).assign(frame)


def test_rejects_arguments():
    with pytest.raises(ConfigError, match=r"bins must be ascending and not empty, got \[2, 1\]"):
        GroupBy("a", bins=[2, 1])
    for bins in ([], [1, 1]):
        with pytest.raises(ConfigError, match="bins must be ascending"):
            GroupBy("a", bins=bins)
    with pytest.raises(ConfigError, match=r"an edge of bins .*'a'.* finite"):
        GroupBy("a", bins=[1, float("inf")])
    with pytest.raises(ConfigError, match="give one of them, not both"):
        GroupBy("a", bins=[1], values={"x": "y"})
    with pytest.raises(ConfigError, match="other='z' is for cells that values does not mention"):
        GroupBy("a", other="z")
    with pytest.raises(ConfigError, match="at least one cell"):
        GroupBy("a", values={})
    for wrong in ({"bins": [1]}, {"column": "a", "bin": [1]}, 3):
        with pytest.raises(ConfigError, match=r"An entry of groups\.by must be"):
            Groups([wrong])
    for by in ([], ["a", GroupBy("a", bins=[1])]):
        with pytest.raises(ConfigError, match="at least one column, and none of them twice"):
            Groups(by)
    with pytest.raises(ConfigError, match="small must be"):
        Groups(["job"], small="keep")
    with pytest.raises(ConfigError, match="min_size"):
        Groups(["job"], 0)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_every_split_holds_every_group(share):
    sizes = torch.tensor([2, 3, 5, 40, 200])
    group = torch.repeat_interleave(torch.arange(5), sizes)[torch.randperm(250)]
    rest, held = grouped_split(group, list("abcde"), share, 0, "test_fraction")
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(250))
    counts = torch.bincount(group[held], minlength=5).tolist()
    assert counts == [min(max(round(share * size), 1), size - 1) for size in sizes.tolist()]
    assert torch.equal(held, grouped_split(group, list("abcde"), share, 0, "test_fraction")[1])
    assert share != 0.5 or not torch.equal(held, grouped_split(group, list("abcde"), share, 1, "test_fraction")[1])


def test_a_group_of_one_row_cannot_be_split():
    with pytest.raises(DataError, match=r"test_fraction=0\.2 .* group 'job=poet' has 1\. Raise min_size"):
        grouped_split(torch.tensor([0, 0, 1]), ["job=cook", "job=poet"], 0.2, 0, "test_fraction")
    with pytest.raises(ConfigError, match="val_fraction must lie in"):
        grouped_split(torch.tensor([0, 0, 1, 1]), ["a", "b"], 1.5, 0, "val_fraction")


def test_classes_of_groups_are_split_by_their_shares():
    """As scikit-learn does; what is too small for its share goes with the rest of its group."""
    group = torch.arange(600) % 3
    kinds = (torch.arange(600) % 60 == 0).long()  # 10 rows, of group 0
    for share in (0.2, 0.5):
        rest, held = grouped_split(group, list("abc"), share, 0, "test_fraction", kinds)
        assert torch.cat([rest, held]).sort().values.tolist() == list(range(600))
        assert int(kinds[held].sum()) == 10 * share
        assert torch.bincount(group[held]).tolist() == [200 * share] * 3
    by_group = grouped_split(group, list("abc"), 0.2, 0, "test_fraction")
    named = grouped_split(group, list("abc"), 0.2, 0, "test_fraction", (group > 0).long())  # a group has one class
    assert all(torch.equal(a, b) for a, b in zip(by_group, named, strict=True))
    pairs, alone = torch.tensor([0, 0, 1, 1, 1, 1, 1]), torch.tensor([0, 1, 0, 0, 0, 0, 1])
    for part in grouped_split(pairs, ["a", "b"], 0.25, 0, "test_fraction", alone):
        assert pairs[part].unique().tolist() == [0, 1]

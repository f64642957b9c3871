"""The contents of the picture of continual learning, read back from the figure."""

from itertools import pairwise

import pytest

from fcco_lightning.evaluation.pictures import plot_continual
from tests import drawing
from tests.drawing import legend

drawn = drawing.drawn


def history(count, epochs=3, splits=("train", "val"), **more):
    """Task k ends at -k points, and a point lower on every split after the first."""
    return [
        {"epoch": epoch, "split": split, "accuracy": 0.5, **more}
        | {f"change/n{k}": -0.01 * (k + place) * (epoch + 1) / epochs for k in range(count)}
        for epoch in range(epochs)
        for place, split in enumerate(splits)
    ]


def lines(axes):
    """By label, without the old model's."""
    return {line.get_label(): line for line in axes.lines if line.get_label() != "old model"}


@pytest.mark.parametrize(("count", "epochs"), [(1, 3), (9, 1), (5, 60)])
def test_target_and_protected_tasks(drawn, tmp_path, count, epochs):
    path = plot_continual(history(count, epochs, delta_target=0.3), tmp_path / "new" / "fig.png")
    assert path == tmp_path / "new" / "fig.png"
    target, train, val = drawn[0].axes
    assert [axes.get_title() for axes in drawn[0].axes] == [
        "Target",
        "Protected tasks (train)",
        "Protected tasks (val)",
    ]
    assert {name: list(line.get_ydata()) for name, line in lines(target).items()} == {
        split: pytest.approx([30.0] * epochs) for split in ("train", "val")
    }
    for place, axes in enumerate((train, val)):
        found = lines(axes)
        assert list(found) == [f"n{k}" for k in range(count)]
        for k, line in enumerate(found.values()):
            assert list(line.get_xdata()) == list(range(epochs))
            assert line.get_ydata()[-1] == pytest.approx(-k - place)
    assert train.get_ylim() == val.get_ylim()
    assert legend(val) == [*lines(val), "old model"]
    assert train.get_legend() is None
    for axes in drawn[0].axes:
        (zero,) = [line for line in axes.lines if line.get_label() == "old model"]
        assert list(zero.get_ydata()) == [0, 0]
        low, high = axes.get_ylim()
        assert low < 0 < high
        assert "points" in axes.get_ylabel()


def test_a_task_has_the_same_style_in_every_panel(drawn, tmp_path):
    records = history(3)
    for record in records:
        if record["split"] == "val":
            del record["change/n0"]  # validation has no sample of it
    plot_continual(records, tmp_path / "fig.png")
    train, val = map(lines, (axes for axes in drawn[0].axes))
    assert [line.get_color() for line in train.values()] == [line.get_color() for line in val.values()]
    assert len(val["n0"].get_ydata()) == 0
    assert legend(drawn[0].axes[1]) == ["n0", "n1", "n2", "old model"]


def test_panels_without_numbers_are_left_out(drawn, tmp_path):
    plot_continual(history(0, delta_target=0.1), tmp_path / "target.png")
    plot_continual(history(2, splits=["train"]), tmp_path / "tasks.png")
    plot_continual(history(2, delta_target=float("nan")), tmp_path / "nan.png")
    assert [[axes.get_title() for axes in figure.axes] for figure in drawn] == [
        ["Target"],
        ["Protected tasks (train)"],
        ["Protected tasks (train)", "Protected tasks (val)"],
    ]


@pytest.mark.parametrize("records", [[], history(0), history(0, worst_loss_change=0.1)])
def test_no_change_no_picture(tmp_path, records):
    assert plot_continual(records, tmp_path / "fig.png") is None
    assert list(tmp_path.iterdir()) == []


def test_the_worst_twelve_of_many_in_any_split_look_different(drawn, tmp_path):
    records = history(100)
    records[-1]["change/n0"] = -1.5
    plot_continual(records, tmp_path / "fig.png")
    train, val = drawn[0].axes
    assert train.get_title() == "Protected tasks (train), the worst 12 of 100"
    found = lines(train)
    assert list(found) == list(lines(val)) == ["n0", *(f"n{k}" for k in range(89, 100))]
    assert len({(one.get_color(), one.get_marker(), one.get_markerfacecolor()) for one in found.values()}) == 12


@pytest.mark.parametrize("count", [1, 12])
def test_long_names_lie_on_nothing(drawn, tmp_path, count):
    name = "a road at night in the middle of winter under clouds, region {}"
    records = [{k.replace("/n", "/" + name.format("")): v for k, v in record.items()} for record in history(count)]
    plot_continual(records, tmp_path / "fig.png")
    figure = drawn[0]
    renderer = figure.canvas.get_renderer()
    texts = [text.get_window_extent(renderer) for text in figure.axes[-1].get_legend().get_texts()]
    assert len(set(legend(figure.axes[-1]))) == count + 1  # what tells them apart is at their end
    assert max(box.x1 for box in texts) <= figure.bbox.x1
    assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(texts))
    titles = [axes.title.get_window_extent(renderer) for axes in figure.axes]
    assert all(left.x1 < right.x0 for left, right in pairwise(titles))
    assert figure.axes[-1].get_window_extent(renderer).x1 < min(box.x0 for box in texts)
    assert all(axes.get_window_extent(renderer).width > 400 for axes in figure.axes)

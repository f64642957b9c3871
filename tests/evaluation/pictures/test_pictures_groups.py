"""The contents of the pictures by group, read back from the figures."""

from itertools import pairwise

import pytest

from fcco_lightning.evaluation.pictures import plot_group_curves, plot_groups
from tests import drawing
from tests.drawing import heights

drawn = drawing.drawn


def history(*splits):
    figures = {"accuracy": 0.8, "tail_accuracy": 0.6, "worst_group_accuracy": 0.5, "loss": 0.4, "cvar_loss": 0.9}
    return [
        {"epoch": epoch, "split": split, "h/a": 1.0, **{k: v + 0.01 * epoch for k, v in figures.items()}}
        for epoch in range(3)
        for split in splits
    ]


def of_groups(count):
    """Group k has accuracy k / count; the first two share the weight 3 : 1."""
    weights = [0.75, 0.25, *[0.0] * count][:count] if count > 1 else [1.0]
    return [
        {"name": f"n{k}", "size": 10, "accuracy": k / count, "loss": 1.0, "weight": weights[k]} for k in range(count)
    ]


def test_curves_of_accuracy_and_loss(drawn, tmp_path):
    plot_group_curves(history("train", "val"), tmp_path / "new" / "fig.png")
    accuracy, loss = drawn[0].axes
    lines = {line.get_label(): line for line in (*accuracy.lines, *loss.lines)}
    assert list(lines)[:6] == [
        f"{which}, {split}" for which in ("average", "worst groups", "worst group") for split in ("train", "val")
    ]
    assert list(lines["worst group, val"].get_ydata()) == pytest.approx([50, 51, 52])
    assert list(lines["CVaR of the groups, train"].get_ydata()) == pytest.approx([0.9, 0.91, 0.92])
    assert {line.get_linestyle() for name, line in lines.items() if "train" in name} == {"-"}
    assert {line.get_linestyle() for name, line in lines.items() if "val" in name} == {"--"}
    colors = {name.partition(",")[0]: line.get_color() for name, line in lines.items()}
    assert len(set(colors.values())) == 3  # CVaR has the colour of the worst groups
    assert all(axes.get_xlabel() == "epoch" for axes in drawn[0].axes)


def test_a_panel_without_numbers_is_left_out(drawn, tmp_path):
    plot_group_curves([{"epoch": 0, "split": "train", "cvar_loss": 0.5}], tmp_path / "fig.png")
    (axes,) = drawn[0].axes
    assert axes.get_ylabel() == "loss (nats)"
    assert plot_group_curves([{"epoch": 0, "split": "train", "auc": 0.5}], tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_bar_for_every_group(drawn, tmp_path, count):
    assert plot_groups(of_groups(count), tmp_path / "fig.png", average=0.625).is_file()
    accuracy, weight = drawn[0].axes
    assert heights(accuracy) == pytest.approx([100 * k / count for k in range(count)])
    multiples = [0.75 * count, 0.25 * count] if count > 1 else [1.0]
    assert heights(weight)[:2] == pytest.approx(multiples)
    assert [label.get_text() for label in weight.get_xticklabels()] == [f"n{k}" for k in range(count)]
    assert [line.get_label() for line in (*accuracy.lines, *weight.lines)] == ["average 62.5%", "uniform"]
    assert list(accuracy.lines[0].get_ydata()) == [62.5, 62.5]
    assert accuracy.get_title(loc="left") == "Accuracy by group (test)"
    assert weight.get_ylim()[1] > max(heights(weight))


def test_the_worst_forty_of_many(drawn, tmp_path):
    plot_groups(of_groups(1252), tmp_path / "fig.png", average=0.5, split="val")
    accuracy, weight = drawn[0].axes
    assert accuracy.get_title(loc="left") == "Accuracy by group (val): the worst 40 of 1,252"
    assert len(heights(accuracy)) == len(heights(weight)) == 40
    assert heights(weight)[0] == pytest.approx(0.75 * 1252)  # uniform is over all groups, not over those drawn


@pytest.mark.parametrize("count", [3, 40])
def test_long_names_do_not_lie_on_each_other(drawn, tmp_path, count):
    groups = [
        {**group, "name": f"black hair, wearing a hat, male, region {k}"} for k, group in enumerate(of_groups(count))
    ]
    plot_groups(groups, tmp_path / "fig.png", average=0.5)
    labels = drawn[0].axes[1].get_xticklabels()
    assert [label.get_text()[-3:].strip("n ") for label in labels][:3] == ["0", "1", "2"]
    renderer = drawn[0].canvas.get_renderer()
    boxes = [label.get_window_extent(renderer) for label in labels]
    assert all(left.x1 <= right.x0 + 1 for left, right in pairwise(boxes))
    assert all(box.y0 >= 0 for box in boxes)
    title, legend = drawn[0].axes[0]._left_title, drawn[0].axes[0].get_legend()
    assert title.get_window_extent(renderer).x1 < legend.get_window_extent(renderer).x0


def test_no_groups_no_picture(tmp_path):
    assert plot_groups([], tmp_path / "fig.png", average=0.5) is None
    assert list(tmp_path.iterdir()) == []

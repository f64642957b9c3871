"""Noise on pixels whose mean defines groups: CelebA's 160 groups on small files."""

import numpy as np
import pytest
import torch
from PIL import Image

from fcco_lightning import Columns, ConfigError, GroupedImageDataModule, Groups, ImageNoise, ImageSplits, LabelledImages
from fcco_lightning.data.images import ImageTransform
from fcco_lightning.errors import DataError

NAMES = ["Blond_Hair", "Male", "Mouth_Slightly_Open", "Smiling"]
MEANS = [-0.08, -0.06, -0.04, -0.02, 0.0, 0.02, 0.04, 0.06, 0.08, 0.1]
EACH = 150  # images of every cell
STD = [0.5, 0.25, 0.125]
TEN = ImageNoise()


@pytest.fixture(scope="module")
def celeba(tmp_path_factory):
    """16 cells of equal size, all images of the grey level 102 = 0.4 x 255."""
    folder = tmp_path_factory.mktemp("celeba")
    (folder / "img_align_celeba").mkdir()
    Image.new("RGB", (8, 8), (102, 102, 102)).save(folder / "grey.png")
    grey = (folder / "grey.png").read_bytes()
    lines = []
    for i in range(16 * EACH):
        (folder / f"img_align_celeba/{i:06}.jpg").write_bytes(grey)
        lines.append(f"{i:06}.jpg " + " ".join(str(2 * (i >> k & 1) - 1) for k in range(4)))
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(lines)), " ".join(NAMES), *lines]) + "\n")
    return folder


def make(celeba, noise=TEN, by=(*NAMES, "noise")):
    data = GroupedImageDataModule(
        LabelledImages(layout="celeba", root=str(celeba)),
        columns=Columns(label="Blond_Hair", positive=1),
        groups=Groups(by=list(by)),
        splits=ImageSplits(by="fractions", fractions=[0.5, 0.25, 0.25]),
        transform=ImageTransform(size=8, crop_pct=1.0, mean=[0.4] * 3, std=STD),
        noise=noise,
    )
    data.setup()
    return data


def pixels(table, count=None):
    return torch.stack([table[i]["x"] for i in range(count or len(table))])


def test_sixteen_cells_times_ten_noises_are_160_groups(celeba):
    data = make(celeba)
    assert data.num_groups == 160
    assert {name.rpartition("noise=")[2] for name in data.group_names} == {f"{mean:g}" for mean in MEANS}
    assert ImageNoise().levels == MEANS
    sizes = sum(torch.bincount(table.columns["group"], minlength=160) for table in data.tables.values())
    assert sizes.sum() == 16 * EACH
    of_means = np.bincount(ImageNoise().kinds(16 * EACH))
    assert of_means.tolist() == [16 * EACH // 10] * 10


def test_noise_has_the_mean_of_its_group_and_the_variance(celeba):
    data = make(celeba, ImageNoise(variance=0.08))
    table = data.tables["train"]
    noise = (pixels(table) * torch.tensor(STD)[:, None, None]).double()  # the images are 0 without it
    names = [float(data.group_names[g].rpartition("noise=")[2]) for g in table.columns["group"].tolist()]
    means = torch.tensor(names, dtype=torch.float64)
    away = noise - means[:, None, None, None]
    count = away.numel()
    assert away.mean().abs() < 4 * (0.08 / count) ** 0.5
    assert away.square().mean().item() == pytest.approx(0.08, abs=4 * 0.08 * (2 / count) ** 0.5)
    for mean in MEANS:
        own = away[means == mean]
        assert own.mean().abs() < 4 * (0.08 / own.numel()) ** 0.5


@pytest.mark.slow
def test_noise_is_the_same_whenever_an_image_is_read_and_of_every_image_its_own(celeba):
    data, again, other = make(celeba), make(celeba), make(celeba, ImageNoise(seed=1))
    everything = {name: pixels(table) for name, table in data.tables.items()}
    for made in (data, again):
        assert torch.equal(everything["train"][:200], pixels(made.tables["train"], 200))
    assert torch.equal(everything["train"][:5], data.tables["train"].__getitems__(range(5))["x"])
    images = torch.cat([*everything.values()]).flatten(1)
    assert len(torch.unique(images, dim=0)) == len(images)
    assert not torch.equal(pixels(other.tables["test"], 5), everything["test"][:5])


def test_without_noise_nothing_is_added(celeba):
    data = make(celeba, None, NAMES)
    assert data.num_groups == 16
    assert pixels(data.tables["train"]).abs().max() < 1e-6


@pytest.mark.slow
def test_another_column_and_means_of_ones_own(celeba):
    data = make(celeba, ImageNoise([0.0, 0.5], 0.0, column="light"), ["Male", "light"])
    assert data.group_names == ["Male=0, light=0", "Male=0, light=0.5", "Male=1, light=0", "Male=1, light=0.5"]
    bright = (data.tables["train"].columns["group"] % 2 == 1).float() * 0.5
    found = pixels(data.tables["train"]) * torch.tensor(STD)[:, None, None]
    assert torch.allclose(found, bright[:, None, None, None].expand_as(found), atol=1e-6)


def test_bad_noise_is_refused(celeba):
    for arguments, message in [
        ({"means": []}, "noise.means must be different numbers"),
        ({"means": [0.1, 0.1]}, "noise.means must be different numbers"),
        ({"means": [float("nan")]}, "noise.means must be"),
        ({"variance": -1.0}, "noise.variance must be"),
        ({"seed": -1}, "noise.seed must be"),
    ]:
        with pytest.raises(ConfigError, match=message):
            ImageNoise(**arguments)
    with pytest.raises(DataError, match=r"have a column noise.column='Male' already"):
        make(celeba, ImageNoise(column="Male"), NAMES)

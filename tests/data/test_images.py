"""Reading images: formats, channels, bit depths, and missing, corrupt or too large files."""

import io
import os
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import ColorJitter, Compose, RandomHorizontalFlip, ToTensor

from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.data.images import FilesIn, ImageTable, image_transform
from fcco_lightning.data.loader import ResumableLoader
from fcco_lightning.errors import ConfigError, DataError
from tests.combinations import every_nth
from tests.images import as_bytes

ROWS = 24
PLAIN = ToTensor()


def pixels(i):
    return np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path):
    for i in range(ROWS):
        Image.fromarray(pixels(i)).save(tmp_path / f"{i}.png")
    return [f"{i}.png" for i in range(ROWS)]


@pytest.fixture
def make(files, tmp_path):
    def table(transform=PLAIN, images=files, **options):
        return ImageTable(FilesIn(images, tmp_path), {"y": torch.arange(len(images)) % 2}, transform, **options)

    return table


def png(i):
    return as_bytes(Image.fromarray(pixels(i)))


def test_decodes_paths_bytes_dicts_images_and_pixels(make, tmp_path):
    images = ["0.png", tmp_path / "1.png", png(2), {"bytes": png(3), "path": None}, {"path": "4.png"}]
    images += [Image.fromarray(pixels(5)), pixels(6)]
    table = make(images=images)
    for i in range(len(images)):
        sample = table[i]
        assert torch.equal(sample["x"], torch.from_numpy(pixels(i)).permute(2, 0, 1) / 255)
        assert (int(sample["y"]), int(sample["index"])) == (i % 2, i)
    assert sample["x"].dtype == torch.float32


def test_converts_to_three_channels_and_turns():
    grey = Image.new("L", (4, 2), 51)
    palette = Image.new("RGBA", (4, 2), (255, 0, 0, 128)).convert("P")
    turned = Image.new("RGB", (4, 2))
    exif = turned.getexif()
    exif[274] = 6  # a quarter turn
    opened = Image.open(io.BytesIO(as_bytes(turned, "JPEG", exif=exif)))
    images = [grey, palette, as_bytes(turned, "JPEG", exif=exif), opened]
    table = ImageTable(images, {"y": torch.zeros(4)}, PLAIN)
    torch.testing.assert_close(table[0]["x"], torch.full((3, 2, 4), 0.2))
    assert table[1]["x"].shape == (3, 2, 4)
    assert table[2]["x"].shape == table[3]["x"].shape == (3, 4, 2)


@pytest.mark.parametrize(("kind", "order"), [("PNG", "<"), ("TIFF", "<"), ("TIFF", ">"), ("PPM", "<"), (None, "<")])
def test_sixteen_bits_are_scaled(kind, order):
    values = np.linspace(0, 65535, 64).round().astype(f"{order}u2").reshape(8, 8)
    mode = "I;16B" if order == ">" else "I;16"
    image = Image.frombytes(mode, (8, 8), values.tobytes()) if kind else values.astype(np.uint16)
    x = ImageTable([as_bytes(image, kind) if kind else image], {}, PLAIN)[0]["x"]
    expected = torch.from_numpy(values.astype(np.float64) / 65535).float().expand(3, 8, 8)
    torch.testing.assert_close(x, expected, rtol=0, atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize("mode", ["I", "F"])
def test_refuses_pixels_of_unknown_range(mode):
    table = ImageTable([Image.new(mode, (2, 2), 300)], {"y": torch.zeros(1)}, PLAIN)
    with pytest.raises(DataError, match=rf"mode is '{mode}', whose value of white is not known"):
        table[0]


@pytest.mark.filterwarnings("ignore:Row")
@pytest.mark.parametrize(("corrupt", "workers"), every_nth(3, [("blank", 0), ("blank", 2), ("skip", 0), ("skip", 2)]))
def test_more_than_a_tenth_of_unreadable_images_is_refused(make, tmp_path, corrupt, workers):
    for i in range(3):
        (tmp_path / f"{i}.png").unlink()
    with pytest.raises(DataError, match=r"3 of 24 images cannot be read, more than a tenth.*Row \d: the image"):
        list(ResumableLoader(make(image_transform(8), corrupt=corrupt), UniformBatches(ROWS, 4), num_workers=workers))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_missing_and_corrupt_images_name_file_and_row(make, tmp_path, workers):
    (tmp_path / "3.png").write_bytes(png(3)[:60])
    (tmp_path / "5.png").unlink()
    with pytest.raises(DataError, match=r"Row 3: the image '.*3.png' cannot be read.*corrupt='blank'"):
        make()[3]
    with pytest.raises(DataError, match=r"Row 5: the image '.*5.png' cannot be read \(FileNotFoundError"):
        make()[5]
    with pytest.raises(DataError, match=r"Row 0: the image <bytes> cannot be read"):
        make(images=[b"no image"])[0]
    with pytest.raises(DataError, match=r"Row [35]: "):
        list(ResumableLoader(make(), UniformBatches(ROWS, 4), num_workers=workers))


def test_pipes_and_giants_are_refused(make, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"Row 0: the image '.*pipe.png' cannot be read .*it is not a regular file"):
        make(images=["pipe.png"])[0]
    with pytest.raises(DataError, match=r"Row 0: the image '.*' cannot be read .*it is not a regular file"):
        make(images=[tmp_path])[0]
    giant = as_bytes(Image.new("1", (13_000, 13_000)))
    with pytest.raises(DataError, match=r"Row 0: .*it has 13000 x 13000 pixels, more than most_pixels=67,108,864"):
        make(images=[giant])[0]
    small = as_bytes(Image.new("RGB", (20, 20)))
    with pytest.raises(DataError, match=r"20 x 20 pixels, more than most_pixels=399; scale it down, or raise that"):
        make(images=[small], most_pixels=399)[0]
    make(images=[small], most_pixels=400)[0]
    for size in [(1, 257), (2571, 10)]:  # a resize to 256 rows would enlarge an image of 1 x 20000 to 4 GB
        with pytest.raises(DataError, match=r"one side more than 256 times the other.*crop it"):
            make(images=[as_bytes(Image.new("RGB", size))])[0]
    make(images=[as_bytes(Image.new("RGB", (1, 256)))])[0]
    with pytest.raises(DataError, match="it is a PostScript program, which is not run; convert it to PNG"):
        make(images=[as_bytes(Image.new("RGB", (8, 8)), "EPS")])[0]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:Row")
def test_blank_images_keep_the_rows_and_are_counted(make, tmp_path, workers):
    (tmp_path / "3.png").write_bytes(b"")
    (tmp_path / "5.png").unlink()
    table = make(image_transform(8, mean=(0, 0, 0), std=(1, 1, 1)), corrupt="blank")
    for _ in range(2):
        for batch in ResumableLoader(table, UniformBatches(ROWS, 4), num_workers=workers):
            black = [int(i) for i, x in zip(batch["index"], batch["x"], strict=True) if not x.any()]
            assert set(black) == {3, 5} & set(batch["index"].tolist())
    assert table.num_corrupt == 2


def test_warns_at_the_first_blank_image_only(make, tmp_path, recwarn):
    for name in "3.png", "5.png":
        (tmp_path / name).unlink()
    table = make(corrupt="blank")
    with pytest.warns(UserWarning, match=r"Row 5: the image '.*5.png' cannot be read.*black one"):
        table[5]
    table[3]
    assert not recwarn.list


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:Row")
def test_skipped_images_leave_their_batch_and_are_counted(make, tmp_path, workers):
    (tmp_path / "3.png").write_bytes(b"")
    (tmp_path / "5.png").unlink()
    table, plan = make(corrupt="skip"), UniformBatches(ROWS, 4)
    for _ in range(2):
        batches = list(ResumableLoader(table, plan, num_workers=workers))
        for batch, asked in zip(batches, plan.batches(0), strict=True):
            assert batch["index"].tolist() == [i for i in asked.tolist() if i not in {3, 5}]
            for i, x in zip(batch["index"].tolist(), batch["x"], strict=True):
                assert torch.equal(x, make()[i]["x"])
    assert table.num_corrupt == 2


def test_nothing_left_of_a_batch_is_an_error(make, tmp_path, recwarn):
    for name in "3.png", "5.png":
        (tmp_path / name).unlink()
    table = make(corrupt="skip")
    with pytest.raises(DataError, match=r"None of the 2 images of a batch can be read \(first: row 5\)"):
        table.__getitems__([5, 3])
    with pytest.raises(DataError, match="leaves it out of batches only"):
        table[3]
    [warned] = recwarn.list
    assert "5.png' cannot be read" in str(warned.message)
    assert "it is left out of its batch" in str(warned.message)


def noise(image):
    """A transform that draws from all three global generators."""
    return PLAIN(image) + torch.rand(3, 8, 8) + random.gauss() + np.random.rand()


@pytest.mark.parametrize("transform", [noise, Compose([RandomHorizontalFlip(), ColorJitter(0.5, 0.5), PLAIN])])
def test_random_transforms_depend_on_seed_epoch_and_row_only(make, transform):
    table, other = make(transform, seed=0), make(transform, seed=0)
    first = [table[i]["x"] for i in range(ROWS)]
    backwards = [other[i]["x"] for i in reversed(range(ROWS))][::-1]
    assert all(torch.equal(a, b) for a, b in zip(first, backwards, strict=True))
    other.set_epoch(1)
    assert not any(torch.equal(other[i]["x"], first[i]) for i in range(ROWS))
    assert not any(torch.equal(make(transform, seed=1)[i]["x"], first[i]) for i in range(ROWS))
    same = [Image.new("RGB", (8, 8), (90, 120, 150))] * 2
    twice = make(noise, images=same, seed=0)
    assert not torch.equal(twice[0]["x"], twice[1]["x"])


def test_the_global_random_states_stay(make):
    table = make(noise, seed=0)
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = torch.rand(1), random.gauss(), np.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    table[0]
    assert (torch.rand(1), random.gauss(), np.random.rand()) == expected


def batches_of(table, workers, epochs=3, state=None, stop=None, **options):
    """(epoch, rows, images) of the epochs, or of the batches up to ``stop`` with the loader's state behind them."""
    loader = ResumableLoader(table, UniformBatches(ROWS, 4, seed=1), num_workers=workers, **options)
    first = 0
    if state:
        loader.load_state_dict(state)
        first = state["epoch"]
    seen = []
    for epoch in range(first, epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            seen.append((epoch, batch["index"].tolist(), batch["x"].tolist()))
            if len(seen) == stop:
                return seen, loader.state_dict()
    return seen


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_augmentation_follows_the_epochs_in_any_worker(make, workers, persistent):
    reference = batches_of(make(noise, seed=0), 0)
    assert batches_of(make(noise, seed=0), workers, persistent_workers=persistent) == reference
    row = {epoch: x[rows.index(3)] for epoch, rows, x in reference if 3 in rows}
    assert len(row) == 3
    assert row[0] != row[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_within_an_epoch_goes_on_with_the_same_augmentation(make, workers):
    whole = batches_of(make(noise, seed=0), workers)
    before, state = batches_of(make(noise, seed=0), workers, stop=7)
    assert (state["epoch"], state["given"]) == (1, 1)
    assert before + batches_of(make(noise, seed=0), workers, state=state) == whole


def test_evaluation_transform_resizes_crops_and_normalises():
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 8, 20))  # far to the left of the central square
    x = image_transform(16, mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 0.5), crop_pct=1.0)(image)
    torch.testing.assert_close(x, torch.tensor([1.0, -2.0, -1.0]).reshape(3, 1, 1).expand(3, 16, 16))


def test_squashed_images_lose_nothing():
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (0, 0, 10, 20))  # the left quarter, which a central square does not show
    options = {"mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1.0}
    cut, squeezed = (image_transform(20, crop_mode=mode, **options)(image) for mode in ("center", "squash"))
    assert cut[2].max() < 0.1
    assert squeezed[2].mean() == pytest.approx(0.25, abs=0.03)


def test_augment_options_reach_timm():
    image = Image.new("RGB", (8, 8))
    image.paste((255, 255, 255), (0, 0, 4, 8))
    flipped = image_transform(
        8,
        (0, 0, 0),
        (1, 1, 1),
        augment={"no_aug": False, "scale": [1, 1], "ratio": [1, 1], "hflip": 1.0, "color_jitter": 0.0},
    )
    torch.testing.assert_close(flipped(image), PLAIN(image).flip(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "image_size"),
        ({"crop_pct": 1.5}, "crop_pct"),
        ({"std": (1, 1, 0)}, "std > 0"),
        ({"mean": (0,)}, "3 numbers"),
        ({"augment": {"no_such": 1}}, "no_such"),
        ({"interpolation": "no_such"}, "no_such"),
    ],
)
def test_transform_rejects(options, message):
    with pytest.raises(ConfigError, match=message):
        image_transform(**({"size": 8} | options))


def test_rejects(make):
    with pytest.raises(ConfigError, match="corrupt must be"):
        make(corrupt="ignore")
    with pytest.raises(DataError, match="one row per image and no 'x', got 1 images and 2 rows"):
        ImageTable(["a.png"], {"y": torch.zeros(2)}, PLAIN)
    with pytest.raises(IndexError):
        make()[ROWS]

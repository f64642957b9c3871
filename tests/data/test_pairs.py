"""Reading image-text pairs: folders, tables, shards, data sets and hub ids."""

import json
import os
import pickle

import datasets
import pandas as pd
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import to_tensor

from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.data.images import FilesIn
from fcco_lightning.data.loader import ResumableLoader
from fcco_lightning.data.pairs import PairTable, read_pairs
from fcco_lightning.errors import DataError
from fcco_lightning.models.clip_config import ByteTokenizer
from tests.images import as_bytes, shard

ROWS = 6
CAPTIONS = [f"picture number {i}" for i in range(ROWS)]


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """The cache of datasets in a folder of its own, and no hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    yield
    if shown:
        datasets.enable_progress_bars()


def image(i):
    return Image.new("RGB", (4, 4), (10 * i, 255 - i, 0))


def sample(i, **others):
    return f"{i:05d}", {"png": as_bytes(image(i)), "txt": CAPTIONS[i].encode(), **others}


def require_pairs(read, rows=range(ROWS), captions=CAPTIONS):
    """Check what a table makes of the pairs against the pictures and texts themselves."""
    images, texts = read
    table = PairTable(images, texts, to_tensor, ByteTokenizer(24))
    assert len(table) == len(rows)
    for at, i in enumerate(rows):
        assert torch.equal(table[at]["x"], to_tensor(image(i)))
        end = table[at]["text"].tolist().index(257)
        assert bytes(table[at]["text"][1:end].tolist()).decode() == captions[i]
    assert list(texts) == [captions[i] for i in rows]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for i in range(ROWS):
        image(i).save(tmp_path / "images" / f"{i}.png")
    return tmp_path


def paths():
    return [f"images/{i}.png" for i in range(ROWS)]


# ------------------------------------------------------------------------------------------------- folders and tables


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_folder_with_metadata(folder, suffix):
    frame = pd.DataFrame({"file_name": paths(), "caption": CAPTIONS})
    write = {"csv": lambda path: frame.to_csv(path, index=False), "parquet": frame.to_parquet}[suffix]
    write(folder / f"metadata.{suffix}")
    require_pairs(read_pairs(str(folder)))


def test_of_a_folder_of_splits_only_training_is_taken(tmp_path):
    for part, rows in {"train": [0, 2], "test": [1]}.items():
        (tmp_path / part).mkdir()
        for i in rows:
            image(i).save(tmp_path / part / f"{i}.png")
        frame = pd.DataFrame({"file_name": [f"{i}.png" for i in rows], "text": [CAPTIONS[i] for i in rows]})
        frame.to_csv(tmp_path / part / "metadata.csv", index=False)
    require_pairs(read_pairs(tmp_path), [0, 2])


def test_csv_files(folder):
    for name, rows in {"b.csv": slice(3, 6), "a.csv": slice(0, 3)}.items():
        frame = pd.DataFrame({"filepath": paths()[rows], "title": CAPTIONS[rows], "url": "nowhere"})
        frame.to_csv(folder / name, index=False)
    require_pairs(read_pairs(str(folder / "*.csv")))
    require_pairs(read_pairs([str(folder / "b.csv"), folder / "a.csv"]), [3, 4, 5, 0, 1, 2])


@pytest.mark.parametrize("kind", ["csv", "parquet", "images in parquet", "metadata"])
@pytest.mark.parametrize("outside", ["../secret.png", "absolute"])
def test_tables_name_regular_files_below_their_folder(kind, outside, folder):
    image(0).save(folder / "secret.png")
    below = folder / "images"
    name = str(folder / "secret.png") if outside == "absolute" else outside
    frame = pd.DataFrame({"file_name": ["1.png", name], "caption": ["a", "b"]})
    if kind == "images in parquet":
        frame["file_name"] = [{"path": path, "bytes": None} for path in frame["file_name"]]
    if "parquet" in kind:
        frame.to_parquet(source := below / "t.parquet")
    else:
        frame.to_csv(below / f"{kind}.csv", index=False)
        source = below if kind == "metadata" else below / "csv.csv"
    with pytest.raises(DataError, match=r"secret.png' lies outside of .*allow_outside true"):
        list(read_pairs(source)[0])
    images, captions = read_pairs(source, allow_outside=True)
    table = PairTable(images, captions, to_tensor, ByteTokenizer(24))
    assert torch.equal(table[1]["x"], to_tensor(image(0)))
    (folder / "secret.png").unlink()
    os.mkfifo(folder / "secret.png")
    with pytest.raises(DataError, match="it is not a regular file"):
        table[1]


@pytest.mark.parametrize("stored", ["path", "bytes", "struct"])
def test_parquet_files(folder, stored):
    cells = {
        "path": paths(),
        "bytes": [as_bytes(image(i)) for i in range(ROWS)],
        "struct": [{"bytes": as_bytes(image(i)), "path": f"{i}.png"} for i in range(ROWS)],
    }
    pd.DataFrame({"image": cells[stored], "caption": CAPTIONS}).to_parquet(folder / "part-0.parquet")
    require_pairs(read_pairs(str(folder / "part-*.parquet")))


# ------------------------------------------------------------------------------------------------------------ datasets


def dataset(image_name="picture", **columns):
    content = {image_name: [{"bytes": as_bytes(image(i)), "path": None} for i in range(ROWS)], **columns}
    return datasets.Dataset.from_dict(content).cast_column(image_name, datasets.Image())


def test_datasets_in_memory_on_disk_and_as_arrow(tmp_path):
    memory = dataset(text=CAPTIONS, number=list(range(ROWS)))
    memory.save_to_disk(str(tmp_path / "saved"))
    require_pairs(read_pairs(memory))
    require_pairs(read_pairs(str(tmp_path / "saved")))
    require_pairs(read_pairs(str(tmp_path / "saved" / "*.arrow")))
    require_pairs(read_pairs(memory.select([4, 1])), [4, 1])
    splits = datasets.DatasetDict({"test": memory.select([0]), "train": memory.select([2, 3])})
    require_pairs(read_pairs(splits), [2, 3])
    with pytest.raises(DataError, match=r"splits \['test'\], none of them 'train'"):
        read_pairs(datasets.DatasetDict({"test": memory}))


def test_named_columns_win():
    both = dataset(text=["no"] * ROWS, described=CAPTIONS, image=["no"] * ROWS)
    require_pairs(read_pairs(both, "picture", "described"))
    inner = dataset(meta=[{"caption": text, "width": 4} for text in CAPTIONS])
    require_pairs(read_pairs(inner, caption_column="meta.caption"))


def test_hub_ids_are_asked_for_at_the_hub(monkeypatch):
    asked = []

    def load(name, split):
        asked.append((name, split))
        return dataset(caption=CAPTIONS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    require_pairs(read_pairs("owner/name-1.5:validation[:10]"))
    require_pairs(read_pairs("owner/name"))
    assert asked == [("owner/name-1.5", "validation[:10]"), ("owner/name", "train")]


# ---------------------------------------------------------------------------------------------------------- webdataset


def test_shards(tmp_path):
    for number, rows in enumerate([(0, 1), (2, 3), (4, 5)]):
        shard(tmp_path / f"test-{number:04d}.tar", [sample(i) for i in rows])
    require_pairs(read_pairs(str(tmp_path / "test-{0000..0002}.tar")))
    require_pairs(read_pairs(str(tmp_path / "test-*.tar")))
    require_pairs(read_pairs(str(tmp_path / "test-0001.tar")), [2, 3])
    require_pairs(read_pairs([tmp_path / "test-0002.tar", str(tmp_path / "test-0000.tar")]), [4, 5, 0, 1])


def test_captions_of_shards_in_json_whose_other_fields_change_their_types(tmp_path):
    """As img2dataset writes them: a field is null in the first samples, and something else later."""
    fields = [{"caption": CAPTIONS[i], "license": None if i < 5 else "CC", "width": 4} for i in range(ROWS)]
    whole = [sample(i, json=json.dumps(fields[i]).encode()) for i in range(ROWS)]
    shard(tmp_path / "both.tar", whole)
    require_pairs(read_pairs(tmp_path / "both.tar"))
    for _, files in whole:
        del files["txt"]
    shard(tmp_path / "json.tar", whole)
    require_pairs(read_pairs(tmp_path / "json.tar"))
    shard(tmp_path / "folders.tar", [(f"./part.x/{key}", files) for key, files in whole])
    require_pairs(read_pairs(tmp_path / "folders.tar", "png", "json.caption"))


def test_shards_whose_images_are_of_several_kinds(tmp_path):
    samples = [sample(i) for i in range(ROWS)]
    for i in (1, 4):
        del samples[i][1]["png"]
        samples[i][1]["webp"] = as_bytes(image(i), "WEBP", lossless=True)
    samples[2][1]["mask.png"] = samples[3][1]["jpg"] = b"no image"  # beside the .png of the first sample
    shard(tmp_path / "mixed.tar", samples)
    require_pairs(read_pairs(tmp_path / "mixed.tar"))
    with pytest.raises(DataError, match=r"2 of 6 samples have no image \(first: '00001'\).*extensions \['png'\]"):
        read_pairs(tmp_path / "mixed.tar", image_column="png")
    del samples[5][1]["png"]
    shard(tmp_path / "without.tar", samples)
    with pytest.raises(DataError, match=r"1 of 6 samples have no image \(first: '00005'\)"):
        read_pairs(tmp_path / "without.tar")


def test_shards_refused(tmp_path):
    (tmp_path / "no.tar").write_text("no archive")
    with pytest.raises(DataError, match=r"no.tar' is not a readable shard"):
        read_pairs(tmp_path / "no.tar")
    shard(tmp_path / "half.tar", [sample(0), ("00001", {"png": as_bytes(image(1))}), sample(2)])
    with pytest.raises(DataError, match=r"1 of 3 captions are missing, empty or no text \(first: row 1, None\)"):
        read_pairs(tmp_path / "half.tar")
    shard(tmp_path / "bare.tar", [("00000", {"png": as_bytes(image(0)), "cls": b"1"})])
    with pytest.raises(DataError, match=r"none of the columns \['cls', 'png'\].*Set caption_column"):
        read_pairs(tmp_path / "bare.tar")


# -------------------------------------------------------------------------------------------------------------- errors


def test_captions_must_be_there(tmp_path):
    for wrong in None, " ", "":
        with pytest.raises(DataError, match=r"2 of 6 captions are missing, empty or no text \(first: row 1"):
            read_pairs(dataset(caption=["a", wrong, "b", wrong, "c", "d"]))
    with pytest.raises(DataError, match=r"1 of 6 captions.*first: row 0, \[\]"):
        read_pairs(dataset(caption=[[], *[["a", "b"]] * 5]))
    pd.DataFrame({"image": ["a.png", "b.png"], "caption": ["a", None]}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match=r"1 of 2 captions.*first: row 1"):
        read_pairs(tmp_path / "a.csv")


def test_columns_that_cannot_be_found():
    with pytest.raises(
        DataError, match=r"none of the columns \['number', 'picture'\].*usual name of the caption.*Set caption_co"
    ):
        read_pairs(dataset(number=list(range(ROWS))))
    plain = datasets.Dataset.from_dict({"a": ["x.png"], "caption": ["text"]})
    with pytest.raises(DataError, match=r"none of the columns \['a', 'caption'\].*Set image_column"):
        read_pairs(plain)
    with pytest.raises(DataError, match=r"caption_column='captoin' is not a column of .*Did you mean 'caption'"):
        read_pairs(plain, "a", "captoin")


def test_sources_refused(tmp_path):
    with pytest.raises(DataError, match=r"pairs='.*nothing-\*.tar': no such file"):
        read_pairs(str(tmp_path / "nothing-*.tar"))
    with pytest.raises(DataError, match=r"nothing-1.tar': no such file"):
        read_pairs(str(tmp_path / "nothing-{1..3}.tar"))
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(DataError, match=r"of the kinds \['.txt'\]. Accepted are"):
        read_pairs(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"a folder that datasets.load_from_disk cannot read"):
        read_pairs(tmp_path)
    with pytest.raises(DataError, match="pairs is a int"):
        read_pairs(3)
    with pytest.raises(DataError, match="pairs holds a Dataset among files"):
        read_pairs([dataset(caption=CAPTIONS)])
    with pytest.raises(DataError, match="has no rows"):
        read_pairs(datasets.Dataset.from_dict({"image": [], "caption": []}))


# --------------------------------------------------------------------------------------------------------------- table


def lengths(texts):
    return torch.tensor([[len(text)] for text in texts])


def test_one_of_several_captions_is_drawn_in_every_epoch():
    captions = [["a" * n for n in range(1, 5)] for _ in range(40)]
    table = PairTable([image(0)] * 40, captions, to_tensor, lengths, caption_seed=3)

    def texts(table, rows):
        return torch.stack([table[i]["text"][0] for i in rows])

    drawn = texts(table, range(40))
    assert torch.equal(drawn, texts(table, reversed(range(40))).flip(0))
    assert torch.bincount(drawn, minlength=5)[1:].min() >= 3  # of 40 draws among 4
    table.set_epoch(1)
    assert not torch.equal(texts(table, range(40)), drawn)
    other = PairTable([image(0)] * 40, captions, to_tensor, lengths, caption_seed=4)
    assert not torch.equal(texts(other, range(40)), drawn)
    whole = dataset(caption=[["one", "two", "six"]] * ROWS)
    images, several = read_pairs(whole)
    assert PairTable(images, several, to_tensor, lengths)[2]["text"].tolist() == [3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:Row")
def test_batches_in_any_worker_without_unreadable_images(folder, workers):
    (folder / "images" / "3.png").write_bytes(b"")
    table = PairTable(
        FilesIn(paths(), folder), [[text, text] for text in CAPTIONS], to_tensor, ByteTokenizer(24), corrupt="skip"
    )
    with pytest.raises(DataError, match=r"or set corrupt='skip' to leave it out\."):  # no pair goes with a black image
        PairTable(table.images, CAPTIONS, to_tensor, ByteTokenizer(24))[3]
    batches = list(ResumableLoader(table, UniformBatches(ROWS, 3), num_workers=workers))
    rows = torch.cat([batch["index"] for batch in batches])
    assert sorted(rows.tolist()) == [0, 1, 2, 4, 5]
    expected = {"x": torch.stack([to_tensor(image(int(i))) for i in rows]), "index": rows}
    expected["text"] = ByteTokenizer(24)([CAPTIONS[int(i)] for i in rows])
    assert set(batches[0]) == expected.keys()
    assert all(torch.equal(torch.cat([batch[name] for batch in batches]), expected[name]) for name in expected)
    assert table.num_corrupt == 1


def test_a_table_can_be_sent_to_a_worker(tmp_path):
    dataset(caption=CAPTIONS).save_to_disk(str(tmp_path / "saved"))
    images, captions = read_pairs(str(tmp_path / "saved"))
    table = pickle.loads(pickle.dumps(PairTable(images, captions, to_tensor, ByteTokenizer(24))))  # noqa: S301
    assert torch.equal(table[4]["x"], to_tensor(image(4)))


def test_every_image_needs_a_caption():
    with pytest.raises(DataError, match="got 2 images and 1 captions"):
        PairTable([image(0), image(1)], ["one"], to_tensor, lengths)

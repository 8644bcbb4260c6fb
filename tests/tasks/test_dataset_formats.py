import gzip
import io
import json
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest

from fedpriv.tasks.sources import adult
from fedpriv.tasks.sources.formats import (
    FormatError,
    read_cifar_archive,
    read_idx,
    read_idx_dataset,
    read_mnist_json,
)


def idx_bytes(array):
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    head = bytes([0, 0, 8, array.ndim]) + sizes
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def write_idx_dataset(folder, train=6, test=3):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, train + test, dtype=np.uint8)
    for part, rows in (("train", slice(0, train)), ("t10k", slice(train, None))):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(idx_bytes(images[rows]))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(idx_bytes(labels[rows]))
    return images, labels


def write_mnist_json(folder, counts=(2, 1, 1, 1, 1, 1, 1, 1, 1, 1)):
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (count, 784)) for count in counts]
    for digit, pixels in enumerate(images):
        # Three decimals, and whole numbers without a point, as the package has them.
        values = [int(v) if v in (0, 1) else v for v in np.round(pixels / 255, 3).ravel().tolist()]
        (folder / f"{digit}.json").write_text(json.dumps({"data": values}))
    return np.concatenate(images), np.repeat(np.arange(10), counts)


def cifar_archive(path, batch_size=4, change=lambda name, batch: batch):
    rng = np.random.default_rng(0)
    images, labels = [], []
    with tarfile.open(path, "w:gz") as archive:
        for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
            images.append(rng.integers(0, 256, (batch_size, 3072), dtype=np.uint8))
            labels.append(rng.integers(0, 10, batch_size).tolist())
            batch = change(name, {b"data": images[-1], b"labels": labels[-1], b"batch_label": b"x"})
            content = pickle.dumps(batch, protocol=2)
            info = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return np.concatenate(images), np.concatenate(labels)


ADULT_ROWS = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, "
    "Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K\n"
    "90, ?, 1, HS-grad, 1, Widowed, ?, Wife, Black, Female, 99999, 4356, 99, ?, >50K\n"
)


def write_adult(folder):
    (folder / "adult.data").write_text(ADULT_ROWS + "\n")
    dotted = ADULT_ROWS.replace("K\n", "K.\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + dotted + dotted.splitlines()[0] + "\n\n")


def test_idx_dataset_comes_back(tmp_path):
    images, labels = write_idx_dataset(tmp_path)
    x, y, num_train = read_idx_dataset(tmp_path)
    assert np.array_equal(x[:, 0], images) and x.dtype == np.uint8 and x.shape == (9, 1, 28, 28)
    assert np.array_equal(y, labels) and y.dtype == np.int64 and num_train == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\1\0\0\0\1\0\0\0\0", "not an IDX file of unsigned bytes"),
        (b"\0\0\x08\3\0\0\0\1", "ends within its header"),
        (b"\0\0\x08\1\0\0\0\5abc", r"3 bytes of data, its header says shape \(5,\)"),
    ],
)
def test_broken_idx_files(tmp_path, content, message):
    (tmp_path / "f.gz").write_bytes(gzip.compress(content))
    with pytest.raises(FormatError, match=message):
        read_idx(tmp_path / "f.gz")


def test_images_without_labels_are_refused(tmp_path):
    write_idx_dataset(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(idx_bytes(np.zeros(5)))
    with pytest.raises(FormatError, match=r"train: 6 images but 5 labels"):
        read_idx_dataset(tmp_path)


def test_mnist_json_restores_the_bytes(tmp_path):
    images, labels = write_mnist_json(tmp_path)
    x, y, num_train = read_mnist_json(tmp_path)
    assert np.array_equal(x.reshape(-1, 784), images) and np.array_equal(y, labels) and num_train is None


@pytest.mark.parametrize("data", [[0.5] * 783, [1.5] * 784, [-0.1] * 784, []])
def test_broken_mnist_json(tmp_path, data):
    write_mnist_json(tmp_path)
    (tmp_path / "4.json").write_text(json.dumps({"data": data}))
    with pytest.raises(FormatError, match=r"4.json does not hold 28x28 images"):
        read_mnist_json(tmp_path)


def test_cifar_archive_comes_back(tmp_path):
    images, labels = cifar_archive(tmp_path / "cifar-10-python.tar.gz")
    x, y, num_train = read_cifar_archive(tmp_path)
    assert x.shape == (24, 3, 32, 32) and np.array_equal(x.reshape(24, -1), images)
    assert np.array_equal(y, labels) and num_train == 20


def test_arrays_pickled_by_old_numpy_are_read(tmp_path):
    def old(name, batch):
        return batch

    cifar_archive(tmp_path / "cifar-10-python.tar.gz", change=old)
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz") as archive:
        contents = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
    # What numpy before 2.0 wrote, and so what the real archive holds.
    contents = {
        n: c.replace(b"numpy._core.multiarray", b"numpy.core.multiarray") for n, c in contents.items()
    }
    assert all(b"numpy.core.multiarray" in content for content in contents.values())
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        for name, content in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    assert read_cifar_archive(tmp_path)[0].shape == (24, 3, 32, 32)


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    target = tmp_path / "made-by-the-pickle"

    def harmful(name, batch):
        return {**batch, b"extra": Harmful(str(target))}

    cifar_archive(tmp_path / "cifar-10-python.tar.gz", change=harmful)
    with pytest.raises(FormatError, match=r"only numpy arrays are read"):
        read_cifar_archive(tmp_path)
    assert not target.exists()


def test_cifar_archive_without_a_batch(tmp_path):
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz"):
        pass
    with pytest.raises(FormatError, match=r"has no data_batch_1"):
        read_cifar_archive(tmp_path)


def test_adult_rows_become_the_documented_columns(tmp_path):
    write_adult(tmp_path)
    x, y, num_train = adult.read_adult(tmp_path)
    assert x.shape == (5, 48) and x.dtype == np.float32 and num_train == 2
    assert y.tolist() == [0, 1, 0, 1, 0]
    first = dict(zip(adult.COLUMN_NAMES, x[0].tolist(), strict=True))
    assert {name for name, value in first.items() if value == 1 and "=" in name} == {
        "workclass=State-gov",
        "marital-status=Never-married",
        "occupation=Adm-clerical",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
    }
    assert [first[n] for n in adult.NUMERIC] == pytest.approx([-1 / 15, 1.0, 0.0, 0.4348, 0.0])
    second = dict(zip(adult.COLUMN_NAMES, x[1].tolist(), strict=True))
    # Unknown is all zero, and a value beyond the public range counts as the end of the range.
    assert not any(
        v for n, v in second.items() if n.startswith(("workclass=", "occupation=", "native-country="))
    )
    assert second["capital-gain"] == 4.0 and second["capital-loss"] == 4.0


def test_adult_columns_do_not_depend_on_other_rows(tmp_path):
    write_adult(tmp_path)
    table = adult.read_table(tmp_path / "adult.data")
    assert np.array_equal(adult.encode(table)[:1], adult.encode(table[:1]))


def test_a_file_that_is_not_adult_is_refused(tmp_path):
    (tmp_path / "adult.data").write_text("a,b,c\n1,2,3\n")
    with pytest.raises(ValueError, match=r"expected rows that end in <=50K or >50K"):
        adult.read_table(tmp_path / "adult.data")

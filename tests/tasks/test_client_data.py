import numpy as np
import pytest
import torch
from made_tasks import make_task

from fedpriv.tasks import get_task, partition_store
from fedpriv.tasks.client_data import client_counts, client_rows, client_split, public_split
from fedpriv.tasks.partitions import PartitionSettings, partition_indices
from fedpriv.tasks.sources.cache import partition_folder

SETTINGS = PartitionSettings(kind="dirichlet", num_partitions=12, alpha=0.5, seed=3, min_size=2)


def test_clients_and_holdout_share_nothing_and_lose_nothing():
    task = make_task(300)
    rows = [np.concatenate(client_rows(task, SETTINGS, i, 0.2, 0.25, 9)) for i in range(12)]
    _, holdout = task.public_holdout(0.2, 9)
    assert np.array_equal(np.sort(np.concatenate([*rows, holdout])), np.arange(300))
    assert len(public_split(task, 0.2, 9)) == 60


def test_split_holds_the_rows_it_says():
    task = make_task(300)
    train, validation = client_rows(task, SETTINGS, 4, 0.2, 0.25, 9)
    data = client_split(task, SETTINGS, 4, 0.2, 0.25, 9)
    assert torch.equal(data.train.x, task.take(train).x) and torch.equal(
        data.validation.y, task.take(validation).y
    )
    assert len(validation) == round(0.25 * (len(train) + len(validation)))


def test_client_data_is_the_same_in_a_fresh_process_and_cached_in_this_one():
    task = make_task(300)
    first = client_split(task, SETTINGS, 1, 0.2, 0.25, 9)
    assert client_split(task, SETTINGS, 1, 0.2, 0.25, 9) is first
    again = client_split(make_task(300), SETTINGS, 1, 0.2, 0.25, 9)  # another task object: nothing is cached
    assert again is not first and torch.equal(again.train.x, first.train.x)
    other = client_split(task, SETTINGS, 1, 0.2, 0.25, 10)
    assert not torch.equal(other.train.x, first.train.x)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_clients_with_two_examples_have_one_in_each_part(fraction):
    task = make_task(40)
    settings = PartitionSettings(kind="iid", num_partitions=20)
    for i in range(20):
        data = client_split(task, settings, i, 0.0, fraction, 0)
        assert (len(data.train), len(data.validation)) == (1, 1)


def test_a_single_example_is_for_training_and_validation_may_be_switched_off():
    task = make_task(20)
    single = client_split(task, PartitionSettings(kind="iid", num_partitions=20, min_size=1), 5, 0.0, 0.5, 0)
    assert (len(single.train), len(single.validation)) == (1, 0)
    assert single.validation.x.shape == (0, 4)
    whole = client_split(task, PartitionSettings(kind="iid", num_partitions=2), 0, 0.0, 0.0, 0)
    assert (len(whole.train), len(whole.validation)) == (10, 0)


@pytest.mark.parametrize("partition_id", [-1, 12])
def test_partition_id_out_of_range(partition_id):
    with pytest.raises(ValueError, match=rf"partition_id must be in 0 to 11, got {partition_id}"):
        client_split(make_task(300), SETTINGS, partition_id, 0.2, 0.2, 0)


def test_validation_fraction_out_of_range():
    with pytest.raises(ValueError, match=r"validation_fraction must be a number in \[0, 1\), got 1.0"):
        client_split(make_task(300), SETTINGS, 0, 0.2, 1.0, 0)


def test_counts_are_those_of_the_clients():
    task = make_task(300)
    counts = client_counts(task, SETTINGS, 0.2, 9)
    rows = np.concatenate(client_rows(task, SETTINGS, 7, 0.2, 0.25, 9))
    assert counts.shape == (12, 3) and counts.sum() == 240
    assert counts[7].tolist() == np.bincount(task.labels[rows], minlength=3).tolist()


def test_a_stored_partition_is_used_and_a_damaged_one_computed_again(monkeypatch):
    labels = make_task(300).labels
    settings = PartitionSettings(num_partitions=5, seed=77)
    computed = []

    def counting(*arguments):
        computed.append(1)
        return partition_indices(*arguments)

    monkeypatch.setattr(partition_store, "partition_indices", counting)
    before = set(partition_folder().glob("*.npz"))
    first = partition_store.stored_partition_indices(labels, settings)
    (file,) = set(partition_folder().glob("*.npz")) - before
    second = partition_store.stored_partition_indices(labels, settings)
    assert len(computed) == 1
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))

    good = dict(np.load(file))
    damages = [b"", b"PK\x03\x04 not a zip", file.read_bytes()[:200]]
    for damage in damages:
        file.write_bytes(damage)
        third = partition_store.stored_partition_indices(labels, settings)
        assert all(np.array_equal(a, b) for a, b in zip(first, third, strict=True))
    for wrong in (
        {**good, "order": np.zeros(300, np.int64)},
        {**good, "sizes": np.array([300])},
        {**good, "sizes": good["sizes"] + 1},
    ):
        np.savez(file, **wrong)
        third = partition_store.stored_partition_indices(labels, settings)
        assert all(np.array_equal(a, b) for a, b in zip(first, third, strict=True))
    assert len(computed) == 1 + len(damages) + 3


def test_other_labels_or_settings_are_another_file(monkeypatch):
    labels = make_task(300).labels
    first = partition_store.stored_partition_indices(labels, PartitionSettings(num_partitions=5, seed=78))
    changed = labels.copy()
    changed[:150] = 0
    second = partition_store.stored_partition_indices(changed, PartitionSettings(num_partitions=5, seed=78))
    third = partition_store.stored_partition_indices(labels, PartitionSettings(num_partitions=5, seed=79))
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, third, strict=True))


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FEDPRIV_DATA", str(blocked))
    parts = partition_store.stored_partition_indices(
        make_task(50).labels, PartitionSettings(num_partitions=3)
    )
    assert sum(len(part) for part in parts) == 50


def test_digits_for_fifty_clients_as_the_default_app_asks():
    settings = PartitionSettings(kind="dirichlet", num_partitions=50, alpha=0.5, seed=1)
    data = [client_split(get_task("digits"), settings, i, 0.2, 0.2, 7) for i in range(50)]
    assert sum(len(d.train) + len(d.validation) for d in data) == 1797 - 359
    assert min(len(d.validation) for d in data) >= 1

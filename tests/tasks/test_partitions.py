import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.tasks.partitions import (
    PartitionError,
    PartitionSettings,
    partition_counts,
    partition_indices,
    plot_partition,
)


def labels_of(num_examples, num_classes=10, seed=0):
    return np.random.default_rng(seed).integers(0, num_classes, num_examples)


@settings(max_examples=25, deadline=None)
@given(
    num_examples=st.integers(60, 300),
    num_classes=st.integers(1, 12),
    num_partitions=st.integers(1, 20),
    kind=st.sampled_from(["iid", "dirichlet"]),
    alpha=st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    seed=st.integers(0, 2**40),
)
def test_every_index_exactly_once(num_examples, num_classes, num_partitions, kind, alpha, seed):
    labels = labels_of(num_examples, num_classes, seed)
    chosen = PartitionSettings(kind=kind, num_partitions=num_partitions, alpha=alpha, seed=seed, min_size=0)
    parts = partition_indices(labels, chosen)
    assert len(parts) == num_partitions
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_examples))
    assert all(part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_stable_under_the_seed_whatever_the_global_generator(kind):
    labels = labels_of(400)
    same = []
    for global_seed in (0, 1):
        np.random.seed(global_seed)  # noqa: NPY002 - the global generator is what must not matter
        same.append(partition_indices(labels, PartitionSettings(kind=kind, num_partitions=7, seed=5)))
    other = partition_indices(labels, PartitionSettings(kind=kind, num_partitions=7, seed=6))
    assert all(np.array_equal(a, b) for a, b in zip(*same, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(same[0], other, strict=True))


def test_iid_parts_are_equal_and_mixed_although_the_data_is_sorted():
    labels = np.repeat(np.arange(10), 100)
    parts = partition_indices(labels, PartitionSettings(kind="iid", num_partitions=8))
    assert {len(part) for part in parts} == {125}
    # 125 draws from ten equal classes: each class 12.5 +- 3.1; sorted pieces would have one or two classes.
    assert partition_counts(labels, parts, 10).min() >= 1


def test_small_alpha_is_skewed_and_large_alpha_is_not():
    labels = labels_of(4000)
    classes = {
        alpha: np.mean(
            [
                np.max(row) / row.sum()
                for row in partition_counts(
                    labels,
                    partition_indices(labels, PartitionSettings(num_partitions=10, alpha=alpha, min_size=5)),
                    10,
                )
            ]
        )
        for alpha in (0.1, 1000.0)
    }
    assert classes[0.1] > 0.4 > 0.2 > classes[1000.0]


def test_min_size_is_met_by_drawing_again():
    labels = labels_of(1500)
    smallest = {}
    for min_size in (0, 12):
        chosen = PartitionSettings(num_partitions=50, alpha=0.5, seed=1, min_size=min_size)
        smallest[min_size] = min(len(part) for part in partition_indices(labels, chosen))
    assert smallest[12] >= 12 > smallest[0]


def test_an_impossible_dirichlet_partition_ends_soon_with_what_to_change():
    start = time.monotonic()
    with pytest.raises(PartitionError) as caught:
        partition_indices(labels_of(1400), PartitionSettings(num_partitions=100, alpha=0.1, min_size=10))
    assert time.monotonic() - start < 60
    message = str(caught.value)
    for part in ("alpha=0.1", "100 clients", "min_size=10", "1400 examples", "raise alpha", "lower min_size"):
        assert part in message


def test_the_give_up_leaves_no_warnings(recwarn):
    with pytest.raises(PartitionError):
        partition_indices(labels_of(100), PartitionSettings(num_partitions=30, alpha=0.01, min_size=3))
    assert not recwarn.list


def test_too_few_examples_name_the_largest_number_of_clients():
    with pytest.raises(
        PartitionError, match="19 examples cannot give 10 clients at least 2 each: use at most 9"
    ):
        partition_indices(labels_of(19), PartitionSettings(num_partitions=10, min_size=2))
    with pytest.raises(PartitionError, match="3 examples cannot give 4 clients at least 1 each"):
        partition_indices(labels_of(3), PartitionSettings(kind="iid", num_partitions=4, min_size=0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "sorted"}, "kind must be one of iid, dirichlet, got 'sorted'"),
        ({"num_partitions": 0}, "num_partitions must be an integer >= 1, got 0"),
        ({"num_partitions": 2.5}, "num_partitions must be an integer >= 1, got 2.5"),
        ({"alpha": 0.0}, "alpha must be a finite number > 0, got 0.0"),
        ({"alpha": float("nan")}, "alpha must be a finite number > 0, got nan"),
        ({"min_size": -1}, "min_size must be an integer >= 0, got -1"),
    ],
)
def test_settings_out_of_range(arguments, message):
    with pytest.raises(ValueError) as caught:
        PartitionSettings(**arguments)
    assert message in str(caught.value)


def test_labels_must_be_flat():
    with pytest.raises(ValueError, match="one dimension"):
        partition_indices(np.zeros((4, 4)), PartitionSettings(num_partitions=2))


def test_counts_add_up():
    labels = np.array([0, 0, 2, 1, 2, 2])
    counts = partition_counts(labels, [np.array([0, 2, 4]), np.array([1, 3, 5])], 4)
    assert counts.tolist() == [[1, 0, 2, 0], [1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("num_partitions", "num_classes"), [(1, 2), (3, 10), (40, 10), (41, 2), (200, 10), (12, 30)]
)
def test_picture_is_drawn_for_any_number_of_clients(tmp_path, num_partitions, num_classes):
    from matplotlib.image import imread

    counts = np.random.default_rng(0).poisson(3.0, (num_partitions, num_classes))
    counts[0] = 0  # a client without examples
    plot_partition(counts, tmp_path / "p.png", "Title", [f"c{i}" for i in range(num_classes)])
    image = imread(tmp_path / "p.png")
    assert image.shape[1] == 1300 and image.shape[0] >= 500
    assert len(np.unique(image[::5, ::5].reshape(-1, image.shape[2]), axis=0)) > 10

import hashlib

import numpy as np
import pytest

from fedpriv.tasks import derive_seed


def test_is_the_first_63_bits_of_the_digest():
    digest = hashlib.sha256(b'[7,"order",3,null,true,0.5]').digest()
    assert derive_seed(7, "order", 3, None, True, 0.5) == int.from_bytes(digest[:8], "big") // 2


def test_parts_do_not_run_into_each_other():
    seeds = {
        derive_seed(*parts) for parts in [(1, 2), (2, 1), (12,), ("1", 2), (1, "2"), (1, 2, 0), (), (True, 2)]
    }
    assert len(seeds) == 8


def test_neighbouring_rounds_and_partitions_never_collide():
    assert len({derive_seed(0, r, p) for r in range(60) for p in range(60)}) == 3600


def test_fits_torch_and_numpy():
    assert all(0 <= derive_seed(i) < 2**63 for i in range(100))


def test_numpy_integers_count_as_integers():
    assert derive_seed(np.int64(7), np.uint8(1)) == derive_seed(7, 1)


@pytest.mark.parametrize("part", [[1], {"a": 1}, b"x", 1j])
def test_refuses_other_types(part):
    with pytest.raises(TypeError, match="must be int, str, float, bool or None"):
        derive_seed(1, part)

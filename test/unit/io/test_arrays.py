"""NumPy archives from untrusted sources: round trips; objects and forged sizes are rejected."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_arrays


def test_arrays_round_trip_and_are_writable(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    big = np.arange(6, dtype=">f8").reshape(2, 3)
    np.savez_compressed(path, a=np.asfortranarray(big), names=np.array(["x", "yz"]), flag=np.array(True))
    found = read_arrays(path, ("a", "names", "flag"))
    assert np.array_equal(found["a"], big)
    assert found["names"].tolist() == ["x", "yz"]
    assert found["flag"].shape == ()
    found["a"][0, 0] = 7.0


def test_anything_but_plain_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([{"b": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FileFormatError, match=r"a\.npy claims shape"):
        read_arrays(path, ("a",))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"no array")
    with pytest.raises(FileFormatError, match=r"a\.npz cannot be read"):
        read_arrays(path, ("a",))
    np.savez(path, b=np.zeros(3))
    with pytest.raises(FileFormatError, match="has no array a"):
        read_arrays(path, ("a",))
    with pytest.raises(FileFormatError, match="at most 10"):
        read_arrays(path, ("b",), limit=10)
    with pytest.raises(FileFormatError) as caught:
        read_arrays(tmp_path / "none.npz", ("a",))
    assert caught.value.code is ErrorCode.FILE_MISSING

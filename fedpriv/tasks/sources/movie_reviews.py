"""Sentences from movie reviews with a mean rating (Hutto and Gilbert 2014): reading them into a two-class task."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np

ARCHIVE = "hutto_ICWSM_2014.tar.gz"
_MEMBER = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
#: Ratings nearer to 0 than this have no clear polarity.
LEAST_RATING = 0.5
_MOST_BYTES = 1 << 22


def read_movie_reviews(folder: Path) -> tuple[np.ndarray, np.ndarray, None]:
    """Read the sentences out of the archive inside the package.

    Sentences of unclear polarity and repeated ones are dropped; the file is ordered by class, so the order is
    shuffled by a fixed seed.

    Returns
    -------
    x : np.ndarray
        UTF-8 sentences, dtype S (bytes), shape (n,).
    y : np.ndarray
        1 for a positive rating, else 0.
    """
    with tarfile.open(folder / ARCHIVE) as archive:
        file = archive.extractfile(_MEMBER)
        if file is None:
            raise ValueError(f"{ARCHIVE} does not hold {_MEMBER}")
        raw = file.read(_MOST_BYTES)
    text = raw.decode("utf-8", errors="replace")
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("\t")
        if len(fields) != 3:
            raise ValueError(f"line {number} has {len(fields)} fields, expected 3")
        rating, sentence = float(fields[1]), fields[2].strip()
        if abs(rating) >= LEAST_RATING and sentence:
            found.setdefault(sentence, int(rating > 0))
    order = np.random.default_rng(20140601).permutation(len(found))
    x = np.array([sentence.encode() for sentence in found])
    return x[order], np.array(list(found.values()), dtype=np.int64)[order], None

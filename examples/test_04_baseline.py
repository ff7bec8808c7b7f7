"""
# 4. A baseline

This test does not say how fast the function has to be, only that it must not get slower.
Store three sessions, then compare:

    pytest examples/test_04_baseline.py --gpuperf-update=new      # three times
    pytest examples/test_04_baseline.py --gpuperf-baseline=.gpuperf

A slowdown beyond `max_regression` is measured again in five fresh processes before the
test fails. The report names the stored sessions, their commits, and the packages that
have changed since. With one session the verdict is *inconclusive*, because the difference
between sessions is unknown.
"""

import pytest


def word_counts(text):
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return counts


@pytest.mark.gpuperf(max_regression="10 %", group="text")
def test_word_counts(gpuperf):
    counts = gpuperf(word_counts, "to be or not to be " * 2_000)

    assert counts["be"] == 4_000

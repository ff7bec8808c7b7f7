"""
# 4. A baseline

Nothing in this test says how fast the function has to be: it must not get slower than it
was. Remember it in three runs, then compare:

    pytest examples/test_04_baseline.py --gpuperf-update=new      # three times
    pytest examples/test_04_baseline.py --gpuperf-baseline=.gpuperf

A slowdown beyond `max_regression` is measured again in five fresh processes before the
test fails. The report names the stored sessions, their commits, and which packages have
changed since. With fewer than three sessions the verdict is *inconclusive*: one session
says nothing about the next.
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

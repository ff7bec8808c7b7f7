"""
# 5. Compare two functions

`compare` measures two functions interleaved in one process: first, second, second, first.
Drift of the machine affects both. The speedup has an interval. Assert on its lower end.
"""


def by_loop(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def by_formula(count):
    return (count - 1) * count * (2 * count - 1) // 6


def test_formula_is_faster(gpuperf):
    assert by_formula(1_000) == by_loop(1_000)

    pair = gpuperf.compare(by_formula, by_loop, 1_000)

    assert pair.speedup.low >= 5
    assert pair.a.time < pair.b.time

"""
# 6. A range

A block of code can be measured as it is, once. A range has one sample, so its time has no
interval. Use a range to see what a block does, and `measure` to see how fast it is.
"""

import json

from pytest_gpuperf import s


def test_round_trip(gpuperf):
    table = [
        {"row": row, "squares": [row * n for n in range(50)]} for row in range(200)
    ]

    with gpuperf.range("write") as writing:
        text = json.dumps(table)
    with gpuperf.range("read") as reading:
        back = json.loads(text)

    assert back == table
    assert writing.time + reading.time <= 2 * s

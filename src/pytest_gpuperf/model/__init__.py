"""Room model: the frozen records that every room speaks; PYTEST_DONT_REWRITE.

In: values that a collector or a file gives.
Out: records whose numbers are finite, whose units stand in their names or beside them.
Never: I/O, a clock, a GPU library, arithmetic beyond a check at the border.
"""

"""Room compute: pure numbers.

In: model records and plain numbers.
Out: intervals, changes, derived quantities.
Never: I/O, a clock, unseeded randomness, a verdict, text for a reader.
"""

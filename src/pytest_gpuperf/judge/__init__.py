"""Room judge: numbers and limits in, verdicts out.

In: model records, limits, changes.
Out: verdicts, each with a reason code and its evidence.
Never: I/O, a clock, words or display units; an exception is never a verdict.
"""

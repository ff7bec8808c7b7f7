"""Room report: verdicts in, text out.

In: a run with its verdicts.
Out: terminal, JSON and Markdown text; x100, microseconds and gigabytes in display alone.
Never: a decision, a measurement, a read of a baseline.
"""

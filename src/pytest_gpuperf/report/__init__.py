"""Room report: verdicts in, text out.

In: a run with its verdicts.
Out: terminal, JSON and Markdown text. Only `display` multiplies by 100, and writes microseconds or
gigabytes.
Never: a decision, a measurement, a read of a baseline.
"""

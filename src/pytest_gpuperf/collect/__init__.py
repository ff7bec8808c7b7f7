"""Room collect: tools, drivers and files in, readings and records out.

In: a callable, a file, a device; the stop rule and the clock that pipeline hands over.
Out: model records in SI units, each value with where it came from.
Never: a decision, a threshold of a limit, text for a reader, pytest.
"""

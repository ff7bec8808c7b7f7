"""Room measure: one test in one process becomes one Record.

In: a Config, the call, block or loop of a test, and the collectors of this process.
Out: a Record, with what could not be measured named in it.
Never: a verdict, a sentence about a run, another process than those of its tools, pytest.
"""

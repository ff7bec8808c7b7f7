"""Room pipeline: who hands what to whom.

In: a Config and what the tests measured.
Out: a judged run, stored and reported.
Never: arithmetic, a verdict of its own, pytest.
"""

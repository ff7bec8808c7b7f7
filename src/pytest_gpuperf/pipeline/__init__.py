"""Room pipeline: one run, from what its tests measured to a stored report.

In: a Config and the Records of the run's tests.
Out: a judged run, stored and reported.
Never: measuring, arithmetic, a verdict of its own, pytest.
"""

"""Timing of calls, blocks and loops.

In: a TimedCall or a block, a Clock, a DeviceRuntime, and the rule that says when to stop.
Out: Timing: samples of the host's clock and of CUDA events, with notes on the call.
Never: a stop rule of its own, a value that an interrupted sample gave unmarked.
"""

"""Room baseline: records that outlive a run.

In: sessions to keep, the name of a store.
Out: the stored sessions of a test, whole or not at all.
Never: a decision, arithmetic, pytest, a write from a worker.

store names a place and opens it; directory and single are the two kinds there are;
layout is their text, files is how text reaches a disk whole, history is what happens
to the sessions in between.
"""

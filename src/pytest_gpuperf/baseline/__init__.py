"""Room baseline: records that outlive a run.

In: sessions to store, the name of a store.
Out: the stored sessions of a test, whole or not at all.
Never: a decision, arithmetic, pytest, a write from a worker.

store opens a store by name: a single file, or a directory. text is the file format, files
reads and writes whole files under a lock, history merges sessions.
"""

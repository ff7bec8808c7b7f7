"""Room baseline: records that outlive a run.

In: sessions to store, the name of a store.
Out: the stored sessions of a test, whole or not at all.
Never: a decision, arithmetic, pytest, a write from a worker.

store opens a store by name: a single file, a directory, or the URL of a database. text is
the file format, rows its lines, layout how the store writes them. files reads and writes
whole files under a lock, history merges sessions, additions adds them to a file without
decoding the others. database is the store in tables, reader and writer use them, engine
and postgresql open them.
"""

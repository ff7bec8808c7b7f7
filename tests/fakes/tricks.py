"""Ways to a better figure, mistakes most of them, and honest code that looks like them.

Each is a module of a user's project with one test, `test_it`. Its work takes a millisecond
or more. A trick has a limit of 100 us or a speedup of 5, which its work cannot meet, and
honest code has a limit of a second.
"""

from __future__ import annotations

HEAD = """
    import atexit
    import collections
    import contextvars
    import concurrent.futures
    import dataclasses
    import functools
    import gc
    import io
    import itertools
    import multiprocessing
    import os
    import queue
    import random
    import re
    import sqlite3
    import subprocess
    import sys
    import threading
    import time
    import weakref

    import numpy as np
    import pytest


    def make(seed, count=12_000):
        draw = random.Random(seed).random
        return [draw() for _ in range(count)]


    X = make(1)
    SORTED = sorted(X)


    def check(result):
        assert list(result) == SORTED


    fast = pytest.mark.gpuperf(limits=["time <= 100 us"])
    faster = pytest.mark.gpuperf(limits=["speedup >= 5"])
    honest = pytest.mark.gpuperf(limits=["time <= 1 s"])
"""

IN_PLACE = "an argument is sorted in place"
HIDDEN = (
    "a list, array, dict or set of a closure, a global, a default or an object is changed"
    " by the first call, so that later calls find the work done"
)
SAME_SETUP = "`setup=` returns the same object each time"
KEPT = (
    "`functools.cache`, `cached_property`, a dict, a variable, an attribute or anything"
    " else keeps the result"
)
SHARED = "one function of a comparison reads what the other one has stored"
USED_UP = "an iterator, a file or a queue of a global is used up"
USED_ARGUMENT = "an iterator or a file that is an argument is used up"
LAZY = (
    "`map`, a generator in a tuple, `executor.submit`, a child process, an open cursor, a"
    " block of `with` that is not entered, a list that makes its items when read"
)
GENERATOR = "a generator function, a coroutine"
SWALLOWED = "an `AttributeError`, `NameError` or `TypeError` is swallowed and nothing is returned"
PREFETCHED = "a thread does the work while `setup=` runs"
NTH = "each n-th call does the work of n calls"
SOME_RIGHT = (
    "the first and the last result are right, the others are not, with `check=`"
)
GARBAGE = "cycles of objects, or a finalizer of the result, are left to be cleaned up"
OTHER_RESULT = "the faster function of a comparison returns something else"
ASKS = "a function asks `gc.isenabled()`, or replaces a clock of `time`"
ENDS_EARLY = "a skip, an xfail or an early end after a slow measurement"
NO_MEASUREMENT = "the test measures nothing"
REWRITTEN = "the test rewrites its marker while it runs"
THREADS = "a thread that a call, a block or a loop has started goes on after it"
AT_EXIT = "each call leaves its work to the end of the process"
SAME_CORE = "a child process on the same core does the work"
FIRST_STEPS = "only the first steps of a loop do work"
KNOWN = (
    "an earlier test has sorted the input, or the function knows its usual input, with"
    " `make=` and `reference=` in the marker"
)
REORDERED = "an earlier test or a fixture has sorted a list or an array of the module"
UNITS = "an assert compares seconds with a number of microseconds"
BEFORE = (
    "the work was done before the first call in another way: at import, in a fixture, by an"
    " earlier test; without `make=`"
)
FAR = (
    "a file, an installed package or the environment keeps the result; without `make=`"
)
UNREAD = "a block makes a generator and does not read it"
OWN_LAZY = "a function that is returned, or an object of an own class, does the work when it is used"
GIVEN = "the function only returns data that were there before it"
POOL = (
    "a pool or a queue that was there before gets the work, and the call does not wait"
)
DROPPED = (
    "a generator or a coroutine is made as a statement, and neither read nor awaited"
)
TASKS = "each call leaves a task on an event loop"
REPLACED = "the test replaces the code of the plugin that takes samples"
NUMBER = "an error is swallowed and a number is returned"
DESCRIPTOR = "an object with a descriptor of an own class does the work when it is used"
BARE = "a method is named and not called, as `rows.sort`"
OTHER_FUNCTION = "another, faster function is measured"

# By name: the row of the page's table, and the module.
TRICKS: dict[str, tuple[str, str]] = {
    "in_place": (
        IN_PLACE,
        """
        def f(x): x.sort(); return x
        @fast
        def test_it(gpuperf): gpuperf.measure(f, list(X), check=check)
        """,
    ),
    "in_place_nested": (
        IN_PLACE,
        """
        def f(b): b["a"]["v"].sort(); return b["a"]["v"]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, {"a": {"v": list(X)}}, check=check)
        """,
    ),
    "in_place_array": (
        IN_PLACE,
        """
        def f(x): x.sort(kind="stable"); return x
        @fast
        def test_it(gpuperf): gpuperf.measure(f, np.random.default_rng(1).random(20_000))
        """,
    ),
    "in_place_view": (
        IN_PLACE,
        """
        def f(x): x.sort(kind="stable"); return x
        @fast
        def test_it(gpuperf):
            gpuperf.measure(f, np.random.default_rng(1).random(40_000)[::2])
        """,
    ),
    "global_list": (
        HIDDEN,
        """
        Y = list(X)
        def f(): Y.sort(); return Y
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "global_view": (
        HIDDEN,
        """
        V = np.random.default_rng(1).random(40_000)[::2]
        def f(): V.sort(kind="stable"); return V
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "closure_list": (
        HIDDEN,
        """
        def maker():
            y = list(X)
            def f(): y.sort(); return y
            return f
        @fast
        def test_it(gpuperf): gpuperf.measure(maker(), check=check)
        """,
    ),
    "default_list": (
        HIDDEN,
        """
        def f(y=list(X)): y.sort(); return y
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "object_list": (
        HIDDEN,
        """
        @dataclasses.dataclass
        class Box: items: list
        def f(b): b.items.sort(); return b.items
        @fast
        def test_it(gpuperf): gpuperf.measure(f, Box(list(X)), check=check)
        """,
    ),
    "set_emptied": (
        HIDDEN,
        """
        LEFT = set(range(300))
        def f():
            while LEFT: sum(range(LEFT.pop()))
            return None
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "setup_same": (
        SAME_SETUP,
        """
        Y = list(X)
        def f(x): x.sort(); return x
        @fast
        def test_it(gpuperf): gpuperf.measure(f, setup=lambda: (Y,), check=check)
        """,
    ),
    "cached": (
        KEPT,
        """
        @functools.lru_cache
        def f(x): return sum(sorted(x * 8))
        @fast
        def test_it(gpuperf): gpuperf.measure(f, tuple(X[:1000]))
        """,
    ),
    "cached_pool": (
        KEPT,
        """
        @functools.cache
        def f(x): return sum(sorted(x * 8))
        TX = tuple(X[:1000])
        @fast
        def test_it(gpuperf): gpuperf.measure(f, inputs=[(TX,)] * 8)
        """,
    ),
    "cached_method": (
        KEPT,
        """
        class A:
            @functools.lru_cache
            def run(self, x): return sum(sorted(x * 8))
        @fast
        def test_it(gpuperf): gpuperf.measure(A().run, tuple(X[:1000]))
        """,
    ),
    "cached_property": (
        KEPT,
        """
        class A:
            @functools.cached_property
            def v(self): return sorted(X)
            def run(self): return self.v
        @fast
        def test_it(gpuperf): gpuperf.measure(A().run, check=check)
        """,
    ),
    "cached_in_dict": (
        KEPT,
        """
        MEMO = {}
        def f(x):
            key = id(x)
            if key not in MEMO: MEMO[key] = sorted(x)
            return MEMO[key]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "cached_in_default": (
        KEPT,
        """
        def f(x, memo={}):
            if "r" not in memo: memo["r"] = sorted(x)
            return memo["r"]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "cached_in_class": (
        KEPT,
        """
        class A:
            kept = None
            def run(self):
                if A.kept is None: A.kept = sorted(X)
                return A.kept
        @fast
        def test_it(gpuperf): gpuperf.measure(A().run, check=check)
        """,
    ),
    "cached_in_closure": (
        KEPT,
        """
        def maker():
            kept = None
            def f():
                nonlocal kept
                kept = kept or sorted(X)
                return kept
            return f
        @fast
        def test_it(gpuperf): gpuperf.measure(maker(), check=check)
        """,
    ),
    "cached_in_global": (
        KEPT,
        """
        KEPT = None
        def f():
            global KEPT
            if KEPT is None: KEPT = sorted(X)
            return KEPT
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "cached_in_slot": (
        KEPT,
        """
        class A:
            __slots__ = ("kept",)
            def run(self):
                if not hasattr(self, "kept"): self.kept = sorted(X)
                return self.kept
        @fast
        def test_it(gpuperf): gpuperf.measure(A().run, check=check)
        """,
    ),
    "cached_in_module": (
        KEPT,
        """
        import shelf
        def f():
            if shelf.kept is None: shelf.kept = sorted(X)
            return shelf.kept
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "cached_in_module_dict": (
        KEPT,
        """
        import shelf
        def f():
            if "r" not in shelf.memo: shelf.memo["r"] = sorted(X)
            return shelf.memo["r"]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "cached_in_thread": (
        KEPT,
        """
        LOCAL = threading.local()
        def f():
            if not hasattr(LOCAL, "kept"): LOCAL.kept = sorted(X)
            return LOCAL.kept
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "cached_in_context": (
        KEPT,
        """
        VARIABLE = contextvars.ContextVar("kept", default=None)
        def f():
            if VARIABLE.get() is None: VARIABLE.set(sorted(X))
            return VARIABLE.get()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "cached_weakly": (
        KEPT,
        """
        class Key: pass
        KEY, MEMO = Key(), weakref.WeakKeyDictionary()
        def f():
            if KEY not in MEMO: MEMO[KEY] = sorted(X)
            return MEMO[KEY]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "cached_future": (
        KEPT,
        """
        POOL, FUTURES = concurrent.futures.ThreadPoolExecutor(1), {}
        def f():
            if "r" not in FUTURES: FUTURES["r"] = POOL.submit(sorted, X)
            return FUTURES["r"].result()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "shared_store": (
        SHARED,
        """
        STORE = {}
        def slow(x):
            STORE["r"] = sorted(x); return STORE["r"]
        def quick(x): return STORE.get("r") or sorted(x)
        @faster
        def test_it(gpuperf): gpuperf.compare(quick, slow, X)
        """,
    ),
    "global_iterator": (
        USED_UP,
        """
        IT = iter(make(2, 300_000))
        def f(): return sum(IT)
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "global_generator": (
        USED_UP,
        """
        ROWS = (each * 2 for each in make(2, 100_000))
        def f(): return sum(ROWS)
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "global_map": (
        USED_UP,
        """
        ROWS = map(abs, make(2, 100_000))
        def f(): return list(ROWS)
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "global_file": (
        USED_UP,
        """
        FILE = io.StringIO("1 2 3 4\\n" * 20_000)
        def f(): return sum(len(line.split()) for line in FILE)
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "global_queue": (
        USED_UP,
        """
        Q = queue.SimpleQueue()
        for each in range(20_000): Q.put(each)
        def f():
            total = 0
            while not Q.empty(): total += Q.get()
            return total
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "global_queue_of_deque": (
        USED_UP,
        """
        Q = queue.Queue()
        for each in range(5_000): Q.put(each)
        def f():
            total = 0
            while not Q.empty(): total += Q.get()
            return total
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "argument_iterator": (
        USED_ARGUMENT,
        """
        @fast
        def test_it(gpuperf): gpuperf.measure(sum, iter(make(2, 300_000)))
        """,
    ),
    "argument_file": (
        USED_ARGUMENT,
        """
        def f(file): return sum(len(line.split()) for line in file)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, io.StringIO("1 2 3 4\\n" * 20_000))
        """,
    ),
    "map": (
        LAZY,
        """
        def f(x): return map(lambda i: sum(range(200)) + i, x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "generator_in_tuple": (
        LAZY,
        """
        def f(x): return ((sum(range(200)) + i for i in x), len(x))
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "future": (
        LAZY,
        """
        POOL = concurrent.futures.ThreadPoolExecutor(1)
        def f(x): return POOL.submit(sorted, x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "cursor": (
        LAZY,
        """
        DB = sqlite3.connect(":memory:")
        DB.execute("create table t(a)")
        DB.executemany("insert into t values(?)", [(x,) for x in X])
        def f(): return DB.execute("select a * a from t")
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "list_by_itself": (
        LAZY,
        """
        class L(list):
            def __init__(self, x): self.x = x
            def __iter__(self): return iter(sorted(self.x))
            def __eq__(self, other): return list(self) == other
        @fast
        def test_it(gpuperf): gpuperf.measure(L, X, check=check)
        """,
    ),
    "chain": (
        LAZY,
        """
        def f(x): return itertools.chain(map(abs, x), filter(None, x))
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "lazy_graph": (
        LAZY,
        """
        class Table:
            def __dask_graph__(self): return {}
        def f(x): return Table()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "generator": (
        GENERATOR,
        """
        def f(x): yield from sorted(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "coroutine": (
        GENERATOR,
        """
        async def f(x): return sorted(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda x: f(x), X)
        """,
    ),
    "swallowed": (
        SWALLOWED,
        """
        def f(x):
            try: return sorted(x.missing)
            except Exception: return None
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "swallowed_empty": (
        SWALLOWED,
        """
        def f(x):
            try: return sorted(x.missing)
            except Exception: return []
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "prefetched": (
        PREFETCHED,
        """
        Q, ENDED = queue.Queue(2), []
        def fill():
            while not ENDED: Q.put([sorted(X) for _ in range(5)][0])
        def f(): return Q.get()
        @fast
        def test_it(gpuperf):
            threading.Thread(target=fill, daemon=True).start()
            gpuperf.measure(f, setup=lambda: (time.sleep(.05), ())[1], check=check)
            ENDED.append(True)
            Q.get()
        """,
    ),
    "every_4th": (
        NTH,
        """
        count = [0]
        def f(x):
            count[0] += 1
            return sorted(x) if count[0] % 4 == 0 else x
        @fast
        def test_it(gpuperf, monkeypatch):
            # Several periods must be seen, on a busy machine, too.
            monkeypatch.setattr("pytest_gpuperf.measure.bench._BUDGET_S", 1.0)
            gpuperf.measure(f, setup=lambda: (X,))
        """,
    ),
    "wrong_between": (
        SOME_RIGHT,
        """
        count = [0]
        def f(x):
            count[0] += 1
            return SORTED if count[0] < 8 else x
        def right(result): assert list(result[:3]) == SORTED[:3]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=right)
        """,
    ),
    "cycles": (
        GARBAGE,
        """
        class N:
            def __del__(self): sum(range(5000))
        def f():
            for _ in range(5):
                a, b = N(), N()
                a.b, b.a = b, a
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "finalizer": (
        GARBAGE,
        """
        class O:
            def __del__(self): sorted(X)
        def f(): return O()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, setup=lambda: ())
        """,
    ),
    "weak_finalizer": (
        GARBAGE,
        """
        class O: pass
        def f():
            made = O()
            weakref.finalize(made, sorted, X)
            return made
        @fast
        def test_it(gpuperf): gpuperf.measure(f, setup=lambda: ())
        """,
    ),
    "returns_input": (
        OTHER_RESULT,
        """
        def slow(x): return sorted(x)
        def quick(x): return x
        @faster
        def test_it(gpuperf): gpuperf.compare(quick, slow, X)
        """,
    ),
    "asks_collector": (
        ASKS,
        """
        def f(x): return sorted(x) if gc.isenabled() else SORTED
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "replaces_clock": (
        ASKS,
        """
        def f(x): return sorted(x)
        @fast
        def test_it(gpuperf, monkeypatch):
            monkeypatch.setattr(time, "perf_counter_ns", itertools.count().__next__)
            gpuperf.measure(f, X, check=check)
        """,
    ),
    "skips": (
        ENDS_EARLY,
        """
        @fast
        def test_it(gpuperf):
            if gpuperf.measure(sorted, X).time > 1e-4: pytest.skip("not here")
        """,
    ),
    "xfails": (
        ENDS_EARLY,
        """
        @fast
        def test_it(gpuperf):
            if gpuperf.measure(sorted, X).time > 1e-4: pytest.xfail("not here")
        """,
    ),
    "never_measures": (
        NO_MEASUREMENT,
        """
        @fast
        def test_it(gpuperf): sorted(X)
        """,
    ),
    "rewrites_marker": (
        REWRITTEN,
        """
        @fast
        def test_it(gpuperf, request):
            for mark in request.node.own_markers: mark.kwargs["limits"] = ["time <= 1 s"]
            gpuperf.measure(sorted, X, check=check)
        """,
    ),
    "thread_of_call": (
        THREADS,
        """
        def f():
            threading.Thread(target=lambda: [sorted(X) for _ in range(3)]).start()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, setup=lambda: ())
        """,
    ),
    "timer_of_call": (
        THREADS,
        """
        def f():
            timer = threading.Timer(0.5, sorted, (X,))
            timer.daemon = True
            timer.start()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, setup=lambda: ())
        """,
    ),
    "thread_of_range": (
        THREADS,
        """
        @pytest.mark.gpuperf(limits=["time <= 10 ms"])
        def test_it(gpuperf):
            with gpuperf.range("a"):
                threading.Thread(target=lambda: [sorted(X) for _ in range(50)]).start()
        """,
    ),
    "thread_of_steps": (
        THREADS,
        """
        @pytest.mark.gpuperf(limits=["throughput >= 100"])
        def test_it(gpuperf):
            with gpuperf.steps(units=1) as steps:
                for _ in range(10):
                    with steps.step():
                        threading.Thread(target=lambda: [sorted(X) for _ in range(40)]).start()
        """,
    ),
    "at_exit": (
        AT_EXIT,
        """
        def f(): atexit.register(len, X)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, setup=lambda: ())
        """,
    ),
    "same_core": (
        SAME_CORE,
        """
        def work(reader, value):
            while True:
                reader.recv_bytes()
                value.value = sum(sorted(X)[:1]) * 0 + 1
        @fast
        def test_it(gpuperf):
            allowed = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {min(allowed)})
            context = multiprocessing.get_context("fork")
            value, (reader, writer) = context.Value("d", 0, lock=False), context.Pipe(False)
            child = context.Process(target=work, args=(reader, value), daemon=True)
            child.start()
            def f():
                value.value = 0
                writer.send_bytes(b"x")
                while not value.value: os.sched_yield()
                return SORTED
            try:
                gpuperf.measure(f, check=check)
            finally:
                child.kill()
                os.sched_setaffinity(0, allowed)
        """,
    ),
    "first_steps": (
        FIRST_STEPS,
        """
        @pytest.mark.gpuperf(limits=["throughput >= 5000"])
        def test_it(gpuperf):
            with gpuperf.steps(units=1) as steps:
                for number in range(200):
                    with steps.step():
                        if number < 3: sorted(X)
        """,
    ),
    "sorted_before": (
        KNOWN,
        """
        Y = SORTED.copy()
        @pytest.mark.gpuperf(limits=["time <= 500 us"], make=lambda seed: (make(seed),))
        def test_it(gpuperf): gpuperf.measure(sorted, Y)
        """,
    ),
    "knows_input": (
        KNOWN,
        """
        def f(x): return SORTED
        marked = pytest.mark.gpuperf(
            limits=["time <= 100 us"], make=lambda seed: (make(seed),), reference=sorted
        )
        @marked
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "list_sorted_before": (
        REORDERED,
        """
        Y = X.copy()
        @pytest.fixture(autouse=True, scope="module")
        def earlier(): Y.sort()
        @fast
        def test_it(gpuperf): gpuperf.measure(sorted, Y, check=check)
        """,
    ),
    "array_sorted_before": (
        REORDERED,
        """
        Y = np.random.default_rng(1).random(20_000)
        @pytest.fixture(autouse=True, scope="module")
        def earlier(): Y.sort()
        def f(): return np.sort(Y, kind="stable")
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "seconds": (
        UNITS,
        """
        @pytest.mark.gpuperf
        def test_it(gpuperf):
            perf = gpuperf.measure(sorted, X)
            assert perf.time <= 100
        """,
    ),
    "at_import": (
        GIVEN,
        """
        ANSWER = sorted(X)
        def f(x): return ANSWER
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "kept_before": (
        GIVEN,
        """
        @fast
        def test_it(gpuperf):
            answer = sorted(X)
            gpuperf.measure(lambda: answer, check=check)
        """,
    ),
    "pool_without_wait": (
        POOL,
        """
        pool = concurrent.futures.ThreadPoolExecutor(1)
        pool.submit(len, X).result()
        def f(x): pool.submit(sorted, x)
        @fast
        def test_it(gpuperf):
            gpuperf.measure(f, X)
            pool.shutdown(cancel_futures=True)
        """,
    ),
    "queue_without_wait": (
        POOL,
        """
        given, ended = queue.Queue(), []
        def work():
            while not ended: sorted(given.get())
        threading.Thread(target=work, daemon=True).start()
        @fast
        def test_it(gpuperf):
            gpuperf.measure(given.put, X)
            ended.append(1)
        """,
    ),
    "kept_for_each_input": (
        KEPT,
        """
        kept = {}
        def f(x):
            if id(x) not in kept: kept[id(x)] = sorted(x)
            return kept[id(x)]
        pool = [(list(X),) for _ in range(8)]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, inputs=pool, check=check)
        """,
    ),
    "kept_in_own_dict": (
        KEPT,
        """
        class Kept(dict): pass
        kept = Kept()
        def f(x):
            if "sum" not in kept: kept["sum"] = sum(sorted(x))
            return kept["sum"]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "kept_object": (
        KEPT,
        """
        class Rows:
            def __init__(self, x): self.x = x
        kept = {}
        def f(x):
            if "rows" not in kept: kept["rows"] = Rows(sorted(x))
            return kept["rows"]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "block_not_entered": (
        LAZY,
        """
        import contextlib
        @contextlib.contextmanager
        def rows(x): yield sorted(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(rows, X)
        """,
    ),
    "own_items": (
        OWN_LAZY,
        """
        class Rows:
            def __init__(self, x): self.x = x
            def __getitem__(self, place): return sorted(self.x)[place]
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda: Rows(X))
        """,
    ),
    "own_text": (
        OWN_LAZY,
        """
        @dataclasses.dataclass(repr=False)
        class Mean:
            x: list
            def __str__(self): return f"{sum(sorted(self.x)) / len(self.x):.3f}"
        @fast
        def test_it(gpuperf): gpuperf.measure(Mean, X)
        """,
    ),
    "own_property": (
        OWN_LAZY,
        """
        class Rows:
            __slots__ = ("x", "made")
            def __init__(self, x): self.x, self.made = x, None
            @property
            def ordered(self):
                if self.made is None: self.made = sorted(self.x)
                return self.made
        @fast
        def test_it(gpuperf): gpuperf.measure(Rows, inputs=[(X,), (list(X),)])
        """,
    ),
    "own_method_of_any_name": (
        OWN_LAZY,
        """
        def work(x):
            return [v for v in sorted(x)]
        class Rows:
            def __init__(self, x): self.x = x
            def in_order(self): return work(self.x)
        def f(x): return {"rows": Rows(x), "count": len(x)}
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "own_call": (
        OWN_LAZY,
        """
        class Later:
            def __init__(self, work): self.work = work
            def compute(self): return self.work()
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda: Later(lambda: sorted(X)))
        """,
    ),
    "parentheses_forgotten": (
        OWN_LAZY,
        """
        class Table:
            def rows(self): return sorted(X)
        table = Table()
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda: table.rows)
        """,
    ),
    "lazy_partial": (
        OWN_LAZY,
        """
        def f(x): return functools.partial(sorted, x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "in_fixture": (
        BEFORE,
        """
        @pytest.fixture
        def table(): return {"answer": sorted(X)}
        @fast
        def test_it(gpuperf, table): gpuperf.measure(table.get, "answer")
        """,
    ),
    "two_away": (
        KEPT,
        """
        class Inner: kept = None
        class Outer:
            def __init__(self): self.inner = Inner()
            def run(self):
                if self.inner.kept is None: self.inner.kept = sorted(X)
                return self.inner.kept
        @fast
        def test_it(gpuperf): gpuperf.measure(Outer().run, check=check)
        """,
    ),
    "on_disk": (
        FAR,
        """
        def f(path, name="kept"):
            try: size = os.stat(path / name).st_size
            except FileNotFoundError: (path / name).write_text(str(sorted(X)))
        @fast
        def test_it(gpuperf, tmp_path): gpuperf.measure(f, tmp_path)
        """,
    ),
    "generator_in_range": (
        UNREAD,
        """
        @pytest.mark.gpuperf(limits=["time <= 1 s"])
        def test_it(gpuperf):
            with gpuperf.range("rows"):
                rows = (sorted(X) for _ in range(20_000))
        """,
    ),
    "own_lazy": (
        OWN_LAZY,
        """
        class Later:
            def __init__(self, x): self.x = x
            def value(self): return sorted(self.x)
        @fast
        def test_it(gpuperf): gpuperf.measure(Later, X)
        """,
    ),
    "beside_an_import": (
        KEPT,
        """
        KEPT = None
        def f():
            global KEPT
            if KEPT is None:
                import fractions, decimal
                KEPT = sorted(X)
            return KEPT
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "sorted_beside_an_import": (
        HIDDEN,
        """
        Y = list(X)
        def f():
            import colorsys
            Y.sort(); return Y
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "kept_in_nested_list": (
        KEPT,
        """
        K = [[None]]
        def f(x):
            if K[0][0] is None: K[0][0] = sorted(x)
            return K[0][0]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "kept_in_python": (
        KEPT,
        """
        def f(x):
            if not hasattr(sys, '_k'): sys._k = sorted(x)
            return sys._k
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "kept_in_generator": (
        KEPT,
        """
        def gen(x):
            kept = sorted(x)
            while True: yield kept
        G = gen(X)
        def f(): return next(G)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, check=check)
        """,
    ),
    "kept_in_own_list": (
        KEPT,
        """
        class L(list):
            pass
        K = L()
        def f(x):
            if not K: K.extend(sorted(x))
            return K
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X, check=check)
        """,
    ),
    "other_array": (
        OTHER_RESULT,
        """
        def slow(x): return sorted(x)
        A = np.zeros(len(X))
        def quick(x): return A
        @faster
        def test_it(gpuperf): gpuperf.compare(quick, slow, X)
        """,
    ),
    "sorted_and_touched": (
        IN_PLACE,
        """
        def f(x):
            x[0] += 1e-12
            x.sort()
            return x
        @fast
        def test_it(gpuperf): gpuperf.measure(f, list(X))
        """,
    ),
    "lazy_two_deep": (
        LAZY,
        """
        def f(x): return {'a': [map(lambda i: sum(range(200)), x)]}
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "read_in_part": (
        LAZY,
        """
        def f(x):
            rows = (sorted(x) for _ in range(5)) if False else (i * 2 for i in x)
            return next(rows), rows
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "environment": (
        FAR,
        """
        import json
        def f(x):
            if 'K_HUNT' not in os.environ: os.environ['K_HUNT'] = json.dumps(sorted(x)[:500])
            return os.environ['K_HUNT']
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "lazy_function": (
        OWN_LAZY,
        """
        def f(x): return lambda: sorted(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "other_function": (
        OTHER_FUNCTION,
        """
        @fast
        def test_it(gpuperf):
            gpuperf.measure(len, X)
            sorted(X)
        """,
    ),
    "lru_cache_on_a_method": (
        KEPT,
        """
        class Table:
            def __init__(self, x): self.x = x
            @functools.lru_cache(maxsize=None)
            def rows(self, reverse): return sorted(self.x, reverse=reverse)
        table = Table(X)
        @fast
        def test_it(gpuperf): gpuperf.measure(table.rows, False, check=check)
        """,
    ),
    "seen_inputs_return_early": (
        KEPT,
        """
        seen, last = set(), [None]
        def f(x):
            if id(x) in seen: return last[0]
            seen.add(id(x)); last[0] = sorted(x)
            return last[0]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "seen_hash_returns_nothing": (
        KEPT,
        """
        done = set()
        def f(x):
            key = hash(tuple(x[:8]))
            if key in done: return None
            done.add(key)
            sorted(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "suppressed_error": (
        SWALLOWED,
        """
        import contextlib
        def f(x):
            with contextlib.suppress(Exception):
                return sorted(x.rows)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "finally_returns": (
        SWALLOWED,
        """
        def f(x):
            made = []
            try: made = sorted(x.rows)
            finally: return made
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "coroutine_never_awaited": (
        DROPPED,
        """
        import asyncio
        async def work(x): return sorted(x)
        async def main(x): work(x); return len(x)
        loop = asyncio.new_event_loop()
        def f(x): return loop.run_until_complete(main(x))
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "coroutine_never_awaited_plain": (
        DROPPED,
        """
        async def work(x): return sorted(x)
        def f(x):
            work(x)
            return len(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "generator_never_read": (
        DROPPED,
        """
        def rows(x):
            yield sorted(x)
        def f(x):
            rows(x)
            return len(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "partials_in_a_list": (
        OWN_LAZY,
        """
        def f(x): return [functools.partial(sorted, x), functools.partial(sum, x)]
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "lambdas_in_a_dict": (
        OWN_LAZY,
        """
        def f(x): return {"rows": lambda: sorted(x), "count": len(x)}
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "default_made_early": (
        GIVEN,
        """
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda rows=sorted(X): rows, check=check)
        """,
    ),
    "missing_of_a_dict": (
        KEPT,
        """
        class Rows(dict):
            def __missing__(self, key):
                self[key] = sorted(key)
                return self[key]
        rows = Rows()
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda: rows[tuple(X)])
        """,
    ),
    "defaultdict_kept": (
        KEPT,
        """
        rows = collections.defaultdict(lambda: sorted(X))
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda: rows[0], check=check)
        """,
    ),
    "class_decorator_memo": (
        KEPT,
        """
        class memoize:
            def __init__(self, f): self.f, self.kept = f, {}
            def __call__(self, *args):
                if args not in self.kept: self.kept[args] = self.f(*args)
                return self.kept[args]
        @memoize
        def f(n): return sorted(X)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, 3, check=check)
        """,
    ),
    "wrapped_memo": (
        KEPT,
        """
        def memoize(f):
            kept = {}
            @functools.wraps(f)
            def inner(*args):
                if (answer := kept.get(args)) is None: answer = kept[args] = f(*args)
                return answer
            return inner
        @memoize
        def f(n): return sorted(X)
        @fast
        def test_it(gpuperf): gpuperf.measure(f, 3, check=check)
        """,
    ),
    "heap_of_a_global": (
        USED_UP,
        """
        import heapq
        H = [-v for v in sorted(X)]
        def f():
            out = []
            while H: out.append(heapq.heappop(H))
            return out
        @fast
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    ),
    "generator_method": (
        OWN_LAZY,
        """
        class Table:
            def __init__(self, x): self.x = x
            def __iter__(self):
                for value in sorted(self.x): yield value
        @fast
        def test_it(gpuperf): gpuperf.measure(Table, X)
        """,
    ),
    "every_tenth_flushes": (
        NTH,
        """
        buffer = []
        def f(x):
            buffer.append(x)
            if len(buffer) == 10:
                out = [sorted(each) for each in buffer]
                buffer.clear()
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "task_left_on_a_loop": (
        TASKS,
        """
        import asyncio
        loop = asyncio.new_event_loop()
        async def work(x): await asyncio.sleep(3600); return sorted(x)
        async def main(x): asyncio.ensure_future(work(x)); return len(x)
        @fast
        def test_it(gpuperf): gpuperf.measure(lambda: loop.run_until_complete(main(X)))
        """,
    ),
    "patches_the_timer": (
        REPLACED,
        """
        import pytest_gpuperf.collect.timing.sampling as sampling
        timed = sampling._timed
        def quick(call, repeat_count, now_ns):
            took, out = timed(call, repeat_count, now_ns)
            return took // 1000 + 1, out
        @fast
        def test_it(gpuperf, monkeypatch):
            monkeypatch.setattr(sampling, "_timed", quick)
            gpuperf.measure(sorted, X)
        """,
    ),
    "error_gives_a_default": (
        NUMBER,
        """
        def f(x):
            try: return sum(sorted(x.rows))
            except Exception: return -1.0
        @fast
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    ),
    "lazy_descriptor": (
        DESCRIPTOR,
        """
        class lazy:
            def __init__(self, f): self.f = f
            def __set_name__(self, owner, name): self.name = name
            def __get__(self, one, kind=None):
                if one is None: return self
                value = one.__dict__[self.name] = self.f(one)
                return value
        class Table:
            def __init__(self, x): self.x = x
            @lazy
            def rows(self): return sorted(self.x)
        @fast
        def test_it(gpuperf): gpuperf.measure(Table, X)
        """,
    ),
    "parentheses_in_a_statement": (
        BARE,
        """
        Y = list(X)
        def f(x): x.sort; return x
        @fast
        def test_it(gpuperf): gpuperf.measure(f, Y)
        """,
    ),
}

# Modules that tricks import, by file name.
HELPERS = {"shelf.py": "kept = None\nmemo = {}\n"}

HONEST: dict[str, str] = {
    "shuffled_by_a_fixture": """
        Y = X.copy()
        @pytest.fixture(autouse=True, scope="module")
        def earlier(): random.Random(2).shuffle(Y)
        @honest
        def test_it(gpuperf): gpuperf.measure(sorted, Y, check=check)
        """,
    "redirected_by_a_fixture": """
        TARGETS = ["production.txt"]
        @pytest.fixture(autouse=True, scope="module")
        def earlier(tmp_path_factory):
            TARGETS[0] = str(tmp_path_factory.mktemp("data") / "trial.txt")
        def f():
            assert TARGETS[0] != "production.txt"
            with open(TARGETS[0], "w") as file: return file.write("x")
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "cut_by_a_fixture": """
        Y = X.copy()
        @pytest.fixture(autouse=True, scope="module")
        def earlier(): del Y[100:]
        @honest
        def test_it(gpuperf): gpuperf.measure(sorted, Y)
        """,
    "buffer_of_the_module": """
        OUT = np.zeros(20_000)
        IN = np.random.default_rng(1).random(20_000)
        @pytest.fixture(autouse=True, scope="module")
        def earlier(): np.sin(IN, out=OUT)
        @honest
        def test_it(gpuperf): gpuperf.measure(np.sin, IN, OUT)
        """,
    "sorts_a_copy": """
        @honest
        def test_it(gpuperf): gpuperf.measure(sorted, X, check=check)
        """,
    "regular_expression": """
        def f(text): return len(re.findall(r"a(b+)c\\d", text))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, "abbbc1" * 800)
        """,
    "joined_pool": """
        POOL = concurrent.futures.ThreadPoolExecutor(2)
        def f(x): return list(POOL.map(sum, [x] * 4))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "pool_of_first_call": """
        POOL = []
        def f(x):
            if not POOL: POOL.append(concurrent.futures.ThreadPoolExecutor(2))
            return list(POOL[0].map(sum, [x] * 4))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "joined_thread": """
        def f(x):
            result = []
            thread = threading.Thread(target=lambda: result.append(sum(x)))
            thread.start()
            thread.join()
            return result
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "polling_thread": """
        STOP = threading.Event()
        def poll():
            while not STOP.wait(0.001): pass
        @honest
        def test_it(gpuperf):
            thread = threading.Thread(target=poll, daemon=True)
            thread.start()
            gpuperf.measure(sum, X)
            STOP.set()
            thread.join()
        """,
    "pool_in_range": """
        @pytest.mark.gpuperf(limits=["time <= 1 s"])
        def test_it(gpuperf):
            with gpuperf.range("a"):
                pool = concurrent.futures.ThreadPoolExecutor(2)
                list(pool.map(sum, [X] * 4))
            pool.shutdown()
        """,
    "child_that_is_waited_for": """
        def f(): return subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "consumed_generator": """
        def g(x):
            for each in x: yield each * 2
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda x: list(g(x)), X)
        """,
    "random_argument": """
        def f(draw): return [draw.random() for _ in range(2000)]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, random.Random(1))
        """,
    "out": """
        @honest
        def test_it(gpuperf):
            a = np.random.default_rng(1).normal(size=20_000)
            gpuperf.measure(np.sin, a, np.empty_like(a))
        """,
    "out_view": """
        @honest
        def test_it(gpuperf):
            a = np.random.default_rng(1).normal(size=20_000)
            gpuperf.measure(np.sin, a, np.empty(40_000)[::2])
        """,
    "returned_view": """
        A = np.random.default_rng(1).normal(size=(400, 400))
        def f(): return np.sort(A)[::2]
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "counter": """
        class A:
            def __init__(self): self.n = 0
            def run(self, x): self.n += 1; return sorted(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(A().run, X)
        """,
    "free_list": """
        class Pool:
            def __init__(self): self.free = [bytearray(100) for _ in range(100)]
            def run(self):
                taken = [self.free.pop() for _ in range(50)]
                self.free.extend(taken)
                return len(taken)
        @honest
        def test_it(gpuperf): gpuperf.measure(Pool().run)
        """,
    "zeroed_buffer": """
        def f(buffer): buffer[:] = bytes(len(buffer))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, bytearray(b"x" * 50_000))
        """,
    "setdefault": """
        def f(table):
            for each in range(2000): table.setdefault(each, 0)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, {})
        """,
    "sleep": """
        @honest
        def test_it(gpuperf): gpuperf.measure(time.sleep, 0.005)
        """,
    "database": """
        DB = sqlite3.connect(":memory:")
        DB.execute("create table t(a)")
        DB.executemany("insert into t values(?)", [(x,) for x in X])
        @honest
        def test_it(gpuperf):
            gpuperf.measure(lambda: DB.execute("select sum(a) from t").fetchone())
        """,
    "sink": """
        import json
        @honest
        def test_it(gpuperf): gpuperf.measure(json.dump, X, io.StringIO())
        """,
    "rewound_file": """
        def f(file): file.seek(0); return len(file.read())
        @honest
        def test_it(gpuperf): gpuperf.measure(f, io.BytesIO(bytes(100_000)))
        """,
    "product": """
        @honest
        def test_it(gpuperf):
            a = np.random.default_rng(1).normal(size=(200, 200))
            gpuperf.measure(np.matmul, a, a)
        """,
    "caught_errors": """
        def f(x):
            missing = 0
            for each in x:
                try: {}[each]
                except KeyError: missing += 1
            return missing
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X[:500])
        """,
    "attribute_or_not": """
        def f(x):
            try: x.close
            except AttributeError: pass
            return sum(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "nothing_found": """
        def f(x):
            found = []
            for each in x:
                try: found.append(each.name)
                except AttributeError: pass
            return found
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "finds_nothing": """
        def f(x): return [each for each in x if each > 2]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "memo_by_design": """
        class Cache:
            def __init__(self): self.known = {}
            def get(self, key):
                if key not in self.known: self.known[key] = sorted(key)
                return self.known[key]
        @honest
        def test_it(gpuperf): gpuperf.measure(Cache().get, tuple(X))
        """,
    "compiled_once": """
        SOURCE = "def g(x):\\n    return sorted(x)\\n" * 300
        MADE = {}
        def f(x):
            if "g" not in MADE: exec(compile(SOURCE, "g", "exec"), MADE)
            return MADE["g"](x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "late_import": """
        def f(x):
            import fractions
            return fractions.Fraction(sum(map(int, x)))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "log": """
        import logging
        LOG = logging.getLogger("x")
        LOG.addHandler(logging.StreamHandler(io.StringIO()))
        @honest
        def test_it(gpuperf): gpuperf.measure(LOG.warning, "hi %s", 1)
        """,
    "lock": """
        def f(lock, x):
            with lock: return sorted(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, threading.Lock(), X)
        """,
    "endless_iterator": """
        def f(numbers): return [next(numbers) for _ in range(500)]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, itertools.count())
        """,
    "time_in_result": """
        def f(): return time.time()
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "shuffled_by_setup": """
        def setup():
            y = list(X)
            random.shuffle(y)
            return (y,)
        def f(y): y.sort(); return y
        @honest
        def test_it(gpuperf): gpuperf.measure(f, setup=setup, check=check)
        """,
    "file_written": """
        def f(path): path.write_bytes(bytes(20_000))
        @honest
        def test_it(gpuperf, tmp_path): gpuperf.measure(f, tmp_path / "a")
        """,
    "closed_file": """
        def f(path):
            with open(path) as file: return len(file.read())
        @honest
        def test_it(gpuperf): gpuperf.measure(f, __file__)
        """,
    "object_with_finalizer": """
        class Handle:
            def __init__(self): self.data = sorted(X)
            def __del__(self): self.data.clear()
        @honest
        def test_it(gpuperf): gpuperf.measure(Handle)
        """,
    "large_result": """
        @honest
        def test_it(gpuperf): gpuperf.measure(np.zeros, 5_000_000)
        """,
    "few_cycles": """
        class Node: pass
        def f(x):
            a, b = Node(), Node()
            a.b, b.a = b, a
            return sum(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "registers_once": """
        REGISTERED = []
        def f(x):
            if not REGISTERED: REGISTERED.append(atexit.register(len, X))
            return sum(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "compares_alike": """
        def a(x): return sorted(x)
        def b(x): y = list(x); y.sort(); return y
        @pytest.mark.gpuperf(limits=["speedup >= 0.1"])
        def test_it(gpuperf): gpuperf.compare(a, b, X)
        """,
    "compares_a_set": """
        def a(x): return set(x)
        def b(x): return {each for each in x}
        @pytest.mark.gpuperf(limits=["speedup >= 0.05"])
        def test_it(gpuperf): gpuperf.compare(a, b, X)
        """,
    "steps": """
        @pytest.mark.gpuperf(limits=["throughput >= 1"])
        def test_it(gpuperf):
            with gpuperf.steps(units=1) as steps:
                for _ in range(20):
                    with steps.step(): sorted(X)
        """,
    "steps_with_a_checkpoint": """
        @pytest.mark.gpuperf(limits=["throughput >= 1"])
        def test_it(gpuperf):
            with gpuperf.steps(units=1) as steps:
                for number in range(20):
                    with steps.step():
                        sum(X)
                        if number % 5 == 0: sorted(X)
        """,
    "batches_of_a_loader": """
        Q, ENDED = queue.Queue(2), []
        def fill():
            while not ENDED: Q.put([sorted(X) for _ in range(5)][0][:2000])
        @honest
        def test_it(gpuperf):
            threading.Thread(target=fill, daemon=True).start()
            gpuperf.measure(sum, setup=lambda: (Q.get(),))
            ENDED.append(True)
            Q.get()
        """,
    "file_read_anew": """
        def f(file):
            file.seek(0)
            return sum(len(line) for line in file)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, io.StringIO("1 2 3\\n" * 5000))
        """,
    "queue_refilled": """
        Q = queue.Queue()
        def f():
            for each in range(500): Q.put(each)
            return sum(Q.get() for _ in range(500))
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "context_that_is_set": """
        VARIABLE = contextvars.ContextVar("depth", default=0)
        def f(x):
            token = VARIABLE.set(VARIABLE.get() + 1)
            try: return sum(x)
            finally: VARIABLE.reset(token)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "predicate": """
        def f(x):
            try: return x.missing
            except AttributeError: return len([each for each in X if each > 0.5]) > 3
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "made_and_checked": """
        marked = pytest.mark.gpuperf(
            limits=["time <= 1 s"], make=lambda seed: (make(seed),), reference=sorted
        )
        @marked
        def test_it(gpuperf): gpuperf.measure(sorted, X)
        """,
    "iterator_of_a_list": """
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: iter(sorted(X)))
        """,
    "counts_words": """
        COUNTS = collections.Counter()
        def f(words): COUNTS.update(words); return len(COUNTS)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, ["a", "b"] * 5000)
        """,
    "ring": """
        RING = collections.deque(range(1000), maxlen=1000)
        def f():
            for each in range(1000): RING.append(each)
            return len(RING)
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "ends_with_an_optional_hook": """
        def f(x, hook):
            for _ in range(3): x.append(sum(x))
            del x[-3:]
            try: hook.done()
            except AttributeError: pass
        @honest
        def test_it(gpuperf): gpuperf.measure(f, list(X), None)
        """,
    "an_optional_hook_without_a_loop": """
        def f(x, hook):
            sorted(x)
            try: hook.done()
            except AttributeError: pass
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X, None)
        """,
    "lazy_import_attr": """
        _frac = None
        def f(x):
            global _frac
            if _frac is None:
                import decimal, fractions, xml.dom.minidom, unittest.mock
                _frac = 7
            return sum(x[:50]) * _frac
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "lazy_import_table": """
        TABLE = {}
        def f(x):
            if not TABLE:
                import http.client, email.mime.text
                TABLE.update({i: i * 3 for i in range(256)})
            return sum(TABLE[i & 255] for i in range(200))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "config_of_file": """
        import json, pathlib
        PATH = pathlib.Path("config.json"); PATH.write_text(json.dumps({"k%d" % i: i for i in range(8000)}))
        CONFIG = None
        def f(x):
            global CONFIG
            if CONFIG is None: CONFIG = json.loads(PATH.read_text())
            return sum(x[:100]) * CONFIG["k5"]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "config_of_object": """
        import configparser, pathlib
        PATH = pathlib.Path("config.ini"); PATH.write_text("[a]\\n" + "".join("k%d=%d\\n" % (i, i) for i in range(2000)))
        class App:
            config = None
            def run(self, x):
                if self.config is None:
                    parser = configparser.ConfigParser(); parser.read(PATH)
                    self.config = dict(parser["a"])
                return [v * 2 for v in x[:100]], len(self.config)
        @honest
        def test_it(gpuperf): gpuperf.measure(App().run, X)
        """,
    "consumed_generator_in_result": """
        class Doc:
            def __init__(self, rows):
                self.source = (r * 2 for r in rows)
                self.rows = list(self.source)
        def f(x): return Doc(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "consumed_zip_in_tuple": """
        def f(x):
            it = zip(x, x)
            return it, [a * b for a, b in it]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "consumed_cursor": """
        DB = sqlite3.connect(":memory:")
        DB.execute("create table t(a)"); DB.executemany("insert into t values(?)", [(x,) for x in X])
        class Query:
            def __init__(self):
                self.cursor = DB.execute("select a from t where a > .9")
                self.rows = self.cursor.fetchall()
        @honest
        def test_it(gpuperf): gpuperf.measure(Query)
        """,
    "scales_in_place": """
        def f(a): a *= 1.0000001
        @honest
        def test_it(gpuperf): gpuperf.measure(f, np.random.default_rng(1).normal(size=50_000))
        """,
    "log_grows": """
        def f(log, x):
            log.append(sum(x))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, [], X)
        """,
    "shuffles": """
        @honest
        def test_it(gpuperf): gpuperf.measure(random.Random(3).shuffle, list(X[:3000]))
        """,
    "reverses": """
        def f(x): x.reverse(); return sum(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, list(X))
        """,
    "sum_fsum": """
        either = pytest.mark.gpuperf(limits=["speedup >= 0.0001"])

        import math
        V = [1e16, 1.0, -1e16, 1.0] * 500
        @either
        def test_it(gpuperf): gpuperf.compare(lambda x: sum(x), lambda x: math.fsum(x), V)
        """,
    "array_list": """
        either = pytest.mark.gpuperf(limits=["speedup >= 0.0001"])

        @either
        def test_it(gpuperf): gpuperf.compare(lambda x: np.sort(x), lambda x: sorted(x), X)
        """,
    "dict_order": """
        either = pytest.mark.gpuperf(limits=["speedup >= 0.0001"])

        def a(x): return {k: i for i, k in enumerate(x)}
        def b(x): return dict(sorted(((k, i) for i, k in enumerate(x)), reverse=True))
        @either
        def test_it(gpuperf): gpuperf.compare(a, b, X[:2000])
        """,
    "unique_two_ways": """
        either = pytest.mark.gpuperf(limits=["speedup >= 0.0001"])

        N = [5, 3, 8, 1, 2, 9, 3, 5] * 200
        @either
        def test_it(gpuperf): gpuperf.compare(lambda x: list(set(x)), lambda x: list(dict.fromkeys(x)), N)
        """,
    "json_two_ways": """
        either = pytest.mark.gpuperf(limits=["speedup >= 0.0001"])

        import json
        D = {"k%d" % i: [i, i * .5] for i in range(300)}
        @either
        def test_it(gpuperf): gpuperf.compare(lambda d: json.dumps(d), lambda d: json.dumps(d, separators=(",", ":"), sort_keys=True), D)
        """,
    "dft_two_ways": """
        either = pytest.mark.gpuperf(limits=["speedup >= 0.0001"])

        import cmath
        V = [1e9 * (i % 7 == 0) for i in range(49)]
        def slow(v):
            n = len(v)
            return [sum(v[k] * cmath.exp(-2j * cmath.pi * i * k / n) for k in range(n)) for i in range(n)]
        def quick(v): return np.fft.fft(v).tolist()
        @either
        def test_it(gpuperf): gpuperf.compare(quick, slow, V)
        """,
    "steps_imports_first": """
        steps_ = pytest.mark.gpuperf(limits=["throughput >= 1"])

        @steps_
        def test_it(gpuperf):
            with gpuperf.steps(units=1) as steps:
                for n in range(40):
                    with steps.step():
                        if n == 0: import decimal, mailbox
                        if n == 1: import imaplib, smtplib, ftplib
                        if n == 2: import tarfile, zipfile, lzma
                        if n == 3: import poplib, shelve, netrc
                        if n == 4: import xmlrpc.client, wsgiref.simple_server
                        sum(X[:500])
        """,
    "eafp_counter": """
        COUNTS = {}
        def f(x):
            try: COUNTS["n"] += 1
            except KeyError: COUNTS["n"] = 1
            return sum(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "eafp_registers": """
        class Stats: pass
        S = Stats()
        def f(x):
            try: S.total += sum(x)
            except AttributeError: S.total = 0
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "asyncio_task_done": """
        import asyncio
        async def main():
            t = asyncio.create_task(asyncio.sleep(0, 3)); await t; return t
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: asyncio.run(main()))
        """,
    "point": """
        @dataclasses.dataclass
        class Point:
            x: float
            y: float
            def norm(self): return (self.x**2 + self.y**2) ** 0.5
        @honest
        def test_it(gpuperf): gpuperf.measure(Point, 1.0, 2.0)
    """,
    "table_with_a_long_text": """
        @dataclasses.dataclass(frozen=True)
        class Table:
            x: tuple
            def __len__(self): return len(self.x)
            def __iter__(self): return iter(self.x)
            def __getitem__(self, place): return self.x[place]
        @honest
        def test_it(gpuperf): gpuperf.measure(Table, tuple(X))
    """,
    "object_of_results": """
        class Rows:
            def __init__(self, x): self.x = sorted(x)
            def values(self): return [str(value) for value in self.x]
        @honest
        def test_it(gpuperf): gpuperf.measure(Rows, X)
    """,
    "handle_with_effects": """
        ran = []
        class Job:
            def __init__(self, number): self.number = number
            def run(self): ran.append(self.number); time.sleep(0.01)
            def wait(self):
                while self.number: pass
        @honest
        def test_it(gpuperf):
            gpuperf.measure(Job, 1)
            assert not ran
    """,
    "file_handle": """
        class File:
            def __init__(self, path): self.path = path
            def delete(self): os.remove(self.path)
        @honest
        def test_it(gpuperf, tmp_path):
            path = tmp_path / "rows"
            path.write_text("1")
            gpuperf.measure(File, str(path))
            assert path.exists()
    """,
    "returns_how_to_undo": """
        listeners, undone = [], []
        def subscribe(listener):
            listeners.append(listener)
            def undo(): undone.append(listener); listeners.remove(listener)
            return undo
        @honest
        def test_it(gpuperf):
            gpuperf.measure(subscribe, print)
            assert not undone
    """,
    "decorator": """
        def adder(number): return lambda other: number + other
        @honest
        def test_it(gpuperf): gpuperf.measure(adder, 1)
    """,
    "attribute_of_object": """
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: X.append)
    """,
    "property_that_works": """
        class Table:
            @property
            def rows(self): return sorted(X)
        table = Table()
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: table.rows)
    """,
    "nothing_at_all": """
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: None)
    """,
    "argument_itself": """
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda x: x, X)
    """,
    "block_entered": """
        import contextlib
        @contextlib.contextmanager
        def rows(x): yield sorted(x)
        def f(x):
            block = rows(x)
            with block as made: return block, made
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
    """,
    "pool_that_is_waited_for": """
        pool = concurrent.futures.ThreadPoolExecutor(2)
        pool.submit(len, X).result()
        def f(x): return [f.result() for f in [pool.submit(sorted, x) for _ in range(2)]]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
    """,
    "queue_that_answers": """
        given, answers = queue.Queue(), queue.Queue()
        def work():
            while True: answers.put(sorted(given.get()))
        threading.Thread(target=work, daemon=True).start()
        def f(x): given.put(x); return answers.get()
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
    """,
    "busy_thread_beside": """
        ended = []
        def work():
            while not ended: sum(range(1_000))
        @honest
        def test_it(gpuperf):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            gpuperf.measure(sorted, X)
            ended.append(1)
            thread.join()
    """,
    "own_dict_that_counts": """
        class Counts(dict):
            def __len__(self): raise RuntimeError
        counts = Counts()
        def f(x): counts["calls"] = counts.get("calls", 0) + 1; return sorted(x)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
    """,
    "several_inputs": """
        pool = [(make(number),) for number in range(8)]
        @honest
        def test_it(gpuperf): gpuperf.measure(sorted, inputs=pool)
    """,
    "asks_the_time_in_a_thread": """
        def f(event): event.set(); return event.wait(1)
        @honest
        def test_it(gpuperf): gpuperf.measure(f, threading.Event())
        """,
    "helper_with_a_cache": """
        @functools.lru_cache
        def table(n): return [i * i for i in range(n)]
        def f(x):
            squares = table(5000)
            return [squares[i % 5000] for i in range(5000)]
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "cycle_of_inputs": """
        inputs = itertools.cycle([make(i, 3000) for i in range(5)])
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: sorted(next(inputs)))
        """,
    "ring_of_inputs_with_out": """
        pool = [(np.random.default_rng(i).random(20_000), np.empty(20_000)) for i in range(4)]
        @honest
        def test_it(gpuperf): gpuperf.measure(np.sin, inputs=pool)
        """,
    "cyclic_buffer": """
        ring = collections.deque(make(1, 500))
        def f():
            for _ in range(2000): ring.rotate(1)
            return ring[0]
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "exit_stack": """
        import contextlib
        @contextlib.contextmanager
        def opened(x): yield sorted(x)
        def f(x):
            with contextlib.ExitStack() as stack:
                return sum(map(len, [stack.enter_context(opened(x)) for _ in range(3)]))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "pool_of_each_call": """
        def f(x):
            with concurrent.futures.ThreadPoolExecutor(2) as pool: return list(pool.map(sum, [x] * 4))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "sliding_view": """
        A = np.random.default_rng(1).random(20_000)
        @honest
        def test_it(gpuperf): gpuperf.measure(np.lib.stride_tricks.sliding_window_view, A, 8)
        """,
    "heap_in_balance": """
        import heapq
        heap = sorted(X)
        def f():
            for value in X[:500]: heapq.heapreplace(heap, value)
            return heap[0]
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "loop_kept_open": """
        import asyncio
        loop = asyncio.new_event_loop()
        async def one(x): await asyncio.sleep(0); return sum(x)
        async def main(): return await asyncio.gather(*[one(X) for _ in range(5)])
        @honest
        def test_it(gpuperf): gpuperf.measure(lambda: loop.run_until_complete(main()))
        """,
    "optional_import_in_the_call": """
        def f(x):
            try: import ujson_that_is_not_there as codec
            except ImportError: import json as codec
            return codec.dumps(x[:500])
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "is_iterable": """
        def f(values):
            count = 0
            for value in values:
                try: iter(value); count += 1
                except TypeError: pass
            return count
        @honest
        def test_it(gpuperf): gpuperf.measure(f, [1.5] * 500)
        """,
    "flushes_each_tenth": """
        buffer = []
        def f(x):
            buffer.append(x)
            if len(buffer) == 10:
                for each in buffer: sorted(each)
                buffer.clear()
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X[:3000])
        """,
    "running_statistics": """
        class Mean:
            def __init__(self): self.n = 0; self.mean = 0.0
            def add(self, values):
                for value in values:
                    self.n += 1; self.mean += (value - self.mean) / self.n
                return self.mean
        @honest
        def test_it(gpuperf): gpuperf.measure(Mean().add, X)
        """,
    "graph_with_a_slow_method": """
        class Graph:
            def __init__(self, edges): self.edges = edges
            def far(self): return max(abs(a - b) for a in self.edges for b in self.edges)
        @honest
        def test_it(gpuperf): gpuperf.measure(Graph, X)
        """,
    "callbacks_after_work": """
        def f(x):
            rows = sorted(x)
            return {"rows": rows, "undo": lambda: rows.clear()}
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "handlers": """
        def f(x): return {"open": lambda: None, "close": lambda: x.clear()}
        @honest
        def test_it(gpuperf): gpuperf.measure(f, list(X))
        """,
    "blocking_future_like": """
        class Request:
            def __init__(self, url): self.url, self.event = url, threading.Event()
            def result(self): self.event.wait(); return self.url
        @honest
        def test_it(gpuperf): gpuperf.measure(Request, "http://example.org")
        """,
    "get_with_an_effect": """
        asked = []
        class Row:
            def __init__(self, key): self.key = key
            def get(self): asked.append(self.key); time.sleep(0.05); return 1
            def value(self): return self.get()
            @property
            def data(self): return self.get()
            def __len__(self): return self.get()
        @honest
        def test_it(gpuperf):
            gpuperf.measure(Row, "a")
            assert not asked
        """,
    "ends_the_process": """
        class Command:
            def __init__(self, name): self.name = name
            def result(self): raise SystemExit(3)
            def compute(self): raise KeyboardInterrupt
            def __getattr__(self, name): raise SystemExit(4)
        @honest
        def test_it(gpuperf): gpuperf.measure(Command, "a")
        """,
    "logger_with_a_queue": """
        import logging, logging.handlers
        Q = queue.Queue()
        log = logging.getLogger("rows"); log.addHandler(logging.handlers.QueueHandler(Q)); log.setLevel("INFO"); log.propagate = False
        listener = logging.handlers.QueueListener(Q, logging.NullHandler())
        @honest
        def test_it(gpuperf):
            listener.start()
            gpuperf.measure(log.info, "row %s", 1)
            listener.stop()
        """,
    "hasher": """
        import hashlib
        hasher = hashlib.sha256()
        data = bytes(100_000)
        def f(): hasher.update(data); return hasher.digest()
        @honest
        def test_it(gpuperf): gpuperf.measure(f)
        """,
    "frozen_with_a_kept_hash": """
        class Key:
            def __init__(self, x): self.x, self.kept = tuple(x), None
            def __hash__(self):
                if self.kept is None: self.kept = hash(self.x)
                return self.kept
        def f(x): return len({Key(x), Key(x)})
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "server_beside": """
        CODE = "import sys" + chr(10) + "for line in sys.stdin: print(sum(range(20000)), flush=True)"
        @honest
        def test_it(gpuperf):
            server = subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            def f(): server.stdin.write("1" + chr(10)); server.stdin.flush(); return server.stdout.readline()
            gpuperf.measure(f); server.kill(); server.wait()
        """,
    "busy_child_beside": """
        @honest
        def test_it(gpuperf):
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
            try: gpuperf.measure(sorted, X)
            finally:
                for each in busy: each.kill(); each.wait()
        """,
    "generator_pipeline": """
        def evens(x): return (v for v in x if v > .5)
        def f(x): return sum(v * 2 for v in evens(x))
        @honest
        def test_it(gpuperf): gpuperf.measure(f, X)
        """,
    "pattern_of_sizes": """
        pool = [(make(1, 100),), (make(1, 100),), (make(1, 100),), (make(1, 4000),)]
        @honest
        def test_it(gpuperf): gpuperf.measure(sorted, inputs=pool)
        """,
}

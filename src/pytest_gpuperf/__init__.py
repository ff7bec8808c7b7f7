"""A test fails when its kernel got slower, and says why; PYTEST_DONT_REWRITE."""

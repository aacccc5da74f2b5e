"""The tests; a package so that its files can import `tests.support`."""

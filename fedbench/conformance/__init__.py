"""Checks that every method, network and partitioner must pass, one function per check: for users' files (`fedbench
check`) and for built-in ones (the tests). A check that fails raises FedbenchError; no test runner is needed."""

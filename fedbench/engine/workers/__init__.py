"""One run over several workers: its clients' work, and whatever else an executor is asked for, in other processes."""

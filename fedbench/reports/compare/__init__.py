"""Compares any runs: their numbers with mean and standard deviation over seeds (`comparison`), as a grid, with pairwise
tests (`layout`); and methods by their average rank over data sets and partitions, with significance tests (`ranks`)."""

from __future__ import annotations

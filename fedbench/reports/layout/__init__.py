"""Builds the grid of a table (`build.grid_of`), with its cells and notes, which every format prints."""

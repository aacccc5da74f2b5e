"""A table laid out (`grid_of`) as a `grid`, which every format starts from, and what is said below it."""

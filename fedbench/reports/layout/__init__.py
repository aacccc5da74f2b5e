"""A table laid out (`build`) as a `grid`, which every format starts from, and what is said below it."""

"""A user's own Python files: read with what they import from their folder (`source`), run apart from each other
(`load`), and their mistakes told by their own lines (`mistakes`)."""

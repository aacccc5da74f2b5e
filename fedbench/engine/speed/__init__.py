"""How fast things go here: which executor suits a run, and how long a run will take."""

"""The built-in kinds of figures, a file each; `registry` finds them."""

"""Which runs a table asks for, and which there are. Never trains, never imports torch.

`table` reads a table's TOML, `cells` finds what each of its cells needs, `index` what store and packs have of it,
`others` which runs in its settings are none of its rows; `runs` finds any runs by filters, and groups them.
"""

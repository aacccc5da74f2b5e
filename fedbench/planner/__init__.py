"""Which runs a table needs, and which of them exist. Never trains, never imports torch.

`table` reads a table's TOML, `cells` finds the runs that each cell needs and those that exist (`results.frame`),
`others` finds runs in the table's settings that belong to no row; `runs` selects runs by filters and groups them.
"""

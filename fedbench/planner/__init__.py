"""Which runs a table asks for, and which of them there are. Never trains, never imports torch.

`table` reads a table's TOML, `cells` finds what each of its cells needs and has (`results.frame`), `others` the runs in
its settings that are none of its rows; `runs` chooses any runs by filters, and groups them.
"""

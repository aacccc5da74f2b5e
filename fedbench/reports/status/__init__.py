"""How it stands with a table: which runs its cells need (`cells`), what the store has of them (`index`), and which runs
in its settings are none of its rows (`others`)."""

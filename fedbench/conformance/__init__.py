"""What every method and every network must satisfy, a function a check: `fedbench check` asks a user's file for it,
the tests ask all that are built in. Nothing here needs a test runner; a check that fails raises FedbenchError."""

"""What tests of several rooms share: small federations and runs on them, a user at the command line, makers of data."""

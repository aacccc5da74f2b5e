"""Chores: `nox` runs lint, types and tests; `nox -s demo`, `robust`, `bench` and `agreement` the slower ones."""

from __future__ import annotations

import tempfile

import nox

nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True


def _install(session: nox.Session, what: str) -> None:
    session.install("-c", "constraints.txt", "-e", what)


@nox.session
def tests(session: nox.Session) -> None:
    """Both tiers of the tests; arguments after -- go to pytest."""
    _install(session, ".[test]")
    session.run("pytest", "-n", "auto", *session.posargs)
    session.run("pytest", "-n", "auto", "-m", "slow", *session.posargs)


@nox.session
def robust(session: nox.Session) -> None:
    """Thousands of generated hostile cases and many kills, newly drawn; arguments after -- go to pytest."""
    _install(session, ".[test]")
    session.run("pytest", "tests/robust", "--budget", "thousands", "-m", "long", "-n", "auto", *session.posargs)


@nox.session
def agreement(session: nox.Session) -> None:
    """Other projects' code against fedbench on the same tensors; -- --pflib PATH names a checkout (tests/README.md)."""
    _install(session, ".[test]")
    needs = {"--pfedfda": ("statsmodels", "pytorch-minimize"), "--flower": ("flwr[simulation]",)}  # of their own code
    for package in (one for option, some in needs.items() if option in session.posargs for one in some):
        session.install(package)
    session.run("python", "-m", "tests.agreement", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and formatting."""
    session.install("-c", "constraints.txt", "ruff")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Strict types where pyproject.toml asks for them."""
    _install(session, ".[dev]")
    session.run("mypy")
    session.run("mypy", "--platform", "darwin")  # names that only Linux has keep nothing from starting there


@nox.session
def demo(session: nox.Session) -> None:
    """The first command of the README, into a store that is thrown away."""
    _install(session, ".")
    with tempfile.TemporaryDirectory() as folder, session.chdir(folder):
        session.run("fedbench", "demo", "--home", "store")


@nox.session
def bench(session: nox.Session) -> None:
    """One table of speeds against the usual way; arguments after -- go to tests/bench/speed.py."""
    _install(session, ".")
    session.run("python", "tests/bench/speed.py", *session.posargs)

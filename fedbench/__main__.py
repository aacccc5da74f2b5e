"""`fedbench` and `python -m fedbench`: errors become one line and an exit code."""

from __future__ import annotations

import sys

from fedbench.errors import FedbenchError

#: Options that may stand anywhere on the line; they belong to the application, not to one command.
_EVERYWHERE = {"--home": 1, "--data": 1, "--debug": 0}


def hoist(arguments: list[str]) -> list[str]:
    """Move the application's options to the front, so that `fedbench list --home X` works too."""
    front: list[str] = []
    rest: list[str] = []
    i = 0
    while i < len(arguments):
        name = arguments[i].split("=", 1)[0]
        if name in _EVERYWHERE:
            width = 1 if "=" in arguments[i] else 1 + _EVERYWHERE[name]
            front += arguments[i : i + width]
            i += width
        elif name == "--":
            rest += arguments[i:]
            break
        else:
            rest.append(arguments[i])
            i += 1
    return front + rest


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit 0, 2 on bad input, 130 when interrupted."""
    from fedbench.cli import app

    given = sys.argv[1:] if arguments is None else arguments
    try:
        app(hoist(given))
    except FedbenchError as error:
        if "--debug" in given:
            raise
        print(f"fedbench: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader (head, less) has gone
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()

"""The artifact of a spec: as the store has it, or made from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedbench.specs import Spec
from fedbench.store.artifact import Artifact
from fedbench.store.folder import Store
from fedbench.store.provenance import MADE_FROM, code_of, origin, other_code
from fedbench.store.writing import Writer


@dataclass(frozen=True)
class Contents:
    """What an artifact is to hold, ready to be written."""

    write: Callable[[Writer], None]
    made_from: Mapping[str, Artifact]  #: by the names under which the provenance tells of them
    inputs: Mapping[str, str] = field(default_factory=dict)  #: ids that stand in the manifest and in every table


def artifact_of(
    spec: Spec, store: Store, code: Sequence[str], make: Callable[[], Contents], again: bool = False
) -> Artifact:
    """The artifact of `spec`: `make` gives its contents if the store lacks it, or (`again`) if other code made it.

    `code` are the files of the package that make it, such as "data/build.py". Nothing half-made stays.
    """
    before = store.get(spec)
    if before is not None and not (again and other_code(before.provenance)):
        return before
    by = code_of(*code)  # as it is now, not when all is made
    contents = make()
    with store.writing(spec, contents.inputs, replaces=before.digest if before else None) as writer:
        writer.provenance |= {**by, MADE_FROM: {name: origin(one) for name, one in contents.made_from.items()}}
        contents.write(writer)
    return store.open(spec.kind, spec.id)

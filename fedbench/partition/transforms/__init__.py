"""How clients see images: steps of colour and corruptions of all of a client's images (`Transform`), rotations and lit
channels by class (`Rotation`), and grey images painted red or green (`paint`)."""

from __future__ import annotations

from fedbench.partition.transforms.corruption import CORRUPTIONS, SEVERITIES
from fedbench.partition.transforms.paint import paint
from fedbench.partition.transforms.rotation import Rotation
from fedbench.partition.transforms.shifts import SHIFTS, of_clients
from fedbench.partition.transforms.transform import Transform, apply

__all__ = ["CORRUPTIONS", "SEVERITIES", "SHIFTS", "Rotation", "Transform", "apply", "of_clients", "paint"]

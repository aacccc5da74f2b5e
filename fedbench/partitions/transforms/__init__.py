"""How clients see images: steps of colour and corruptions of all of a client's images (`Transform`), rotations and lit
channels by class (`Rotation`), and grey images painted red or green (`paint`)."""

from __future__ import annotations

from fedbench.partitions.transforms.corruption import CORRUPTIONS, SEVERITIES
from fedbench.partitions.transforms.paint import paint
from fedbench.partitions.transforms.rotation import Rotation
from fedbench.partitions.transforms.shifts import SHIFTS, of_clients
from fedbench.partitions.transforms.transform import Transform, apply

__all__ = ["CORRUPTIONS", "SEVERITIES", "SHIFTS", "Rotation", "Transform", "apply", "of_clients", "paint"]

"""How clients see images: steps of colour and corruptions of all of a client's images (`Transform`), rotations and lit
channels by class (`Rotation`), and grey images painted red or green (`paint`)."""

from __future__ import annotations

from fedbench.partitions.transforms.corruption import CORRUPTIONS, SEVERITIES
from fedbench.partitions.transforms.transform import SHIFTS, Rotation, Transform, apply, of_clients, paint

__all__ = ["CORRUPTIONS", "SEVERITIES", "SHIFTS", "Rotation", "Transform", "apply", "of_clients", "paint"]

"""Execute a run here: load its inputs, train it under a claim, write its artifact."""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbench import methods, models
from fedbench.engine.choice import Choice, choose
from fedbench.errors import FedbenchError, unknown
from fedbench.files import disk_errors, read_json, write_json
from fedbench.provenance import closure, fingerprint, libraries
from fedbench.spec import RunSpec, Setting
from fedbench.store import Artifact, Store

if TYPE_CHECKING:
    import torch

    from fedbench.core.trainer import Progress
    from fedbench.methods.base import Method


#: What every run's numbers come from, beside its method and its model.
NUMERIC = (
    *(f"core/{n}.py" for n in ("augment", "client", "evaluation", "federation", "plan", "rng", "server", "state")),
    *(f"core/{n}.py" for n in ("convolution", "graph", "precision", "stack", "stacked", "trainer", "worker")),
    *("partition/artifact.py", "partition/scheme.py", "partition/shift.py"),
)

#: The file of a work folder that a restart looks for.
CHECKPOINT = "checkpoint.json"


@dataclass(frozen=True)
class Job:
    """A run to be made: its spec, its method, and the hyper-parameters that were chosen (not left at default)."""

    spec: RunSpec
    method: Method
    overrides: Mapping[str, Any]

    @classmethod
    def of(cls, setting: Setting, name: str, overrides: Mapping[str, Any]) -> Job:
        """The job of a method (by name, or FILE.py:Class) with these hyper-parameters in a setting.

        Raises FedbenchError for an unknown method, hyper-parameter or model, a value out of range, and a setting
        that the method does not fit.
        """
        models.file_of(setting.model)
        kind, source = methods.load(name)
        method = kind.create(overrides)
        method.check_setting(setting)
        chosen = {option: method.params[option] for option in overrides}
        spec = RunSpec(setting, kind.name, method.params, kind.version, source)
        return cls(spec, method, chosen)

    @property
    def parts(self) -> list[str]:
        """The code that this run's numbers depend on, as fingerprint parts."""
        # Of a user's file fedbench cannot tell what it imports; its checksum is part of the run's identity.
        own = ["methods/base.py", "methods/parts"] if self.spec.source else closure(f"methods/{self.spec.method}.py")
        model = closure(f"models/{models.file_of(self.spec.setting.model)}")
        return sorted({*NUMERIC, *own, *model})

    @property
    def code(self) -> str:
        """Fingerprint of that code and of the libraries that compute."""
        return (
            fingerprint(*self.parts) + " " + " ".join(f"{k} {libraries().get(k)}" for k in ("torch", "numpy", "scipy"))
        )


DEVICES = ("auto", "cpu", "cuda")


def check_place(device: str, executor: str, precision: str) -> None:
    """Raise FedbenchError unless this machine has the device, it can compute so, and there is such an executor."""
    place = choose_device(device)
    from fedbench.core import precision as precisions
    from fedbench.core.executors import EXECUTORS

    precisions.check(precision, place)
    if executor not in ("auto", *EXECUTORS):
        raise unknown("executor", executor, ("auto", *EXECUTORS))


def saved_round(job: Job, store: Store) -> int:
    """The round after which a restart of the run goes on; 0 if it would begin anew."""
    path = store.work(job.spec.id) / CHECKPOINT
    saved = read_json(path) if path.exists() else {}
    return int(saved.get("round", 0)) if saved.get("code") == job.code else 0


def choose_device(name: str) -> torch.device:
    """'auto' (a GPU if there is one), 'cpu' or 'cuda'."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise FedbenchError("no CUDA device here", "use --device cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def execute(
    job: Job,
    store: Store,
    roots: list[Path],
    *,
    device: str = "auto",
    executor: str = "auto",
    observe: Callable[[Progress], None] = lambda _: None,
) -> Artifact:
    """Make the run (or find it made) and return its artifact.

    Raises FedbenchError on bad input or if another process holds the run, core.trainer.Interrupted on Ctrl-C. A
    failure is recorded with its reason and log.
    """
    done = store.get(job.spec)
    if done is not None:
        return done
    check_place(device, executor, job.spec.setting.precision)
    from fedbench.core.precision import arithmetic

    with store.claim(job.spec.id) as claim:
        done = store.get(job.spec)  # finished by another process just now
        if done is not None:
            return done
        folder = store.work(job.spec.id)
        with disk_errors("starting a run", folder):
            write_json(folder / "spec.json", {"run": job.spec.to_dict(), "overrides": dict(job.overrides)})

        def heard(progress: Progress) -> None:
            claim.beat()
            observe(progress)

        try:
            place = choose_device(device)
            with arithmetic(job.spec.setting.precision, place):
                artifact = _train(job, store, roots, folder, place, executor, heard)
        except BaseException as error:
            if claim.held():
                _give_up(job, store, folder, error)
            raise
    shutil.rmtree(folder, ignore_errors=True)
    store.forget_failure(job.spec.id)
    return artifact


def _give_up(job: Job, store: Store, folder: Path, error: BaseException) -> None:
    """Record why the run failed (an interrupt is no failure), and keep its folder only for a checkpoint."""
    from fedbench.core.trainer import Interrupted

    if isinstance(error, Exception) and not isinstance(error, Interrupted):
        reason = str(error) if isinstance(error, FedbenchError) else f"{type(error).__name__}: {error}"
        told = {"spec": job.spec.to_dict(), "overrides": dict(job.overrides)}
        with contextlib.suppress(FedbenchError):  # a full disk: what is raised already says so
            store.record_failure(job.spec.id, reason, "".join(traceback.format_exception(error)), **told)
    if not (folder / CHECKPOINT).exists():
        for path in folder.iterdir():
            if path.name != "claim.json":
                path.unlink(missing_ok=True)


def _train(
    job: Job,
    store: Store,
    roots: list[Path],
    folder: Path,
    device: torch.device,
    executor_name: str,
    observe: Callable[[Progress], None],
) -> Artifact:
    from fedbench import data, partition
    from fedbench.core import executors
    from fedbench.core.checkpoint import Checkpoint
    from fedbench.core.federation import Federation
    from fedbench.core.plan import Plan
    from fedbench.core.trainer import Trainer, initialise

    setting, code = job.spec.setting, job.code
    made_by = {"fingerprint": fingerprint(*job.parts), "fingerprint_parts": job.parts}  # as it is now, not at the end
    parts = partition.build(setting.partition, store, roots)
    dataset = data.load(setting.partition.dataset, store, roots)
    federation = Federation.of(
        parts.shifted_images(dataset), parts.label, parts.client, parts.sample, parts.test, len(dataset.classes), device
    )
    plan = Plan(setting, federation.n_train, federation.shape[:2])

    def build() -> Any:
        return models.build(setting.model, shape=federation.shape, classes=federation.classes, seed=setting.seed)

    model, initial = initialise(job.method, build, federation, setting.seed)
    chosen = choose(executor_name, model, federation, plan, initial, store)
    executor = executors.make(chosen.name, model, federation, setting)
    checkpoint = Checkpoint(folder, code)
    try:
        trainer = Trainer(setting, job.method, federation, model, initial, executor, plan, checkpoint)
        trainer.run(observe)
    finally:
        executor.close()
    return _write(job, store, trainer, parts.id, device, chosen, made_by)


def _write(
    job: Job,
    store: Store,
    trainer: Any,
    partition_id: str,
    device: torch.device,
    chosen: Choice,
    made_by: dict[str, Any],
) -> Artifact:
    import pyarrow as pa
    import torch

    checkpoint = trainer.checkpoint
    predictions = checkpoint.read_predictions().combine_chunks()
    view = predictions.schema.get_field_index("view")
    predictions = predictions.set_column(view, "view", predictions.column("view").dictionary_encode().combine_chunks())
    predictions = predictions.replace_schema_metadata({"classes": str(trainer.federation.classes)})
    with store.writing(job.spec, {"partition": partition_id}) as writer:
        writer.table("predictions", predictions)
        writer.table("rounds", pa.Table.from_pylist(checkpoint.rounds))
        writer.table("clients", trainer.clients_table())
        writer.provenance = {
            "title": job.method.title,
            "overrides": dict(job.overrides),
            "defaults": type(job.method)().params,
            "deviations": job.method.deviations(),
            "executor": chosen.name,
            "executor_choice": asdict(chosen),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "train_seconds": sum(line["total_seconds"] for line in checkpoint.rounds),
            **made_by,
        }
    return store.open("run", job.spec.id)

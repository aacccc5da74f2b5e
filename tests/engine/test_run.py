"""A run: which executor makes it, notes of how far it has come, its work folder, images that it shares with the runs
before it, its estimated time, its exported models; which cluster serves a client after drift; and which shipped
runs can be made again, and what is said of one that was."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from fedbench import data, models, partitions, protocol
from fedbench.core import executors
from fedbench.core.executors import suited
from fedbench.core.federation import Federation
from fedbench.core.images import to_input
from fedbench.core.state import model_in
from fedbench.core.trainer import Progress
from fedbench.engine import cost, training, verify
from fedbench.engine import job as work
from fedbench.engine import run as progress
from fedbench.engine.export import ENDING, REST, answers, build, normalisation, states
from fedbench.engine.job import Job
from fedbench.engine.run import ProgressFiles, execute_all
from fedbench.engine.training import known_association
from fedbench.engine.verify import Checked, Verdict, as_made, compare, sample
from fedbench.errors import FedbenchError
from fedbench.files import write_json
from fedbench.machine import CORES
from fedbench.methods.base import Method
from fedbench.methods.fedavg import FedAvg
from fedbench.models.standard import MEAN, STD
from fedbench.partitions.transforms import Transform
from fedbench.results.making import row_of
from fedbench.results.pack import Row, write
from fedbench.results.packs import Packs, Shipped
from fedbench.specs import DatasetSpec, PartitionSpec
from fedbench.store import CHECKPOINT, Artifact, Store
from fedbench.store.folder import PROGRESS
from tests.support import keep_lab
from tests.support.frames import refused
from tests.support.lab import method, setting
from tests.support.make_runs import small_run

HOW = {"device": "cpu", "executor": "stacked"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "time", lambda: now[0])
    return now


def note(folder: Path) -> dict[str, Any]:
    return json.loads((folder / PROGRESS).read_text())


def test_what_is_noted(tmp_path: Path, clock: list[float]) -> None:
    notes = ProgressFiles([tmp_path], HOW)
    clock[0] = 1010.0
    notes.hear(Progress(1, 9, 2.5, 0.25))
    assert note(tmp_path) == {
        "device": "cpu",
        "executor": "stacked",
        "accuracy": 0.25,
        "round": 1,
        "rounds": 9,
        "loss": 2.5,
        "doing": "",
        "time": 1010.0,
        "round_seconds": 10.0,
        "gpu": None,
    }
    clock[0] = 1014.0
    notes.hear(Progress(3, 9, 1.5, None))
    assert (note(tmp_path)["accuracy"], note(tmp_path)["round_seconds"]) == (0.25, 2.0), "the first round is warm-up"
    rounds = []
    for t in range(4, 101):
        clock[0] += 0.1
        notes.hear(Progress(t, 100, 1.0, None))
        rounds.append(note(tmp_path)["round"])
    assert len(set(rounds)) <= 12, "at most once a second, and the last round"
    assert rounds[-1] == 100
    assert list(tmp_path.iterdir()) == [tmp_path / PROGRESS]
    # Of runs that are made together in the folder of each, where that can be.
    (other := tmp_path / "other").mkdir()
    ProgressFiles([tmp_path / "gone", tmp_path, other], HOW).hear(
        Progress(0, 9, 0.0, None, "clients describe their data")
    )
    for folder in (tmp_path, other):
        assert (note(folder)["doing"], note(folder)["round_seconds"]) == ("clients describe their data", None)


@pytest.fixture
def planted(store: Store) -> Path:
    """A work folder with a checkpoint."""
    folder = store.work("abc")
    folder.mkdir(parents=True)
    (folder / "state-000003.safetensors").write_bytes(b"state")
    write_json(folder / CHECKPOINT, {"round": 3})
    return folder


def test_the_index_of_a_checkpoint_goes_before_what_it_lists(
    store: Store, planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        (planted / "state-000003.safetensors").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(work.shutil, "rmtree", killed)
    job: Any = SimpleNamespace(spec=SimpleNamespace(id="abc"), done=lambda _: "the run")
    with pytest.raises(KeyboardInterrupt):
        work.leave(job, store)
    assert not (planted / CHECKPOINT).exists(), "a restart would take it for a damaged checkpoint"


@pytest.mark.parametrize(("seconds", "kept"), [(-10, True), (10, False)])
def test_clean_takes_the_checkpoint_of_a_run_that_is_complete(
    store: Store, planted: Path, seconds: float, kept: bool
) -> None:
    """One that is younger than the run is of a making anew (`--again`) that was interrupted."""
    manifest = store.path("run", "abc") / "artifact.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    os.utime(manifest, ((planted / CHECKPOINT).stat().st_mtime + seconds,) * 2)
    store.clean()
    assert planted.exists() is kept


def test_a_batch_is_no_larger_than_a_client(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate's probe needs no more memory than a step of the run would."""
    source = data.resolve("digits", store, [])
    rules = protocol.load("feddrm")
    spec = rules.partition_spec(source, 10, scheme="iid", clients=4)
    setting = rules.setting(spec, "smoke")
    probed: list[int] = []
    monkeypatch.setattr(cost, "images_per_second", lambda *a: probed.append(a[3]) or 1.0)
    cost.speed.cache_clear()
    cost.seconds(replace(setting, batch_size=2**32), FedAvg(), store, [], "cpu")
    cost.speed.cache_clear()
    assert probed == [int(max(partitions.build(spec, store).n_train))]


def test_the_cluster_of_most_that_trained_on_the_test_distribution_serves() -> None:
    """Ties: the smallest number; where nobody trained on it, the client's own; where nothing drifts all stay."""
    own = {0: 2, 1: 2, 2: 1, 3: 0, 4: 1}
    assert known_association(own, [0] * 5, [0] * 5) == own
    assert known_association(own, [5, 5, 5, 6, 6], [6, 5, 9, 5, 6]) == {0: 0, 1: 2, 2: 1, 3: 2, 4: 0}


DIGITS, GREY, COLOR = (8, 8, 1), (28, 28, 1), (32, 32, 3)


def blank(shape: tuple[int, int, int]) -> Federation:
    """A federation of one image of this shape."""
    one = np.zeros(1, np.int64)
    return Federation.of(np.zeros((1, *shape), np.uint8), one, one, one, one > 0, 10)


@pytest.mark.parametrize(
    ("device", "model", "shape", "trainees", "changes", "name"),
    [
        ("cpu", "digits_cnn", DIGITS, 10, {}, "stacked"),
        ("cpu", "lenet5", GREY, 10, {"batch_size": 64}, "stacked"),
        ("cpu", "lenet5", GREY, 7, {"batch_size": 64}, "cores"),
        ("cpu", "lenet5", GREY, 100, {"batch_size": 64, "participation": 0.05}, "cores"),
        ("cpu", "lenet5", GREY, 100, {"batch_size": 64, "cohort": 4}, "cores"),
        ("cpu", "lenet5", GREY, 10, {"precision": "bf16"}, "cores"),
        ("cpu", "cifar_cnn", COLOR, 100, {"batch_size": 50}, "cores"),
        ("cuda", "cifar_cnn", COLOR, 2, {"batch_size": 50}, "graphed"),
        ("cuda", "cifar_cnn", COLOR, 1, {"batch_size": 50}, "streams"),
        ("cuda", "resnet18_gn", COLOR, 8, {"batch_size": 128}, "streams"),
    ],
)
def test_small_steps_of_many_clients_are_stacked(
    device: str, model: str, shape: Any, trainees: int, changes: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(executors.RULES, "cpu", executors.RULES[device])  # in the place of a GPU
    network = models.build(model, shape=shape, classes=10, seed=0)
    before = [t.clone() for t in network.state_dict().values()]
    assert suited(network, blank(shape), setting(**{"model": model, **changes}), trainees) == name
    assert network.training
    assert all(torch.equal(a, b) for a, b in zip(before, network.state_dict().values(), strict=True))


def of_digits(seed: int, method: str = "fedavg") -> Job:
    """A run of eight clients that the rule stacks."""
    rules, digits = protocol.load("plain"), data.resolve("digits", Store(Path("nowhere")))
    part = rules.partition_spec(digits, 10, scheme="iid", clients=8, subsample=0.3)
    return Job.of(rules.setting(part, "smoke", {"seed": seed, "rounds": 1}), method, {})


def predictions(store: Store, seed: int = 7) -> bytes:
    (run,) = execute_all([of_digits(seed)], store, [])
    assert run.provenance["executor"] == "stacked"
    return (run.path / "predictions.parquet").read_bytes()


def test_the_same_bytes_however_busy_in_any_store_on_any_cores_alone_or_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = predictions(Store(tmp_path / "quiet"))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        busy = predictions(Store(tmp_path / "busy"))
        other.kill()
    assert busy == quiet
    monkeypatch.setenv(CORES, "1")
    used = Store(tmp_path / "used")
    execute_all([of_digits(8, "ditto")], used, [])
    assert predictions(used) == quiet
    several = Store(tmp_path / "several")
    execute_all([of_digits(seed) for seed in (6, 7)], several, [])
    assert predictions(several) == quiet


def test_a_setting_that_measures_times_names_its_executor(store: Store) -> None:
    """Whatever else is asked for: the executor is part of what is measured, and of the run's identity."""
    rules = protocol.load("pfedfda")
    part = rules.partition_spec(data.resolve("digits", store), 10, scheme="iid")
    partitions.build(part, store)
    free = rules.setting(part, "smoke")
    timed = rules.setting(part, "smoke", {"executor": "sequential"})
    assert free.id != timed.id
    (run,) = execute_all([Job.of(timed, "fedavg", {})], store, [], executor="stacked")
    assert run.provenance["executor"] == "sequential"
    with pytest.raises(FedbenchError, match="executor"):
        rules.setting(part, "smoke", {"executor": "sequentail"})


RULES = protocol.load("pfedfda")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    training._last.clear()
    yield
    training._last.clear()


def part(store: Store, **chosen: Any) -> PartitionSpec:
    return RULES.partition_spec(data.resolve("digits", store), 10, scheme="iid", **chosen)


def job(partition: PartitionSpec, seed: int = 0) -> Job:
    return Job.of(RULES.setting(partition, "smoke", seed=seed, rounds=1), "fedavg", {})


def kept(store: Store, *jobs: Job, device: torch.device = CPU) -> list[Federation]:
    return training.federations_of(jobs, store, [], device)[0]


def test_who_trained_before_changes_no_prediction(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a key without the partition (B would train on A's images), and training that writes to what is kept
    (the second run on A's images would see others than the first)."""
    a = part(store)
    order = [job(a), job(a, seed=1), job(part(store, shift="high")), job(a, seed=2)]
    loads: list[int] = []
    load = training.loaded
    monkeypatch.setattr(training, "loaded", lambda *given: loads.append(1) or load(*given))

    def predictions(where: Store, one: Job, fresh: bool) -> pa.Table:
        if fresh:
            training._last.clear()
        return execute_all([one], where, [], device="cpu", executor="sequential")[0].table("predictions")

    together = [predictions(store, one, fresh=False) for one in order]
    assert len(loads) == 3, "the second run has the partition of the first, and no other that of the one before"
    alone = [predictions(Store(tmp_path / "alone"), one, fresh=True) for one in order]
    assert len(loads) == 3 + len(order)
    assert [one.equals(other) for one, other in zip(together, alone, strict=True)] == [True] * 4
    assert not any(one.equals(together[0]) for one in together[1:]), "they would be the same whatever they were given"


def test_what_is_shared_is_of_one_store_and_device_and_goes_before_the_next_is_loaded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = part(store)
    (first,) = kept(store, job(a))
    load, alive, images = training.loaded, [], weakref.ref(first.images)
    (again,) = kept(Store(store.home), job(a, seed=4))
    assert again.images is first.images
    same = first.images.clone()

    def watched(*given: Any) -> list[Federation]:
        gc.collect()
        alive.append(images() is not None)
        return load(*given)

    monkeypatch.setattr(training, "loaded", watched)
    del first, again
    (elsewhere,) = kept(Store(tmp_path / "elsewhere"), job(a))
    assert torch.equal(elsewhere.images, same)
    assert (alive, len(training._last)) == ([False], 1)
    (there,) = kept(Store(tmp_path / "elsewhere"), job(a), device=torch.device("meta"))
    assert (elsewhere.images.device.type, there.images.device.type) == ("cpu", "meta")


def test_runs_at_once_are_told_apart_by_their_order(store: Store) -> None:
    """Catches a key that is a set of partitions: each run would be given the other's clients."""
    a, b = part(store), part(store, seed=7)

    def dealt(one: Federation, client: int = 0) -> list[int]:
        return one.sample[one.train[client].numpy()].tolist()

    x, y = kept(store, job(a), job(b, seed=1))
    assert x.images is y.images
    assert dealt(x) != dealt(y)
    v, u = kept(store, job(b), job(a, seed=1))
    assert (dealt(u), dealt(v)) == (dealt(x), dealt(y))
    (alone,) = kept(store, job(a))
    assert dealt(alone) == dealt(x)
    assert len(alone.images) < len(x.images), "a run on its own is not given the images of two"
    one, other = kept(store, job(a), job(a, seed=1))
    assert one is other, "runs of one partition see the very same federation"


CLIENTS = [f"client-{i}" for i in range(3)]


@pytest.mark.parametrize(
    ("how", "files", "rest"),
    [
        (method("fedavg"), ["model"], set()),
        (method("ditto", personal_epochs=1), ["model", *(f"{c}-own" for c in CLIENTS)], set()),
        (method("ifca", clusters=2), ["model", "cluster-0", "cluster-1"], set()),
        (method("feddrm"), CLIENTS, {"server/client_branch.head.weight", "server/client_branch.head.bias"}),
        (method("pfedfda"), CLIENTS, {"server/gaussian.mean", "server/gaussian.covariance"}),
        (method("fedem", clusters=2), ["model-0", "model-1"], {f"client/{i}/mixture.pi" for i in range(3)}),
    ],
    ids=lambda value: value.name if isinstance(value, Method) else "",
)
def test_every_model_is_a_state_dict_of_the_network(
    tmp_path: Path, how: Method, files: list[str], rest: set[str]
) -> None:
    run = keep_lab.kept(how, tmp_path, votes=False, epochs=1)
    it, plain = keep_lab.models(run), keep_lab.network(run)
    made = states(it, list(plain.state_dict()))
    assert [name for name in made if name != REST] == files
    for name in files:
        plain.load_state_dict(made[name])  # strict
    left = {key for key in made.get(REST, {}) if not key.endswith("num_batches_tracked")}
    assert rest <= left
    exported = {id(t) for name in files for t in made[name].values()}
    assert all(id(t) in exported or key in left for key, t in it.tensors.items()), "nothing is left out"
    for i, one in enumerate(it.clients):
        named, state = answers(one, i, made)["files"], it.state(i)
        assert len(named) == (0 if one.alone else len(one.models))
        for file, model in zip(named, one.models, strict=True) if named else ():
            expected = model_in(state, model) if model else state
            assert all(torch.equal(t, expected[name]) for name, t in made[file.removesuffix(ENDING)].items())


WITHOUT = """
import json, sys
sys.modules["fedbench"] = None
import torch
try:
    import torchvision
except RuntimeError:  # torch's build and torchvision's do not fit; its networks need none of these operators
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torchvision
from safetensors.torch import load_file
about = json.load(open("about.json"))
network = eval(about["build"])
network.load_state_dict(load_file("model.safetensors"))
mean, std = (torch.tensor(about[name])[:, None, None] for name in ("mean", "std"))
torch.save(network.eval()((torch.load("pixels.pt") / 255 - mean) / std).detach(), "logits.pt")
"""


@pytest.mark.slow
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "normalised by a client"])
def test_a_network_of_torchvision_loads_without_fedbench(tmp_path: Path, scaled: bool) -> None:
    shape, name = (32, 32, 3), "torchvision:shufflenet_v2_x0_5"
    ours = models.build(name, shape=shape, classes=7, seed=1).eval()
    images = torch.randint(0, 256, (3, 32, 32, 3), dtype=torch.uint8)
    seen = Transform(mean=(0.4, 0.5, 0.7), std=(0.2, 0.3, 0.25)) if scaled else None
    inputs = to_input(images)
    if seen is not None:
        m, s = (torch.tensor(values)[:, None, None] for values in (seen.mean, seen.std))
        inputs = ((inputs + 1) / 2 - m) / s
    with torch.no_grad():
        expected = ours(inputs)
    save_file(ours.as_torchvision(ours.state_dict()), tmp_path / "model.safetensors")
    about = {"build": build(name, shape, 7), **normalisation(ours, 3, seen)}
    assert scaled or (about["mean"], about["std"]) == ([*MEAN], [*STD])
    (tmp_path / "about.json").write_text(json.dumps(about))
    torch.save(images.permute(0, 3, 1, 2).float(), tmp_path / "pixels.pt")
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    out = subprocess.run([sys.executable, "-c", WITHOUT], cwd=tmp_path, env=alone, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), expected, rtol=1e-4, atol=1e-5)


def test_compiled_code_is_marked_as_no_part_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    training.keep_compiled(tmp_path)
    assert not [*tmp_path.iterdir()], "the user has chosen a folder"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    for _ in range(2):
        training.keep_compiled(tmp_path)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "compiled")
    (tmp_path / "compiled/code.so").write_bytes(b"program")
    (tmp_path / "store.json").write_text("{}")
    copied = subprocess.run(["tar", "--exclude-caches", "-cf", "-", "."], cwd=tmp_path, capture_output=True, check=True)
    assert b"store.json" in copied.stdout
    assert b"code.so" not in copied.stdout


# -- shipped runs made again ------------------------------------------------------------------------------------

#: One run of FedAvg on the digits.
SHIPPED = Path(__file__).parents[1] / "fixtures/results/digits.parquet"


@pytest.fixture
def run() -> Shipped:
    (one,) = Packs([SHIPPED]).runs()
    return one


def of_setting(run: Shipped, **changes: Any) -> Shipped:
    """The same run with another setting."""
    spec = replace(run.spec, setting=replace(run.spec.setting, **changes))
    return replace(run, spec=spec, row=replace(run.origin, spec=spec))


def test_made_again_on_the_same_kind_of_device_by_the_same_executor(run: Shipped) -> None:
    def place(device: str, executor: str) -> tuple[str, str]:
        return as_made(replace(run, manifest={"provenance": {"device": device, "executor": executor}}))

    assert [place("cpu", "cores"), place("cpu", "stacked")] == [("cpu", "cores"), ("cpu", "stacked")]
    assert place("NVIDIA H100", "graphed") == ("auto", "auto")


def test_runs_of_other_versions_and_images_are_not_drawn(run: Shipped, store: Store) -> None:
    setting, nobodys = run.origin.spec.setting, DatasetSpec("none", "generated", "0")
    older = of_setting(run, version=setting.version - 1)
    elsewhere = of_setting(run, partition=replace(setting.partition, dataset=nobodys))
    assert sample([older, run, elsewhere], 10_000, 0, store, []) == [run]
    for others, line in (
        ([older], "images are not available, or they are of other versions than today's"),
        ([elsewhere], "images are not available, or they are of other versions than today's"),
        ([], "there is none"),
    ):
        refused(line, sample, others, 3, 0, store, [])


def changed(row: Row, metric: str, by: float) -> Row:
    """The row with other values of a metric."""
    m = row.metrics
    return replace(row, metrics=replace(m, value=np.where(m.metric == m.names.index(metric), m.value + by, m.value)))


def test_what_is_said_of_a_run_made_again(store: Store, tmp_path: Path) -> None:
    run = small_run(store)
    dated = {"started": "2026-01-02T03:04:05Z", "train_seconds": 1.0, **run.provenance}
    dated_run = replace(run, manifest={**run.manifest, "provenance": dated})
    about = {"device": "cpu", "cpu": "AVX9", "processor": "Six 6-9-1", "cores": 2, "executor": "stacked"}
    shipped = replace(row_of(dated_run, store, "Ada"), about=about)
    other = replace(shipped, predictions="0" * 64)
    write(tmp_path / "pack.parquet", [shipped])
    (packed,) = Packs([tmp_path / "pack.parquet"]).runs()

    def verdict(row: Row, **told: str | int) -> tuple[Verdict, float, str]:
        one = replace(packed, row=row)  # whatever a pack may hold
        again = replace(run, manifest={**run.manifest, "provenance": {**about, **told}})
        result = compare(one, again, store, tolerance=0.125)
        return result.verdict, result.difference, result.metric

    assert verdict(shipped)[:2] == (Verdict.SAME, 0.0)
    assert verdict(changed(shipped, "local_training_seconds", 9.0))[:2] == (Verdict.SAME, 0.0)
    assert verdict(changed(shipped, "client_accuracy", 1e-12))[0] == Verdict.SAME
    assert verdict(changed(shipped, "client_accuracy", 0.25)) == (Verdict.OTHER_NUMBERS, 0.25, "client_accuracy")
    assert verdict(changed(shipped, "client_accuracy", np.nan)) == (Verdict.OTHER_NUMBERS, np.inf, "client_accuracy")
    assert verdict(other)[0] == Verdict.OTHER_BITS
    assert verdict(other, cpu="another")[0] == verdict(other, processor="another")[0] == Verdict.CLOSE
    assert verdict(other, cores=1)[0] == Verdict.CLOSE
    spread = changed(other, "client_accuracy_std", 0.25)  # of two clients; no accuracy has moved
    assert verdict(spread, cpu="another") == (Verdict.CLOSE, 0.0, verdict(other, cpu="another")[2])
    assert verdict(changed(other, "average_accuracy", 0.125), cpu="another")[0] == Verdict.CLOSE
    assert verdict(changed(other, "average_accuracy", 0.25), cpu="another") == (Verdict.FAR, 0.25, "average_accuracy")
    checked = Checked(Verdict.CLOSE, 0.0, "average_accuracy", "here", (None, "Xeon 6-207-2"))
    why = "(the processor it was made on was not recorded)"
    assert checked.words == f"other bits {why}, accuracies within the tolerance"
    assert replace(checked, processors=("Xeon 6-207-1", "Xeon 6-207-2")).words == str(Verdict.CLOSE)
    assert replace(checked, verdict=Verdict.SAME).words == "the same predictions"


def test_what_hangs_on_rounding_comes_out_again(run: Shipped, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run far from the shipped one is FAR or UNSTABLE by how far another executor moves it."""
    job = Job.of_spec(run.origin.spec)
    (again,) = execute_all([job], store, [], device="cpu", executor="sequential")
    checked = Checked(Verdict.FAR, 0.5, "average_accuracy", "here", ("one", "another"))
    result = verify.settled(checked, run, again, store, store, [])
    assert (result.verdict, result.difference) == (Verdict.FAR, 0.5)
    assert result.rounding < 0.01

    def unlike(_jobs: list[Job], *where: Any, executor: str, **how: Any) -> list[Artifact]:
        """As if the other executor rounded so badly that it trained from other initial weights."""
        assert executor == "stacked"
        setting = replace(job.spec.setting, seed=job.spec.setting.seed + 1)
        return execute_all([Job.of(setting, "fedavg", {})], *where, executor=executor, **how)

    monkeypatch.setattr(verify, "execute_all", unlike)
    moved = verify.settled(checked, run, again, store, store, []).rounding
    assert moved > 0.01
    for difference, verdict in ((2.9 * moved, Verdict.UNSTABLE), (3.1 * moved, Verdict.FAR)):
        assert verify.settled(replace(checked, difference=difference), run, again, store, store, []).verdict is verdict
    assert [one.id for one in store.list("run")] == [again.id]

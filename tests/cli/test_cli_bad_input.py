"""Bad input: exit code 2, one line that says what, where and what to do, and nothing written."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from fedbench import resources
from fedbench.results.pack import write
from fedbench.store import Store
from tests.support.cli_user import artifact, bad, complete, fedbench, good, own_recipe
from tests.support.own_table import FIGURES, own_table

#: Command => what its line says. TRAIN, TABLE, SMOKE, PARTITION and RUN stand for the words below.
CASES = r"""
TRAIN --model lenet => unknown model 'lenet'; did you mean 'lenet5'?
TRAIN --device gpu => unknown device 'gpu'; did you mean 'cpu'?
TRAIN --executor core => unknown executor 'core'; did you mean 'cores'?
TRAIN --precision bf61 => unknown precision 'bf61'; did you mean 'bf16'?
TRAIN --protocol feddrn => unknown protocol 'feddrn'; did you mean 'feddrm'?
train -m fedavg --budget smal => unknown budget 'smal'; did you mean 'small'?
train -m fedavgg => unknown method 'fedavgg'; did you mean 'fedavg'?
methods // => unknown method '//'; known: apfl,
train --table feddrm/12 => unknown table 'feddrm/12'; did you mean 'feddrm/
train --table 1 --dataset digit => unknown dataset 'digit'; did you mean 'digits'?
TABLE --method fedavgg => did you mean 'fedavg'?
partition digits --shift hihg => unknown shift 'hihg'; did you mean 'high'?
train -m feddrm SMOKE --lamda 0.7 => option of train --method feddrm '--lamda'; did you mean '--lambda'?
train -m feddrm SMOKE --round 4 => did you mean '--rounds'?
train -m feddrm SMOKE --lambda => --lambda needs a value
train -m feddrm SMOKE --lambda much => --lambda of feddrm takes a number, not 'much'
train -m feddrm SMOKE --lambda 1.5 => --lambda of feddrm must be in (0, 1], not 1.5
train -m feddrm SMOKE --lambda 0.7 more => unknown dataset 'more'
train -m pfedfda SMOKE --betas 1.5 => --betas of pfedfda takes a whole number, not '1.5'
train -m pfedfda SMOKE --feature-store all_epoch => did you mean 'all_epochs'?
train -m fedavgft SMOKE --finetune-rounds 4 => of fedavgft must be below the number of rounds, 4, not 4
TRAIN --rounds 0 => rounds must be at least 1, not 0
TRAIN --rounds many => --rounds of train takes a whole number, not 'many'
TRAIN --seed 1,2 => --seed of train takes a whole number, not '1,2'; for several seeds: fedbench sweep --seeds
TRAIN --observe tensorboard: => --observe tensorboard: names no DIR; such as tensorboard:board
TRAIN --lr 0 => the learning rate must be above 0, not 0.0
TRAIN --lr nan => lr must be a finite number, not nan
TRAIN --every -1 => every must be at least 0, not -1; 0: only the last rounds that count
TRAIN --optimizer adamw --momentum 0.5 => momentum is SGD's: adamw has betas of its own
train -m pfedme SMOKE --optimizer adamw => has its own update rule and does not use adamw; leave --optimizer out
TRAIN --participation 1.5 => participation must be in (0, 1], not 1.5
TRAIN --seed -1 => the seed must be in 0..2^32-1, not -1
TRAIN --epochs 1 --steps 2 => give either local epochs or local steps, not both
partition digits --split 1 => the training share must be in (0, 1), not 1.0
partition digits --dir 0.3 --protocol feddrm --clients 500 => 500 clients
partition digits --iid --clients 700 --split 0.1 --shift none => client
partition digits --spc 400 => 4000 shards
partition cifar10 => the images of cifar10 are not available
train --table flux/13 => nothing can be run: the images of mnist are not available
train --table 1 => run: the images of cifar10, cifar20, cifar100 are not available; 'fedbench data fetch NAME' for
TABLE --precision tf32 --device cpu => tf32 needs a GPU
TRAIN --model resnet18_gn => images of 8x8x1 are too small for model resnet18_gn
train -m fedavg --dataset digits => --dataset needs --table
train => train needs --method NAME or --table NAME
TRAIN --dir 0.3 => --dir is an option of a partition, and no data set is named
TRAIN --partition-seed 3 => --partition-seed is an option of a partition
train digits -m fedavg --dir 0.3 --spc 2 => --dir and --spc exclude each other
train digits -m fedavg --partition ffff => give either digits or --partition ffff, not both
train digits mnist -m fedavg => unexpected argument 'mnist'
train digtis -m fedavg => unknown dataset 'digtis'; did you mean 'digits'?
train digits --table 1 => with --table write --dataset digits
train --table 1 --clients 3 => --clients cannot be used with --table
train digits -m fedavg --seeds 3 => train takes one seed, --seed 0; several: fedbench sweep DATASET
train --table 1 --seeds 3 => train takes one seed, --seed 0; without it the seeds of the table are trained
train --table 1 --columm x => option of train --table '--columm'; did you mean '--column'?
evaluate ffff => no run 'ffff'
evaluate ffff --all => give either a run's id or --all, not both
train -m ./nowhere.py:Mine => no file ./nowhere.py to take the method from
partition ./nowhere.toml => there is no recipe file nowhere.toml
partition ./nowhere.npz => there is no file nowhere.npz; check the path
partitoin => Did you mean 'partition'?
partition cifr10 => did you mean 'cifar10'?
partition --clients three => --clients
partition digits --dir nan => must be above 0, not nan
partition --dir 0.3 => a partition of which data set?
show => fedbench show --help
show abc => no dataset or partition or run or metrics 'abc'
list rum => did you mean 'run'?
list dataset method=local => filters are for runs
remove => remove needs ids, filters or --unfinished
status --resume RUN => no run
status --watch --json => --watch
train -m fedavg --seed 0 --seed 1 => --seed is given twice; leave one of the two out
train -m feddrm --lambda 0.5 --lambda=0.6 => --lambda is given twice; leave one of the two out
--home => --home needs a value
report -t 1 -o --json => --output needs a value, not
list --home= => --home needs a value, not
remove '' => id needs a value, not
train -m feddrm SMOKE --lambda --betas => --lambda needs a value, not
data list --home LONG => File name too long
data list --home ~nosuchuser/x => no home folder is known for ~nosuchuser
TRAIN --protocol ../tables/feddrm => unknown protocol '../tables/feddrm'
partition digits --protocol flux --shift px --level 1 --clients 1000000000000 => at most 10,000,000
partition digits --equal --duplicates 2147483647 => copies of a training sample must be at most 10,000
partition digits --dir 1e400 => finite number
train -m fedavg --rounds 1000000000000 => rounds must be at most 10,000,000
train -m fedavg --batch-size 18446744073709551616 => more than 64 bits
train -m fedbabu --finetune-epochs 1000000000000 => must be at most 1,000,000
train -m ditto --mu 1e400 => must be a finite number, not inf
train -m ifca SMOKE --clusters 9 => --clusters of ifca must be at most the number of clients that train, 8
train -m ftw_erm SMOKE => needs one local step
TRAIN --select last => unknown select 'last'; known: best
TRAIN --keep model => was made without its model; train it once more, by its own command with --keep model --again
TRAIN --keep gradients => --keep takes model, not 'gradients'
export RUN -o m.pt => the models of a run need a folder, and m.pt is the name of a file
export RUN -o none => made without its model
export RUN -o none --format csv => --format is for partitions; models are safetensors; leave it out
TRAIN --column x => --column needs --table
train digits -m fedavg --include-shipped => --include-shipped needs --table
TABLE --column digits/Dir-0.5 => unknown column of table feddrm/1 'digits/Dir-0.5'; did you mean 'digits/Dir-0.3
train -m local SMOKE --jobs 0 => --jobs must be at least 1, not 0
train -m local SMOKE --jobs 2 --cpus-per-run 9999 => --cpus-per-run 9999 of
train -m local SMOKE --jobs 2 --cpus-per-run 0 => --cpus-per-run 0 of
train -m local SMOKE --jobs 2 --cpus-per-run nan => --cpus-per-run nan of
train -m local SMOKE --cpus-per-run 1 => --cpus-per-run goes with --jobs or --engine ray; add --jobs 2
train -m local SMOKE --jobs 2 --gpus-per-run 1 => --gpus-per-run goes with --engine ray
train -m local SMOKE --engine ray --jobs 2 => --jobs does not go with --engine ray; --cpus-per-run says
train -m local SMOKE --engine ray --cpus-per-run 0 => --cpus-per-run and --gpus-per-run are numbers above 0
train -m local SMOKE --engine ray --device cuda:0 => --device cuda:0 does not go with --engine ray; --gpus-per-run 1
train -m local SMOKE --engine ray --device cpu --gpus-per-run 1 => --device cpu does not go with --gpus-per-run
train -m local SMOKE --engine rey => unknown engine 'rey'; did you mean 'ray'?
train -m local SMOKE --engine ray://host => unknown engine 'ray://host'; did you mean 'ray://HOST:PORT'?
train -m local SMOKE --device cuda:0,cuda:999 => here
train -m local SMOKE --device cuda:0,cuda:0 => --device cannot be 'cuda:0,cuda:0'
train -m local SMOKE --device cuda:x => --device cannot be 'cuda:x'; auto, cpu, cuda, or GPUs: cuda:0,cuda:1
SWEEP -m fedavg --lrr 1 => unknown option of sweep --method fedavg '--lrr'; did you mean '--lr'?
SWEEP -m fedavg --lr 0.1, => --lr has an empty value in '0.1,'
SWEEP -m fedavg --lr 0.001:0.1 => --lr of sweep takes a number, not '0.001:0.1'
SWEEP -m fedavg --seeds x => --seeds takes seeds such as 0-2 or 0,1,2, not 'x'
SWEEP -m fedavg --seeds 0-50000 --lr 0.1,0.2 => that are more than 100,000 runs; leave some values out
SWEEP -m fedavg --save nowhere/mine.toml => there is no folder nowhere to save mine.toml in; make it first
SWEEP -m fedavg --save mine.txt => --save takes a file that ends in .toml
SWEEP -m fedavg --lr 0.1,0.2 --dry-run --save mine.toml => --save does not go with --dry-run, which writes nothing
SWEEP -m fedavg stray => unexpected argument 'stray'
compare arena/mnistt => unknown table 'arena/mnistt'; did you mean 'arena/mnist'?
compare --over clients => --over goes with --test only
compare --test --over rounds => unknown pairing 'rounds'
compare --json -f csv => --json or --format csv
site out method=locl => no run is method=locl
site text.parquet => cannot make the folder
export PARTITION -o x => does not say in which format; give --format, one of csv, parquet
export PARTITION -o rows.csv/x --format pflib => (Not a directory); choose a writable --output
export PARTITION -o x --format parqet => did you mean 'parquet'?
partition digits --from none.csv => cannot read
partition digits --from rows.csv => digits has 1,797 images (0 to 1796)
partition digits --dir 0.3 --from rows.csv => --dir and --from exclude each other
partition digits --counts zero.csv => zero.csv
partition digits --dir 0.3 --alpha 0.5 => --dir and --alpha say the same; leave one out
partition digits --counts pipe.csv => it is no file
report --appendix --json => --appendix does not apply to json; it needs --format latex
report --appendix --format csv => --appendix does not apply to csv; it needs --format latex
report -t fedrm/2 => unknown table 'fedrm/2'; did you mean 'feddrm/2'
report --json --format csv => --json or --format csv
report -t flux/12 --only-done => no cell has a number yet
report -f latx => unknown format 'latx'; did you mean 'latex'
report -t 1 --budget papr => unknown budget 'papr'; did you mean 'paper'
report -t 1 --dataset digit => unknown dataset 'digit'; did you mean 'digits'
report -t 1 --test-augmentation plan => unknown test augmentation 'plan'; did you mean 'plain'
report -t 1 --precision bf61 => unknown precision 'bf61'; did you mean 'bf16'
report -t pfedfda/8 --precision fp8 => unknown precision 'fp8'; known: bf16, fp32, tf32
report --table ./there/nowhere/1 => unknown table './there/nowhere/1'
tables feddrm/9 => unknown table 'feddrm/9'
tables ./feddrm => the paper feddrm has the name of fedbench's own feddrm
claims ./there/nowhere => unknown table './there/nowhere'
claims fedrm => did you mean 'feddrm'
claims feddrm --budget smal => unknown budget 'smal'; did you mean 'small'?
claims feddrm/1 -o claims.docx => does not end so; -o NAME.md
claims feddrm/1 -o claims.md --json => --output does not go with --json; leave one of the two out
results page fedrm => did you mean 'feddrm'
results page ./there/nowhere => unknown paper './there/nowhere'
figure ftw_erm/4 => unknown figure 'ftw_erm/4'; did you mean
figure imagse => unknown figure 'imagse'; did you mean 'images'
figure ftw_erm/2 -o two.pgn => unknown format of a figure 'pgn'; did you mean 'png'
figure ftw_erm/2 -o two => cannot tell the format from the name two
figure ftw_erm/2 --json --csv => --json, --csv and --text exclude each other
figure ftw_erm/2 --client 1 => --client goes with --partition only
figure ftw_erm/2 --partition PARTITION --client 8 => has no client 8; it has 0..7
figure ftw_erm/2 --partition PARTITION --ridge 0 => ridge penalty must be above 0
figure ftw_erm/2 --partition PARTITION -o nowhere/two.png => cannot write nowhere/two.png
figure ftw_erm/2 => the images of fashion_mnist are not available
figure ftw_erm/2 --budget paper => --budget does not go with ftw_erm/2
figure feddrm/3 --seed -1 => the seed must be in 0..2
figure pfedfda/2 --partition x => --partition does not go with pfedfda/2; it takes --run, --budget, --seed
figure pfedfda/4 --compare => --compare does not go with pfedfda/4
figure pfedfda/4 --budget papr => unknown budget 'papr'; did you mean 'paper'
figure pfedfda/2 --run x --budget paper => --budget does not go with --run, which has its own
figure pfedfda/3 --partition nothing => no partition 'nothing'
figure flux/4 --run x => --run does not go with flux/4; it takes --budget, --seed, --compare
figure flux/8 method=feddrm => FILTER does not go with flux/8; it takes --budget
figure images --partition PARTITION --image 1797 => digits has no image 1797; it has 0..1796
figure curves --client 1 => --client does not go with curves; it takes FILTER, --metric
figure curves --metric averge_accuracy => unknown metric 'averge_accuracy'; did you mean 'average_accuracy'
figure curves --metric routing_accuracy => no run has routing_accuracy by round (
figure curves --metric routing_accuracy => ); by round: average_accuracy
figure curves --against byte => unknown axis 'byte'; did you mean 'bytes'
figure curves --by metod => unknown key of runs 'metod'; did you mean 'method'
figure curves --test-augmentation cop => unknown test augmentation 'cop'; did you mean 'crop'
figure curves lr=7 => no run is lr=7; there are lr: 0.01
figure confusion --test-augmentation cop => unknown test augmentation 'cop'; did you mean 'crop'
figure clients --metric average_accuracy => no run has average_accuracy of single clients; of clients: client_accuracy
figure partition method=fedavg --seed 3 => --seed does not go with FILTER, which has its own
figure partition method=fedavg --partition x => --partition and FILTER exclude each other; choose one
figure ranks method=fedavg => there is nothing to rank FedAvg against
figure ranks --metric test_images => neither more nor less test_images is better
report -t ftw_erm/1 -o nowhere/x.csv => cannot write nowhere/x.csv (No such file or directory); make the folder nowhere
report -t ftw_erm/1 --format csv -o odd.toml/x.csv => cannot write
results export -o x.csv => does not end so
results export --table fedrm -o x.parquet => did you mean 'feddrm'
results export -o rows.csv/x.parquet => while writing a result pack (File exists); choose a writable folder
results export -o folder.parquet => is a folder, not a result pack; name a file
results import none.parquet => there is no file
results import empty.parquet => there are no runs in
results import nobody.parquet => does not say who made its runs
results verify => there is none
results verify abc => no shipped run 'abc'
check fedavgg => fedbench: unknown method or model 'fedavgg'; did you mean 'fedavg'?
check ./nowhere.py:Mine => fedbench: no file ./nowhere.py to take the class from
check fedavg --mu 1 => fedbench: unknown option of check fedavg '--mu'
check digits_cnn --mu 1 => fedbench: unexpected argument '--mu'; a model has no options
check feddrm --lambda much => fedbench: --lambda of feddrm takes a number, not 'much'
check other.py => defines 0 methods and models; name one: FILE.py:Class
check other.py:Other => is neither a method nor a model; derive it from
train -m missing.py SMOKE => cannot load
train -m other.py SMOKE => defines 0 methods
train -m faulty.py SMOKE => cannot load
TRAIN --model ./nowhere.py:Net => fedbench: no file ./nowhere.py to take the model from
TRAIN --model ./net.py => fedbench: ./net.py does not say which of its classes is the model; such as net.py:Net
TRAIN --model ./net.py:Nett => fedbench: unknown model class in ./net.py:Nett 'Nett'; did you mean 'Net'?
TRAIN --model Net@01234 => the model Net@01234 is a user's file that is not available; give --model FILE.py:Net
OWN --mu 0.1 => fedbench: --mu needs exactly one method with --table; name it: -m METHOD; in a table's file
OWN -m ./idea.py:Idea --nu 1 => fedbench: unknown option of train --method idea '--nu'; did you mean '--mu'?
OWN -m ./idea.py:Idea --mu x => fedbench: --mu of idea takes a number, not 'x'
OWN -m fedprox --mu -1 => fedbench: --mu of fedprox must be at least 0, not -1.0
train --table ./bounds.toml SMOKE => bounds.toml, row Mine, 0.1: --mu of fedprox must be at least 0, not -1.0
figure ./figures.toml => fedbench: ./figures.toml has several figures; ./figures.toml:1 for example
figure ./figures.toml:3 => fedbench: unknown figure in ./figures.toml '3'; known: 1, 2
site pages flux dataset=digits => fedbench: pages are of papers (flux) or of runs (dataset=digits); leave one
figure ./odd.toml:1 => fedbench: unknown kind of figure odd/1 'serie'; did you mean 'series'?
figure ./odd.toml:2 => fedbench: figure odd/2 lacks 'series'; a figure of kind sweep needs it
figure ./no.toml => fedbench: ./no.toml has no figure; [[figure]] begins one
figure ./figure.toml:1 => fedbench: there is no file of figures figure.toml
new methode mine => fedbench: unknown kind of file 'methode'; did you mean 'method'?
new method my-idea => 'my-idea' is not a valid name for a method; small letters, digits and _, such as my_idea
new method class => fedbench: 'class' is not a valid name for a method
new method none => fedbench: 'none' is not a valid name for a method
new method client => fedbench: the template of method has a Client of its own; choose another name
new paper feddrm => fedbench: fedbench has a paper feddrm of its own; choose another name
new method torch => torch.py would hide the module torch from files beside it; choose another name
new method mine -o nowhere => fedbench: cannot write nowhere/mine.py (No such file or directory)
new paper there => there exists already
new method idea => fedbench: idea.py exists already; choose another name, or another folder with -o
"""
WORDS = {
    "TRAIN": "train -m fedavg --budget smoke",
    "TABLE": "train --table 1 --dataset digits --budget smoke",
    "OWN": "train --table ./mine.toml --budget smoke --executor sequential",
    "SMOKE": "--budget smoke",
    "SWEEP": "sweep digits --budget smoke --rounds 2 --protocol feddrm",
    "LONG": "x" * 5000,
}
ROWS = CASES.strip().splitlines()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Path:
    """A folder with whatever a command could be given in the place of what it takes."""
    folder = tmp_path_factory.mktemp("bad")
    own_table(folder, ("./idea.py:Idea", "fedprox"), ("mu = 0.1", "mu = -1")).rename(folder / "bounds.toml")
    own_table(folder)
    texts = {
        "rows.csv": "client,sample,split\n0,0,train\n0,1797,test\n",
        "text.parquet": "no pack",
        "other.py": "class Other: ...\n",
        "missing.py": "import nothing_of_that_name",
        "faulty.py": "syntax error",
        "figures.toml": FIGURES,
        "no.toml": "figure = []",
        "odd.toml": 'figure = [{ title = "T", kind = "serie" }, { title = "T", kind = "sweep" }]',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name, target in (("zero", "/dev/zero"), ("mem", "/proc/self/mem"), ("proc", "/proc")):
        (folder / f"{name}.csv").symlink_to(target)
    os.mkfifo(folder / "pipe.csv")
    for name in ("folder.csv", "folder.parquet", "there", "feddrm"):
        (folder / name).mkdir()
    (folder / "feddrm" / "1.toml").touch()
    write(folder / "empty.parquet", [])
    said = good("results", "export", "-o", folder / "nobody.parquet", "--home", prepared).err
    assert said.endswith("Without --by, 'fedbench results import' asks for the name of who made the runs.\n")
    return folder


@pytest.mark.parametrize("row", ROWS, ids=[row.partition(" => ")[0] for row in ROWS])
def test_one_line(prepared: Path, place: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    """None of the commands gets as far as changing the store, so all have the same."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(resources, "_given", {})
    monkeypatch.setenv("FEDBENCH_HOME", str(prepared))
    store = Store(prepared)
    command, says = row.split(" => ")
    ids = {kind.upper(): artifact(prepared, kind).name for kind in ("run", "partition")}
    for word, words in (WORDS | ids).items():
        command = command.replace(word, words)
    before, current, beside = complete(prepared), store.current, sorted(place.iterdir())
    try:
        line = bad(*shlex.split(command))
        kept = {"run": current["run"]} if command.startswith("partition ") else current
        assert store.current == kept
    finally:
        store.set_current(**current)
    assert says in line
    assert complete(prepared) == before, "nothing is made, and nothing half-made"
    assert sorted(place.iterdir()) == beside
    assert not (prepared / "failed").exists()
    assert list(prepared.glob("work/[!.]*")) == []


def test_an_empty_store_and_one_without_the_current_partition(home: Path, prepared: Path) -> None:
    for command, line in (
        (
            "train --method fedavg",
            "there is no current partition (none was made, or the last 'partition' failed); "
            "name a data set: fedbench train digits --dir 0.3 --method fedavg",
        ),
        ("evaluate", "there is no current run; 'fedbench train' makes one"),
        ("compare", "there is no run in"),
    ):
        assert bad(*command.split()).startswith(f"fedbench: {line}")
        assert complete(home) == {}
    shutil.copytree(prepared, home, dirs_exist_ok=True)
    good("remove", Store(home).current["partition"], "--yes")
    assert "no partition" in bad("train", "-m", "fedavg", "--budget", "smoke")


def test_images_that_are_not_the_recipes(home: Path, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path, images="0" * 64)
    said = bad("partition", recipe, "--iid", "--clients", "3")
    assert "images.gz is not the file that its recipe me" in said
    assert complete(home) == {}
    assert "partition" not in Store(home).current
    own_recipe(tmp_path)
    good("partition", recipe, "--iid", "--clients", "3")


@pytest.mark.parametrize("word", ["a\nb", "a\0b", "\x1b[31m", "\udcff", "a\u2028b"])
def test_words_that_are_no_text(word: str) -> None:
    for arguments in (("show", word), ("list", "--home", word), ("train", "-m", "fedavg", "--protocol", word)):
        assert "the command line holds" in bad(*arguments)


def test_what_does_not_fit_the_partition(home: Path) -> None:
    flux = "flux --shift px --level 1 --clients 4 --phases"
    for partition, chosen, says in (
        (f"{flux} 2", "-m fedavg --rounds 4 --drifts 2,3", "drift at the beginning of 1 of the rounds 2 to 4"),
        (f"{flux} 2", "-m ftw_erm --rounds 4 --drifts 2 --steps 1 --momentum 0", "these data drift later"),
        (f"{flux} 3", "-m fedavg --drifts five", "--drifts of train takes a list, not 'five'; such as 5,8"),
        ("ftw_erm", "-m ftw_erm --ratios hdrm", "is to give 100 to the pool"),
    ):
        good("partition", "digits", "--protocol", *partition.split())
        assert says in bad("train", *chosen.split(), "--budget", "smoke")


def test_a_device_stays_one_and_on_a_full_disk_nothing_is_left(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "out.json"
    link.symlink_to("/dev/null")
    good("report", "-t", "ftw_erm/1", "-o", link)
    assert link.is_symlink()
    assert link.is_char_device()
    link.unlink()

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    said = fedbench("new", "method", "mine")
    line = "fedbench: cannot write mine.py (No space left on device); choose a folder with -o FOLDER"
    assert (said.code, said.line) == (2, line)
    assert list(tmp_path.iterdir()) == []

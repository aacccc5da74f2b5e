"""`fedbench demo`: from images to a table and a learning curve on the embedded digits, in less than a minute."""

from __future__ import annotations

import time
from typing import Annotated

from rich.text import Text

from fedbench.cli import context
from fedbench.cli.parser import App
from fedbench.words import duration

DATASET, ALPHA = "digits", 0.3

app = App()

METHODS = ("local", "fedavg", "ditto")


@app.command("demo")
def demo(budget: Annotated[str, "Budget: small or smoke."] = "small") -> None:
    """Partition scikit-learn's handwritten digits among ten clients, train three methods, and show their accuracy.

    Real images, no download, less than a minute. The same as 'fedbench train digits --dir 0.3 -m local -m
    fedavg -m ditto', with a learning curve.
    """
    from fedbench import partitions, protocol
    from fedbench.cli import train_methods
    from fedbench.cli.partition import partition_of
    from fedbench.partitions.view import display
    from fedbench.reports.figures.text import text_curves
    from fedbench.results.run import Run

    def rule(step: str, what: str) -> None:
        console.rule(Text.assemble((step, "bold"), f": {what}"))

    began = time.perf_counter()
    console, out, store = context.err(), context.out(), context.store()
    rules = protocol.load(protocol.default_for(DATASET))
    rules.method_params(METHODS[0], budget)  # raises FedbenchError for an unknown budget
    rule("1. partition", "number of images of each digit by client")
    spec = partition_of(DATASET, {"dir": ALPHA}, rules)
    store.set_current(partition=spec.id, protocol=rules.name)
    display(console, partitions.build(spec, store, context.roots()))
    rule("2. train", "each client alone; one model for all; a model for each, near the shared one")
    artifacts = train_methods.train_all(train_methods.jobs_of(METHODS, spec, rules, budget, {}, {}), rules, budget)
    rule("3. look", "accuracies and learning curves")
    train_methods.show_all(artifacts, rules)
    out.print()
    curves = {
        run.title: run.metrics.series("average_accuracy", "plain") for run in (Run.of(a, store) for a in artifacts)
    }
    percent = {title: [(t, 100 * value) for t, value in curve.items()] for title, curve in curves.items()}
    out.print(text_curves(percent, "round", "average accuracy (%)"))
    console.print(
        f"\nThe demo took {duration(time.perf_counter() - began)}. The same in one command, and next on CIFAR-10:"
    )
    methods = " ".join(f"-m {name}" for name in METHODS)
    for line in (
        f"train {DATASET} --dir {ALPHA} {methods}",
        "data fetch cifar10",
        "train cifar10 --protocol plain --dir 0.3 -m fedavg",
    ):
        console.print(f"  fedbench {line}")

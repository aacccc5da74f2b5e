"""One training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from fedbench.specs.base import Plain, Spec, check_seed, coerce, require, to_json
from fedbench.specs.fields import option
from fedbench.specs.partition import PartitionSpec

#: Most rounds: each is a row of the run's tables.
MOST_ROUNDS = 10_000_000
#: Most local epochs or steps per round: all batches of a round are planned before it.
MOST_PASSES = 1_000_000
TAILS = ("drop", "keep")
SCHEDULES = ("constant", "cosine")
AUGMENTS = ("none", "crop", "pad_flip")
PASSES = ("endless",)
INITS = ("torch",)
PRECISIONS = ("fp32", "tf32", "bf16")
EXECUTORS = ("sequential", "cores", "stacked", "graphed", "streams")
OPTIMIZERS = ("sgd", "adamw")
#: Rules that select the round whose models answer.
SELECTIONS = ("best",)
#: How clients count in the server's mean.
WEIGHTINGS = ("size", "uniform")


@dataclass(frozen=True)
class Setting(Spec):
    """All parameters of a run except its method: a column of a table compares runs of one setting.

    It names no budget: a budget is a protocol's name for a training and its seeds, which is looked up
    (`planner.budgets`).
    """

    kind: ClassVar[str] = "setting"
    schema: ClassVar[int] = 2
    partition: PartitionSpec
    model: str = option(help="Network, NAME[:OPTION=VALUE], torchvision:NAME or FILE.py:Class (budget's).")
    rounds: int = option(help="Communication rounds.", least=1, limit=MOST_ROUNDS)
    _: KW_ONLY
    # Exactly one of epochs and steps.
    epochs: int | None = option(None, "Local epochs per round.", least=1, limit=MOST_PASSES)
    steps: int | None = option(None, "Local steps per round.", least=1, limit=MOST_PASSES)
    tail: str = option("keep", choices=TAILS)  #: whether to keep or drop a pass's last, smaller batch
    batch_size: int = option(help="Images per batch.", least=1)
    lr: float = option(help="Learning rate.", above=0, called="the learning rate")
    schedule: str = option("constant", choices=SCHEDULES)  #: of the learning rate over rounds
    #: None: sgd. AdamW uses torch's betas and eps.
    optimizer: str | None = option(
        None, "Optimiser of the local steps: sgd or adamw (torch's betas).", choices=OPTIMIZERS
    )
    momentum: float = option(0.0, "Momentum of SGD.", least=0, below=1)
    #: True: every pass over the data has a new optimiser, with new momentum. None: every training request has.
    momentum_restarts: bool | None = option(None)
    #: True: a client keeps its optimiser, and so its momentum, from round to round.
    momentum_lives: bool | None = option(None, "Keep a client's momentum between rounds.")
    #: SGD adds it to the gradient; AdamW's is decoupled.
    weight_decay: float = option(0.0, "Weight decay of the optimiser.", least=0)
    #: The round whose models answer; None: the last.
    select: str | None = option(
        None,
        "Round whose models predict: last or best (the lowest validation loss; overrides --score).",
        choices=SELECTIONS,
    )
    #: None: size.
    weighting: str | None = option(None, "Clients' weights in the server's mean: size or uniform.", choices=WEIGHTINGS)
    window: int = option(1, least=1)  #: evaluate after each of the last `window` rounds
    every: int = option(
        0,
        "Evaluate after every N rounds (0: only the last rounds that count).",
        least=0,
        metavar="N",
        hint="0: only the last rounds that count",
    )
    participation: float = option(1.0, "Probability that a client joins a round.", above=0, most=1)
    cohort: int | None = option(None)  #: clients that take part in a round, drawn uniformly without replacement
    #: "endless": a shuffled pass continues over rounds; None: every training request begins a new one.
    passes: str | None = option(None, choices=PASSES)
    full_last_round: bool = option(False)  #: every client takes part in the last round
    augment: str = option("none", choices=AUGMENTS)  #: crop: training and test images; pad_flip: training images
    #: Rounds (1-based) that begin the next drift phase of the training data.
    drifts: tuple[int, ...] | None = option(
        None, "Rounds in which the second and later phases of drifting data begin.", metavar="T,T", hint="such as 5,8"
    )
    votes: bool = option(True)  #: every client's model answers all test images (else only those of its client)
    seed: int = option(
        help="Seed of initial weights, cohorts and batches.", hint="for several seeds: fedbench sweep --seeds 1,2"
    )
    init_seed: int | None = option(None)  #: of the initial weights (None: the run's seed)
    #: "torch": initial weights by torch.manual_seed; None: by fedbench's random stream.
    init: str | None = option(None, choices=INITS)
    #: FLUX's test phase: after the last round every client is served once more, as one without labels.
    test_phase: bool | None = option(None)
    precision: str = option("fp32", "Precision of arithmetic: fp32, tf32, bf16 (the budget's).", choices=PRECISIONS)
    #: Set where times are compared; None: any, since it changes only times.
    executor: str | None = option(None, choices=EXECUTORS)
    version: int = 1  #: of the trainer core
    model_version: int | None = None  #: of the network (None: 1)

    def __post_init__(self) -> None:
        self._check_types()
        require((self.epochs is None) != (self.steps is None), "give either local epochs or local steps, not both")
        self._check_values()
        check_seed(self.seed)
        trainees = self.partition.trainees
        require(
            self.cohort is None or (self.participation == 1 and 1 <= self.cohort <= trainees),
            f"a cohort must be 1 to {trainees} clients, and no participation below 1 beside it",
        )
        require(
            self.passes != "endless" or self.steps is not None, "endless passes go with local steps, not local epochs"
        )
        # Values without an effect become None, so that equal settings have one id.
        for name in ("momentum_restarts", "momentum_lives", "test_phase"):
            object.__setattr__(self, name, getattr(self, name) or None)
        if self.model_version == 1:
            object.__setattr__(self, "model_version", None)
        require(
            not (self.momentum_restarts and self.momentum_lives),
            "momentum cannot both live and restart with every pass",
        )
        require(
            not self.momentum_lives or self.momentum > 0 or self.optimizer == "adamw",
            "there is no momentum that could live",
            "for example --momentum 0.9 --momentum-lives",
        )
        if self.init_seed is not None:
            check_seed(self.init_seed, "init_seed")
        phases, drifts = self.partition.phases or 1, self.drifts or ()
        rising = list(drifts) == sorted(set(drifts)) and all(2 <= t <= self.rounds for t in drifts)
        require(phases > 1 or not drifts, "this partition's data do not drift", "make one that does with --phases 3")
        require(
            rising and len(drifts) == phases - 1,
            f"training data in {phases} phases drift at the beginning of {phases - 1} of the rounds "
            f"2 to {self.rounds}, in rising order, not of {list(drifts)}",
            "for example --rounds 12 --drifts 5,8 with 3 phases",
        )
        require(
            not self.partition.dataset.vectors or self.augment == "none",
            f"{self.partition.dataset.name} holds vectors, which have no {self.augment}: only images are augmented",
            "fedbench's protocol for vectors is plain (--protocol plain)",
        )
        for name, usual in (("optimizer", "sgd"), ("weighting", "size")):  # the default has one id
            if getattr(self, name) == usual:
                object.__setattr__(self, name, None)
        require(
            self.optimizer is None or not self.momentum,
            f"momentum is SGD's: {self.optimizer} has betas of its own",
            "leave the momentum out, or take --optimizer sgd",
        )

    @cached_property
    def but_for_seeds(self) -> str:
        """Canonical JSON without seeds: equal for settings that differ only in seeds."""
        return replace(self, seed=0, init_seed=None, partition=replace(self.partition, seed=0)).text

    @cached_property
    def training(self) -> str:
        """Canonical JSON without what is asked of the training: equal for settings that train the same models."""
        return replace(self, window=1, every=0, votes=True, test_phase=None).text

    def covers(self, other: Setting) -> bool:
        """Whether a run in this setting has every answer of one in `other`: the same training, and all its rounds,
        images and phases. Where the evaluated rounds choose the round that answers, they must be the same."""
        ours, theirs = set(self.evaluated_rounds()), set(other.evaluated_rounds())
        return (
            self.training == other.training
            and (theirs == ours if self.select else theirs <= ours)
            and self.votes >= other.votes
            and bool(self.test_phase) >= bool(other.test_phase)
        )

    @property
    def initial_seed(self) -> int:
        """The seed of the initial weights."""
        return self.seed if self.init_seed is None else self.init_seed

    @property
    def descent(self) -> str:
        """The optimiser in words, such as SGD with momentum 0.9 and weight decay 0.0005."""
        momentum = "living momentum" if self.momentum_lives else "momentum"
        named = ((momentum, self.momentum), ("weight decay", self.weight_decay))
        values = " and ".join(f"{name} {value:g}" for name, value in named if value)
        return ("AdamW" if self.optimizer == "adamw" else "SGD") + (f" with {values}" if values else "")

    def evaluated_rounds(self) -> list[int]:
        """Rounds (1-based) after which the models are evaluated."""
        last = range(max(1, self.rounds - self.window + 1), self.rounds + 1)
        sparse = range(self.every, self.rounds + 1, self.every) if self.every else range(0)
        return sorted({*last, *sparse})


@dataclass(frozen=True)
class RunSpec(Spec):
    """One training run: a method with its hyper-parameters in a setting."""

    kind: ClassVar[str] = "run"
    schema: ClassVar[int] = 2
    setting: Setting
    method: str
    params: Mapping[str, Plain] = field(default_factory=dict)  #: all, with defaults (except those of `later` ones)
    method_version: int = 1
    source: str | None = None  #: digest of the code of a user's method (plugins/source.py)

    def __post_init__(self) -> None:
        self._check_types()
        for name in self.params:
            require(isinstance(name, str), f"RunSpec.params: a hyper-parameter's name cannot be {name!r}")
        params = {name: coerce(f"hyper-parameter {name}", Plain, value) for name, value in self.params.items()}
        object.__setattr__(self, "params", params)

    @property
    def but_for_seeds(self) -> str:
        """Canonical JSON without seeds (run, partition, initial weights): equal for runs that differ only in seeds."""
        rest = {"method": self.method, "params": self.params, "version": self.method_version, "source": self.source}
        return to_json([self.setting.but_for_seeds, rest])

    @property
    def training(self) -> str:
        """Canonical JSON without what is asked of the training (`Setting.training`)."""
        rest = {"method": self.method, "params": self.params, "version": self.method_version, "source": self.source}
        return to_json([self.setting.training, rest])

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True)
class MetricsSpec(Spec):
    """The metrics of one run, computed from its predictions and tables."""

    kind: ClassVar[str] = "metrics"
    schema: ClassVar[int] = 2
    run: RunSpec
    version: int = 1

    def __post_init__(self) -> None:
        self._check_types()

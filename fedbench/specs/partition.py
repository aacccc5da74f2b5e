"""Who holds which sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from fedbench.errors import FedbenchError, unknown
from fedbench.specs.base import Spec, check_seed, require
from fedbench.specs.dataset import DatasetSpec

SCHEMES = ("dirichlet", "limited", "shards", "iid", "natural", "mixture", "colored", "equal", "sampled")
#: Schemes that draw each client's training and test samples apart, from the data set's own split.
DRAWN_APART = ("mixture", "colored", "equal", "sampled")
#: Schemes that do not look at labels, so that images may have many of them.
LABEL_FREE = ("iid", "natural", "sampled")

#: Clients at most: each is a row of every table, and a model of its own under most methods.
MOST_CLIENTS = 10_000_000
#: Copies of a training sample at most: each takes a place in memory (FLUX has 96).
MOST_COPIES = 10_000

#: One row of numbers a client or a group of clients.
Rows = tuple[tuple[float, ...], ...]
SHIFTS = ("none", "low", "mid", "high", "pool", "corrupted", "corrupted_code")
#: Shifts of FLUX (scheme equal), each at LEVELS levels, or in stages at DRIFT_LEVELS: what differs between clients.
LEVELLED = {
    "px": "P(X)", "py": "P(Y)", "pyx": "P(Y|X)", "pxy": "P(X|Y)",
    "px+py": "P(X) and P(Y)", "pxy+py": "P(X|Y) and P(Y)", "pyx+py": "P(Y|X) and P(Y)",
}  # fmt: skip
LEVELS, DRIFT_LEVELS = 8, 3
#: Common image corruptions in the order in which CIFAR-S deals them out, at severities 1 to SEVERITIES.
CORRUPTIONS = (
    "motion_blur", "defocus_blur", "gaussian_noise", "shot_noise", "impulse_noise",
    "frost", "fog", "jpeg", "brightness", "contrast",
)  # fmt: skip
SEVERITIES = 5


def corruption(text: str) -> tuple[str, int]:
    """(name, severity) of a corruption as a spec writes it, such as 'fog-3'. Raises FedbenchError for others."""
    name, _, severity = text.rpartition("-")
    if not name:
        raise FedbenchError(f"corruption '{text}' has no severity", f"for example {text}-3")
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, CORRUPTIONS)
    if severity not in {str(s) for s in range(1, SEVERITIES + 1)}:
        raise FedbenchError(f"the severity of a corruption is 1 to {SEVERITIES}, not '{severity}' (in '{text}')")
    return name, int(severity)


#: What only equal shards can have.
_EQUAL_ONLY = ("strict", "fewer_classes", "duplicates", "data_share", "stages")
#: ... and what only samples of natural groups can have.
_SAMPLED_ONLY = ("test_size", "cut", "apart", "leaky")


@dataclass(frozen=True)
class PartitionSpec(Spec):
    """Who holds which sample, in which split, seen through which shift."""

    kind: ClassVar[str] = "partition"
    dataset: DatasetSpec
    scheme: str  #: one of SCHEMES
    clients: int
    seed: int
    train_fraction: float | None = None  #: of each client's samples; the rest is its test set (not if DRAWN_APART)
    shift: str = "none"  #: one of SHIFTS: the covariate shift each client sees its images through
    alpha: float | None = None  #: Dirichlet concentration (schemes dirichlet and limited)
    min_size: int | None = None  #: redraw until every client holds as many samples (scheme dirichlet)
    #: Samples that each client draws: by a label prior of its own (limited); training samples of its group (sampled).
    size: int | None = None
    within: str | None = None  #: column whose groups are dealt out apart, each to as many clients (scheme dirichlet)
    cap: int | None = None  #: samples that are taken of each group of `within` at most, drawn at random
    subsample: float | None = None  #: share of its training samples that a client keeps; smaller sets lie in larger
    newcomers: int | None = None  #: so many of the last clients never train; they join after the last round
    #: ... and each of them joins again, as a client of its own behind all others, under each of these corruptions
    #: ('fog-3'), on both sides of its split.
    newcomers_as: tuple[str, ...] | None = None
    shards: int | None = None  #: shards a client, S of S-SPC (scheme shards)
    #: Column of the natural groups (natural); column, or several as 'view+age', whose groups clients draw from
    #: (sampled).
    by: str | None = None
    #: Scheme mixture: class probabilities up to a factor, one row a group of clients; rows repeat for its clients.
    train_mix: Rows | None = None
    test_mix: Rows | None = None
    keep: tuple[float, ...] | None = None  #: share of its training samples that each group keeps (default: all)
    disjoint: bool | None = None  #: a group's clients share its samples out; else all of them hold the same
    #: Scheme colored: rows (first and last training image, first and last test image) of the data set, and
    #: probabilities (of the training and of the test images) that the colour is flipped, a client.
    blocks: Rows | None = None
    flips: Rows | None = None
    label_noise: float | None = None  #: probability that the binary label is flipped (scheme colored)
    validation: float | None = None  #: share of a client's training samples that is held back from training
    round_robin: bool | None = None  #: natural groups are dealt to the clients in turn, and shared out (scheme natural)
    level: int | None = None  #: of a shift of LEVELLED, from the mildest, 1 (this and what follows: scheme equal)
    strict: bool | None = None  #: under P(X|Y) all classes that a client sees turned share one angle
    fewer_classes: bool | None = None  #: mixed with P(Y), a client keeps 11 - level classes (else 4 at every level)
    duplicates: int | None = None  #: every training sample is there so many times
    data_share: float | None = None  #: mean of the clients' drawn shares of all training samples (else equal shards)
    stages: int | None = None  #: of the training data, one after another, each of a distribution of its own
    test_size: int | None = None  #: test samples of each client (this and what follows: scheme sampled)
    cut: float | None = None  #: columns of numbers make two groups: below the cut, and from it on
    apart: str | None = None  #: column (patient): what training images have there, test images do not
    leaky: bool | None = None  #: the released code's: the first samples of the client's group, the same on both sides
    version: int = 1

    def __post_init__(self) -> None:
        self._check_types()
        for what, value, known in (
            ("partition scheme", self.scheme, SCHEMES),
            ("shift", self.shift, (*SHIFTS, *LEVELLED)),
        ):
            if value not in known:
                raise unknown(what, value, known)
        require(self.clients >= 1, f"the number of clients must be at least 1, not {self.clients}")
        require(
            self.clients <= MOST_CLIENTS, f"the number of clients must be at most {MOST_CLIENTS:,}, not {self.clients}"
        )
        check_seed(self.seed)
        if self.scheme in DRAWN_APART:
            own = self.scheme == "equal"
            require(
                self.train_fraction is None and (self.shift == "none" or (own and self.shift in LEVELLED)),
                f"{self._named} has no training share and no covariate shift "
                + (f"but these: {', '.join(LEVELLED)}" if own else "of its own"),
            )
        else:
            require(
                self.train_fraction is not None and 0 < self.train_fraction < 1,
                f"the training share must lie between 0 and 1, not {self.train_fraction}",
                "0.7 gives 70 % training and 30 % test images",
            )
        if self.scheme == "dirichlet":
            require(self.alpha is not None and self.alpha > 0, f"Dirichlet alpha must be above 0, not {self.alpha}")
            require(
                self.min_size is None or self.min_size >= 1, f"the minimum size must be at least 1, not {self.min_size}"
            )
        if self.scheme == "limited":
            require(self.alpha is not None and self.alpha > 0, f"Dirichlet alpha must be above 0, not {self.alpha}")
            require(self.size is not None and self.size >= 2, f"a client needs 2 samples at least, not {self.size}")
        self._check_parts()
        self._check_levels()
        if self.scheme == "shards":
            require(
                self.shards is not None and self.shards >= 1, f"shards per client must be at least 1, not {self.shards}"
            )
        if self.scheme in ("natural", "sampled"):
            require(bool(self.by), f"{self._named} needs the column to part by", "for example --by writer")
        if self.scheme == "mixture":
            self._check_mixture()
        if self.scheme == "colored":
            self._check_colored()

    def _check_parts(self) -> None:
        """Groups dealt out apart, subsampling and newcomers."""
        require(
            self.within is None or self.scheme == "dirichlet",
            f"scheme {self.scheme} cannot deal out the groups of a column apart: only dirichlet can",
        )
        require(
            self.size is None or self.scheme in ("limited", "sampled"),
            f"scheme {self.scheme} cannot give every client {self.size} samples: only limited and sampled can",
        )
        require(
            self.cap is None or self.within is not None,
            "a cap needs the column whose groups it limits",
            "for example --within domain",
        )
        require(self.cap is None or self.cap >= 2, f"the cap of a group must be 2 samples at least, not {self.cap}")
        for name in ("subsample", "newcomers", "validation"):
            able = {"newcomers": (), "validation": ("equal", "sampled")}.get(name, ("equal",))
            require(
                getattr(self, name) is None or self.scheme not in DRAWN_APART or self.scheme in able,
                f"{self._named} has no {name}",
                "a mixture has `keep` for a share of the training samples" if name == "subsample" else "",
            )
        require(
            self.subsample is None or 0 < self.subsample <= 1,
            f"the share of training samples to keep must lie in (0, 1], not {self.subsample}",
        )
        require(
            self.newcomers is None or 1 <= self.newcomers < self.clients,
            f"{self.newcomers} of {self.clients} clients cannot be newcomers",
            "at least one must be, and at least one must train",
        )
        again = self.newcomers_as or ()
        require(
            not again or self.newcomers is not None,
            "newcomers_as says how newcomers look, but there are none",
            "say how many of the clients are newcomers",
        )
        for text in again:
            corruption(text)
            require(again.count(text) == 1, f"newcomers_as names {text} twice")
        # What changes nothing is left out, so that a partition has one id.
        if self.subsample == 1:
            object.__setattr__(self, "subsample", None)
        if not again:
            object.__setattr__(self, "newcomers_as", None)

    def _check_levels(self) -> None:
        """Validation samples, natural groups dealt in turn, and all that only equal shards can have."""
        require(
            self.validation is None or 0 < self.validation < 1,
            f"the share of training samples for validation must lie between 0 and 1, not {self.validation}",
        )
        only = (
            ("natural", "round_robin"),
            *(("equal", name) for name in _EQUAL_ONLY),
            *(("sampled", name) for name in _SAMPLED_ONLY),
        )
        for scheme, name in only:
            require(
                self.scheme == scheme or not getattr(self, name),
                f"scheme {self.scheme} has no {name.replace('_', ' ')}: only {scheme} has",
            )
        if self.shift in LEVELLED:
            require(
                self.scheme == "equal",
                f"shift {self.shift} goes with scheme equal only, not with {self.scheme}",
                "--protocol flux has it, or --equal",
            )
            top = LEVELS if self.stages is None else DRIFT_LEVELS
            require(
                self.level is not None and 1 <= self.level <= top,
                f"shift {self.shift} has levels 1 to {top}{' in stages' if self.stages else ''}, "
                + ("and none is given" if self.level is None else f"not {self.level}"),
                "for example --level 1",
            )
        else:
            require(
                self.level is None, f"level {self.level} of which shift?", f"these have levels: {', '.join(LEVELLED)}"
            )
        require(not self.strict or "pxy" in self.shift, "strict is of P(X|Y) only", "choose shift pxy, or leave it out")
        mixed = "+" in self.shift
        require(not self.fewer_classes or mixed, "fewer_classes is of mixed shifts only", "for example shift px+py")
        require(
            self.duplicates is None or self.duplicates >= 1,
            f"every training sample must be there at least once, not {self.duplicates} times",
        )
        require(
            (self.duplicates or 1) <= MOST_COPIES,
            f"every training sample can be there {MOST_COPIES:,} times at most, not {self.duplicates}",
        )
        require(
            self.data_share is None or 0 < self.data_share * self.clients <= 1,
            f"{self.clients} clients cannot hold {self.data_share} of all training samples each",
            "their shares must lie above 0 and make 1 at most",
        )
        require(
            self.stages is None or (2 <= self.stages <= 100 and self.shift in LEVELLED and not mixed),
            f"{self.stages} stages: there must be 2 to 100 of them, under one of the shifts px, py, pyx and pxy",
        )
        require(self.stages is None or not self.strict, "stages have a P(X|Y) of their own", "leave strict out")
        if self.scheme == "sampled":
            least = 1 if self.validation is None else 2
            require(
                self.size is not None and self.size >= least and self.test_size is not None and self.test_size >= 1,
                f"every client needs a size of {least} at least and a test_size of 1 at least, "
                f"not {self.size} and {self.test_size}",
            )
            require(not (self.leaky and self.apart), "leaky training and test images are the same: nothing is apart")
        # What changes nothing is left out, so that a partition has one id.
        for name in ("round_robin", "strict", "fewer_classes", "leaky"):
            object.__setattr__(self, name, getattr(self, name) or None)
        if self.duplicates == 1:
            object.__setattr__(self, "duplicates", None)

    @property
    def _named(self) -> str:
        return f"{'an' if self.scheme == 'equal' else 'a'} {self.scheme} partition"

    @property
    def details(self) -> list[str]:
        """What a person should know of the partition besides scheme, shift and numbers, in a few words each."""
        own = [f"level {self.level}"] if self.level else []
        own += ["one angle for all classes of a client"] if self.strict else []
        own += [f"{11 - self.level} classes a client"] if self.fewer_classes and self.level else []
        own += [f"{self.stages} stages"] if self.stages else []
        own += [f"training shares drawn around {100 * self.data_share:g} %"] if self.data_share else []
        own += [f"{100 * self.validation:g} % of the training images for validation"] if self.validation else []
        own += [f"every training image {self.duplicates} times"] if self.duplicates else []
        if self.within:
            own.append(f"within {self.within}" + (f", at most {self.cap:,} samples of each" if self.cap else ""))
        if self.scheme == "sampled":
            own.append(f"{self.size} training and {self.test_size} test images a client")
            own += [] if self.cut is None else [f"cut at {self.cut:g}"]
            own += [f"every {self.apart} on one side only"] if self.apart else []
            own += ["training images among the test images, the same for all clients of a group"] if self.leaky else []
        if self.subsample:
            own.append(f"training images subsampled to {100 * self.subsample:g} %")
        if self.newcomers:
            again = ", ".join(text.replace("_", " ").replace("-", " ") for text in self.newcomers_as or ())
            for severity in range(1, SEVERITIES + 1):
                if set(self.newcomers_as or ()) == {f"{name}-{severity}" for name in CORRUPTIONS}:
                    again = f"each corruption at severity {severity}"
            who = f"{self.newcomers} newcomers" if self.newcomers > 1 else "1 newcomer"
            own.append(who + (f", again under {again}" if again else ""))
        return own

    @property
    def outsiders(self) -> int:
        """Clients that never train: newcomers, and those that they are again under corruptions. They come last."""
        return (self.newcomers or 0) * (1 + len(self.newcomers_as or ()))

    @property
    def all_clients(self) -> int:
        """Clients of the partition: those it was dealt to, and newcomers under corruptions."""
        return self.clients + self.outsiders - (self.newcomers or 0)

    def _check_mixture(self) -> None:
        """Rows of one width, none of them empty, and a whole number of clients a group."""
        sides = {"train_mix": self.train_mix, "test_mix": self.test_mix}
        widths = set()
        for name, rows in sides.items():
            if not rows:
                raise FedbenchError(f"a mixture partition needs {name}: class probabilities, one row a group")
            for group, row in enumerate(rows):
                widths.add(len(row))
                require(
                    all(p >= 0 for p in row) and 0 < sum(row) < math.inf,
                    f"{name}, row {group}: class probabilities cannot be negative, nor all zero, nor huge",
                )
        assert self.train_mix is not None
        assert self.test_mix is not None
        groups = len(self.train_mix)
        require(len(widths) == 1, f"train_mix and test_mix have rows of different lengths: {sorted(widths)} classes")
        require(
            groups == len(self.test_mix), f"train_mix has {groups} rows and test_mix {len(self.test_mix)}: one a group"
        )
        require(self.clients % groups == 0, f"{self.clients} clients cannot be {groups} groups of the same size")
        require(
            self.keep is None or (len(self.keep) == groups and all(0 < k <= 1 for k in self.keep)),
            f"keep needs a share in (0, 1] for each of the {groups} groups, not {self.keep}",
        )

    def _check_colored(self) -> None:
        """Four bounds and two probabilities a client, and a probability of label noise."""
        for name, rows, width in (("blocks", self.blocks, 4), ("flips", self.flips, 2)):
            require(
                rows is not None and len(rows) == self.clients and all(len(row) == width for row in rows),
                f"a colored partition needs {name}: {width} numbers for each of its {self.clients} clients",
            )
        assert self.blocks is not None
        assert self.flips is not None
        for client, row in enumerate(self.blocks):
            a, b, c, d = row
            require(
                all(v.is_integer() for v in row) and 0 <= a < b and 0 <= c < d,
                f"blocks, row {client}: needs two ranges of whole numbers, first < last, not {list(row)}",
            )
        for one, (a, b, *_) in enumerate(self.blocks):
            for other, (*_, c, d) in enumerate(self.blocks):
                require(b <= c or d <= a, f"blocks: client {one} trains on test images of client {other}")
        noise = self.label_noise
        require(
            all(0 <= e <= 1 for row in self.flips for e in row) and noise is not None and 0 <= noise <= 1,
            "flips and label_noise are probabilities in [0, 1]",
        )

    @property
    def label(self) -> str:
        """The field's short name of the scheme, such as Dir-0.3, 5-SPC, IID, or of the shift at its level."""
        if self.scheme in ("dirichlet", "limited"):
            return f"Dir-{self.alpha:g}" + (f" ({self.size} samples each)" if self.size else "")
        if self.scheme == "shards":
            return f"{self.shards}-SPC"
        if self.level is not None:
            return f"{LEVELLED[self.shift]} level {self.level}"
        drawn = self.round_robin or self.scheme == "sampled"
        by = f"by {self.by}" + ((", dealt in turn" if self.round_robin else ", drawn") if drawn else "")
        return {"iid": "IID", "mixture": "target shift", "colored": "coloured", "equal": "equal shards"}.get(
            self.scheme, by
        )

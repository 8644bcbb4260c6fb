"""Settings of the run as a whole: data, federation, budget, trust."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from fedpriv.settings.base import SettingsModel


class RunSettings(SettingsModel):
    """What every stage shares."""

    title: ClassVar[str] = "Run"

    stages: str = Field(
        "tune,train",
        description="Stages in order, separated by commas: tune, train, zeroth-order, paczero, matrix.",
    )
    task: str = Field(
        "digits",
        description="Data and model: digits, fashion-mnist, mnist, cifar10, adult, breast-cancer, sentiment.",
    )
    model: str = Field(
        "",
        description='Model of the task; "" takes its default (logistic; of sentiment the part to train: readout, head, '
        "last-block, lora, all).",
    )
    language_model: str = Field(
        "", description='sentiment: language model, a folder or a hub name; "" takes the fetched smollm2.'
    )
    language_data: str = Field(
        "",
        description='sentiment: a data set on the hub, for instance sst2; "" takes the fetched movie reviews.',
    )
    max_examples: int = Field(0, ge=0, description="Use only so many examples of the data set; 0 for all.")
    unit: Literal["client", "record"] = Field(
        "client",
        description="What is protected: all data of a client, or one record inside a silo (stages train and "
        "zeroth-order then read the keys record.*; the sizes of the silos count as public).",
    )
    num_clients: int = Field(50, ge=1, description="Clients in the federation; must match what is online.")
    partition: Literal["iid", "dirichlet"] = Field("dirichlet", description="Simulated split of the data.")
    alpha: float = Field(0.5, gt=0, description="Dirichlet concentration over labels; small is more skewed.")
    min_partition_size: int = Field(
        5, ge=1, description="Fewest examples of a client: simulated, or rows of a silo's own file."
    )
    seed: int = Field(
        0, ge=0, description="Seed of everything that is not secret: split, models, data order."
    )
    holdout_fraction: float = Field(
        0.2, gt=0, lt=1, description="Public hold-out taken out before the split; belongs to no client."
    )
    validation_fraction: float = Field(
        0.25, ge=0, lt=1, description="Part of each client's own data that it keeps for validation."
    )
    run_dir: str = Field(
        "",
        description='Folder of run folders; "" is ./runs under the folder the app runs from. Best absolute.',
    )
    name: str = Field("", description='Name of the run\'s folder; "" makes one from date and task.')
    resume: str = Field("", description="Name of a run to continue from its last checkpoint.")
    account: str = Field(
        "", description='Ledger file shared by several runs on the same data; "" keeps one per run.'
    )

    target_epsilon: float = Field(8.0, gt=0, description="Epsilon of the whole run in the budget view.")
    delta: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Delta; 0 takes 1 / num-clients^1.5, at most 0.01; with unit = record 1e-5.",
    )
    adjacency: Literal["add_or_remove", "replace_one"] = Field(
        "add_or_remove", description="Neighbouring relation: a client's contribution zeroed, or replaced."
    )
    budget_view: Literal["server", "participants", "release"] = Field(
        "server", description="The adversary whose epsilon target-epsilon and max-epsilon bound."
    )
    tune_share: float = Field(0.1, gt=0, lt=1, description="Part of the budget that the vote may use.")
    max_epsilon: float = Field(
        0.0, ge=0, description="Hard stop before the release that would exceed it; 0 takes target-epsilon."
    )

    secure_sum: Literal["protocol", "simulated"] = Field(
        "protocol",
        description="Real SecAgg+ messages, or a plain sum of the same integers (simulation only).",
    )
    noise: Literal["distributed", "central"] = Field(
        "distributed",
        description="Each client adds a share, or the server adds all (no guarantee against it).",
    )
    sampling: Literal["full", "self", "server"] = Field(
        "full",
        description="Everyone each round; each client tosses its own secret coin; or the server draws "
        "(Poisson under add_or_remove, fixed size under replace_one).",
    )
    sampling_rate: float = Field(1.0, gt=0, le=1, description="Expected part of the clients in a round.")
    min_survivors: int = Field(
        0,
        ge=0,
        description="Fewest clients that a sum may hold; noise is sized for it. 0: 90 % of those asked.",
    )
    colluders: int = Field(0, ge=0, description="Clients whose noise shares the adversary may know.")
    share_threshold: int = Field(
        0, ge=0, description="Shamir shares needed per neighbourhood; 0: two thirds plus one."
    )
    neighbours: int = Field(
        0, ge=0, description="Neighbours per client in the secure sum; 0: chosen by size."
    )
    timeout: float = Field(300.0, gt=0, description="Seconds to wait for the replies of one exchange.")
    wait_for_clients: float = Field(120.0, gt=0, description="Seconds to wait until all clients are online.")
    on_abort: Literal["continue", "stop"] = Field(
        "continue", description="After a round without enough survivors: next round, or end the stage."
    )
    seeded_noise: bool = Field(
        False, description="Reproducible noise, for simulation only: the report says it is not private."
    )

    evaluate: Literal["public", "private", "clear", "none"] = Field(
        "public",
        description="Public hold-out at the server; noised counts of the clients; their metrics in the clear "
        "(no guarantee covers them); nothing.",
    )
    evaluate_every: int = Field(1, ge=1, description="Rounds between evaluations.")
    evaluate_cap: int = Field(50, ge=1, description="private: most examples that one client counts.")
    evaluate_noise: float = Field(10.0, gt=0, description="private: noise multiplier of one evaluation.")

    @field_validator("stages")
    @classmethod
    def _stages(cls, value: str) -> str:
        names = [name.strip() for name in value.split(",") if name.strip()]
        if not names:
            raise ValueError("at least one stage, for instance 'tune,train'")
        if len(set(names)) != len(names):
            raise ValueError("each stage at most once")
        return ",".join(names)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages in order."""
        return tuple(self.stages.split(","))

    @property
    def members(self) -> str:
        """What the parties of the run are called."""
        return "clients" if self.unit == "client" else "silos"

    @property
    def resolved_delta(self) -> float:
        """The delta in use."""
        if self.delta > 0:
            return self.delta
        return 1e-5 if self.unit == "record" else min(self.num_clients**-1.5, 0.01)

    @property
    def resolved_max_epsilon(self) -> float:
        """The hard stop in use."""
        return self.max_epsilon if self.max_epsilon > 0 else self.target_epsilon

"""How the versions of a model are chosen and served: by the settings, or by the configuration sent with a load."""

from dataclasses import dataclass

from service.repository.versions import VersionPolicy


@dataclass(frozen=True)
class ServingOptions:
    """Options of one model; the settings of the same names are the default."""

    policy: VersionPolicy
    max_batch_size: int  # rows of a request to a model with a batch axis
    batch_models: str = ""  # foreign models whose requests may share runs: names with commas, or all
    allow_timeout_override: bool = False  # as in Triton's queue policy: the parameter timeout of V2 is a deadline
    must_batch: bool = False  # a load asked for this max_batch_size: a model without a batch axis is refused

"""Which of a model's versions are served: ``all``, ``latest:N`` (the N highest), or those listed, ``1,3``."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PATTERN = r"^(all|latest:[1-9]\d*|\d+(,\d+)*)$"


@dataclass(frozen=True)
class VersionPolicy:
    """``latest`` counts from the highest; ``specific`` lists; neither set is all."""

    latest: int | None = None
    specific: tuple[int, ...] | None = None

    @classmethod
    def parse(cls, text: str) -> "VersionPolicy":
        """The policy a setting writes.

        Raises:
            ValueError: it is none of the three forms.
        """
        if not re.match(PATTERN, text):
            raise ValueError(f"expected all, latest:N or version numbers 1,3; got {text!r}")
        if text == "all":
            return cls()
        if text.startswith("latest:"):
            return cls(latest=int(text.removeprefix("latest:")))
        return cls(specific=tuple(map(int, text.split(","))))

    def choose(self, versions: Iterable[int]) -> list[int]:
        """Those to serve of the versions there are, lowest first."""
        there = sorted(versions)
        if self.specific is not None:
            return [version for version in there if version in self.specific]
        return there if self.latest is None else there[-self.latest :]

    def described(self) -> dict[str, Any]:
        """As a model configuration writes it."""
        if self.specific is not None:
            return {"specific": {"versions": list(self.specific)}}
        return {"all": {}} if self.latest is None else {"latest": {"num_versions": self.latest}}

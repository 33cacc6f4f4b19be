"""The cells of each part, in full and for a short trial. A cell is one measurement; its str is its name."""

from dataclasses import dataclass
from typing import Any

from models.catalogue import BLOCKS
from models.precision import name_in

BLOCK = "scaled_dot_product"
BATCH, HEADS, D = 8, 16, 64
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
WITH_WEIGHTS = LENGTHS[:-1]  # torch needs 137 GB for scores and weights at 16,384 in bfloat16


@dataclass(frozen=True)
class Numbers:
    """Checks of a block in one dtype against the float64 reference; ``short`` uses few examples and one random draw."""

    block: str
    dtype: str
    short: bool

    def __str__(self) -> str:
        return f"numbers/{name_in(self.block, self.dtype)}"


@dataclass(frozen=True)
class Suite:
    """A file of tests that run over HTTP."""

    file: str

    def __str__(self) -> str:
        return f"tests/{self.file}"


@dataclass(frozen=True)
class Engine:
    """Attention of ``n`` queries and keys on the device; ``path`` is output, or weights for both outputs."""

    path: str
    dtype: str
    is_causal: bool
    batch: int
    heads: int
    n: int
    d: int

    def __str__(self) -> str:
        causal = "-causal" if self.is_causal else ""
        return f"engine/{self.path}{causal}/{self.dtype}/{self.batch}x{self.heads}x{self.n}x{self.d}"


@dataclass(frozen=True)
class Http:
    """A closed loop on the service with V2 requests, float32, d 64."""

    encoding: str
    path: str
    batch: int
    heads: int
    n: int
    connections: int
    seconds: float
    rounds: int

    def __str__(self) -> str:
        return f"http/{self.encoding}/{self.path}/{self.batch}x{self.heads}x{self.n}x{D}/{self.connections}"


Cell = Numbers | Suite | Engine | Http


def numbers(blocks: list[str], dtypes: list[str], short: bool) -> list[Numbers]:
    return [Numbers(block, dtype, short) for dtype in dtypes for block in blocks or BLOCKS]


def tests() -> list[Suite]:
    return [Suite("service/system/test_numbers.py")]


def engine(dtypes: list[str], short: bool) -> list[Engine]:
    """The cells in order of importance: first the dtype of the gates, last float32."""
    order = [dtype for dtype in ("bfloat16", "float16", "float32") if dtype in dtypes]
    batch, heads = (1, 2) if short else (BATCH, HEADS)
    cells = []
    for dtype in order:
        for path, is_causal, lengths in (
            ("output", False, LENGTHS), ("weights", False, WITH_WEIGHTS), ("output", True, LENGTHS),
        ):  # fmt: skip
            cells += [Engine(path, dtype, is_causal, batch, heads, n, D) for n in ((64,) if short else lengths)]
    return cells


def http(short: bool) -> list[Http]:
    """The cells over HTTP; a body has at most 101 MB."""
    if short:
        return [Http("binary", "output", 1, 2, 64, 2, 1.0, 1)]
    sizes: dict[tuple[str, str], Any] = {
        ("binary", "output"): [(1, 2048), (4, 2048), (1, 128), (1, 512), (1, 8192), (4, 512)],
        ("binary", "weights"): [(1, 128), (1, 512), (1, 2048)],
        ("json", "output"): [(1, 128), (1, 512)],
        ("json", "weights"): [(1, 128), (1, 512)],
    }
    return [Http(*kind, batch, HEADS, n, 8, 4.0, 2) for kind, several in sizes.items() for batch, n in several]

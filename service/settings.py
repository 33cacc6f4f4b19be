"""The settings, read once at start from the flags of ``heed serve`` and from environment variables."""

import re
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import (
    AfterValidator,
    ByteSize,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.base import machine

MIB = 1 << 20
SIZE = TypeAdapter(Annotated[ByteSize, Field(le=(1 << 63) - 1)])
FRACTION = re.compile(r"\s*\d*\.\d*\s*")  # of a byte
PATTERNS = ("versions", "model_control_mode", "access_log")  # settings of words with numbers
BATCHING = ("auto", "all", "off")  # other words are names of models
POLL_SECONDS = 15.0
SLOW_MILLISECONDS = 1000.0
# Each group of `heed serve --help` begins with this field.
GROUPS = {
    "host": "network and access",
    "workers": "processes and devices",
    "model_repository": "models",
    "intra_op_threads": "threads",
    "max_body_bytes": "limits of requests",
    "memories": "stored memories",
    "max_run_seconds": "runs, queue and batches",
    "compress_responses": "responses",
    "drain_seconds": "shutdown",
    "pages": "pages",
    "log_level": "log and metrics",
}


def _readable(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    return path


def size_text(size: int) -> str:
    """``size`` in bytes as a setting is written: 134217728 is 128MiB."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


Port = Annotated[int, Field(ge=0, le=65535)]
Threads = Annotated[int, Field(ge=0, le=1024)]
Seconds = Annotated[float, Field(ge=0, le=10**9)]
PositiveSeconds = Annotated[float, Field(gt=0, le=10**9)]
ReadableFile = Annotated[Path, AfterValidator(_readable)]


class Settings(BaseSettings):
    """Serve a model repository over HTTP. Every flag can be set as an environment variable, too: --max-body-bytes is
    HEED_MAX_BODY_BYTES. The flag takes precedence."""

    model_config = SettingsConfigDict(
        env_prefix="HEED_",
        use_attribute_docstrings=True,  # the text below a field is its description; a longer one is in its Field
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
    )

    host: str = "127.0.0.1"
    """address to listen on; 0.0.0.0 listens on every interface"""
    port: Port = 8000
    """port to listen on; 0 = any free port"""
    tls_certificate: ReadableFile | None = None
    """PEM file with the certificate chain; with it the service uses HTTPS instead of HTTP"""
    tls_key: ReadableFile | None = Field(None, validate_default=True)
    """PEM file with the private key of tls_certificate"""
    api_keys_file: ReadableFile | None = Field(
        None,
        description="file of API keys, one per line, reloaded when it changes; with it every path except health "
        "and the page's files needs a key",
    )
    admin_keys_file: ReadableFile | None = None
    """file of admin keys: these may also load and unload models and change logging"""
    cors_origins: str = ""
    """origins whose web pages may send requests, separated by commas (https://a.example); * = all"""
    control_hosts: str = ""
    """host names with dots by which clients without admin keys may control models and logging, separated by commas"""
    workers: Annotated[int, Field(ge=1, le=1024)] = 1
    """number of processes that share the port"""
    provider: Literal["auto", "cuda", "cpu"] = "auto"
    """where models run: auto = CUDA if it works, else the CPU; cuda = CUDA, or exit at startup if it does not work"""
    device_memory_bytes: NonNegativeInt = 0
    """upper limit in bytes on the GPU memory of one worker; 0 = the free memory at startup / workers"""
    model_repository: Path = Path("model_repository")
    """folder with the models, as <name>/<version>/model.onnx"""
    versions: str = Field("latest:1", pattern=r"^(all|latest:[1-9]\d*|\d+(,\d+)*)$")
    """versions of each model to serve: all, latest:N, or numbers separated by commas"""
    model_control_mode: str = Field(
        "none",
        pattern=r"^(none|explicit|poll(:(\d*[1-9]\d*(\.\d+)?|\d+\.\d*[1-9]\d*))?)$",
        description="none: models load at start only; explicit: V2 clients may load and unload models and change "
        "logging; poll: the repository is scanned for changes every 15 seconds, with poll:N every N seconds",
    )
    ready_when: Literal["all", "any", "live", "all-or-exit", "any-or-exit"] = Field(
        "all",
        description="models that must load before /v2/health/ready answers 200: all = every one in the repository, "
        "and at least one; any = one; live = none; with -or-exit the service exits with status 3 if they do not load",
    )
    max_batch_size: NonNegativeInt = 1024
    """upper limit on the rows of a V2 request to a model with a free batch axis; 0 = models declare no batching"""
    allow_timeout_override: bool = Field(
        False,
        description="use the parameter timeout of a V2 request (microseconds) as its deadline, like Triton's queue "
        "policy of this name; otherwise it is ignored",
    )
    intra_op_threads: Threads = 0
    """threads that one large model run may use while no other needs the CPUs; 0 = this machine's CPUs"""
    max_concurrent_runs: Threads = 0
    """upper limit on concurrent model runs in one worker; 0 = this machine's CPUs / workers, on a GPU 2"""
    max_body_bytes: PositiveInt = 128 * MIB
    """upper limit in bytes on a request body"""
    max_text_bytes: PositiveInt = MIB
    """upper limit in bytes on the texts of a request, as UTF-8, for a model's tokenizer, also after normalization"""
    transfer_timeout_seconds: PositiveSeconds = 60
    """time limit in seconds to receive a whole request, and for a client to read any part of a response"""
    keep_alive_seconds: PositiveSeconds = 75
    """seconds after which an idle connection is closed"""
    deadline_seconds: Seconds = 60
    """time limit in seconds until a request's run begins, if the client sets none; 0 = no limit"""
    max_memory_bytes: NonNegativeInt = 0
    """upper limit in bytes on the memory of one request's run; 0 = half of memory_budget_bytes"""
    memory_budget_bytes: int = Field(
        0,
        ge=0,
        description="upper limit in bytes on the memory of all requests in one worker: half for model runs, half for "
        "bodies, tensors and responses; the kernels' copies of weights may take another half; "
        "0 = half of this machine's memory / workers",
    )
    memories: Path | None = Field(
        None,
        description="folder for stored memories, which persist across restarts; without one they are in a temporary"
        " folder, which is deleted on shutdown",
    )
    memories_bytes: NonNegativeInt = 0
    """upper limit in bytes on all memories of this machine; 0 = a quarter of its memory"""
    max_run_seconds: Seconds = 60
    """time limit in seconds for one run: rejected if forecast to take longer, terminated if it does; 0 = no limit"""
    max_queue: PositiveInt = 1000
    """upper limit on the requests waiting in the queue; further ones are rejected"""
    batching: str = Field(
        "auto",
        description="models whose queued requests share a run if that is faster: auto = those that Heed exported; "
        "names separated by commas = these as well, if their rows are independent; all; off",
    )
    compress_responses: Literal["never", "requested", "offered"] = Field(
        "requested",
        description="when responses are compressed: never; requested = if Accept-Encoding names only gzip or"
        " deflate; offered = if it names any",
    )
    drain_seconds: Seconds = 0
    """seconds to keep serving, but not ready, after a shutdown signal, so that load balancers notice; 0 = none"""
    shutdown_seconds: Annotated[int, Field(ge=1, le=10**9)] = 25
    """time limit in seconds to finish running requests after a shutdown signal"""
    pages: Literal["all", "docs", "viewer", "none"] = "all"
    """pages to serve: docs = the interactive documentation at /docs, viewer = the viewer at /, all = both"""
    viewer_frame_ancestors: str = Field("", pattern=r"^[^;,\x00-\x1f\x7f]*$")
    """origins whose pages may show the viewer in a frame, separated by spaces"""
    log_level: Literal["critical", "error", "warning", "info", "debug"] = "info"
    """lowest level that is logged"""
    log_format: Literal["text", "json"] = "text"
    """format of the log: text, or one JSON object per line"""
    access_log: str = Field(
        "off",
        pattern=r"^(off|all|errors(:\d+)?)$",
        description="requests to log: off = none; errors = those that failed or took longer than 1000 milliseconds, "
        "with errors:N longer than N; all = all but health probes and scrapes",
    )
    monitoring_port: Port = 0
    """port for /metrics and /v2/health, without API keys, in a separate process that answers at any load; 0 = none"""

    @field_validator("*", mode="before")
    @classmethod
    def _read_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Sizes with a unit, and words in any case."""
        name = info.field_name or ""
        if not isinstance(value, str):
            return value
        if name.endswith("_bytes"):
            with suppress(ValidationError):
                if not FRACTION.fullmatch(value):
                    return int(SIZE.validate_python(value.strip()))
            raise ValueError(f"expected bytes, or a size such as 128MiB or 2GB, got {value!r}")
        words = get_origin(cls.model_fields[name].annotation) is Literal or name in PATTERNS
        if words or (name == "batching" and value.strip().lower() in BATCHING):
            return value.strip().lower()
        return value

    @field_validator("model_control_mode")
    @classmethod
    def _check_control(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "explicit" and info.data.get("workers", 1) > 1:
            raise ValueError("explicit needs workers 1: a load would reach only one of them")
        if mode == "explicit" and info.data.get("api_keys_file") and not info.data.get("admin_keys_file"):
            raise ValueError(
                "explicit beside api_keys_file needs admin_keys_file, which says who may load and unload models"
            )
        return mode

    @field_validator("monitoring_port")
    @classmethod
    def _check_ports(cls, port: int, info: ValidationInfo) -> int:
        if port and port == info.data.get("port"):
            raise ValueError(f"{port} is the port of the service (--port): give another one")
        return port

    @field_validator("tls_key")
    @classmethod
    def _check_tls(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        certificate = info.data.get("tls_certificate")
        if (key is None) != (certificate is None) and "tls_certificate" in info.data:
            raise ValueError("--tls-certificate and --tls-key must be given together")
        if key and certificate:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
            except (OSError, ValueError):
                files = f"{str(certificate)!r} and {str(key)!r}"
                expected = "a certificate and its key, as PEM without a password"
                raise ValueError(f"expected {expected}, got {files}") from None
        return key

    @property
    def poll_seconds(self) -> float | None:
        """The time between two scans of the repository; None where it is not scanned."""
        mode, _, seconds = self.model_control_mode.partition(":")
        return float(seconds or POLL_SECONDS) if mode == "poll" else None

    @property
    def slow_milliseconds(self) -> float:
        """The time after which the access log of errors counts a request as slow."""
        return float(self.access_log.partition(":")[2] or SLOW_MILLISECONDS)

    @property
    def required_models(self) -> str:
        """The models that have to be loaded: all, any or live."""
        return self.ready_when.removesuffix("-or-exit")

    @property
    def exits_unless_ready(self) -> bool:
        """Whether the service ends if these models do not load at the start."""
        return self.ready_when.endswith("-or-exit")

    @property
    def batch_models(self) -> str:
        """The models not exported by Heed whose requests may share a run: names by commas, or all."""
        return "" if self.batching in ("auto", "off") else self.batching

    def sized(self) -> "Settings":
        """These settings for one of ``workers`` processes: a zero that means a share of this machine is replaced."""
        budget = self.memory_budget_bytes or machine.memory() // (2 * self.workers)
        return self.model_copy(
            update={
                "intra_op_threads": self.intra_op_threads or machine.cpus(),
                "max_concurrent_runs": self.max_concurrent_runs or max(1, machine.cpus() // self.workers),
                "memory_budget_bytes": budget,
                "memories_bytes": self.memories_bytes or machine.memory() // 4,
                "max_memory_bytes": min(self.max_memory_bytes or budget // 2, budget // 2),
            }
        )

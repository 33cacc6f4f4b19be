"""The settings, read once at start: flags of ``heed serve``, and environment variables of the same name."""

import ssl
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service import machine
from service.version_policy import PATTERN

MIB = 1 << 20


def _readable(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ValueError(f"this file cannot be read: {error.strerror}") from None
    return path


ReadableFile = Annotated[Path, AfterValidator(_readable)]


class Settings(BaseSettings):
    """Serve a model repository over HTTP. Every flag is also an environment variable: --max-body-bytes is
    HEED_MAX_BODY_BYTES; a flag wins over the variable."""

    model_config = SettingsConfigDict(
        env_prefix="HEED_",
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        cli_prog_name="heed serve",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
    )

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for every interface")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    tls_certificate: ReadableFile | None = Field(
        None, description="PEM file of a certificate chain: HTTPS instead of HTTP"
    )
    tls_key: ReadableFile | None = Field(None, description="PEM file of its private key", validate_default=True)
    api_keys_file: ReadableFile | None = Field(
        None, description="file of API keys, one a line, read again when it changes; every path but health needs one"
    )
    admin_keys_file: ReadableFile | None = Field(
        None, description="the same of keys that also load, unload and set the logging"
    )
    cors_origins: str = Field(
        "", description="origins whose pages may ask from a browser: https://a.example, with commas; * for every one"
    )
    workers: int = Field(1, ge=1, description="processes that share the port")
    provider: Literal["auto", "cuda", "cpu"] = Field(
        "auto", description="where models run: auto takes CUDA when it truly works, cuda fails at start without it"
    )
    device_id: int = Field(0, ge=0, description="which GPU, as CUDA counts them; all workers share it")
    device_memory_bytes: int = Field(
        0, ge=0, description="most memory of the GPU that one worker takes; 0 = what is free at its start"
    )
    cuda_graphs: bool = Field(
        False, description="record small runs on CUDA whose shapes repeat, and replay them; runs then take turns"
    )
    on_cuda_failure: Literal["exit", "reopen"] = Field(
        "exit",
        description="when the GPU is lost: end, for a supervisor to start anew, or open the models again, "
        "with provider auto on the CPU if need be",
    )
    model_repository: Path = Field(Path("model_repository"), description="folder of <name>/<version>/model.onnx")
    versions: str = Field(
        "latest:1", pattern=PATTERN, description="versions served of each model: all, latest:N, or numbers, 1,3"
    )
    model_control_mode: Literal["none", "poll", "explicit"] = Field(
        "none",
        description="explicit: V2 clients may load and unload models and set the logging; "
        "poll: changes in the repository are followed",
    )
    model_poll_seconds: float = Field(15, gt=0, description="how often the repository is looked at in mode poll")
    max_batch_size: int = Field(
        1024, ge=0, description="most rows of a V2 request to a model with a free batch axis; 0 = such models say none"
    )
    threads: int = Field(0, ge=0, description="threads of one long model run; 0 = this machine's CPUs")
    concurrency: int = Field(
        0,
        ge=0,
        description="model runs at one time in one worker; 0 = this machine's CPUs, shared by the workers; on a GPU 2",
    )
    max_body_bytes: int = Field(128 * MIB, ge=1, description="longest request body")
    max_bodies_bytes: int = Field(
        0, ge=0, description="longest bodies of all requests together; 0 = a quarter of this machine's memory"
    )
    max_header_bytes: int = Field(
        64 << 10, ge=1024, description="longest head of a request: its first line and headers"
    )
    receive_seconds: float = Field(
        60, gt=0, description="longest time for a request to come, from its first byte to its last"
    )
    deadline_seconds: float = Field(
        60, ge=0, description="longest time until a request's run begins, where the client names none; 0 = any"
    )
    max_memory_bytes: int = Field(
        0, ge=0, description="most memory one request may need; 0 = a quarter of this machine's"
    )
    max_running_bytes: int = Field(
        0, ge=0, description="most memory that what runs at one time may need; 0 = half of this machine's"
    )
    max_queue: int = Field(1000, ge=1, description="most requests that wait to be run; more are refused")
    overload_status: Literal["503", "429"] = Field("503", description="status of the answer when the queue is full")
    batching: Literal["auto", "off"] = Field(
        "auto", description="auto: queued requests share a run where that is quicker, with the same answers"
    )
    batch_models: str = Field(
        "", description="models without a card to batch, all for every one: names with commas; rows must be independent"
    )
    inline_microseconds: int = Field(
        2000, ge=0, description="work estimated longer than this leaves the event loop, so that others are answered"
    )
    server_name: str = Field("heed", description="name in /v2")
    compress_responses: Literal["never", "asked", "offered"] = Field(
        "asked",
        description="V2 answers in gzip or deflate: never, if Accept-Encoding names one alone, or if it names any",
    )
    json_non_finite: Literal["refuse", "nulls", "tokens"] = Field(
        "refuse", description="NaN and infinity in V2's JSON answers: an error, null, or the tokens NaN and Infinity"
    )
    drain_seconds: float = Field(
        0,
        ge=0,
        description="after a signal to end: time to serve on while saying not ready, for balancers to notice",
    )
    shutdown_seconds: int = Field(25, ge=1, description="after a signal to end: longest time to finish what runs")
    docs: bool = Field(True, description="serve the interactive documentation at /docs")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = Field(
        "info", description="least level logged"
    )
    log_format: Literal["text", "json"] = Field("text", description="the log's lines: text, or JSON objects")
    access_log: Literal["off", "errors", "all"] = Field(
        "off", description="requests logged: none, those that failed or were slow, or all; never probes and scrapes"
    )
    slow_milliseconds: float = Field(1000, ge=0, description="longer than this is slow")
    metrics: bool = Field(True, description="serve Prometheus metrics at /metrics")

    @field_validator("model_control_mode")
    @classmethod
    def _can_be_controlled(cls, mode: str, info: ValidationInfo) -> str:
        if mode == "explicit" and info.data.get("workers", 1) > 1:
            raise ValueError("explicit needs workers 1: a load would reach only one of them")
        if mode == "explicit" and info.data.get("api_keys_file") and not info.data.get("admin_keys_file"):
            raise ValueError("explicit beside api_keys_file needs admin_keys_file: who may load and unload")
        return mode

    @field_validator("tls_key")
    @classmethod
    def _opens_tls(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        certificate = info.data.get("tls_certificate")
        if (key is None) != (certificate is None) and "tls_certificate" in info.data:
            raise ValueError("tls_certificate and tls_key are needed together")
        if key and certificate:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
            except (OSError, ValueError) as error:
                raise ValueError(f"they cannot be used: {error}") from None
        return key

    def sized(self) -> "Settings":
        """These settings, with what is 0 ("as this machine has it") filled in for one of ``workers`` processes."""
        return self.model_copy(
            update={
                "threads": self.threads or machine.cpus(),
                "concurrency": self.concurrency or max(1, machine.cpus() // self.workers),
                "max_bodies_bytes": self.max_bodies_bytes or machine.memory() // (4 * self.workers),
                "max_memory_bytes": self.max_memory_bytes or machine.memory() // 4,
                "max_running_bytes": self.max_running_bytes or machine.memory() // (2 * self.workers),
            }
        )

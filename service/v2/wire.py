"""The documented bodies of the protocol, all but the tensors."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Parameter = str | bool | int | float | None


class Error(BaseModel):
    error: str


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str] = Field(description="what works here, and nothing else")
    provider: str = Field(description="what models run on: cpu or cuda")
    provider_reason: str = Field(description="why it is this one")


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="-1 where a request chooses")


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str] = Field(description="what the model says of itself, and what it runs on")


class ModelReady(BaseModel):
    name: str
    ready: bool


class Models(BaseModel):
    models: list[str]


class Duration(BaseModel):
    count: int = 0
    ns: int = 0


class InferStatistics(BaseModel):
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration = Duration()
    cache_miss: Duration = Duration()


class BatchStatistics(BaseModel):
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(BaseModel):
    name: str
    version: str
    last_inference: int = Field(description="milliseconds since 1970; 0 = none yet")
    inference_count: int = Field(description="rows: a batch of 64 counts 64")
    execution_count: int
    inference_stats: InferStatistics
    response_stats: dict[str, Any] = {}
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any] = []


class Statistics(BaseModel):
    model_stats: list[ModelStatistics]


class IndexRequest(BaseModel):
    """What a client may ask the index for."""

    ready: bool = False


class ModelState(BaseModel):
    name: str
    version: str | None = None
    state: Literal["UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"] | None = None
    reason: str | None = None


class ControlRequest(BaseModel):
    """A load, with a configuration (JSON in text) and files (base64) in its parameters; or an unload."""

    parameters: dict[str, Parameter] = {}


class VersionPolicyConfig(BaseModel):
    """Exactly one of the three."""

    model_config = ConfigDict(extra="forbid")

    latest: dict[Literal["num_versions"], int] | None = None
    all: dict[str, Any] | None = None
    specific: dict[Literal["versions"], list[int]] | None = None


class ConfigOverride(BaseModel):
    """Of a model configuration, what a load may change; the rest may be said if it is what the model says."""

    model_config = ConfigDict(extra="allow")

    max_batch_size: int | None = Field(None, ge=0)
    version_policy: VersionPolicyConfig | None = None


class LogSettings(BaseModel):
    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str

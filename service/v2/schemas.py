"""The bodies of the protocol. The bodies of inference are for the documentation alone: service/v2/infer reads them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.model.masks import FLAG
from service.selection.options import describe_options
from service.v2.datatypes import DATATYPES

Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]  # Go and Java have 32 bits without it


class Error(BaseModel):
    error: str


class BinarySize(BaseModel):
    binary_data_size: int | None = Field(None, ge=0, description="length in bytes of the tensor behind the JSON")


class InferTensor(BaseModel):
    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: str = Field(json_schema_extra={"enum": list(DATATYPES)})
    data: list[Any] | None = Field(None, description="nested or flat, row-major")
    parameters: BinarySize | None = None


class OutputParameters(BaseModel):
    binary_data: bool = False
    classification: int | None = Field(None, ge=0, description="return only this many of the largest values")


class RequestedOutput(BaseModel):
    name: str
    parameters: OutputParameters | None = None


class InferRequest(BaseModel):
    id: str | None = None
    parameters: dict[str, str | float | bool] = Field(
        {},
        description="The model's single numbers and flags, and binary_data_output, timeout (microseconds; a deadline "
        "where a setting or the model's configuration says so), priority, sequence_id, sequence_start, sequence_end. "
        f"Others are ignored, but for a block's misspelt options. {FLAG}. Options of a block's attention: "
        f"{describe_options(block=True)}; in place of the weights, weights_top_k answers weights_indices and "
        f"weights_values. Of any model: {describe_options(block=False)}",
    )
    inputs: list[InferTensor]
    outputs: list[RequestedOutput] | None = Field(
        None, description="all of the model's, where left out; derived outputs of a block (entropy, ...), if named"
    )


class InferResponse(BaseModel, protected_namespaces=()):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[InferTensor]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str] = Field(description="supported extensions")
    provider: str = Field(description="where models run: cpu or cuda")
    provider_reason: str = Field(description="why this provider was chosen")


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int] = Field(description="-1 for dimensions that a request chooses")


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    properties: dict[str, str] = Field(description="title, formula, source and inputs of the model, and where it runs")


class ModelReady(BaseModel):
    name: str
    ready: bool


class Models(BaseModel):
    models: list[str]


class Duration(BaseModel, from_attributes=True):
    count: Int64 = 0
    ns: Int64 = 0


class InferStatistics(BaseModel):
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration = Field(default_factory=Duration)
    cache_miss: Duration = Field(default_factory=Duration)


class BatchStatistics(BaseModel):
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(BaseModel):
    name: str
    version: str
    last_inference: Int64 = Field(description="milliseconds since 1970; 0 = none yet")
    inference_count: Int64 = Field(description="rows: a batch of 64 counts 64")
    execution_count: Int64
    inference_stats: InferStatistics
    response_stats: dict[str, Any] = {}
    batch_stats: list[BatchStatistics]
    memory_usage: list[Any] = []


class Statistics(BaseModel):
    model_stats: list[ModelStatistics]


class IndexRequest(BaseModel):
    """Filters of the index: ``ready`` leaves out models that are not."""

    ready: bool = False


class ModelState(BaseModel, coerce_numbers_to_str=True):
    name: str
    version: str | None = None
    state: Literal["UNKNOWN", "READY", "UNAVAILABLE", "LOADING", "UNLOADING"] | None = None
    reason: str | None = None


class ControlRequest(BaseModel):
    """A load, with a configuration (JSON text) and files (base64) in its parameters; or an unload."""

    parameters: dict[str, str | bool | int | float | None] = {}


class VersionPolicyConfig(BaseModel, extra="forbid"):
    """Exactly one of the three policies."""

    latest: dict[Literal["num_versions"], int] | None = None
    all: dict[str, Any] | None = None
    specific: dict[Literal["versions"], list[int]] | None = None


class QueuePolicy(BaseModel, extra="forbid"):
    """Whether a request's parameter ``timeout`` is its deadline."""

    allow_timeout_override: bool | None = None


class DynamicBatching(BaseModel, extra="forbid"):
    """The server's settings control batching; only the queue policy can be set for a model."""

    default_queue_policy: QueuePolicy = QueuePolicy()


class ConfigOverride(BaseModel, extra="allow"):
    """The fields of a model configuration that a load may change. Others may be sent if they equal the model's."""

    max_batch_size: int | None = Field(None, ge=0)
    version_policy: VersionPolicyConfig | None = None
    dynamic_batching: DynamicBatching = DynamicBatching()


class LogSettings(BaseModel):
    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: int
    log_format: str

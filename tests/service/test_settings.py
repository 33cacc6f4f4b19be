"""Settings from flags and environment, and what is said of wrong ones."""

import pytest
from pydantic import ValidationError

from service.cli.options import REMOVED, read_settings
from service.cli.serve import main
from service.settings import GROUPS, Settings, size_text


def test_a_flag_wins_over_its_variable(monkeypatch):
    monkeypatch.setenv("HEED_PORT", "9001")
    monkeypatch.setenv("HEED_PROVIDER", "cpu")
    assert Settings().port == 9001
    chosen = read_settings(["--port", "9002"])
    assert (chosen.port, chosen.provider) == (9002, "cpu")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "--port (HEED_PORT): expected a port from 0 to 65535, got '70000'"),
        (["--provider", "tpu"], "--provider (HEED_PROVIDER): expected auto, cuda or cpu, got 'tpu'"),
        (["--workers", "0"], "workers (HEED_WORKERS)"),
        (["--workers", "2000"], "--workers (HEED_WORKERS): expected at most 1,024, got '2000'"),
        (["--deadline-seconds", "inf"], "(HEED_DEADLINE_SECONDS): expected at most 1,000,000,000, got 'inf'"),
        (["--shutdown-seconds", "10000000000"], "(HEED_SHUTDOWN_SECONDS): expected at most 1,000,000,000, got"),
        (["--viewer-frame-ancestors", "\x01"], "(HEED_VIEWER_FRAME_ANCESTORS)"),
        (["--keep-alive-seconds", "0"], "(HEED_KEEP_ALIVE_SECONDS): expected a number above 0, got '0'"),
        (["--versions", "newest"], "versions (HEED_VERSIONS)"),
        (
            ["--workers", "2", "--model-control-mode", "explicit"],
            "--model-control-mode (HEED_MODEL_CONTROL_MODE): explicit needs workers 1",
        ),
    ],
)
def test_a_wrong_setting_is_named(arguments, said, capsys):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_help_lists_every_setting_in_groups(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert [name for name in Settings.model_fields if f"--{name.replace('_', '-')}" not in said] == []
    titles = [line.rstrip(":") for line in said.splitlines() if line.endswith(":")]
    assert [title for title in titles if title in GROUPS.values()] == [*GROUPS.values()]
    assert "(default 128MiB)" in " ".join(said.split())
    assert set(GROUPS) <= set(Settings.model_fields)


@pytest.mark.parametrize(
    ("text", "size"),
    [("128MiB", 128 << 20), ("2GB", 2 * 10**9), (" 1.5 kib ", 1536), ("134217728", 1 << 27), ("1_000", 1000)],
)
def test_sizes_have_units_and_are_written_as_they_are_read(monkeypatch, text, size):
    monkeypatch.setenv("HEED_MAX_BODY_BYTES", text)
    assert Settings().max_body_bytes == size
    assert read_settings(["--memories-bytes", text]).memories_bytes == size
    assert Settings(max_body_bytes=size_text(size)).max_body_bytes == size
    assert [size_text(of) for of in (128 << 20, 3 << 30, 64 << 10, 7)] == ["128MiB", "3GiB", "64KiB", "7"]


def test_a_removed_setting_is_named_with_what_to_use_instead(monkeypatch, capsys):
    monkeypatch.setenv("HEED_SLOW_MILLISECONDS", "5")
    assert main(["--no-viewer", "--batch-models=all"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": this setting was removed: ")[::2] for line in said] == [
        ("heed serve: --batch-models (HEED_BATCH_MODELS)", "set HEED_BATCHING to the names, or to all"),
        ("heed serve: --slow-milliseconds (HEED_SLOW_MILLISECONDS)", "set HEED_ACCESS_LOG=errors:N"),
        ("heed serve: --viewer (HEED_VIEWER)", "set HEED_PAGES to docs or none"),
    ]
    assert not REMOVED.keys() & Settings.model_fields


def test_what_is_in_one_setting():
    modes = {"none": None, "explicit": None, "poll": 15, "poll:0.5": 0.5, "poll:10": 10}
    assert {mode: Settings(model_control_mode=mode).poll_seconds for mode in modes} == modes
    batching = {"auto": "", "off": "", "all": "all", "a,B": "a,B"}
    assert {names: Settings(batching=names).batch_models for names in batching} == batching
    logs = {"off": 1000, "errors": 1000, "errors:5": 5}
    assert {log: Settings(access_log=log).slow_milliseconds for log in logs} == logs
    ready = {"any": ("any", False), "any-or-exit": ("any", True)}
    for setting, expected in ready.items():
        read = Settings(ready_when=setting)
        assert (read.required_models, read.exits_unless_ready) == expected
    for wrong in ({"model_control_mode": "poll:0"}, {"access_log": "errors:"}, {"model_control_mode": "poll:x"}):
        with pytest.raises(ValidationError):
            Settings(**wrong)


def test_words_in_any_case(monkeypatch):
    monkeypatch.setenv("HEED_LOG_LEVEL", "WARNING")
    chosen = read_settings(["--provider", "CPU", "--versions", "Latest:2", "--batching", "ALL"])
    words = chosen.log_level, chosen.provider, chosen.versions, chosen.batching
    assert words == ("warning", "cpu", "latest:2", "all")


def test_sizes_of_zero_are_this_machine_s():
    sized = Settings(workers=1).sized()
    assert sized.intra_op_threads >= 1
    assert sized.max_memory_bytes > 1 << 20
    sizes = ("intra_op_threads", "max_concurrent_runs", "memory_budget_bytes", "max_memory_bytes", "memories_bytes")
    fixed = Settings(**dict(zip(sizes, (7, 3, 10, 5, 9), strict=True)))
    assert fixed.sized() == fixed
    with pytest.raises(ValueError, match="frozen"):
        fixed.port = 1

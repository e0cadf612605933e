"""The command line: every flag of the reference parses, by the rules of the reference."""

import argparse
import ast
import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.config.reference_flags import FLAGS, OUR_DEFAULTS
from vllm.config.flags import flags_of, make_config
from vllm.config.vllm import VllmConfig, build, config_classes
from vllm.engine.arg_forms import human_int
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.entrypoints.cli import serve
from vllm.entrypoints.openai.cli_args import FrontendArgs, frontend_values
from vllm.exceptions import ConfigError

ROWS = [tuple(line.split(maxsplit=2)) for line in FLAGS.strip().splitlines()]
CONFIGS = [*config_classes().values(), FrontendArgs]

# Type of the reference -> (words after the flag, the value they must give).
SAMPLES = {
    "str": [("x", "x"), ("None", None)], "int": [("7", 7)], "float": [("0.5", 0.5)],
    "int*": [("4096", 4096), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("1M", 1 << 20)],
    "json": [('{"a": {"b": [1, "c"]}}', {"a": {"b": [1, "c"]}})],
    "str+": [("a", ["a"]), ("a b", ["a", "b"])], "int+": [("1 2", [1, 2])],
    "bool|str": [("", True), ("x", "x")],
}  # fmt: skip


def parse(*words: str) -> dict[str, object]:
    return vars(serve.make_parser().parse_args(list(words)))


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as info:
        parse(*words)
    assert info.value.code == 2
    return capsys.readouterr().err


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as info:
        parse(*words)
    assert info.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return serve.make_parser()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2])[:60])
def test_every_flag_of_the_reference_parses(
        parser: argparse.ArgumentParser, row: tuple[str, str, str]) -> None:
    names, kind, _ = row
    key = names.split(",")[0][2:].replace("-", "_")
    for name in names.split(","):
        if kind == "bool":
            cases = [(name, [], True), (f"--no-{key.replace('_', '-')}", [], False)]
        else:
            samples = SAMPLES.get(kind) or [(word, word) for word in kind.split("|")]
            cases = [(name, words.split() if kind != "json" else [words], value)
                     for words, value in samples]
        for option, words, value in cases:
            if key == "attention_backend" and words == ["None"]:
                continue
            given = vars(parser.parse_args([option, *words]))
            given.pop("model_tag", None)
            assert given == {key: value}, option
            if words and kind not in ("str+", "int+", "bool|str"):
                given = vars(parser.parse_args([f"{option}={words[0]}"]))
                assert given.get(key) == value, f"{option}={words[0]}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:2])[:60])
def test_defaults_are_those_of_the_reference(row: tuple[str, str, str]) -> None:
    names, _, text = row
    key = names.split(",")[0][2:].replace("-", "_")
    config = next(c for c in CONFIGS if key in flags_of(c))
    try:
        expected = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        expected = text
    if text != "-":
        assert getattr(config(), key) == OUR_DEFAULTS.get(key, expected)


def other_value(key: str, kind: str, default: object) -> object:
    """A value of the flag's type that is not its default."""
    values = {"bool": True, "str": "x", "int": 7, "int*": 7, "float": 0.5, "json": {"a": 1},
              "str+": ["a"], "int+": [7]}
    return (not default) if kind == "bool" else values[kind]


@pytest.mark.parametrize(("config", "key"), [
    (c, key) for c in CONFIGS for key, spec in flags_of(c).items() if not spec.is_supported])
def test_missing_features_are_refused_in_one_line(config: type, key: str) -> None:
    spec, default = flags_of(config)[key], getattr(config(), key)
    option = "--" + key.replace("_", "-")
    if default is True:   # a missing feature that would be switched off is no feature
        assert make_config(config, {key: True})
        return
    with pytest.raises(ConfigError) as info:
        make_config(config, {key: other_value(key, spec.kind, default)})
    assert str(info.value).startswith(f"{option}: ")
    assert "is not supported by this build yet; leave the flag out." in str(info.value)
    assert "\n" not in str(info.value)
    assert make_config(config, {key: default}) == config()


@pytest.mark.parametrize(("words", "message"), [
    (["-tp", "2"], "--tensor-parallel-size: tensor parallelism"),
    (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype fp8: a quantized KV cache"),
    (["--device", "cuda"], "--device cuda: another device than the CPU"),
    (["--speculative-config.method", "ngram"], "--speculative-config: speculative decoding"),
    (["--load-format", "bitsandbytes"], "--load-format bitsandbytes: this kind of weights"),
    (["--runner", "pooling"], "--runner pooling: another use than generating text"),
    (["--task", "embed"], "--task embed: another task"),
    (["--tokenizer-mode", "mistral"], "--tokenizer-mode mistral"),
    (["--model-impl", "transformers"], "--model-impl transformers"),
    (["-cc.cudagraph_mode", "NONE"], "--compilation-config: torch compilation"),
    (["--prefix-caching-hash-algo", "xxhash"], "--prefix-caching-hash-algo xxhash")])
def test_missing_values_are_refused_with_what_there_is(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match="not supported by this build yet") as info:
        EngineArgs.from_cli_args(serve.make_parser().parse_args(words)).create_engine_config()
    assert str(info.value).startswith(message)


@pytest.mark.parametrize("values", [
    {"async_scheduling": False}, {"enable_lora": False}, {"tensor_parallel_size": 1},
    {"data_parallel_address": "127.0.0.1"}, {"hf_overrides": None}, {"compilation_config": None},
    {"structured_outputs_config": {}}, {"quantization": None}])
def test_saying_what_is_so_anyway_is_fine(values: dict[str, object]) -> None:
    assert build(values) == build({})


@pytest.mark.parametrize(("values", "message"), [
    ({"max_num_seqs": "5"}, r"--max-num-seqs is '5': Expected `int"),
    ({"enforce_eager": 1}, r"--enforce-eager is 1: Expected `bool`"),
    ({"hf_overrides": [1]}, r"--hf-overrides is \[1\]: Expected `object`"),
    ({"dtype": "int8"}, r"--dtype is 'int8'; it must be auto, half, .* or float32\."),
    ({"custom_histogram_buckets": 3}, r"--custom-histogram-buckets is 3")])
def test_values_of_the_wrong_type_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(values)


# ---- rules -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [
    ("4096", 4096), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2m", 2_000_000),
    ("2M", 2 << 20), ("1g", 10**9), ("1T", 1 << 40), ("-1", -1)])
def test_human_readable_integers(text: str, value: int) -> None:
    assert human_int(text) == value


@pytest.mark.parametrize("text", ["", "k", "1x", "1.5", "1.0005k", "1e3", "infk", "nank"])
def test_human_readable_integers_that_are_wrong(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
        human_int(text)


def test_a_fraction_with_a_binary_suffix_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 25.6k?" in refusal(capsys, "--max-num-batched-tokens", "25.6K")


@pytest.mark.parametrize("words", [["--max-model-len", "-1"], ["--max-model-len=auto"],
                                   ["--max_model_len", "auto"]])
def test_length_can_be_left_to_the_memory(words: list[str]) -> None:
    assert parse(*words)["max_model_len"] == "auto"


def test_underscores_and_dashes_are_the_same_before_the_first_dot() -> None:
    assert parse("--max_model_len", "8")["max_model_len"] == 8
    assert parse("--hf_overrides.a_b-c=1")["hf_overrides"] == {"a_b-c": 1}


def test_dotted_json_merges_and_appends(capsys: pytest.CaptureFixture[str]) -> None:
    values = parse("--hf-overrides.rope.factor", "2", "--hf-overrides.rope.type=linear",
                   "--hf-overrides.list+", "1,2k", "--hf_overrides.list+=3",
                   "--hf-overrides", '{"list": [4], "x_y": null}')
    assert values["hf_overrides"] == {
        "rope": {"factor": 2, "type": "linear"}, "list": [1, 2000, 3, 4], "x_y": None}
    assert capsys.readouterr().err == ""
    assert parse("--hf-overrides.a", "1", "--hf-overrides.a=2")["hf_overrides"] == {"a": 2}
    assert "Found duplicate keys --hf-overrides.a" in capsys.readouterr().err


def test_short_names_take_dots() -> None:
    assert parse("-cc.mode=3")["compilation_config"] == {"mode": 3}
    assert parse("-sc.method", "ngram")["speculative_config"] == {"method": "ngram"}


@pytest.mark.parametrize("words", [["-O3"], ["-O=3"], ["-O", "3"], ["--optimization-level=3"]])
def test_optimization_level(words: list[str]) -> None:
    assert parse(*words)["optimization_level"] == 3


def test_lists() -> None:
    assert parse("--middleware", "a.B", "--middleware", "c.D")["middleware"] == ["a.B", "c.D"]
    values = parse("m", "--api-key", "a", "b", "--allowed-origins", '["x", "y"]')
    assert (values["model_tag"], values["api_key"]) == ("m", ["a", "b"])
    assert values["allowed_origins"] == ["x", "y"]


def test_a_bare_performance_mode_is_throughput() -> None:
    assert parse("--performance-mode")["performance_mode"] == "throughput"


def test_unknown_options_exit_with_2_and_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(capsys, "m", "--max-model-length", "5")
    assert "unrecognized arguments: --max-model-length 5" in message
    assert "did you mean --max-model-len?" in message
    assert message.startswith("usage: vllm serve") and len(message.splitlines()) == 2


def test_wrong_values_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'half8'" in refusal(capsys, "--dtype", "half8")
    assert "'http' is not an integer" in refusal(capsys, "--port", "http")
    assert "not JSON" in refusal(capsys, "--hf-overrides", "{a")


def test_the_last_of_two_equal_flags_wins_with_a_warning(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert parse("--seed", "1", "--seed", "2")["seed"] == 2
    assert "Found duplicate keys --seed" in capsys.readouterr().err


# ---- the file --------------------------------------------------------------------------------


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "a.yaml").write_text(text)
    return str(tmp_path / "a.yaml")


def test_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, "model: from-file\nmax_model_len: 2k\nenable-prefix-caching: false\n"
                 "hf-overrides: {a: 1, b: -2}\nserved-model-name: [x, y]\nenforce-eager: true\n"
                 "allowed-origins: ['*']\nseed: -3\nperformance-mode: false\n")
    values = parse("--config", file)
    assert values == {
        "model": "from-file", "max_model_len": 2000, "enable_prefix_caching": False,
        "hf_overrides": {"a": 1, "b": -2}, "served_model_name": ["x", "y"], "enforce_eager": True,
        "allowed_origins": ["*"], "seed": -3} | (
            {"model_tag": None} if "model_tag" in values else {})
    line = serve.parse("serve", [f"--config={file}", "--max-model-len", "7", "given",
                                 "--hf-overrides.b", "5", "--enable-prefix-caching"])
    args = line.engine_args
    assert (args.model, args.max_model_len, args.seed) == ("given", 7, -3)
    assert args.hf_overrides == {"a": 1, "b": 5}
    assert args.enable_prefix_caching is True
    assert {"seed", "served_model_name"} <= set(line.origins)
    assert not {"max_model_len", "model", "enable_prefix_caching"} & set(line.origins)
    assert "Found duplicate keys --seed" not in capsys.readouterr().err


def test_config_file_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must end in .yaml" in refusal(capsys, "--config", str(tmp_path / "a.json"))
    assert "can't be read" in refusal(capsys, "--config", str(tmp_path / "none.yaml"))
    assert "mapping" in refusal(capsys, "--config", write(tmp_path, "- a\n"))
    assert "can't be read" in refusal(capsys, "--config", write(tmp_path, "a: [\n"))
    assert "can't be read" in refusal(
        capsys, "--config", write(tmp_path, "a: !!python/object/apply:os.getcwd []\n"))
    assert "--max-seqs" in refusal(capsys, "--config", write(tmp_path, "max_seqs: 4\n"))
    file = write(tmp_path, "seed: 1\n")
    assert "given twice" in refusal(capsys, "--config", file, "--config", file)
    assert "needs a YAML file" in refusal(capsys, "--config")


# ---- the model -------------------------------------------------------------------------------


def test_the_model_as_a_flag_is_an_older_form(
        monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(serve.logger, "warning", lambda text, *args: warnings.append(text % args))
    assert serve.parse("serve", ["--model", "m"]).engine_args.model == "m"
    assert warnings == ["--model is an older form: write `vllm serve m`"]
    assert serve.parse("serve", ["a", "--model=b"]).engine_args.model == "a"
    assert len(warnings) == 1


def test_served_names_need_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve.parse("serve", ["--served-model-name", "x"])
    assert "no model was given" in capsys.readouterr().err
    file = write(tmp_path, "seed: 1\n")
    assert serve.parse("serve", ["--served-model-name", "x", "--config", file])


# ---- help ------------------------------------------------------------------------------------


def test_help_lists_groups_flags_and_matches(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--help")
    assert "SchedulerConfig" in text and "--max-num-seqs" not in text
    assert shown(capsys, "-h") == text
    everything = shown(capsys, "--help=all")
    assert all(row[0].split(",")[0] in everything for row in ROWS)
    group = shown(capsys, "--help=cacheconfig")
    assert "--block-size" in group and "--max-num-seqs" not in group
    found = shown(capsys, "--help=max_num")
    assert "--max-num-batched-tokens" in found and "--block-size" not in found
    assert "no flag or group matches 'qqq'" in shown(capsys, "--help=qqq")


def test_every_flag_has_help() -> None:
    assert not [a.option_strings for a in serve.make_parser()._actions if not a.help]


# ---- EngineArgs ------------------------------------------------------------------------------


def test_engine_args_are_a_dataclass_of_every_engine_flag() -> None:
    assert is_dataclass(EngineArgs)
    names = [f.name for f in fields(EngineArgs)]
    assert names[0] == "model"
    flags = {name for config in config_classes().values() for name in flags_of(config)}
    assert set(names) == flags and len(names) == len(flags)
    copy = EngineArgs(**asdict(EngineArgs("m", max_num_seqs=3)))
    assert (copy.model, copy.max_num_seqs, copy.seed) == ("m", 3, 0)
    assert "hf_secret" not in repr(EngineArgs(hf_token="hf_secret"))
    EngineArgs("m").hf_overrides["a"] = 1
    assert EngineArgs("m").hf_overrides == {}


def test_engine_args_refuse_unknown_names() -> None:
    with pytest.raises(ConfigError, match=r"max_model_length .* did you mean max_model_len\?"):
        EngineArgs("m", max_model_length=5)


def test_engine_flags_on_another_parser() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mine", default=1)
    args = EngineArgs.add_cli_args(parser).parse_args(
        ["--max-num-seqs", "3", "--model", "m", "--hf-overrides", '{"a": 1}'])
    assert (args.mine, args.max_num_seqs, args.seed, args.dtype) == (1, 3, 0, "auto")
    engine_args = AsyncEngineArgs.from_cli_args(args)
    assert (engine_args.model, engine_args.hf_overrides) == ("m", {"a": 1})
    assert engine_args.enable_log_requests is False
    parser = AsyncEngineArgs.add_cli_args(argparse.ArgumentParser())
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(["--enable-log-requests"]))
    assert args.enable_log_requests is True


def test_json_round_trip_of_a_resolved_config() -> None:
    config = EngineArgs(max_model_len=64, max_num_seqs=2, hf_overrides={"x": [1, None, "y"]},
                        custom_histogram_buckets={"a": [0.5, 1.0]}).create_engine_config("server")
    again = VllmConfig.from_json(config.to_json())
    assert again == config
    assert isinstance(again.model_config.arch.attention_windows, tuple)
    assert json.loads(config.to_json())["model_config"]["max_model_len"] == 64


# ---- any words at all ------------------------------------------------------------------------

OPTIONS = [name for row in ROWS for name in row[0].split(",")]
WORDS = st.one_of(
    st.sampled_from(OPTIONS), st.sampled_from(["--help", "-h", "-O", "--", "-", "", "m"]),
    st.builds("{}={}".format, st.sampled_from(OPTIONS), st.text(max_size=8)),
    st.builds("{}.{}".format, st.sampled_from(OPTIONS), st.text(max_size=6)),
    st.text(max_size=10), st.sampled_from(["{}", "[]", "1k", "None", '{"a": {"b": 1}}', "1e999"]))


@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, max_size=6))
def test_any_command_line_parses_or_exits_cleanly(
        words: list[str], parser: argparse.ArgumentParser,
        capsys: pytest.CaptureFixture[str]) -> None:
    try:
        values = vars(parser.parse_args(words))
    except SystemExit as error:
        assert error.code in (0, 2)
        capsys.readouterr()
        return
    try:
        build(values)
        make_config(FrontendArgs, values)
    except ConfigError as error:
        assert "\n" not in str(error).replace("\\n", "")
    capsys.readouterr()


@pytest.mark.parametrize(("values", "message"), [
    ({"sse_keep_alive_interval": -1}, "--sse-keep-alive-interval is -1; it must be 0 or more."),
    ({"h11_max_header_count": 0}, "--h11-max-header-count is 0; it must be 1 or more."),
    ({"port": -1}, "--port is -1; it must be 0 to 65535."),
    ({"ssl_cert_reqs": 3}, "--ssl-cert-reqs is 3; it must be 0, 1 or 2."),
    ({"ssl_keyfile": "k"}, "--ssl-keyfile needs --ssl-certfile."),
    ({"enable_log_outputs": True}, "--enable-log-outputs needs --enable-log-requests."),
    ({"enable_log_requests": True, "disable_log_requests": True}, "contradict"),
    ({"fingerprint_mode": "custom"}, "--fingerprint-value need each other"),
    ({"fingerprint_value": "x"}, "--fingerprint-value need each other"),
    ({"allowed_origins": {"a": 1}}, "--allowed-origins is {'a': 1}: Expected `array`")])
def test_server_settings_that_can_not_be(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        frontend_values(values)
    assert message in str(info.value)


def test_server_settings_that_can(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("b\n")
    values = frontend_values({"api_key": ["a"], "api_key_file": str(tmp_path / "keys"),
                              "ssl_certfile": "both.pem", "enable_log_requests": True,
                              "enable_log_outputs": True, "port": 0})
    assert values["api_key"] == ["a", "b"]
    assert set(values) == {f.name for f in fields(FrontendArgs)}
    (tmp_path / "keys").write_bytes(b"\xff\n")
    with pytest.raises(ConfigError, match="can't be read: it is not text"):
        frontend_values({"api_key_file": str(tmp_path / "keys")})


# Flags that work although nothing reads them: their values differ only in what is refused, or they
# ask for what is so anyway.
SO_ANYWAY = {
    "runner", "model_impl", "device",  # one choice, the others are refused
    "safetensors_load_strategy",  # lazy
    "language_model_only",  # there are no media
    "disable_custom_all_reduce", "aggregate_engine_logging",  # there is one rank, one engine
    "enable_server_load_tracking",  # always on
}  # fmt: skip


def test_every_flag_is_read_by_somebody() -> None:
    """A flag that nothing reads, and that says nothing when given, would be ignored in silence."""
    root = Path(serve.__file__).parents[2]
    source = "".join(path.read_text() for path in root.rglob("*.py")
                     if path.parent.name != "config" and path.name != "startup_log.py")
    unread = {name for config in CONFIGS for name, spec in flags_of(config).items()
              if spec.is_supported and not spec.note and f".{name}" not in source
              and f'"{name}"' not in source}
    assert unread <= SO_ANYWAY

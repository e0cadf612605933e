"""The native executor: the same bits for a token whatever runs beside it and however it is run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.driver import Driver
from tests.models.test_families import options, prompt_of
from tests.models.test_gguf_models import save_quantized
from tests.models.tiny import save
from vllm.exceptions import ConfigError
from vllm.kernels import ops
from vllm.model_executor.build import load_native, load_reference
from vllm.model_executor.model import Model

CASES = ["qwen2", "gemma3", "phi3", "quantized"]


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(model folder or file, token ids)"""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "quantized":
        return folder / "model.gguf", prompt_of(save_quantized("mixed", folder / "model.gguf"))
    return folder, prompt_of(save(request.param, folder))


def solo(model: Model, ids: list[int], kv_dtype: str = "float32") -> np.ndarray:
    return Driver(model, kv_dtype=kv_dtype).prefill(ids)


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_and_chunks_change_no_bit(saved: Any, dtype: str, kv_dtype: str) -> None:
    folder, ids = saved
    model = load_native(options(folder, dtype=dtype))
    prompts = [ids, ids[::-1], ids[5:60], ids[40:]]
    expected = [solo(model, prompt, kv_dtype) for prompt in prompts]
    driver = Driver(model, num_seqs=4, kv_dtype=kv_dtype)
    rng = np.random.default_rng(11)
    done = [0] * 4
    while any(done[s] < len(p) for s, p in enumerate(prompts)):
        sizes = rng.integers(0, 20, 4)
        chunks = {s: p[done[s] : done[s] + sizes[s]] for s, p in enumerate(prompts)}
        chunks = {s: chunk for s, chunk in chunks.items() if chunk}
        if not chunks:
            continue
        rows = np.split(driver.step(chunks), np.cumsum([len(c) for c in chunks.values()])[:-1])
        for (seq, chunk), logits in zip(chunks.items(), rows, strict=True):
            want = expected[seq][done[seq] : done[seq] + len(chunk)]
            np.testing.assert_array_equal(logits, want)
            done[seq] += len(chunk)


def test_eager_and_threads_change_no_bit(saved: Any) -> None:
    folder, ids = saved
    threads = ops.num_threads()
    expected = solo(load_native(options(folder)), ids)
    np.testing.assert_array_equal(solo(load_native(options(folder, is_eager=True)), ids), expected)
    try:
        ops.set_num_threads(2 if threads == 1 else 1)
        np.testing.assert_array_equal(solo(load_native(options(folder)), ids), expected)
    finally:
        ops.set_num_threads(threads)


@pytest.mark.parametrize("load", [load_native, load_reference])
def test_other_rows_of_the_last_step(saved: Any, load: Any) -> None:
    """`logits_rows` gives what the step would have given for those rows."""
    folder, ids = saved
    model = load(options(folder))
    everything = solo(model, ids)
    last = Driver(model).step({0: ids}, last_only=True)
    np.testing.assert_array_equal(last, everything[-1:])
    for rows in ([3, 1, 50], [0], list(range(90))):
        again = model.logits_rows(np.array(rows, np.int32))
        np.testing.assert_array_equal(again, everything[rows])


def test_reference_agrees(saved: Any) -> None:
    folder, ids = saved
    native_logits = solo(load_native(options(folder)), ids, "float16")
    reference_logits = solo(load_reference(options(folder)), ids, "float16")
    # Quantised: a rounding to int8 may fall the other way (see test_gguf_models).
    atol = 0.3 if folder.suffix == ".gguf" else 2e-3
    np.testing.assert_allclose(native_logits, reference_logits, atol=atol)


def test_no_rows_to_sample(saved: Any) -> None:
    """A step of a chunk that does not end its prompt."""
    folder, ids = saved
    model = load_native(options(folder))
    expected = solo(model, ids)[-1:]
    driver = Driver(model)
    batch_size = len(ids) - 1
    driver.step({0: ids[:batch_size]})
    assert model.logits_rows(np.array([], np.int32)).shape == (0, model.vocab_size)
    np.testing.assert_array_equal(driver.step({0: ids[batch_size:]}), expected)


def test_timings_name_the_ops(saved: Any) -> None:
    folder, ids = saved
    model = load_native(options(folder))
    driver = Driver(model)
    model.measure(True)
    driver.step({0: ids[:9]})
    driver.step({0: ids[9:10]})
    rows = model.timings()
    assert len(rows) == len(model.graph.nodes)
    assert all(calls == 2 and seconds >= 0 for _, calls, seconds in rows)
    assert rows[0][0].startswith("embedding")


def test_buffers_are_shared_between_layers(tmp_path: Path) -> None:
    """The arena does not grow with depth."""
    sizes = []
    for num_layers in (2, 6):
        folder = tmp_path / str(num_layers)
        save("llama-bias", folder, num_hidden_layers=num_layers)
        model = load_native(options(folder))
        Driver(model)
        sizes.append(model.stats()["buffer_bytes"])
    assert sizes[0] == sizes[1]


def test_heads_that_no_kernel_fits_are_refused(tmp_path: Path) -> None:
    save("mistral-nemo", tmp_path, head_dim=12)
    model = load_native(options(tmp_path))
    with pytest.raises(ConfigError, match="head_dim is 12, not a multiple of 8"):
        Driver(model)
    with pytest.raises(ConfigError, match="--kv-cache-dtype fp8 is not supported"):
        Driver(model, kv_dtype="fp8")

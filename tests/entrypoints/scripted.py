"""A model that says what its prompt tells it to: the text between the last [[ and ]], then EOS.

Everything above it is real: scheduler, detokenizer, stop strings, output queues. A token is a byte,
so characters outside ASCII are split over tokens. `!fail!` in the script makes the request fail
there. A prompt without a script is continued as tests/v1/engine/fake.py says.
"""

from pathlib import Path
from typing import Any

from tests.v1.engine.fake import EOS, VOCAB, FakeExecutor, next_token
from tests.v1.engine.real_config import real_config, write_model
from vllm.v1.messages import ModelRunnerOutput, TokenLogprobs

FAIL = b"!fail!"
TEMPLATE = (
    "{% for message in messages %}<start>{{ message.role }}\n{{ message.content }}<eos>\n"
    "{% endfor %}{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)


def script_of(prompt: list[int]) -> bytes | None:
    """The text that the prompt asks for."""
    text = bytes(token for token in prompt if token < 256)
    _, found, rest = text.rpartition(b"[[")
    return rest.partition(b"]]")[0] if found else None


class ScriptedExecutor(FakeExecutor):
    """Follows the script of each prompt."""

    def _advance(
        self, request_id: str, sequence: Any, count: int, output: ModelRunnerOutput
    ) -> None:
        start = sequence.num_computed
        sequence.num_computed += count
        if sequence.wants_prompt:
            end = min(sequence.num_computed, sequence.num_prompt - 1)
            output.prompt_logprobs[request_id] = [
                candidates(sequence.tokens[i + 1], sequence.num_logprobs or 0)
                for i in range(start, end)
            ]
        if sequence.num_computed < len(sequence.tokens):
            return
        token = self._next(request_id, sequence, output)
        sequence.tokens.append(token)
        output.sampled_token_ids[request_id] = [token]
        if sequence.num_logprobs is not None:
            output.logprobs[request_id] = [candidates(token, sequence.num_logprobs)]

    def _next(self, request_id: str, sequence: Any, output: ModelRunnerOutput) -> int:
        script = script_of(sequence.tokens[: sequence.num_prompt])
        if script is None:
            return next_token(sequence.tokens)
        position = len(sequence.tokens) - sequence.num_prompt
        if script.startswith(FAIL, position):
            output.errors[request_id] = "the sampler raised"
        return script[position] if position < len(script) else EOS


def candidates(token: int, count: int) -> TokenLogprobs:
    """The chosen token with -0.5, then the best ones: itself again and the ids after it."""
    best = [(token + i) % VOCAB for i in range(count)]
    values = [-0.5, *[-0.5 - i for i in range(count)]]
    return TokenLogprobs([token, *best], values, [1, *range(1, count + 1)])


def scripted_config(folder: Path, chat_template: str | None = TEMPLATE, **fields: Any) -> Any:
    """A resolved config of a scripted model in `folder`."""
    write_model(folder)
    if chat_template is not None:
        (folder / "chat_template.jinja").write_text(chat_template)
    values = {
        "served_model_name": ["tiny", "alias"],
        "distributed_executor_backend": "tests.entrypoints.scripted:ScriptedExecutor",
        "seed": 0,
        **fields,
    }
    return real_config(folder, **values)

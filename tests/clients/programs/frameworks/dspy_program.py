"""DSPy: ``openai/MODEL`` and ``api_base``; a provider of its own says that the model keeps to schemas."""

from __future__ import annotations

import os
from typing import Any, Literal

# LiteLLM would fetch its tables of models' prices and of Anthropic's headers
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True"}

import dspy
from case import API_KEY, BASE_URL, MODEL, Client, until_awaited
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider

CLIENT = Client("DSPy", "dspy")
QUESTION = "What does len do?"
KINDS = ("function", "statement")
BY_MARKERS = (
    r"\[\[ ## reasoning ## \]\]\n[a-z ]{1,40}\n\n\[\[ ## kind ## \]\]\n(function|statement)\n\n"
    r"\[\[ ## useful ## \]\]\n(True|False)\n\n\[\[ ## completed ## \]\]"
)
"""What DSPy's chat adapter asks for in words, which a model of this size does not understand."""

dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
register_provider(
    ProviderDefinition.chat(
        AccessPolicy(provider="local", base_url=BASE_URL),
        compat=OpenAIChatCompat.preset("vllm"),
        placeholder_key="none",
    ),
    supports=ModelSupport(response_schema=True, function_calling=True),
)


class Classify(dspy.Signature):
    """What a name of Python is."""

    name: str = dspy.InputField()
    kind: Literal["function", "statement"] = dspy.OutputField()
    useful: bool = dspy.OutputField()


def lm(provider: str = "local", **options: Any) -> dspy.LM:
    """The server's model."""
    address = {"api_base": BASE_URL, "api_key": API_KEY, "num_retries": 0}
    return dspy.LM(f"{provider}/{MODEL}", temperature=0, max_tokens=120, cache=False, **address, **options)


def by_schema(**options: Any) -> Any:
    """Answers are asked for by ``response_format``."""
    return dspy.context(lm=lm(), adapter=dspy.JSONAdapter(), **options)


@CLIENT.case("basic")
async def basic() -> str:
    """The model itself, blocking and not; of OpenAI's name and of the provider declared above."""
    answers = [lm("openai")(QUESTION), lm()(QUESTION), await lm("openai").acall(QUESTION)]
    assert "number of items" in answers[0][0]
    assert all(answer == answers[0] for answer in answers), answers
    return answers[0][0]


@CLIENT.case("basic, through LiteLLM")
def through_litellm() -> str:
    """DSPy's older way to a server, which it still takes for what its own does not send."""
    (answer,) = lm("openai", engine="litellm")(QUESTION)
    assert "number of items" in answer
    return answer


@CLIENT.case("structured")
async def structured() -> str:
    """``Predict`` with a typed signature; several at once."""
    with by_schema():
        found = dspy.Predict(Classify)(name="len")
        assert found.kind in KINDS
        assert isinstance(found.useful, bool)
        again = await dspy.Predict(Classify).acall(name="len")
        assert again.kind in KINDS
        batch = dspy.Predict(Classify).batch(
            [dspy.Example(name=name).with_inputs("name") for name in ("len", "abs")], disable_progress_bar=True
        )
    assert [each.kind in KINDS for each in batch] == [True, True]
    return str(found.toDict())


@CLIENT.case("chain of thought")
def chain_of_thought() -> str:
    """The default adapter's markers, kept to by ``structured_outputs``: a field of the server's that DSPy passes on."""
    model = lm("openai", extra_body={"structured_outputs": {"regex": BY_MARKERS}})
    with dspy.context(lm=model, track_usage=True):
        found = dspy.ChainOfThought(Classify)(name="len")
    assert found.kind in KINDS
    assert found.reasoning
    assert sum(usage["completion_tokens"] for usage in found.get_lm_usage().values()) > 0
    return str(found.toDict())


async def listened(program: dspy.Module, field: str) -> tuple[list[str], dspy.Prediction]:
    """The pieces of a field, and the prediction. Of an answer that came in one piece DSPy shows none."""
    listener = dspy.streaming.StreamListener(signature_field_name=field)
    parts = [part async for part in dspy.streamify(program, stream_listeners=[listener])(name="len")]
    assert isinstance(parts[-1], dspy.Prediction)
    return [part.chunk for part in parts if isinstance(part, dspy.streaming.StreamResponse)], parts[-1]


@CLIENT.case("stream")
async def stream() -> str:
    """A field of the answer while it is written, and the prediction at the end."""
    model = lm("openai", extra_body={"structured_outputs": {"regex": BY_MARKERS}})
    with dspy.context(lm=model):
        pieces, last = await until_awaited(
            lambda found: len(found[0]) > 1, lambda: listened(dspy.ChainOfThought(Classify), "reasoning")
        )
    assert "".join(pieces).strip() == last.reasoning
    return f"{len(pieces)} pieces: {last.reasoning}"


@CLIENT.case("structured, stream")
async def structured_stream() -> str:
    """The same by a schema, the last field: of another, DSPy shows also what came after it in the same piece."""
    with by_schema():
        pieces, last = await until_awaited(
            lambda found: bool(found[0]), lambda: listened(dspy.Predict(Classify), "useful")
        )
    text = "".join(pieces)
    assert text.strip() == str(last.useful).lower(), (pieces, last)
    return f"{text} {last.toDict()}"


@CLIENT.case("tools")
def tools() -> str:
    """A turn whose output is a function's call, and the function run."""

    def lookup(name: Literal["len", "abs"]) -> str:
        """Look a built-in function up."""
        return f"{name}: the number of items in a container"

    class Ask(dspy.Signature):
        """Call a tool."""

        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    with dspy.context(lm=lm(tool_choice="required"), adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        found = dspy.Predict(Ask)(question=QUESTION, tools=[dspy.Tool(lookup)])
    (call,) = found.calls.tool_calls
    return f"{call.name}({call.args}) → {call.execute(functions=[dspy.Tool(lookup)])}"


@CLIENT.case("embeddings")
def embeddings() -> str:
    embed = dspy.Embedder(f"openai/{MODEL}", api_base=BASE_URL, api_key=API_KEY, caching=False)
    vectors = embed(["one", "two"])
    assert vectors.shape[0] == 2
    assert abs(vectors[0] - embed("one")).max() < 1e-2
    return str(vectors.shape)


@CLIENT.case("responses")
def responses() -> str:
    (answer,) = lm("openai", model_type="responses")(QUESTION)
    assert "number of items" in answer["text"]
    return answer["text"]


CLIENT.main()

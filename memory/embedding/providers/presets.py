"""The services that recalld knows by name: address, default model, key and limits of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Tokens of one request, even if a service takes more: a crash in the middle of it costs no more than that.
MOST_TOKENS = 100_000


@dataclass(frozen=True, slots=True)
class Preset:
    """One service. `inputs` and `tokens` (estimated) bound a request, `input_bytes` an input.

    `package` is imported by its provider and comes with the extra of the same name as `extra`. `dimensions_field` is
    the field of a request for shorter vectors. The input types are those of requests, unless the settings name others;
    None where the API has no such field. `name_prefixes` are prefixes that people write before a model's name, besides
    the provider's name. `open_models`: it serves models of others, whose families have prefixes for texts.
    """

    base_url: str
    model: str
    key_name: str | None
    package: str = "openai"
    extra: str = "openai"
    inputs: int = 2048
    tokens: int = MOST_TOKENS
    input_bytes: int = 8191
    chunks_per_second: float = 1000.0
    dimensions_field: str = "dimensions"
    query_input_type: str | None = None
    document_input_type: str | None = None
    name_prefixes: tuple[str, ...] = ()
    open_models: bool = False


PRESETS = {
    # 2,048 inputs of 8,192 tokens, 300,000 tokens: https://platform.openai.com/docs/api-reference/embeddings
    "openai": Preset("https://api.openai.com/v1", "text-embedding-3-small", "OPENAI_API_KEY"),
    # 100 inputs of 2,048 tokens; the same models on Vertex AI take 20,000 tokens a request:
    # https://ai.google.dev/gemini-api/docs/embeddings
    "gemini": Preset(
        "https://generativelanguage.googleapis.com",
        "gemini-embedding-001",
        "GEMINI_API_KEY",
        package="httpx2",
        inputs=100,
        tokens=20_000,
        input_bytes=2048,
        dimensions_field="outputDimensionality",
        name_prefixes=("google/", "models/"),
        query_input_type="RETRIEVAL_QUERY",
        document_input_type="RETRIEVAL_DOCUMENT",
    ),
    # 1,000 inputs; 120,000 tokens for the large models, in a tokenizer of its own that counts up to a fifth
    # more than our estimate: https://docs.voyageai.com/reference/embeddings-api
    "voyage": Preset(
        "https://api.voyageai.com/v1",
        "voyage-4-large",
        "VOYAGE_API_KEY",
        package="voyageai",
        extra="voyage",
        inputs=1000,
        tokens=80_000,
        dimensions_field="output_dimension",
        query_input_type="query",
        document_input_type="document",
    ),
    # 16,384 tokens and 256 inputs; refuses unknown fields: https://docs.mistral.ai/api/endpoint/embeddings
    "mistral": Preset(
        "https://api.mistral.ai/v1",
        "mistral-embed",
        "MISTRAL_API_KEY",
        inputs=256,
        tokens=13_000,
        dimensions_field="output_dimension",
    ),
    # 1,024 inputs, and its default model takes 8,192 tokens: https://docs.deepinfra.com/api-reference/openai-embeddings-1
    "deepinfra": Preset(
        "https://api.deepinfra.com/v1/openai", "BAAI/bge-m3", "DEEPINFRA_API_KEY", inputs=1024, open_models=True
    ),
    # Its own API, and 2,048 tokens of context are usual: https://docs.ollama.com/api/embed
    "ollama": Preset(
        "http://127.0.0.1:11434/v1",
        "nomic-embed-text",
        None,
        package="httpx2",
        inputs=64,
        tokens=16_000,
        input_bytes=2048,
        chunks_per_second=50.0,
        open_models=True,
    ),
    # The model that comes with it; 2,048 tokens of context are usual: https://lmstudio.ai/docs/developer/openai-compat
    "lmstudio": Preset(
        "http://127.0.0.1:1234/v1",
        "text-embedding-nomic-embed-text-v1.5",
        None,
        inputs=64,
        tokens=16_000,
        input_bytes=2048,
        chunks_per_second=50.0,
        open_models=True,
    ),
    # The settings name address and model. Limits are those of OpenAI, whose API it speaks.
    "openai-compatible": Preset("", "", None, open_models=True),
    # Limits are the model's: `memory.embedding.providers.bedrock`. AWS has its own chain of credentials.
    "bedrock": Preset(
        "https://bedrock-runtime.amazonaws.com",
        "amazon.titan-embed-text-v2:0",
        None,
        package="boto3",
        extra="bedrock",
        chunks_per_second=20.0,
        name_prefixes=("amazon-bedrock/",),
    ),
}

#: Servers of people's own, written with or without "/v1"; nothing is paid there.
OWN_SERVERS = frozenset({"ollama", "lmstudio"})

#: Gemini's OpenAI-compatible API, for a `remote.base_url` that ends in "/openai". It refuses fields that it does not
#: know, task types among them: https://ai.google.dev/gemini-api/docs/openai
GEMINI_COMPATIBLE = Preset(
    "https://generativelanguage.googleapis.com/v1beta/openai",
    "gemini-embedding-001",
    "GEMINI_API_KEY",
    inputs=100,
    input_bytes=2048,
)

#: The order in which `auto` looks for a key.
BY_KEY = ("openai", "gemini", "voyage", "mistral")

_SEARCHING = "Represent this sentence for searching relevant passages: "
_INSTRUCTED = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"

#: Pattern in the names of a family of open models, and the prefixes of queries and documents in its model card. The
#: first match counts. bge-m3 and bge's Chinese models have none here.
_FAMILIES = tuple(
    (re.compile(pattern), query, document)
    for pattern, query, document in (
        # https://huggingface.co/nomic-ai/nomic-embed-text-v1.5
        (r"nomic-embed-text", "search_query: ", "search_document: "),
        # https://huggingface.co/intfloat/multilingual-e5-large-instruct
        (r"\be5-(?:mistral-7b|large)-instruct", f"{_INSTRUCTED} ", ""),
        # https://huggingface.co/intfloat/multilingual-e5-large
        (r"\be5-(?:small|base|large)\b", "query: ", "passage: "),
        # https://huggingface.co/mixedbread-ai/mxbai-embed-large-v1
        (r"mxbai-embed-(?:2d-)?large", _SEARCHING, ""),
        # https://huggingface.co/Qwen/Qwen3-Embedding-0.6B
        (r"qwen3-embedding", _INSTRUCTED, ""),
        # https://ai.google.dev/gemma/docs/embeddinggemma/model_card
        (r"embedding-?gemma", "task: search result | query: ", "title: none | text: "),
        # https://huggingface.co/Snowflake/snowflake-arctic-embed-l-v2.0
        (r"arctic-embed(?:2|.{0,64}-v2\b)", "query: ", ""),
        # https://huggingface.co/Snowflake/snowflake-arctic-embed-l
        (r"arctic-embed", _SEARCHING, ""),
        # https://huggingface.co/BAAI/bge-large-en-v1.5, which Ollama calls bge-large
        (r"\bbge-(?:small|base|large)\b(?!-zh)", _SEARCHING, ""),
    )
)


def family_prefixes(model: str) -> tuple[str, str]:
    """Return the prefixes of queries and documents of a model's family, by the model's name; "" for nothing."""
    name = model.lower().replace("_", "-")
    return next(((query, document) for pattern, query, document in _FAMILIES if pattern.search(name)), ("", ""))

"""A .gguf file through llama.cpp; a package of the same interface stands in for llama-cpp-python, which is in no lock.

It does as version 0.3.36 did when it was tried by hand, ending the process beyond the trained context included.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = """
import os
from pathlib import Path

layers = []

def llama_supports_gpu_offload():
    return "GPU" in os.environ

class Llama:
    def __init__(self, model_path, *, embedding=False, vocab_only=False, n_ctx=512, n_batch=512, n_ubatch=512,
                 n_threads=None, n_threads_batch=None, n_gpu_layers=0, verbose=True):
        layers.append(n_gpu_layers)
        lines = Path(model_path).read_text("latin-1").split("\\n")
        if lines[0] != "GGUF":
            raise ValueError(f"Failed to load model from file: {model_path}")
        self.metadata = dict(line.split("=") for line in lines[1:] if line)
        self._trained = int(self.metadata["bert.context_length"])
        self._batch, self._context, self._usable = n_batch, n_ctx, embedding and not vocab_only
        assert verbose is False and n_batch == n_ubatch

    def embed(self, text, normalize=False, truncate=True, return_count=False):
        assert self._usable and isinstance(text, str)
        tokens = text.split()[: self._batch]
        if len(tokens) > self._trained:
            os._exit(134)
        rows = [[float(sum(map(ord, token)) % 7), float(len(token)), 1.0] for token in tokens]
        if self.metadata.get("pooling") == "none":
            return rows
        return [sum(column) / len(rows) for column in zip(*rows)]
"""

ASK = """
import sys
from memory.embedding.providers.provider import ProviderUnavailable
from memory.embedding.selection import choose_provider
from schemas.settings import Credentials
from schemas.settings import MemorySettings
memory = MemorySettings.model_validate({"local": {"model_path": sys.argv[1], "device": sys.argv[2]}})
choice = choose_provider(memory, Credentials())
assert "llama_cpp" not in sys.modules
if choice.provider is None:
    sys.exit(print(choice.lacking))
provider = choice.provider
try:
    matrix = provider.embed_documents(["the cat", "word " * 1000]).vectors
except ProviderUnavailable as error:
    sys.exit(print(error))
same = (provider.embed_query("the cat").vectors[0] == matrix[0]).all()
print(provider.name, provider.model, matrix.shape, bool(same))
print(provider.identity)
print(sys.modules["llama_cpp"].layers[-1], provider.lacks_gpu())
"""


def write_stand_in(folder: Path) -> Path:
    """Write the stand-in, and return the folder for the path of modules."""
    (folder / "site" / "llama_cpp").mkdir(parents=True, exist_ok=True)
    (folder / "site" / "llama_cpp" / "__init__.py").write_text(STAND_IN)
    return folder / "site"


def ask(model: Path, *, installed: bool = True, device: str = "auto", gpu: bool = False) -> str:
    """Return the output of a process that embeds with the model, with the stand-in on its path or without."""
    site = write_stand_in(model.parent)
    environment = {**os.environ, **({"PYTHONPATH": str(site)} if installed else {}), **({"GPU": "1"} if gpu else {})}
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, '')\n" + ASK, str(model), device]
    run = subprocess.run(command, cwd=Path(__file__).parents[5], env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout


def write_gguf(path: Path, *facts: str) -> Path:
    path.write_text("\n".join(["GGUF", "general.architecture=bert", "bert.context_length=512", *facts]))
    return path


def test_a_gguf_file_embeds_and_long_texts_do_not_end_the_process(tmp_path: Path) -> None:
    said, identity, _ = ask(write_gguf(tmp_path / "mine.Q8_0.gguf")).splitlines()
    assert said == "local mine.Q8_0 (2, 3) True"
    moved = (tmp_path / "mine.Q8_0.gguf").rename(tmp_path / "other.gguf")
    assert ask(moved).splitlines()[1] == identity
    assert ask(write_gguf(moved, "other=fact")).splitlines()[1] != identity


def test_a_gguf_file_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "garbage.gguf").write_bytes(b"\0" * 100)
    assert f"load {tmp_path}/garbage.gguf" in ask(tmp_path / "garbage.gguf")
    chat = write_gguf(tmp_path / "chat.gguf", "pooling=none")
    assert "no embedding model" in ask(chat)
    assert '"recalld[gguf]"' in ask(chat, installed=False)


@pytest.mark.parametrize(
    ("device", "gpu", "use"),
    [
        ("auto", False, "0 False"),
        ("auto", True, "-1 False"),
        ("cuda", True, "-1 False"),
        ("cuda", False, "0 True"),
        ("cpu", True, "0 False"),
    ],
)
def test_a_gpu_is_used_where_the_library_has_one_and_makes_no_other_model(
    tmp_path: Path, device: str, gpu: bool, use: str
) -> None:
    file = write_gguf(tmp_path / "mine.gguf")
    assert ask(file, device=device, gpu=gpu).splitlines()[1:] == [ask(file).splitlines()[1], use]

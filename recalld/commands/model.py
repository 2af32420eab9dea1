"""`recalld model`: local models that can be had by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import click

from recalld.invocation import CommandGroup, Invocation, examples, json_option, pass_invocation, to_type
from recalld.terminal_text import ProgressLine, print_answer


@click.group("model", cls=CommandGroup, epilog=examples("recalld model list"))
def model() -> None:
    """List local models that find more than the bundled one, and fetch one."""


@model.command("list", epilog=examples("recalld model list"))
@json_option
@pass_invocation
def list_models(invocation: Invocation, *, as_json: bool) -> None:
    """List the models that are known by name, with the figures of each on memory tasks."""
    from memory.embedding.providers.model_catalogue import CATALOGUE

    cache = invocation.settings.local.model_cache_dir
    names = ("name", "source", "dimensions", "languages", "licence", "score")
    models = [
        {key: getattr(model, key) for key in names}
        | {"bytes": model.size, "installed": cache is not None and model.folder(cache).is_dir()}
        for model in CATALOGUE.values()
    ]
    print_answer({"models": models}, _lines(models), as_json=as_json)


def _lines(models: list[dict[str, Any]]) -> Iterator[str]:
    form = "{:<22} {:>7} {:>10} {:>9} {:>10} {:>5}  {}"
    yield click.style(form.format("name", "size", "dimensions", "languages", "licence", "score", ""), bold=True)
    for model in models:
        size = f"{model['bytes'] / 1e6:,.0f} MB" if model["bytes"] else ""
        state = "installed" if model["installed"] else "" if size else "to be exported by hand"
        facts = (model["dimensions"] or "", model["languages"], model["licence"], model["score"])
        yield form.format(model["name"], size, *facts, state).rstrip()
    yield (
        "score: mean NDCG@10 of seven English memory tasks (LMEB, results of MTEB f4cc6c8) at full precision; "
        "what is fetched has 8-bit weights\nwithout local.model_path the bundled model is used, and no network"
    )


@model.command("pull", epilog=examples("recalld model pull multilingual-e5-large"))
@click.argument("name")
@click.option("--hub", envvar="HF_ENDPOINT", hidden=True)
@pass_invocation
def pull(invocation: Invocation, *, name: str, hub: str | None) -> None:
    """Fetch a model once, verify it, and say how to use it."""
    from memory.embedding.providers.model_catalogue import CATALOGUE, HUB, fetch
    from schemas.errors import UserError

    model = CATALOGUE.get(name)
    if model is None:
        raise UserError(f"there is no model {name}: `recalld model list` names those that there are", exit_code=2)
    size = model.size
    if size is None:
        raise UserError(
            f"{model.source} publishes no ONNX export: make one with `optimum-cli export onnx --trust-remote-code "
            f"--library sentence_transformers --model {model.source} FOLDER` and set local.model_path to FOLDER"
        )
    cache = invocation.settings.local.model_cache_dir
    assert cache is not None  # noqa: S101 - the settings fill it in
    if not model.folder(cache).is_dir():
        first = model.files[0]
        click.echo(f"{name}: {size / 1e6:,.0f} MB, {model.licence}, {first.repository} at {first.revision}", err=True)
    terminal, received = sys.stderr.isatty(), 0
    line = ProgressLine(partial(click.echo, err=True), terminal=terminal)

    def show(count: int) -> None:
        nonlocal received
        received += count
        if terminal and line.due:
            done, total = received / 1e6, size / 1e6
            line.draw(f"{done:,.0f}/{total:,.0f} MB", amount=(done, total, "MB"))

    try:
        folder = fetch(model, cache, hub=hub or HUB, on_bytes=show)
    finally:
        line.end()
    from memory.index.generations import Generations

    settings = invocation.settings
    provider = "" if settings.provider in {"auto", "local"} else ' and provider = "local"'
    click.echo(f'{name} is in {folder}; to use it, write into the settings: local.model_path = "{name}"{provider}')
    if any(Generations.of(settings, agent.id).used_at() for agent in settings.agents):
        click.echo(to_type("everything is then embedded again; `recalld index --dry-run` says what that takes"))

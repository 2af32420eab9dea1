"""`recalld model`: local models that can be had by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
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
    folder = _pull(name, invocation.settings.local.model_cache_dir, hub=hub)
    from memory.index.generations import Generations

    settings = invocation.settings
    provider = "" if settings.provider in {"auto", "local"} else ' and provider = "local"'
    click.echo(f'{name} is in {folder}; to use it, write into the settings: local.model_path = "{name}"{provider}')
    if any(Generations.of(settings, agent.id).used_at() for agent in settings.agents):
        click.echo(to_type("everything is then embedded again; `recalld index --dry-run` says what that takes"))


def pull_missing(invocation: Invocation, *, hub: str | None) -> None:
    """Fetch the models that the settings name and let a start fetch (`local.pull`). A failure is only printed."""
    from memory.embedding.providers.model_catalogue import listed_model
    from memory.embedding.selection import is_missing
    from schemas.errors import RecalldError

    for memory in invocation.settings.agents or (invocation.settings,):
        name, is_used = memory.local.model_path, memory.local.pull and memory.provider in {"auto", "local"}
        if name is not None and is_used and is_missing(memory) and listed_model(name) is not None:
            try:
                _pull(name, memory.local.model_cache_dir, hub=hub)
            except RecalldError as error:
                click.echo(str(error), err=True)


def _pull(name: str, cache: Path | None, *, hub: str | None) -> Path:
    from memory.embedding.providers.model_catalogue import HUB, HUB_SCHEME, fetch, listed_model, pinned
    from schemas.errors import UserError

    assert cache is not None  # noqa: S101 - the settings fill it in
    try:
        model = listed_model(name, cache)
    except ValueError as error:
        raise UserError(f"{name} is no file of the hub: it {error}", exit_code=2) from error
    if model is None:
        raise UserError(f"there is no model {name}: `recalld model list` names those that there are", exit_code=2)
    licence = f"{model.licence}, "
    if name.startswith(HUB_SCHEME):
        model, licence = pinned(model, hub=hub or HUB), "not pinned by recalld (the hub's SHA-256 counts), "
    size = model.size
    if size is None:
        raise UserError(
            f"{model.source} publishes no ONNX export: make one with `optimum-cli export onnx --trust-remote-code "
            f"--library sentence_transformers --model {model.source} FOLDER` and set local.model_path to FOLDER"
        )
    if not model.folder(cache).is_dir():
        first = model.files[0]
        click.echo(f"{name}: {size / 1e6:,.0f} MB, {licence}{first.repository} at {first.revision}", err=True)
    terminal, received = sys.stderr.isatty(), 0
    line = ProgressLine(partial(click.echo, err=True), terminal=terminal)

    def show(count: int) -> None:
        nonlocal received
        received += count
        if terminal and line.due:
            done, total = received / 1e6, size / 1e6
            line.draw(f"{done:,.0f}/{total:,.0f} MB", amount=(done, total, "MB"))

    try:
        return fetch(model, cache, hub=hub or HUB, on_bytes=show)
    finally:
        line.end()

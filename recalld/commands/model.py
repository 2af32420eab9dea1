"""`recalld model`: local models that can be had by name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from recalld.asking import print_json
from recalld.invocation import Invocation, pass_invocation

if TYPE_CHECKING:
    from memory.embedding.model_catalogue import ListedModel


@click.group("model")
def command() -> None:
    """List local models that are better than the bundled one, and fetch one."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@pass_invocation
def list_models(invocation: Invocation, *, as_json: bool) -> None:
    """List the models that can be had by name, with what was measured of each on memory tasks."""
    from memory.embedding.model_catalogue import CATALOGUE

    cache = invocation.settings.local.model_cache_dir
    assert cache is not None  # noqa: S101 - the settings fill it in
    installed = {model.name for model in CATALOGUE.values() if model.folder(cache).is_dir()}
    if as_json:
        models = [_body(model) | {"installed": model.name in installed} for model in CATALOGUE.values()]
        print_json({"models": models})
        return
    form = "{:<22} {:>7} {:>10} {:>9} {:>10} {:>5}  {}"
    click.secho(form.format("name", "size", "dimensions", "languages", "licence", "score", ""), bold=True)
    for model in CATALOGUE.values():
        state = "installed" if model.name in installed else "" if model.files else "to be exported by hand"
        size = f"{model.size / 1e6:,.0f} MB" if model.size else ""
        columns = (model.name, size, model.dimensions or "", model.languages, model.licence, model.score, state)
        click.echo(form.format(*columns).rstrip())
    click.echo(
        "score: mean NDCG@10 of seven memory tasks of LMEB (results of MTEB, f4cc6c8), at full precision; "
        "what is fetched has 8-bit weights\nunset, local.model_path is the bundled model, which needs no network"
    )


@command.command("pull")
@click.argument("name")
@click.option("--hub", envvar="HF_ENDPOINT", hidden=True, metavar="URL")
@pass_invocation
def pull(invocation: Invocation, *, name: str, hub: str | None) -> None:
    """Fetch a model once, verify it, and say how to use it."""
    from memory.embedding.model_catalogue import CATALOGUE, HUB, fetch
    from recalld.progress_bar import ProgressBar
    from schemas.errors import UserError

    model = CATALOGUE.get(name)
    if model is None:
        raise UserError(f"there is no model {name}: `recalld model list` names those that there are", exit_code=2)
    if not model.size:
        raise UserError(
            f"{model.source} publishes no ONNX export: make one with `optimum-cli export onnx --trust-remote-code "
            f"--library sentence_transformers --model {model.source} FOLDER` and set local.model_path to FOLDER"
        )
    cache = invocation.settings.local.model_cache_dir
    assert cache is not None  # noqa: S101 - the settings fill it in
    known = model.folder(cache).is_dir()
    if not known:
        first = model.files[0]
        click.echo(
            f"{name}: {model.size / 1e6:,.0f} MB, {model.licence}, {first.repository} at {first.revision[:12]}",
            err=True,
        )
    bar, came, size = ProgressBar(), 0, model.size

    def told(count: int) -> None:
        nonlocal came
        came += count
        if sys.stderr.isatty() and bar.due():
            bar.draw(came / size, f"{came / 1e6:,.0f}/{size / 1e6:,.0f} MB")

    try:
        folder = fetch(model, cache, hub=hub or HUB, told=told)
    finally:
        bar.end()
    click.echo(f"{name} {'is already' if known else 'is'} in {folder}")
    _say_what_follows(invocation, name)


def _say_what_follows(invocation: Invocation, name: str) -> None:
    from recalld.dry_run import run_estimate
    from schemas.errors import UserError

    settings = invocation.settings
    provider = "" if settings.provider in {"auto", "local"} else ' and provider = "local"'
    click.echo(f'to use it, write into the settings: local.model_path = "{name}"{provider}')
    if not any((settings.indexes_path / agent.id).is_dir() for agent in settings.agents):
        return
    click.echo("everything is then embedded again, while the index that exists goes on answering:")
    with_it = Invocation(
        config=invocation.config,
        home=invocation.home,
        agent=invocation.agent,
        workspace=invocation.workspace,
        overrides={**invocation.overrides, "local.model_path": name, "provider": "local"},
    )
    try:
        run_estimate(with_it, fresh=True, as_json=False)
    except UserError as error:  # the model is there all the same
        click.echo(f"how much that is cannot be said: {error}")


def _body(model: ListedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "bytes": model.size,
        "dimensions": model.dimensions,
        "languages": model.languages,
        "licence": model.licence,
        "score": model.score,
    }

"""Commands of a fleet's administrator: `recalld migrate`, `recalld tenant` and `recalld token`."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from recalld.invocation import CommandGroup, Invocation, examples, json_option, pass_invocation, to_type
from recalld.terminal_text import print_answer, printable_name
from schemas.errors import UserError

if TYPE_CHECKING:
    from memory.store.postgres.administration import Administration

#: JSON object and lines for people.
Answer: TypeAlias = tuple[Mapping[str, Any], Iterable[str]]

_weight_option = click.option(
    "--weight", type=click.FloatRange(0.01, 1000), metavar="W", help="Share of the workers beside other tenants. [1]"
)
_budget_option = click.option(
    "--tokens-a-day", type=click.IntRange(0), metavar="N", help="Tokens that may be embedded a day; 0 for no limit."
)
_rights_option = click.option(
    "--right",
    "rights",
    type=click.Choice(("search", "ingest", "admin")),
    multiple=True,
    default=["search"],
    help="Right of the token; repeatable. [search]",
)
_agents_option = click.option(
    "--agent", "agents", metavar="ID", multiple=True, help="Agent that it opens; repeatable, the first is the default."
)
_days_option = click.option(
    "--days", type=click.FloatRange(0, 36_500, min_open=True), metavar="N", help="Days until it expires. [never]"
)


@click.group("tenant", cls=CommandGroup, epilog=examples("recalld tenant list"))
def tenant() -> None:
    """Administer the tenants of a fleet: teams or customers that share no memory.

    Needs store.url with a user in recalld_writer, as `recalld token` does.
    """


@click.group("token", cls=CommandGroup, epilog=examples("recalld token list acme"))
def token() -> None:
    """Administer the access tokens of a fleet's tenants."""


@click.command("migrate", epilog=examples("recalld migrate", "recalld migrate --url postgresql://owner@db.lan/recalld"))
@click.option("--url", metavar="URL", help="Database, with the user who owns the tables. [store.migrate_url]")
@pass_invocation
def migrate(invocation: Invocation, *, url: str | None) -> None:
    """Make the tables of a fleet's store in PostgreSQL, or bring them up to date.

    Each migration is one transaction, and waits 10 seconds at most for other transactions to end. Running processes
    of the version before go on working.
    """
    from memory.store.postgres.migration import migrate as run_migrations

    if url is None:
        secret = invocation.settings.store.migrate_url
        if secret is None:
            raise UserError("name the database with --url, or as store.migrate_url in the settings", exit_code=2)
        url = secret.get_secret_value()
    names = run_migrations(url)
    click.echo(f"done: {', '.join(names)}" if names else "nothing to do: the tables are up to date")
    if names:
        click.echo(
            "each user of the store needs one of two roles; in psql: GRANT recalld_writer TO worker1 (workers), "
            "GRANT recalld_reader TO query1 (query service)"
        )


def _command(group: click.Group, name: str, *typed: str) -> Callable[[Callable[..., Answer]], click.Command]:
    """Add a command to a group: a function of the fleet's administration and of its options, which may print JSON."""

    def add(act: Callable[..., Answer]) -> click.Command:
        def run(invocation: Invocation, *, as_json: bool, **options: Any) -> None:
            answer, lines = act(_administration(invocation), **options)
            print_answer(answer, map(to_type, lines), as_json=as_json)

        return group.command(name, epilog=examples(*typed))(json_option(pass_invocation(update_wrapper(run, act))))

    return add


def _administration(invocation: Invocation) -> Administration:
    store = invocation.settings.store
    if store.url is None:
        problem = "tenants and tokens belong to a fleet: set store.url to its PostgreSQL, with a user in recalld_writer"
        raise UserError(problem, exit_code=2)
    from memory.store.postgres.administration import Administration
    from memory.store.postgres.connection import Database

    try:
        actor = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in a container
        actor = f"uid {os.getuid()}"
    return Administration(Database.of(store), actor=actor)


@_command(tenant, "add", "recalld tenant add acme", "recalld tenant add acme --weight 2 --tokens-a-day 2000000")
@click.argument("name")
@_weight_option
@_budget_option
def add_tenant(fleet: Administration, *, name: str, **values: Any) -> Answer:
    """Add the tenant NAME: letters, digits, dot, dash, underscore."""
    fleet.add_tenant(name, **values)
    return {"tenant": name}, [f"{name} is added; make a token for it: `recalld token add {name} TOKEN`"]


@_command(tenant, "list", "recalld tenant list", "recalld tenant list --agents", "recalld tenant list --json")
@click.option("--agents", "names_agents", is_flag=True, help="List the agents instead, as --agent takes them.")
def list_tenants(fleet: Administration, *, names_agents: bool) -> Answer:
    """List the tenants, with their weights, budgets and numbers of agents."""
    if names_agents:
        return {"agents": (agents := list(fleet.agent_ids()))}, agents
    tenants = fleet.tenants()
    return {"tenants": tenants}, map(_line, tenants)


@_command(tenant, "set", "recalld tenant set acme --weight 2", "recalld tenant set acme --tokens-a-day 0")
@click.argument("name")
@_weight_option
@_budget_option
def set_tenant(fleet: Administration, *, name: str, **values: Any) -> Answer:
    """Change the weight or the budget of the tenant NAME."""
    fleet.set_tenant(name, **values)
    return {"tenant": name}, [f"{name} is changed"]


@_command(tenant, "remove", "recalld tenant remove acme")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete its documents as well.")
def remove_tenant(fleet: Administration, *, name: str, force: bool) -> Answer:
    """Delete the tenant NAME with its tokens, agents and indexes.

    Leaves with exit code 1 where there are documents and --force is not given. An interrupted removal goes on when the
    command is repeated. The tenant's audit rows stay.
    """
    rows = fleet.remove_tenant(name, force=force)
    return {"tenant": name, "rows": rows}, [f"{name} is removed: {rows:,} rows deleted"]


@_command(token, "add", "recalld token add acme bot", "recalld token add acme laptop --right ingest --agent anna")
@click.argument("tenant")
@click.argument("name")
@_rights_option
@_agents_option
@_days_option
def add_token(fleet: Administration, *, tenant: str, name: str, **options: Any) -> Answer:
    """Make the access token NAME for TENANT and print it, this once: only its hash is stored.

    Without --agent it opens all agents of the tenant. Agents that it names are added where they are missing.
    """
    secret = fleet.add_token(tenant, name, **options)
    return {"tenant": tenant, "name": name, "token": secret}, [secret]


@_command(token, "list", "recalld token list", "recalld token list acme --json")
@click.argument("tenant", required=False)
def list_tokens(fleet: Administration, *, tenant: str | None) -> Answer:
    """List the tokens of TENANT, or of all tenants, with rights, agents, machines and states."""
    tenants = [tenant] if tenant is not None else [row["tenant"] for row in fleet.tenants()]
    tokens = [token for name in tenants for token in fleet.tokens(name)]
    return {"tokens": tokens}, map(_line, tokens)


@_command(token, "revoke", "recalld token revoke acme laptop")
@click.argument("tenant")
@click.argument("name")
def revoke(fleet: Administration, *, tenant: str, name: str) -> Answer:
    """Revoke the token NAME of TENANT. Services refuse it within five seconds."""
    fleet.revoke(tenant, name)
    return {"tenant": tenant, "name": name}, [f"{name} is revoked, and refused within five seconds"]


def _line(row: Mapping[str, Any]) -> str:
    """Return the fields of a row that are set, in one line."""
    values = {name: ", ".join(value) if isinstance(value, list) else value for name, value in row.items()}
    return printable_name("  ".join(f"{name} {value}" for name, value in values.items() if value not in (None, "")))

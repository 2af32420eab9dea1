"""One call of the command line: global options, flags that override settings, and the settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recalld.settings.load import (
    LoadedSettings,
    did_you_mean,
    find_config,
    find_home,
    load,
    select_agent,
    written_agents,
)
from recalld.settings.workspaces import remember_workspace
from schemas.errors import UserError

if TYPE_CHECKING:
    from memory.store.postgres.directory import FleetDirectory
    from schemas.settings import AgentSettings, Settings

#: Agents of a fleet that a message names.
_NAMED_AGENTS = 3

#: Commands that may be about one agent.
_FOR_AN_AGENT = frozenset({"backfill", "dead", "get", "index", "mcp", "rebuild", "remember", "search", "status"})

#: A command in a message that a person may type.
_COMMAND = re.compile(r"`recalld ([a-z][^`]*)`")

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


@dataclass
class Invocation:
    """One call of the command line; `ctx.obj` of every command.

    `overrides` maps dotted setting keys to the values of flags. Settings are read when they are first used: a search
    through a running service needs none. `yes`: the user confirms a large folder.
    """

    config: str | None = None
    home: str | None = None
    agent: str | None = None
    workspace: str | None = None
    yes: bool = False
    overrides: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def home_path(self) -> Path:
        """Return the folder that recalld writes to. Cheap; reads no settings."""
        return find_home(self.home)

    def check_config(self) -> None:
        """Raise UserError (exit code 2) if --config or RECALLD_CONFIG names no file. Cheap; reads nothing."""
        find_config(self.config, home=self.home_path)

    def config_option(self) -> list[str]:
        """Return --config for a program with another environment; nothing for a settings file in its usual place."""
        file = find_config(self.config, home=self.home_path)
        usual = find_config(home=self.home_path, environment={})
        return ["--config", str(file)] if file not in (None, usual) else []

    @cached_property
    def loaded(self) -> LoadedSettings:
        """Return the settings with the origin of each. Raise UserError (exit code 2) naming every offending key."""
        return self.read_again()

    def read_again(self) -> LoadedSettings:
        """Return the present value of `loaded`. Raise like it."""
        return load(
            config=self.config,
            home=self.home,
            workspace=self.workspace,
            agent=self.agent,
            overrides=self.overrides,
        )

    def reload(self) -> None:
        """Make `read_again` the settings of this call. Raise like it."""
        self.loaded = self.read_again()

    @property
    def settings(self) -> Settings:
        """Return the settings. Raise like `loaded`."""
        return self.loaded.settings

    @property
    def names_agent(self) -> bool:
        """Return True if --agent or --workspace names the agent of this call."""
        return self.agent is not None or self.workspace is not None

    def the_agent(self) -> AgentSettings:
        """Return the agent of this call: the agent of --agent, else of --workspace, else the only agent.

        Raises:
            UserError: there is none, or several and none was named, or none of that name.
        """
        chosen, fleet = self.loaded.workspace, self.fleet
        if fleet is None or (self.agent is None and self.settings.agents):
            agent = self.agent if self.agent is not None or chosen is None else chosen.agent
            return select_agent(self.settings, agent)
        names = [self.agent] if self.agent is not None else [*islice(fleet.agent_ids(), _NAMED_AGENTS)]
        if len(names) == 1:
            with suppress(KeyError, ValueError):
                return fleet.agent(names[0])
        problem = f"has several agents ({', '.join(names)}, for example)" if names else "has no agent yet"
        if self.agent is not None:
            problem = f"has no agent {self.agent!r}"
        advice = "name one as --agent TENANT/AGENT; `recalld tenant list --agents` lists them"
        raise UserError(f"the fleet {problem}; {advice}", exit_code=2)

    @cached_property
    def fleet(self) -> FleetDirectory | None:
        """Return the directory of the fleet; None unless the settings name its store."""
        if self.settings.store.url is None:
            return None
        from memory.store.postgres.directory import FleetDirectory

        return FleetDirectory.of(self.settings)

    def agents(self, of_fleet: Callable[[FleetDirectory], Iterable[str]] | None = None) -> tuple[AgentSettings, ...]:
        """Return the agents of this call: the agent of --agent, else of --workspace, else all of the settings.

        Of a fleet, `of_fleet` chooses ids of its directory besides.

        Raises:
            UserError: there is none, or none of that name.
        """
        fleet, configured = self.fleet, self.settings.agents
        if self.names_agent or not (configured or (fleet is not None and of_fleet is not None)):
            return (self.the_agent(),)
        ids = of_fleet(fleet) if fleet is not None and of_fleet is not None else ()
        chosen_ids = (agent_id for agent_id in ids if all(agent.id != agent_id for agent in configured))
        return (*configured, *(fleet.agent(agent_id) for agent_id in chosen_ids if fleet is not None))

    def command(self, words: str, *, agent: str | None = None) -> str:
        """Return how to type a command of recalld, `search QUERY` say, so that it means the home of this call.

        Program, --config, --home and --agent are those of this call. `agent` takes the place of --agent where the call
        has none and there are several agents.
        """
        import shlex

        given = words.split()
        subject = (self.agent or agent) if given[0] in _FOR_AN_AGENT else None
        options = {"--config": self.config, "--home": self.home, "--agent": subject}
        flags = [f"{flag} {shlex.quote(value)}" for flag, value in options.items() if value and flag not in given]
        return " ".join([_program(), words, *flags])

    def to_type(self, text: str, *, agent: str | None = None) -> str:
        """Return a message whose commands (`recalld ...` in backquotes) can be typed as they stand. See `command`."""
        return _COMMAND.sub(lambda match: f"`{self.command(match[1], agent=agent)}`", text)

    def remember(self) -> None:
        """Keep the workspace that --workspace named for later commands, with the choice of its notes."""
        chosen, settings = self.loaded.workspace, self.settings
        if chosen is not None and (workspace := chosen.workspace) is not None:
            folder = workspace.folder
            agents = [agent.id for agent in settings.agents if agent.workspace == folder]
            remember_workspace(settings.home, chosen.agent, folder, extra_paths=workspace.extra_paths, agents=agents)


def to_type(text: str, *, agent: str | None = None) -> str:
    """Return a message whose commands (`recalld ...` in backquotes) can be typed as they stand.

    `agent` is the subject of the message, where there are several agents. See `Invocation.command`. Outside of a call
    the text stays as it is.
    """
    context = click.get_current_context(silent=True)
    invocation = context.find_object(Invocation) if context is not None else None
    return invocation.to_type(text, agent=agent) if invocation is not None else text


def _program() -> str:
    """Return this program as the user called it."""
    import shlex
    import shutil

    program = Path(sys.argv[0])
    if program.parts[-2:] == ("recalld", "__main__.py"):
        return f"{shlex.quote(sys.executable)} -m recalld"
    path = shutil.which("recalld")
    if program.name != "recalld" or (path is not None and Path(path).resolve() == program.resolve()):
        return "recalld"
    return shlex.quote(str(program))


class CommandGroup(click.Group):
    """Group of commands: alone it shows its help (exit code 2), and a wrong name comes with the nearest right one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options. Without any argument, show the help to a person who typed the group alone."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, and the other arguments."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def examples(*commands: str) -> str:
    """Return the end of a command's help: how it is typed. A test parses each of them."""
    return "\n".join(("\b", "Examples:", *(f"  {command}" for command in commands)))


def _remember_option(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if not value:
        raise click.BadParameter("must not be empty", ctx=ctx, param=param)
    assert param.name is not None  # noqa: S101 - click names every option
    setattr(ctx.ensure_object(Invocation), param.name, value)


def _complete_agent(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    call = ctx.find_object(Invocation) or Invocation()
    return [agent for agent in written_agents(call.config, home=call.home_path) if agent.startswith(incomplete)]


#: Options that every command takes, before or after its name: name -> form of the value and help.
_GLOBAL_OPTIONS = {
    "--config": ("FILE", "Settings file. [RECALLD_CONFIG]"),
    "--home": ("DIR", "Folder for everything recalld writes. [RECALLD_HOME]"),
    "--agent": ("ID", "Agent to use."),
}


def global_options() -> list[click.Parameter]:
    """Return the options that every command takes."""
    return [
        click.Option(
            [name],
            metavar=metavar,
            help=text,
            expose_value=False,
            callback=_remember_option,
            shell_complete=_complete_agent if name == "--agent" else None,
        )
        for name, (metavar, text) in _GLOBAL_OPTIONS.items()
    ]


#: For a command that only reads.
read_workspace_option = click.option(
    "--workspace",
    metavar="DIR",
    help="Ask the memory of this folder, straight from its index.",
    expose_value=False,
    callback=_remember_option,
)


def workspace_option(command: AnyFunction) -> AnyFunction:
    """Give a command the options --workspace and --yes, kept in `Invocation`."""

    def keep_yes(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        ctx.ensure_object(Invocation).yes = value

    about = "Folder of Markdown notes, with MEMORY.md and memory/ or without; remembered for later commands."
    option = click.option("--workspace", metavar="DIR", help=about, expose_value=False, callback=_remember_option)
    yes = click.option(
        "--yes", is_flag=True, help="Take a large folder, or your home.", expose_value=False, callback=keep_yes
    )
    return option(yes(command))


#: Exit codes of commands, beside those of errors (`recalld.cli.EXIT_CODES`).
NOTHING_FOUND, NOT_OK = 3, 4

#: For a command that prints an answer.
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def setting_option(flag: str, key: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Give a command a flag that overrides the setting `key`, kept in `Invocation.overrides`.

    The flag's name must be the key's last part (`--port` for service.port): errors name it so.
    """

    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.ensure_object(Invocation).overrides[key] = value

    return click.option(flag, expose_value=False, callback=keep, **attributes)


def remote_option(command: AnyFunction) -> AnyFunction:
    """Give a command the option --remote, which overrides fleet.url."""

    def keep(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.ensure_object(Invocation).overrides["fleet.url"] = value

    about = "Send to the door of this fleet. [fleet.url]"
    return click.option("--remote", metavar="URL", help=about, expose_value=False, callback=keep)(command)


def pass_invocation(command: AnyFunction) -> AnyFunction:
    """Call a command with its `Invocation`, after a check that the named settings file exists."""

    def with_config_check(invocation: Invocation, *arguments: Any, **options: Any) -> Any:
        invocation.check_config()
        return command(invocation, *arguments, **options)

    return pass_unchecked_invocation(update_wrapper(with_config_check, command))  # type: ignore[return-value] # as click's own


#: For a command that may write the named settings file.
pass_unchecked_invocation = click.make_pass_decorator(Invocation, ensure=True)

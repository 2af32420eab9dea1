"""What one call of the command line knows: global options, flags that override settings, and the settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recalld.settings import load as configuration

if TYPE_CHECKING:
    from schemas.settings import AgentSettings, Settings

#: Commands of one agent's memory, or that may be.
_FOR_AN_AGENT = frozenset({"backfill", "dead", "get", "index", "mcp", "rebuild", "search", "status"})

#: How messages name a command that a person may type.
_COMMAND = re.compile(r"`recalld ([a-z][^`]*)`")

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


@dataclass
class Invocation:
    """One call of the command line; `ctx.obj` of every command.

    `overrides` maps dotted setting keys to what flags said. Nothing is read before it is asked for, so that a
    search through a running service does not pay for settings it does not need.
    """

    config: str | None = None
    home: str | None = None
    agent: str | None = None
    workspace: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def home_path(self) -> Path:
        """The folder that recalld writes to. Cheap; reads no settings."""
        return configuration.find_home(self.home)

    def check_config(self) -> None:
        """Raise UserError (exit code 2) if --config or RECALLD_CONFIG names no file. Cheap; reads nothing."""
        configuration.find_config(self.config, home=self.home_path)

    @cached_property
    def loaded(self) -> configuration.LoadedSettings:
        """The settings with the origin of each. Raises UserError (exit code 2) naming every offending key."""
        return self.read_again()

    def read_again(self) -> configuration.LoadedSettings:
        """What `loaded` would be now. Raises like it."""
        return configuration.load(
            config=self.config,
            home=self.home,
            workspace=self.workspace,
            agent=self.agent,
            overrides=self.overrides,
        )

    @property
    def settings(self) -> Settings:
        """The settings. Raises like `loaded`."""
        return self.loaded.settings

    def the_agent(self) -> AgentSettings:
        """The one agent this call is about: --agent, else the only one.

        Raises:
            UserError: there is none, or several and none was named, or none of that name.
        """
        return configuration.select_agent(self.settings, self.agent)

    def agents(self) -> tuple[AgentSettings, ...]:
        """The agents this call is about: the one --agent names, else all.

        Raises:
            UserError: there is none, or none of that name.
        """
        if self.agent is not None or not self.settings.agents:
            return (self.the_agent(),)
        return self.settings.agents

    def command(self, words: str, *, agent: str | None = None) -> str:
        """Return how to type a command of recalld, `search QUERY` say, so that it means the home of this call.

        Program, --config and --home are those of this call; so is --agent, else it is `agent`, whom the command is
        about where there are several.
        """
        import shlex

        named = [("--config", self.config), ("--home", self.home)]
        if words.split()[0] in _FOR_AN_AGENT:
            named.append(("--agent", self.agent or agent))
        given = words.split()
        flags = [f"{flag} {shlex.quote(value)}" for flag, value in named if value is not None and flag not in given]
        return " ".join([_program(), words, *flags])

    def to_type(self, text: str, *, agent: str | None = None) -> str:
        """Return a message whose commands (`recalld ...` in backquotes) can be typed as they stand. See `command`."""
        return _COMMAND.sub(lambda found: f"`{self.command(found[1], agent=agent)}`", text)

    def remember(self) -> None:
        """Make later commands start from here: keep the workspace that --workspace named, and what a search needs."""
        if self.workspace is not None:
            agent = self.agent or configuration.DEFAULT_AGENT
            configuration.remember_workspace(self.settings.home, agent, self.settings.agent(agent).workspace)
        configuration.remember_for_search(config=self.config, home=self.home)


def to_type(text: str, *, agent: str | None = None) -> str:
    """Return a message whose commands (`recalld ...` in backquotes) can be typed as they stand.

    `agent`: whom the message is about, where there are several. See `Invocation.command`; outside of a call the text
    stays as it is.
    """
    context = click.get_current_context(silent=True)
    invocation = context.find_object(Invocation) if context is not None else None
    return invocation.to_type(text, agent=agent) if invocation is not None else text


def _program() -> str:
    """Return this program as the person called it."""
    import shlex
    import shutil

    called = Path(sys.argv[0])
    if called.parts[-2:] == ("recalld", "__main__.py"):
        return f"{shlex.quote(_from_here(sys.executable))} -m recalld"
    found = shutil.which("recalld")
    if called.name != "recalld" or (found is not None and Path(found).resolve() == called.resolve()):
        return "recalld"
    return shlex.quote(_from_here(called))


def _from_here(path: str | Path) -> str:
    """The shorter name of a program that a shell finds: from the current folder, or the whole one."""
    relative = os.path.relpath(path)
    return min(relative if os.sep in relative else f".{os.sep}{relative}", str(path), key=len)


def global_options() -> list[click.Parameter]:
    """The options that every command takes, before or after its name."""
    return [
        click.Option(
            ["--config"],
            metavar="FILE",
            help="Settings file. [RECALLD_CONFIG]",
            expose_value=False,
            callback=_remember_option,
        ),
        click.Option(
            ["--home"],
            metavar="DIR",
            help="Folder for everything recalld writes. [RECALLD_HOME]",
            expose_value=False,
            callback=_remember_option,
        ),
        click.Option(
            ["--agent"],
            metavar="ID",
            help="The agent whose memory is meant.",
            expose_value=False,
            callback=_remember_option,
        ),
    ]


def workspace_option(command: AnyFunction) -> AnyFunction:
    """Give a command `--workspace DIR`, kept in `Invocation.workspace`."""
    return click.option(
        "--workspace",
        metavar="DIR",
        help="Folder that holds MEMORY.md and memory/; remembered for later commands.",
        expose_value=False,
        callback=_remember_option,
    )(command)


def setting_option(flag: str, key: str, **attributes: Any) -> Callable[[AnyFunction], AnyFunction]:
    """Give a command a flag that overrides the setting `key`, kept in `Invocation.overrides`.

    The flag's name must be the key's last part (`--port` for service.port): errors name it so.
    """

    def keep(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.ensure_object(Invocation).overrides[key] = value

    return click.option(flag, expose_value=False, callback=keep, **attributes)


def _remember_option(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if not value:
        raise click.BadParameter("must not be empty", ctx=ctx, param=param)
    assert param.name is not None  # noqa: S101 - click names every option
    setattr(ctx.ensure_object(Invocation), param.name, value)


def pass_invocation(command: AnyFunction) -> AnyFunction:
    """Call a command with its `Invocation`, once the settings file that was named is known to be there."""

    def checked(invocation: Invocation, *arguments: Any, **named: Any) -> Any:
        invocation.check_config()
        return command(invocation, *arguments, **named)

    return pass_unchecked_invocation(update_wrapper(checked, command))  # type: ignore[return-value] # as click's own


#: For a command that may write the settings file that was named.
pass_unchecked_invocation = click.make_pass_decorator(Invocation, ensure=True)

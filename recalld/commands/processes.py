"""Commands that run until they are stopped: `recalld up`, `watch`, `work`, `serve`, `ingest` and `mcp`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from recalld.invocation import Invocation, examples, pass_invocation, remote_option, setting_option, workspace_option
from recalld.settings.load import check_workspace
from recalld.up.lifecycle import (
    SettingsAge,
    await_store,
    keep_heaps_small,
    running_broker,
    stop_event,
    supervised_option,
    traced,
)
from recalld.up.sd_notify import announce_ready, watchdog
from schemas.errors import UserError

if TYPE_CHECKING:
    from memory.status.processes import Pulses
    from schemas.settings import Settings


@click.command("up", epilog=examples("recalld up", "recalld up --workspace ~/notes", "recalld up --port 0"))
@workspace_option
@setting_option("--host", "service.host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
@setting_option("--port", "service.port", type=int, metavar="N", help="Port of the query service; 0 picks one. [7373]")
@click.option("--detach", is_flag=True, help="Return when everything is ready, and leave it running.")
@click.option("--hub", envvar="HF_ENDPOINT", hidden=True)
@pass_invocation
def up(invocation: Invocation, *, detach: bool, hub: str | None) -> int:
    """Run broker, watching, indexing and search until Ctrl-C, which drains and stops all of it.

    With --detach it runs without a terminal, until `recalld stop`; its messages are in log/up.log in the home folder.
    """

    def run(**options: Any) -> int:
        from recalld.runs.estimate import confirm_workspace
        from recalld.up.daemon import run_daemon

        confirm_workspace(invocation)
        return run_daemon(invocation, **options)

    from recalld.commands.model import pull_missing

    pull_missing(invocation, hub=hub)
    if not detach:
        return run()
    from recalld.up.detached import in_background

    return in_background(invocation.home_path, lambda on_ready: run(on_ready=on_ready))


@click.command("watch", epilog=examples("recalld watch", "recalld watch --remote https://fleet.example.com"))
@workspace_option
@remote_option
@click.option("--agent-name", metavar="NAME", help="Name of the agent in the fleet. [fleet.agents]")
@supervised_option
@pass_invocation
def watch(invocation: Invocation, *, agent_name: str | None, supervised: bool) -> None:
    """Run only the producers: watch files and queue the changed documents, until Ctrl-C.

    With --remote (or fleet.url) it sends the documents, redacted, to the door of a fleet, with the access token in
    RECALLD_TOKEN. It needs no broker and embeds nothing. What changes while the door is away is sent afterwards.
    """
    if agent_name is not None:
        agent = invocation.the_agent().id
        invocation.overrides["fleet.agents"] = {**invocation.settings.fleet.agents, agent: agent_name}
        invocation.reload()
    if invocation.settings.fleet.url is not None and not supervised:
        from recalld.runs.remote import watch_remote

        with _process(invocation, "watch", supervised=supervised, needs_broker=False) as process:
            watch_remote(process.settings, process.stop, on_ready=process.ready, pulses=process.pulses)
        return
    from producers.run import run_producers
    from recalld.wiring import indexes_of, open_broker
    from workers.health.heartbeat import Heartbeat

    with (
        _process(invocation, "watch", supervised=supervised) as process,
        Heartbeat(process.settings, "watch", process.pulses, outdated=process.age),
        open_broker(process.settings) as broker,
    ):
        run_producers(
            process.settings,
            broker.queue,
            broker.inbox,
            broker.health,
            process.stop,
            indexes_of(process.settings),
            on_ready=process.ready,
            pulses=process.pulses,
            count=broker.health.counters.count_spooled,
        )


@click.command("work", epilog=examples("recalld work", "recalld work --port 9090"))
@workspace_option
@setting_option("--host", "workers.host", metavar="ADDRESS", help="Address for metrics and health. [127.0.0.1]")
@setting_option("--port", "workers.port", type=int, metavar="N", help="Port for metrics and health. [none]")
@supervised_option
@pass_invocation
def work(invocation: Invocation, *, supervised: bool) -> None:
    """Run only the workers: index queued documents, until Ctrl-C."""
    from workers.run import run_workers

    with _process(invocation, "work", supervised=supervised) as process:
        run_workers(process.settings, process.stop, on_ready=process.ready, pulses=process.pulses, outdated=process.age)


@click.command("serve", epilog=examples("recalld serve", "recalld serve --port 8080"))
@workspace_option
@setting_option("--host", "service.host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
@setting_option("--port", "service.port", type=int, metavar="N", help="Port to listen on; 0 picks a free one. [7373]")
@supervised_option
@pass_invocation
def serve(invocation: Invocation, *, supervised: bool) -> None:
    """Run only the query service, until Ctrl-C. It reads indexes and writes nothing."""
    from memory.service import run
    from recalld.wiring import open_broker
    from workers.claims import coordinating
    from workers.health.heartbeat import Heartbeat
    from workers.queue.connection import IMPATIENT_SECONDS

    with (
        _process(invocation, "serve", supervised=supervised) as process,
        # A search has a deadline, with or without the broker.
        open_broker(process.settings, answer_seconds=IMPATIENT_SECONDS) as broker,
        # A search waits for the producers until its own deadline.
        open_broker(process.settings) as waiting,
        coordinating(process.settings) as shared,
        Heartbeat(
            process.settings,
            "serve",
            process.pulses,
            in_flight=shared.in_flight,
            outdated=process.age,
            flush=shared.counters.flush,
        ),
    ):
        run.serve(
            process.settings,
            broker.health,
            inbox=waiting.inbox,
            coordinate=shared,
            stop=process.stop,
            pulses=process.pulses,
            on_ready=process.ready,
        )


@click.command("ingest", epilog=examples("recalld ingest", "recalld ingest --port 8443"))
@setting_option("--host", "ingest.host", metavar="ADDRESS", help="Address to listen on. [127.0.0.1]")
@setting_option("--port", "ingest.port", type=int, metavar="N", help="Port to listen on; 0 picks a free one. [7377]")
@supervised_option
@pass_invocation
def ingest(invocation: Invocation, *, supervised: bool) -> None:
    """Run only the door of a fleet, until Ctrl-C: take the documents that machines send, and queue them.

    Needs store.url and access tokens with the right ingest (`recalld token add`).
    """
    from producers.door import Door
    from recalld.wiring import open_broker

    with _process(invocation, "ingest", supervised=supervised) as process, open_broker(process.settings) as broker:

        def pending(agent: str) -> int | None:
            backlog = broker.health.pending(agent)
            return backlog.documents if backlog is not None else None

        with Door(process.settings, broker.queue, pending=pending) as door:
            click.echo(f"takes content at {door.url}", err=True)
            process.ready()
            process.stop.wait()


@click.command("mcp", epilog=examples("recalld mcp", "recalld mcp --agent main", "recalld mcp --all-agents"))
@click.option("--session-key", metavar="KEY", help="The session that asks, for scope rules. [the owner's private one]")
@click.option("--all-agents", is_flag=True, help="Serve the memory of all agents; results name their agent.")
@pass_invocation
def mcp(invocation: Invocation, *, session_key: str | None, all_agents: bool) -> None:
    """Serve the memory tools over MCP, on standard input and output.

    Asks the running service; when none runs, reads the index and embeds the queries itself. Without --agent, the folder
    that the program has open chooses among several agents. Ends when standard input ends.
    """
    if all_agents and invocation.agent is not None:
        raise UserError("give either --agent or --all-agents", exit_code=2)
    if session_key is not None and not session_key.strip():
        raise UserError("--session-key must not be empty; leave it out for the owner's private session", exit_code=2)
    try:
        from recalld.local.mcp_stdio import serve_stdio
    except ModuleNotFoundError as error:
        if error.name not in {"mcp", "mcp_types"}:
            raise
        from schemas.version import install_command

        raise UserError(f"MCP needs its SDK: {install_command('mcp')}") from None
    serve_stdio(invocation, session_key=session_key, all_agents=all_agents)


@dataclass(frozen=True, slots=True)
class _Process:
    """Parts of every process that a supervisor may start."""

    settings: Settings
    stop: threading.Event
    pulses: Pulses
    age: SettingsAge
    ready: Callable[[], None]


@contextmanager
def _process(invocation: Invocation, name: str, *, supervised: bool, needs_broker: bool = True) -> Iterator[_Process]:
    """Set up logs, signals, spans and watchdog for one process."""
    from memory.status.processes import Pulses
    from recalld.logs import configure_logs

    keep_heaps_small()
    age = SettingsAge(invocation)
    stop = stop_event(supervised=supervised)
    configure_logs(process=name)
    for agent in invocation.agents() if name == "watch" else ():
        check_workspace(agent)
    settings = invocation.settings
    if name not in ("serve", "ingest") and not supervised:
        if needs_broker:  # else nothing is embedded here
            from recalld.runs.estimate import confirm_workspace

            confirm_workspace(invocation)
        invocation.remember()
    pulses = Pulses(stalled_after_seconds=settings.workers.stalled_after_seconds)
    # The query service and the door answer with and without a broker.
    has_broker = supervised or name in ("serve", "ingest")
    with (
        traced(settings, name),
        watchdog(pulses.problems if needs_broker else list),  # an upload may take long
        running_broker(settings, supervised=has_broker) if needs_broker else nullcontext(),
    ):
        ports = {
            "work": (settings.workers.host, settings.workers.port),
            "serve": (settings.service.host, settings.service.port),
            "ingest": (settings.ingest.host, settings.ingest.port),
        }
        if name in ports:
            host, port = ports[name]
            await_store(settings, stop, host=host, port=port)
            if stop.is_set():
                raise click.exceptions.Exit(0)
        yield _Process(settings, stop, pulses, age, partial(announce_ready, supervised=supervised))

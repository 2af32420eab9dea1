"""`recalld open`: the page in the browser, for the owner of the home."""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import click

from recalld.client import AccessRefused, Client, RequestRefused, ServiceUnavailable
from recalld.invocation import Invocation, examples, pass_invocation
from recalld.terminal_text import remark
from schemas.errors import UserError

#: Relative to the home folder: leads a browser to the page. Every user of a machine sees the arguments of programs, so
#: a browser is started with the path of this file, which its owner alone can read, and not with the link.
_REDIRECT_FILE = Path("run") / "open.html"


@click.command("open", epilog=examples("recalld open", "recalld open --print"))
@click.option("--print", "only_prints", is_flag=True, help="Print the link, and start no browser.")
@pass_invocation
def open(invocation: Invocation, *, only_prints: bool) -> None:  # noqa: A001 - commands are found by their names
    """Open the page in the browser. With several agents it shows the memory of all, without a token.

    Prints the link as well. It opens the page once, within a minute. The page stays open until you close its tab, 30
    days at most.
    """
    try:
        client = Client.at_home(invocation.home_path)
        link = client.page_link() if client is not None else None
    except AccessRefused:
        raise UserError("the page opens for the user who runs recalld: run `recalld open` as that user") from None
    except (RequestRefused, ServiceUnavailable) as error:
        raise UserError(str(error)) from None
    if link is None:
        raise UserError("recalld does not run, so there is no page: start it with `recalld up`")
    click.echo(link)
    if not only_prints and not _is_opened(link, invocation.home_path / _REDIRECT_FILE):
        remark("no browser could be started here: open the link in one on this machine, within a minute")


def _is_opened(link: str, file: Path) -> bool:
    """Start the browser of the desktop with a file that leads to the link. Return False if there is none."""
    import webbrowser

    from memory.http.whole_files import write_whole
    from recalld.settings.load import has_display

    if not (sys.platform == "darwin" or has_display()):
        return False
    try:
        write_whole(file, f'<meta http-equiv="refresh" content="0; url={escape(link)}">\n'.encode(), synced=False)
    except OSError:
        return False
    return webbrowser.open(file.as_uri())

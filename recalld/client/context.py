"""Memory around one conversation of a program: texts for its prompts, flushes, and pruned messages.

from recalld.client import Client
from recalld.context import Conversation

conversation = Conversation(Client(), "s1", window_tokens=200_000)
conversation.begin()                        # text to put before the first prompt
conversation.before_prompt("which port?")   # text to put before each prompt
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .answers import FlushAnswer
    from .client import Client

__all__ = ["Conversation", "SilentFilter"]


class Conversation:
    """State that the calls about one conversation repeat: its name, compactions, last flush and pruning decisions.

    Every call raises what the same call of the client raises.
    """

    def __init__(
        self, memory: Client, session: str, *, window_tokens: int | None = None, projects: Sequence[str] = ()
    ) -> None:
        """Remember the client and the conversation; nothing is sent yet.

        Args:
            session: name of the conversation: no text comes twice in it.
            window_tokens: of the model; a flush needs it.
            projects: repositories that the conversation is about, such as github.com/acme/shop.
        """
        self.session = session
        self.window_tokens = window_tokens
        self.projects = tuple(projects)
        self.compactions = 0
        #: Unix time of the last call of the model that wrote the provider's prompt cache; the program sets it.
        self.touched_at: float | None = None
        self._memory = memory
        self._flushed_at: int | None = None
        self._decisions: dict[str, str] = {}

    def begin(self) -> str:
        """Return the text to put before the first prompt, empty if there is none."""
        return self._memory.before_prompt(session=self.session, begins=True, projects=self.projects)["text"]

    def before_prompt(self, prompt: str) -> str:
        """Return the text to put before this prompt of the user, empty if there is none."""
        return self._memory.before_prompt(prompt, session=self.session, projects=self.projects)["text"]

    def flush_plan(self, tokens: int | None, **state: Any) -> FlushAnswer:
        """Return the plan of a flush, if one is `due`.

        Args:
            tokens: last known size of the context.
            state: further members of the request (`/docs` of the service), as they are on the wire.
        """
        members = {"windowTokens": self.window_tokens, "tokens": tokens, "flushedAt": self._flushed_at}
        return self._memory.flush_plan({**members, "compactions": self.compactions, **state})

    def flushed(self, plan: FlushAnswer) -> None:
        """Note that the turn of a plan is over: no other is due before the next compaction."""
        self._flushed_at = plan["cycle"]

    def compact(self) -> str:
        """Note that the context was compacted; return the text for its new beginning, as `begin` does."""
        self.compactions += 1
        return self.begin()

    def prune(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages for a call of the model without old results of tools; earlier decisions stay."""
        answer = self._memory.prune(
            messages, window_tokens=self.window_tokens, touched_at=self.touched_at, decisions=self._decisions
        )
        self.touched_at, self._decisions = answer.get("touchedAt"), dict(answer["decisions"])
        return answer["messages"]


class SilentFilter:
    """Filter of a streamed answer: an answer that begins with the token is held back, any other passes unchanged.

    Upper and lower case are the same, and white space before the token does not count. The token ends where no letter,
    digit or underscore follows.
    """

    def __init__(self, token: str) -> None:
        self._token = token.lower()
        self._buffer = ""
        #: True if the answer is silent, False if it is not, None while both are possible.
        self.is_silent: bool | None = None

    def feed(self, piece: str) -> str:
        """Return the text that may be shown after the next piece of the answer."""
        if self.is_silent is None:
            self._buffer = piece = self._buffer + piece
            beginning = piece.lstrip().lower()
            if self._token.startswith(beginning):
                return ""
            self.is_silent = re.match(rf"{re.escape(self._token)}\W", beginning) is not None
        return "" if self.is_silent else piece

    def end(self) -> str:
        """Return the rest that may be shown after the last piece."""
        if self.is_silent is not None:
            return ""
        self.is_silent = self._buffer.strip().lower() == self._token
        return "" if self.is_silent else self._buffer

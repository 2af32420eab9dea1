"""Memory around a conversation, where the rest of recalld is not installed. See `recalld.client` beside this module."""

from _recalld_client.context import *  # noqa: F403 - exactly what the next line names
from _recalld_client.context import __all__ as __all__

"""Writes down the tools' definitions for the client, which must not import `memory`: `make docs`.

python -m tests.tool_docs recalld/client/tools.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from memory.search.tool_definitions import TOOLS


def tools_json() -> str:
    """The content of the file: a list of tools, named as in the Model Context Protocol."""
    listed = [
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": dict(tool.input_schema),
        }
        for tool in TOOLS.values()
    ]
    return json.dumps(listed, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(tools_json(), "utf-8")

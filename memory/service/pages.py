"""Two small pages: search with status, and the API's description. Nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence

_STYLE = """
:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
body{margin:0 auto;max-width:60rem;padding:1.5rem}
h1{font-size:1.3rem} h2{font-size:1.05rem;margin:1.4rem 0 .3rem}
form{display:flex;gap:.5rem;flex-wrap:wrap}
input,select,button{font:inherit;padding:.4rem .6rem}
input[type=search]{flex:1 1 16rem}
article{border-top:1px solid #8886;padding:.6rem 0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3rem 0;font:13px/1.45 ui-monospace,monospace}
.faint{opacity:.7;font-size:.85rem} .bad{color:#c33}
table{border-collapse:collapse} td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
"""

_SEARCH_SCRIPT = """
"use strict";
const $ = id => document.getElementById(id);
const make = (tag, text, kind) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
const headers = () => {
  const token = $("token").value.trim();
  return token ? {Authorization: "Bearer " + token} : {};
};
const call = async (path, body) => {
  const options = {headers: headers()};
  if (body) {
    options.method = "POST";
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  const answer = await response.json();
  if (response.status === 401) $("tokenrow").hidden = false;
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
};
const chosen = () => $("agent") ? $("agent").value : undefined;
const search = async event => {
  event.preventDefault();
  const list = $("results");
  list.replaceChildren(make("p", "…", "faint"));
  try {
    const answer = await call("/v1/search", {query: $("query").value, agent: chosen()});
    list.replaceChildren();
    const about = [answer.mode, answer.tookMs + " ms"].concat(answer.degraded || [], answer.error || []);
    if (answer.pending && answer.pending.documents) about.push(answer.pending.documents + " documents pending");
    list.append(make("p", about.join(" · "), "faint"));
    for (const hit of answer.results) {
      const box = make("article");
      box.append(make("strong", hit.path + ":" + hit.startLine + "-" + hit.endLine));
      const scores = ["score " + hit.score];
      if (hit.vectorScore !== undefined) scores.push("vector " + hit.vectorScore);
      if (hit.textScore !== undefined) scores.push("text " + hit.textScore);
      box.append(make("div", scores.join(" · "), "faint"), make("pre", hit.snippet));
      list.append(box);
    }
    if (!answer.results.length) list.append(make("p", "Nothing found."));
  } catch (error) { list.replaceChildren(make("p", error.message, "bad")); }
};
const status = async () => {
  const box = $("status");
  try {
    const answer = await call("/v1/status");
    box.replaceChildren();
    for (const agent of answer.agents) {
      const table = make("table");
      const row = (name, value, kind) => {
        if (value === undefined || value === "") return;
        const line = make("tr");
        line.append(make("th", name), make("td", String(value), kind));
        table.append(line);
      };
      row("agent", agent.agent + (agent.ok ? "" : " (not ok)"), agent.ok ? "" : "bad");
      row("workspace", agent.workspace);
      row("files", agent.index.files + " indexed, " + (agent.disk.files ?? "?") + " on disk");
      row("chunks", agent.index.chunks);
      row("vectors", agent.index.vectorsReady + " ready, " + agent.index.vectorsPending + " pending");
      row("queue", agent.queue.reachable ? agent.queue.pending + " pending" : "does not answer");
      row("provider", agent.provider + (agent.model ? " / " + agent.model : ""));
      row("why", agent.providerReason);
      const endpoint = agent.endpoint;
      if (endpoint && endpoint.condition !== "ok") {
        row("endpoint", endpoint.condition + (endpoint.reason ? ": " + endpoint.reason : "")
          + (endpoint.until ? ", next try " + new Date(endpoint.until * 1000).toLocaleTimeString() : ""), "bad");
      }
      for (const spent of agent.usage) {
        const {provider, model, total, today} = spent;
        row("spent", provider + " " + model + ": " + total.requests + " requests, " + total.tokens + " tokens"
          + (total.dollars ? ", about $" + total.dollars.toFixed(2) : "")
          + " (today " + today.requests + ", " + today.tokens + ")");
      }
      for (const trouble of agent.troubles) row("trouble", trouble.part + ": " + trouble.message, "bad");
      for (const letter of agent.deadLetters) row("dead letter", letter.path + ": " + letter.reason, "bad");
      box.append(table);
    }
  } catch (error) { box.replaceChildren(make("p", error.message, "bad")); }
};
$("form").addEventListener("submit", search);
const asked = new URLSearchParams(location.search).get("q");
if (asked) { $("query").value = asked; $("form").requestSubmit(); }
$("token").addEventListener("change", status);
status();
setInterval(() => { if (!document.hidden) status(); }, 5000);
"""

_DOCS_SCRIPT = """
"use strict";
const make = (tag, text, kind) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
(async () => {
  const api = await (await fetch("/openapi.json")).json();
  const root = document.getElementById("api");
  const named = schema => schema && schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
  const kind = schema => {
    if (!schema) return "";
    if (schema.$ref) return schema.$ref.split("/").pop();
    if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
    if (schema.type === "array") return "list of " + (kind(schema.items) || "values");
    return (schema.enum || [schema.const || schema.type || ""]).join(" | ");
  };
  const fields = schema => {
    const table = make("table");
    for (const [name, field] of Object.entries((schema || {}).properties || {})) {
      const line = make("tr");
      const needed = (schema.required || []).includes(name) ? " (required)" : "";
      line.append(make("th", name), make("td", kind(field) + needed), make("td", field.description || ""));
      table.append(line);
    }
    return table;
  };
  const json = part => ((part || {}).content || {})["application/json"];
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, call] of Object.entries(methods)) {
      root.append(make("h2", method.toUpperCase() + " " + path), make("p", call.summary));
      for (const field of call.parameters || []) {
        root.append(make("div", "?" + field.name + ": " + kind(field.schema), "faint"));
      }
      const body = json(call.requestBody);
      if (body) root.append(make("div", "Request", "faint"), fields(named(body.schema)));
      const answer = json((call.responses || {})["200"]);
      if (answer) root.append(make("div", "Answer", "faint"), fields(named(answer.schema)));
    }
  }
})();
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


#: Only the scripts and the style of these pages run, and they talk to this service only.
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; connect-src 'self'; script-src {_hash(_SEARCH_SCRIPT)} {_hash(_DOCS_SCRIPT)}; "
        f"style-src {_hash(_STYLE)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def front_page(agents: Sequence[str]) -> str:
    """The page at `/`. `agents` are offered to choose from; with none a token says whose memory it is."""
    choice = ""
    if len(agents) > 1:
        options = "".join(f"<option>{html.escape(agent)}</option>" for agent in agents)
        choice = f'<select id="agent" aria-label="Agent">{options}</select>'
    hidden = " hidden" if agents else ""
    return _page(
        "recalld",
        f"""<h1>recalld</h1>
<form id="form"><input type="search" id="query" aria-label="Search memory" placeholder="Search memory" autofocus>
{choice}<button>Search</button></form>
<p id="tokenrow"{hidden}><label>Token <input type="password" id="token" autocomplete="off"></label></p>
<section id="results" aria-live="polite"></section>
<h2>Status</h2><section id="status"></section>
<p class="faint"><a href="/docs">API</a> · <a href="/metrics">metrics</a></p>""",
        _SEARCH_SCRIPT,
    )


def docs_page() -> str:
    """The page at `/docs`: what `/openapi.json` says, readable."""
    return _page(
        "recalld API",
        '<h1>recalld API</h1><p><a href="/">Search</a> · <a href="/openapi.json">openapi.json</a></p>'
        '<div id="api"></div>',
        _DOCS_SCRIPT,
    )


def _page(title: str, body: str, script: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
        f"<body>{body}<script>{script}</script></body></html>"
    )

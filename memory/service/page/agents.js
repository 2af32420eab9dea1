// The agents: one line each, its details when opened. A few hundred are paged and found by name.

import { byId, make, named, show } from "./elements.js";
import { conditionOf, needsAttention } from "./condition.js";
import { liveDetails, lookedDetails } from "./details.js";
import { agents, onLook, state } from "./live.js";
import { ask } from "./service.js";
import { chooseAgent } from "./search.js";
import { ago, number, onLanguage, sentence, t } from "./words.js";

const PER_PAGE = 12;
/** More than so many are filtered, fewer are all there is to see. */
const FILTER_FROM = 6;
/** Seconds after which an open agent is compared with its disk again, and the least between two comparisons. */
const LOOK_AGAIN = 15;
const LOOK_APART = 2;

let page = 0;
let filter = "";
let onlyAttention = false;
/** name -> {row, summary, live, looked, answer, at, revision, looking} of what is shown now. */
let rows = new Map();

export function startAgents() {
  byId("filter").addEventListener("input", () => {
    filter = byId("filter").value.trim().toLowerCase();
    page = 0;
    render();
  });
  byId("attention").addEventListener("change", () => {
    onlyAttention = byId("attention").checked;
    page = 0;
    render();
  });
  byId("pageback").addEventListener("click", () => turn(-1));
  byId("pageon").addEventListener("click", () => turn(1));
  onLook(render);
  onLanguage(() => {
    for (const row of rows.values()) row.stale = true;
    render();
  });
}

function turn(by) {
  page += by;
  render();
}

function render() {
  const all = agents();
  const found = all.filter(
    (agent) => agent.agent.toLowerCase().includes(filter) && (!onlyAttention || needsAttention(agent)),
  );
  byId("filters").hidden = all.length < FILTER_FROM;
  byId("attentionword").textContent = t("attention", number(all.filter(needsAttention).length));
  page = Math.max(0, Math.min(page, Math.ceil(found.length / PER_PAGE) - 1));
  const slice = found.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
  byId("paging").hidden = found.length <= PER_PAGE;
  byId("pageback").disabled = page === 0;
  byId("pageon").disabled = (page + 1) * PER_PAGE >= found.length;
  byId("pages").textContent = t(
    "page",
    number(page * PER_PAGE + 1),
    number(page * PER_PAGE + slice.length),
    number(found.length),
  );
  byId("noagents").hidden = found.length > 0 || all.length === 0;
  const fleet = state.answer?.fleet;
  show(byId("fleet"), fleet && t("fleet", fleet));
  place(slice, all.length);
  for (const agent of slice) fill(rows.get(agent.agent), agent);
}

/** See to it that exactly these agents have a row, without touching rows that stay. */
function place(slice, count) {
  const names = slice.map((agent) => agent.agent);
  if (names.join("\n") === [...rows.keys()].join("\n")) return;
  const next = new Map(names.map((name) => [name, rows.get(name) ?? makeRow(name, count)]));
  rows = next;
  show(byId("agents"), ...[...next.values()].map(({ row }) => row));
}

function makeRow(name, count) {
  const dot = make("span", { className: "dot", "aria-hidden": "true" });
  const condition = make("span", { className: "condition" });
  const fresh = make("span", { className: "fresh" });
  const head = make("summary", {}, dot, make("strong", {}, named(name)), condition, fresh);
  const live = make("dl", { className: "facts" });
  const looked = make("div", { className: "looked" });
  const pick = make("button", { type: "button", onclick: () => pickAgent(name) }, t("searchThis"));
  pick.hidden = count < 2;
  const details = make("details", { className: "agent", data: { agent: name } }, head, live, looked, pick);
  const row = { row: make("li", {}, details), details, dot, condition, fresh, live, looked, pick, at: 0 };
  details.addEventListener("toggle", () => details.open && lookAt(row, name));
  details.open = count === 1;
  return row;
}

function pickAgent(name) {
  chooseAgent(name);
  byId("query").focus();
}

function fill(row, agent) {
  const condition = conditionOf(agent);
  row.details.dataset.kind = condition.kind;
  row.condition.textContent = condition.words;
  const last = agent.counts?.lastCommitAt;
  row.fresh.textContent = last === undefined ? "" : ago(Math.max(0, state.answer.at - last));
  row.pick.textContent = t("searchThis");
  show(row.live, ...liveDetails(agent, state.answer.at));
  if (row.stale && row.answer) showLooked(row);
  row.stale = false;
  if (!row.details.open || state.away) return;
  const since = Date.now() / 1000 - row.at;
  const moved = row.revision !== agent.revision && since > LOOK_APART;
  if (moved || since > LOOK_AGAIN) lookAt(row, agent.agent);
}

/** Compare with the disk: what is open is looked at, and nothing else. */
async function lookAt(row, name) {
  if (row.looking) return;
  row.looking = true;
  if (!row.answer) show(row.looked, make("p", { className: "faint" }, t("looking")));
  const revision = agents().find((agent) => agent.agent === name)?.revision;
  try {
    const { agents: found } = await ask("/v1/status", { agent: name });
    [row.answer] = found;
    row.failure = null;
  } catch (error) {
    row.failure = error;
  }
  Object.assign(row, { looking: false, at: Date.now() / 1000, revision });
  showLooked(row);
}

function showLooked(row) {
  if (row.answer) show(row.looked, ...lookedDetails(row.answer));
  else if (row.failure && !state.away) show(row.looked, make("p", { className: "notice bad" }, sentence(row.failure.message)));
  else show(row.looked);
}

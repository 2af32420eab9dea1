// The page opens on memory: latest conversations and notes, a calendar, and a tree, of all agents or of one.

import { startCalendar } from "./calendar.js";
import { byId, make, named, show } from "./elements.js";
import { agents, onLook, state } from "./live.js";
import { openReader } from "./reader.js";
import { chooseAgent } from "./search.js";
import { ask } from "./service.js";
import { branches } from "./tree.js";
import { ago, onLanguage, t } from "./words.js";

/** Documents of a list at first. */
const FIRST = 6;
/** Milliseconds between two questions while indexes change all the time, and times of what the last one took. */
const APART = 3_000;
const REST_TIMES = 20;
const LISTS = { sessions: "homeTalks", memory: "homeNotes" };

/** By source: {documents, next, most}. */
let lists = {};
let known = "";
let pending = "";
let quietUntil = 0;
let round = 0;
let calendar;

export function startHome() {
  calendar = startCalendar({ whose, showDay });
  byId("whose").addEventListener("change", () => {
    if (byId("whose").value) chooseAgent(byId("whose").value);
    refresh();
  });
  byId("agent").addEventListener("change", () => {
    byId("whose").value = byId("agent").value;
    refresh();
  });
  // Results take the place of the home view, until the question is gone.
  new MutationObserver(() => (byId("home").hidden = !byId("results").hidden)).observe(byId("results"), { attributeFilter: ["hidden"] });
  const query = byId("query");
  for (const kind of ["input", "keyup"]) query.addEventListener(kind, () => query.value === "" && goHome());
  byId("tohome").addEventListener("click", () => {
    query.value = "";
    goHome();
    query.focus();
  });
  onLook(refresh);
  onLanguage(() => {
    render();
    show(byId("day"));
    renderTree();
  });
}

function goHome() {
  if (byId("results").hidden) return;
  byId("results").hidden = true;
  history.replaceState(null, "", location.pathname);
}

/** The switch: that of the search, where all agents can be searched, too. */
const hasAll = () => byId("agent").querySelector("option[value='']") !== null;

/** The agent that is shown; "" is all. */
const whose = () => (agents().length > 1 ? byId(hasAll() ? "agent" : "whose").value : "");

async function refresh() {
  fillAgents();
  const shownAgents = agents().filter(({ agent }) => !whose() || agent === whose());
  const sameAgent = known !== "" && known.split(" ", 1)[0] === whose();
  const wanted = `${whose()} ${shownAgents.map(({ agent, revision }) => agent + revision)}`;
  if (state.away || shownAgents.length === 0 || wanted === known || wanted === pending) return;
  const started = performance.now();
  if (started < quietUntil && sameAgent) return;
  pending = wanted;
  const mine = ++round;
  try {
    const answers = await Promise.all(Object.keys(LISTS).map((source) => ask("/v1/documents", { agent: whose(), source })));
    if (mine !== round) return;
    known = wanted;
    Object.keys(LISTS).forEach((source, index) => {
      const most = sameAgent ? lists[source].most : FIRST;
      lists[source] = { ...answers[index], most };
    });
    render();
    await calendar.refresh();
    quietUntil = performance.now() + Math.max(APART, REST_TIMES * (performance.now() - started));
    if (!sameAgent) show(byId("day"));
    if (!sameAgent || !byId("tree").hasChildNodes()) renderTree();
  } catch {
    // The next look tries again.
  } finally {
    if (mine === round) pending = "";
  }
}

function fillAgents() {
  const names = agents().map(({ agent }) => agent);
  const select = byId("whose");
  byId("whoserow").hidden = names.length < 2 || hasAll();
  if (names.length === select.options.length - 1) return;
  const before = select.value;
  show(select, ...["", ...names].map((name) => make("option", { value: name }, name || t("homeAll"))));
  select.value = names.includes(before) ? before : "";
}

function render() {
  const all = byId("whose").querySelector("option[value='']");
  if (all) all.textContent = t("homeAll");
  const sources = Object.keys(LISTS).filter((source) => lists[source]);
  if (sources.length === 0) return;
  const isEmpty = sources.every((source) => lists[source].documents.length === 0);
  byId("homeempty").hidden = !isEmpty;
  for (const panel of ["latest", "days", "treebox"]) byId(panel).hidden = isEmpty;
  const full = sources.filter((source) => lists[source].documents.length > 0);
  const focused = document.activeElement?.closest?.("#latest [data-place]")?.dataset.place;
  show(byId("latest"), ...full.map(latest));
  if (focused) byId("latest").querySelector(`[data-place="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function latest(source) {
  const list = lists[source];
  const rest = list.documents.length > list.most || list.next !== undefined;
  const more = make("button", { type: "button", className: "quiet", onclick: () => showMore(source) }, t("homeMore"));
  const id = `latest-${source}`;
  return make(
    "section",
    { className: "panel", "aria-labelledby": id },
    make("h2", { id }, t(LISTS[source])),
    documentList(list.documents.slice(0, list.most)),
    rest ? more : null,
  );
}

async function showMore(source) {
  const list = lists[source];
  list.most += 3 * FIRST;
  if (list.most > list.documents.length && list.next !== undefined) {
    const answer = await ask("/v1/documents", { agent: whose(), source, offset: list.next }).catch(() => ({ documents: [] }));
    list.documents = [...list.documents, ...answer.documents];
    list.next = answer.next;
  }
  render();
}

/** Documents as a list: title, agent and age, and a note's first words; in the tree, title, file and age. */
function documentList(documents, { inTree = false } = {}) {
  const place = (index) => ({
    ...documents[index],
    previous: index > 0 ? () => place(index - 1) : undefined,
    next: index + 1 < documents.length ? () => place(index + 1) : undefined,
  });
  const items = documents.map(({ agent, source, path, title, words, changedAt }, index) => {
    const data = { place: `${agent} ${path}` };
    // A conversation's title is its project, its day and its first words.
    const [project, , ...first] = source === "sessions" ? (title ?? "").split(" · ") : [agent];
    const heading = first.join(" · ") || title || path;
    const name = Object.assign(named(heading), { title: path });
    const button = make("button", { type: "button", className: "open", data }, name);
    button.addEventListener("click", () => openReader(place(index), button));
    const file = path.slice(path.lastIndexOf("/") + 1);
    const places = [agents().length > 1 && !whose() ? agent : null, project === agent ? null : project];
    const tags = (inTree ? [source === "sessions" ? null : file] : places).filter(Boolean);
    const age = Math.max(0, Date.now() / 1000 - changedAt);
    const time = make("time", { dateTime: new Date(changedAt * 1000).toISOString() }, ago(age));
    const foot = make("p", { className: "foot" }, ...tags.map((tag) => make("span", { className: "kind" }, named(tag))), time);
    return make("li", {}, button, words && !inTree ? make("p", { className: "excerpt", dir: "auto" }, words) : null, foot);
  });
  return make("ul", { className: "documents", role: "list" }, ...items);
}

async function showDay(date, heading) {
  const answer = await ask("/v1/documents", { agent: whose(), day: date }).catch(() => ({ documents: [] }));
  const title = make("h3", { tabIndex: -1 }, heading);
  show(byId("day"), title, documentList(answer.documents));
  title.focus();
}

function renderTree() {
  const shownAgents = agents().filter(({ agent }) => !whose() || agent === whose());
  const list = (documents) => documentList(documents, { inTree: true });
  show(byId("tree"), ...branches(shownAgents.map(({ agent }) => agent), list));
}

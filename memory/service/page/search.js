// Asking: the form, the address that remembers what was asked, and what happens with the answer.

import { announce, byId, make, show } from "./elements.js";
import { agentNamed, agents, look, onLook, state } from "./live.js";
import { openReader } from "./reader.js";
import { announceResults, showResults } from "./results.js";
import { Away, send } from "./service.js";
import { onLanguage, sentence, t } from "./words.js";

/** What the service gives at most, and how much is asked for when there is a button for more. */
const MOST = 100;
const MORE = 20;

let running = null;
/** {answer, terms, agent, revision, asked} of the search that is shown. */
let shown = null;
let failure = null;

/** All agents are searched, which the owner alone may do. */
export const areAllChosen = () => state.answer?.owner && agents().length > 1 && byId("agent").value === "";

/** The agent that is chosen, the first one of all; undefined while none is known. */
export function chosenAgent() {
  const known = agents();
  if (known.length === 0) return undefined;
  const picked = byId("agent").value;
  return known.some((agent) => agent.agent === picked) ? picked : known[0].agent;
}

/** Take this agent, as if it had been picked. */
export function chooseAgent(name) {
  byId("agent").value = name;
  byId("agent").dispatchEvent(new Event("change"));
}

export function startSearch() {
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search().then(leaveQuery);
  });
  for (const id of ["source", "agent", "since", "until"]) byId(id).addEventListener("change", () => shown && search());
  byId("folder").addEventListener("change", () => search(MOST));
  const given = new URLSearchParams(location.search);
  byId("query").value = given.get("q") ?? "";
  // The list of agents is not there yet.
  let first = byId("query").value !== "";
  onLook(() => {
    fillAgents(given.get("agent"));
    if (first && agents().length > 0) {
      first = false;
      search();
    }
    noticeChange();
  });
  onLanguage(() => {
    const all = byId("agent").querySelector("option[value='']");
    if (all) all.textContent = t("agentsAll");
    render();
  });
}

function fillAgents(wanted) {
  const names = agents().map((agent) => agent.agent);
  const select = byId("agent");
  const known = [...select.options].map((option) => option.value);
  byId("agentrow").hidden = names.length < 2;
  const all = state.answer?.owner && names.length > 1 ? [""] : [];
  if ([...all, ...names].join("\n") === known.join("\n")) return;
  const before = select.value || wanted;
  show(select, ...[...all, ...names].map((name) => make("option", { value: name }, name || t("agentsAll"))));
  if (names.includes(before)) select.value = before;
}

const folderOf = ({ path }) => path.slice(0, Math.max(0, path.lastIndexOf("/")));

/** Offer the folders of an answer, and return the one that is chosen; "" is all. */
function chosenFolder(answer) {
  const select = byId("folder");
  const chosen = select.value;
  const folders = [...new Set([...answer.results.map(folderOf), chosen])].filter(Boolean).sort();
  const options = folders.map((folder) => make("option", { value: folder }, folder));
  show(select, make("option", { value: "" }, t("foldersAll")), ...options);
  select.value = chosen;
  byId("folderrow").hidden = folders.length < 2 && !chosen;
  return chosen;
}

async function search(most = byId("folder").value ? MOST : undefined) {
  const query = byId("query").value.trim();
  if (!query) return;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const agent = areAllChosen() ? undefined : chosenAgent();
  remember(query, agent);
  const box = byId("found");
  box.setAttribute("aria-busy", "true");
  byId("results").hidden = false;
  if (!box.hasChildNodes()) show(box, make("p", { className: "faint" }, t("searching")));
  const source = byId("source").value;
  const [since, until] = ["since", "until"].map((id) => byId(id).value || undefined);
  const body = { query, agent, maxResults: most, sources: source ? [source] : undefined, since, until };
  try {
    const [answer, { terms: pieces, forms }] = await Promise.all([
      send("/v1/search", body, signal),
      send("/v1/terms", { query }, signal),
    ]);
    const terms = pieces.map((piece) => (forms.includes(piece) ? `${piece}*` : piece));
    shown = { answer, terms, agent, asked: most };
    failure = null;
    announceResults(answer);
    rememberRevision(shown);
  } catch (error) {
    if (signal.aborted) return;
    shown = null;
    failure = error;
    announce(error instanceof Away ? t("awaySentence") : error.message);
  }
  box.removeAttribute("aria-busy");
  render();
}

/** What the index is now: the search itself may have waited for a change, and the last look may be older. */
async function rememberRevision(search) {
  await look();
  search.revision = agentNamed(search.agent)?.revision;
}

function render() {
  const box = byId("found");
  if (failure) {
    const reason = failure instanceof Away ? t("awaySentence") : sentence(failure.message);
    show(box, make("div", { className: "notice bad" }, reason));
  } else if (shown) {
    const { asked } = shown;
    const folder = chosenFolder(shown.answer);
    const results = shown.answer.results.filter((result) => !folder || folderOf(result) === folder);
    const answer = { ...shown.answer, results };
    const searched = shown.agent === undefined ? agents() : [agentNamed(shown.agent)];
    const there = searched.reduce((total, agent) => total + (agent?.counts?.chunks ?? 0), 0);
    const full = !folder && results.length > 0 && results.length < there && (asked ?? 0) < MOST;
    const next = asked === undefined ? MORE : MOST;
    // Who got fewer than asked for has all.
    const more = full && (asked === undefined || results.length >= asked) ? () => search(next) : undefined;
    showResults(box, { ...shown, answer }, { open: (result, button) => open(results, result, button), more, again: () => search(asked) });
    noticeChange();
  }
}

/** After a search the keys are for its results; a question without one stays in hand. */
function leaveQuery() {
  const found = byId("found").querySelector(".result") !== null;
  if (found && document.activeElement === byId("query")) byId("results").focus({ preventScroll: true });
}

function noticeChange() {
  const hint = byId("found").querySelector(".changed");
  if (!hint || !shown) return;
  const now = agentNamed(shown.agent)?.revision;
  hint.hidden = now === undefined || shown.revision === undefined || now === shown.revision;
}

function open(results, result, button) {
  const { terms, agent } = shown;
  const place = (index) => {
    const { path, title, source, startLine, endLine, agent: whose = agent } = results[index];
    return {
      ...{ agent: whose, path, title, source, terms },
      first: startLine,
      last: endLine,
      previous: index > 0 ? () => place(index - 1) : undefined,
      next: index + 1 < results.length ? () => place(index + 1) : undefined,
    };
  };
  openReader(place(results.indexOf(result)), button);
}

function remember(query, agent) {
  const parameters = new URLSearchParams({ q: query });
  if (agent !== undefined && agents().length > 1) parameters.set("agent", agent);
  history.replaceState(null, "", `?${parameters}`);
}

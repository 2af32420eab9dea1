// The list of results: where each passage stands, what in it matched, and how well.

import { announce, make, named, show } from "./elements.js";
import { marked } from "./highlight.js";
import { agentNamed } from "./live.js";
import { number, score, sentence, span, t } from "./words.js";

const MODES = { hybrid: "modeHybrid", vector: "modeVector", keyword: "modeKeyword", none: "modeNone" };

/** Show an answer.
 *
 * `found` is {answer, terms, agent}; `actions` are {open(result, button), more, again}: more is undefined where there
 * cannot be any.
 */
export function showResults(box, found, actions) {
  const { answer, terms, agent } = found;
  const list = make("ol", { className: "results", role: "list" });
  for (const result of answer.results) list.append(item(result, terms, actions.open));
  const parts = [about(answer, agent, actions.again)];
  if (answer.results.length > 0) parts.push(legend(), list);
  else parts.push(nothing(answer, agent));
  if (actions.more) {
    parts.push(make("p", { className: "more" }, make("button", { type: "button", onclick: actions.more }, t("more"))));
  }
  show(box, ...parts);
}

/** What a screen reader says of an answer. */
export function announceResults(answer) {
  announce(answer.results.length > 0 ? t("found", answer.results.length) : t("nothing"));
}

function about(answer, agent, again) {
  const facts = make("p", { className: "about" });
  facts.append(
    make("strong", {}, t("found", answer.results.length)),
    make("span", { className: "mode", data: { mode: answer.mode } }, `${t("mode")}: ${t(MODES[answer.mode])}`),
    make("span", {}, t("took", number(Math.round(answer.tookMs)))),
  );
  const box = make("div", { className: "answer" }, facts);
  if (answer.unavailable || answer.disabled) {
    const trouble = notice("bad", make("strong", {}, t(answer.disabled ? "unavailable" : "unanswered")));
    if (answer.error) trouble.append(" ", sentence(answer.error));
    if (answer.action) trouble.append(" ", sentence(answer.action));
    box.append(trouble);
  } else if (answer.error) box.append(notice("bad", sentence(answer.error)));
  const missing = answer.degraded ?? [];
  if (missing.length > 0 && !isEmptyIndex(agent)) {
    const reasons = make("ul", {}, ...missing.map((reason) => make("li", {}, sentence(reason))));
    box.append(notice("warn", make("strong", {}, t("degraded")), reasons));
  }
  const { documents = 0, oldestSeconds, vectors = 0 } = answer.pending ?? {};
  if (documents > 0) {
    const age = oldestSeconds === undefined ? "" : span(oldestSeconds);
    box.append(notice("busy", t("pendingDocuments", documents, age)));
  }
  // Where vectors cannot be had, the reasons above say so.
  if (vectors > 0 && missing.length === 0) box.append(notice("busy", t("pendingVectors", vectors)));
  const changed = make("button", { type: "button", onclick: again }, t("searchAgain"));
  const hint = make("p", { className: "notice busy changed", hidden: true }, `${t("changedSince")} `, changed);
  box.append(hint);
  return box;
}

function notice(kind, ...children) {
  return make("div", { className: `notice ${kind}` }, ...children);
}

const isEmptyIndex = (agent) => {
  const known = agentNamed(agent);
  return known !== undefined && !known.counts && !known.error;
};

function nothing(answer, agent) {
  const box = make("div", { className: "nothing" });
  if (answer.unavailable || answer.disabled) return box;
  const empty = isEmptyIndex(agent);
  box.append(
    make("p", { className: "headline" }, t(empty ? "nothingYet" : "nothing")),
    make("p", { className: "faint" }, t(empty ? "nothingYetHint" : "nothingHint")),
  );
  return box;
}

function legend() {
  const lines = ["scoreTotalMeans", "scoreVectorMeans", "scoreTextMeans"].map((key) => make("li", {}, t(key)));
  return make("details", { className: "legend" }, make("summary", {}, t("scoresLegend")), make("ul", {}, ...lines));
}

function item(result, terms, open) {
  const where = make("span", { className: "where" }, t("lines", result.startLine, result.endLine));
  const button = make("button", { type: "button", className: "open", title: t("open") }, named(result.path), " ", where);
  button.addEventListener("click", () => open(result, button));
  const snippet = make("p", { className: "snippet", dir: "auto" }, ...marked(result.snippet, terms));
  const kind = t(result.source === "sessions" ? "kindSession" : "kindNote");
  const foot = make("p", { className: "foot" }, make("span", { className: "kind" }, kind));
  if (result.citation) foot.append(cited(result.citation));
  if (result.alsoIn) {
    const { count, paths } = result.alsoIn;
    foot.append(make("span", { title: paths.join("\n") }, t("alsoIn", count)));
  }
  const card = make(
    "article",
    { className: "result" },
    make("header", {}, make("h3", {}, button), scores(result)),
    snippet,
    foot,
  );
  card.addEventListener("click", (event) => {
    // The whole card opens, but for what is a control by itself, and for who selects text.
    if (event.target.closest("button") || !getSelection().isCollapsed) return;
    open(result, button);
  });
  return make("li", {}, card);
}

function cited(citation) {
  const box = make("span", { className: "cited" }, make("cite", {}, `${t("source")}: `, named(citation)));
  if (!navigator.clipboard) return box;
  const button = make("button", { type: "button", className: "quiet" }, t("copy"));
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(`Source: ${citation}`).catch(() => undefined);
    announce(t("copied"));
    button.textContent = t("copied");
  });
  box.append(button);
  return box;
}

function scores(result) {
  const box = make("dl", { className: "scores" });
  box.append(
    measure("total", t("scoreTotal"), result.score, t("scoreTotalMeans")),
    measure("vector", t("scoreVector"), result.vectorScore, t("scoreVectorMeans")),
    measure("text", t("scoreText"), result.textScore, t("scoreTextMeans")),
  );
  return box;
}

function measure(kind, name, value, means) {
  const known = value !== undefined;
  const bar = make("span", { className: "bar", "aria-hidden": "true" });
  bar.style.setProperty("--share", known ? Math.min(1, Math.max(0, value)) : 0);
  return make(
    "div",
    { className: `score ${kind}${known ? "" : " absent"}`, title: known ? means : `${means} ${t("scoreUnknown")}` },
    make("dt", {}, name),
    make("dd", {}, known ? score(value) : "–", bar),
  );
}

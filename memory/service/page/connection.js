// Whether the service answers, for whom it opens memory, and whether it is still the one this page came from.

import { announce, byId, show } from "./elements.js";
import { agents, look, onLook, state } from "./live.js";
import { hasToken, send, useToken } from "./service.js";
import { clock, onLanguage, sentence, t } from "./words.js";

let version = null;
let wasAway = false;
/** Why the link of `recalld open` did not open the page. */
let linkFailure = null;

export function startConnection() {
  byId("tokenform").addEventListener("submit", (event) => {
    event.preventDefault();
    useToken(byId("token").value);
    look();
  });
  byId("forget").addEventListener("click", () => {
    useToken("");
    location.reload();
  });
  byId("reload").addEventListener("click", () => location.reload());
  addEventListener("hashchange", () => login().then(look));
  onLook(render);
  onLanguage(render);
}

/** Exchange the one-time token of a link for a session; the address and its history keep neither. */
export async function login() {
  const link = new URLSearchParams(location.hash.slice(1)).get("open");
  if (link === null) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    useToken((await send("/v1/session", { link })).token);
    linkFailure = null;
  } catch (error) {
    linkFailure = error;
  }
}

function render() {
  const { away, refused, answer, at } = state;
  const root = document.documentElement;
  root.classList.toggle("away", away);
  const badge = byId("connection");
  badge.dataset.kind = away ? "bad" : answer ? "ok" : "idle";
  badge.lastElementChild.textContent = t(away ? "away" : answer ? "live" : refused ? "locked" : "paused");
  byId("awaybox").hidden = !away;
  byId("awaywords").textContent = `${t("awaySentence")} ${at ? t("asOf", clock(at)) : ""}`;
  if (away !== wasAway) announce(t(away ? "awaySentence" : "back"));
  wasAway = away;
  renderToken(refused);
  if (answer) {
    version ??= answer.version;
    byId("versionbox").hidden = answer.version === version;
    byId("versionwords").textContent = t("newVersion", answer.version);
    byId("version").textContent = t("version", answer.version);
  }
}

function renderToken(refused) {
  const needed = refused !== null;
  const wasHidden = byId("tokenbox").hidden;
  byId("tokenbox").hidden = !needed;
  byId("work").hidden = needed;
  byId("tokenused").hidden = needed || !hasToken() || agents().length === 0;
  const owner = state.answer?.owner;
  byId("tokenwords").textContent = owner ? t("ownerInUse") : agents().length > 0 ? t("tokenInUse", agents()[0].agent) : "";
  // Before the first token nothing went wrong.
  const wrong = needed && (linkFailure ?? (hasToken() || refused.status !== 401 ? refused : null));
  show(byId("tokenwrong"), wrong ? sentence(wrong.message) : null);
  if (needed && wasHidden) byId("tokenbox").focus();
  if (!needed) byId("token").value = "";
}

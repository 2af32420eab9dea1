// A tree of all documents: agents, notes and conversations, folders. A level is asked for when it is opened.

import { make, named, show } from "./elements.js";
import { ask } from "./service.js";
import { number, t } from "./words.js";

/** The branches of these agents; a single one is left out. `list` makes the list of documents of a level. */
export function branches(names, list) {
  const of = (agent) => ["memory", "sessions"].map((source) => {
    const name = t(source === "memory" ? "treeNotes" : "treeTalks");
    return branch([name], { agent, source, under: "" }, list);
  });
  if (names.length === 1) return of(names[0]);
  return names.map((agent) => make("details", { className: "branch" }, make("summary", {}, named(agent)), ...of(agent)));
}

function branch(name, place, list) {
  const box = make("div", { className: "level" });
  const node = make("details", { className: "branch" }, make("summary", {}, ...name), box);
  node.addEventListener("toggle", () => node.open && fill(box, place, list));
  return node;
}

async function fill(box, place, list, offset = 0) {
  let answer;
  try {
    // The top's name is empty, and is asked for nevertheless.
    answer = await ask(`/v1/documents?${new URLSearchParams({ ...place, offset })}`);
  } catch {
    show(box, make("p", { className: "faint" }, t("awaySentence")));
    return;
  }
  const folders = answer.folders.map(({ path, documents }) => {
    const name = path.slice(place.under.length).replace(/\/$/, "");
    return branch([named(name), " ", make("span", { className: "faint" }, number(documents))], { ...place, under: path }, list);
  });
  const isEmpty = !offset && folders.length === 0 && answer.documents.length === 0;
  const parts = [...folders, answer.documents.length ? list(answer.documents) : null, isEmpty ? make("p", { className: "faint" }, t("treeEmpty")) : null];
  if (offset) box.append(...parts.filter(Boolean));
  else show(box, ...parts);
  if (answer.next === undefined) return;
  const more = make("button", { type: "button", className: "quiet" }, t("homeMore"));
  more.addEventListener("click", () => {
    more.remove();
    fill(box, place, list, answer.next);
  });
  box.append(more);
}

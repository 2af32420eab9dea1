// Making elements. Text is only ever added as text: nothing here, or anywhere else, reads a string as HTML.

/** Make an element. `properties` are set as they are, except `data` (data-*) and names with a dash or `role`, which are attributes. */
export function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "data") Object.assign(node.dataset, value);
    else if (name.includes("-") || name === "role" || name === "lang") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}

export const byId = (id) => document.getElementById(id);

// Characters that reorder or hide what stands around them: harmless in a text, a lie in a file's name.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A file's name as it is, with its invisible characters made visible; kept apart from the text around it. */
export function named(text) {
  const shown = text.replace(HIDDEN, (sign) => `\u27e8U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
  return make("bdi", { className: "name" }, shown);
}

/** Say something to who cannot see the page. */
export function announce(...words) {
  // New nodes each time: the same sentence twice is said twice.
  byId("said").replaceChildren(...words);
}

/** Let an element show exactly these children, unless it shows them already. */
export function show(node, ...children) {
  node.replaceChildren(...children.filter((child) => child !== undefined && child !== null));
}

/** Open a box of details when something goes wrong, and fold it when that is over; meanwhile its reader decides. */
export function unfold(box, isWrong) {
  if (box.dataset.wrong === String(isWrong)) return;
  box.dataset.wrong = isWrong;
  box.open = isWrong;
}

/** A button that copies a text; null where the browser lets no page copy. `words` are {label, done}. */
export function copier(text, words) {
  if (!navigator.clipboard) return null;
  const button = make("button", { type: "button", className: "quiet" }, words.label);
  button.addEventListener("click", async () => {
    if (!(await navigator.clipboard.writeText(text).then(() => true, () => false))) return;
    announce(words.done);
    button.textContent = words.done;
  });
  return button;
}

// The two switches, theme and language, and how they are remembered.

import { byId } from "./elements.js";
import { apply, currentLanguage, speak } from "./words.js";

const KEPT = "recalld.theme";
const THEMES = ["light", "dark"];

export function startSettings() {
  const theme = byId("theme");
  const language = byId("language");
  theme.value = document.documentElement.dataset.theme ?? "system";
  language.value = currentLanguage();
  apply();
  theme.addEventListener("change", () => dress(theme.value));
  language.addEventListener("change", () => speak(language.value));
}

function dress(theme) {
  const root = document.documentElement;
  if (THEMES.includes(theme)) root.dataset.theme = theme;
  else delete root.dataset.theme;
  try {
    localStorage.setItem(KEPT, theme);
  } catch {
    // Then it holds for this visit.
  }
}

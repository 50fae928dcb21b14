// Light, dark, or as the system has it; kept for the next time.

const STORED = "weir.ui.theme";
const THEMES = ["auto", "light", "dark"];

let theme = "auto";
try {
  theme = localStorage.getItem(STORED) ?? "auto";
} catch {
  // A browser that stores nothing has the system's.
}
set(THEMES.includes(theme) ? theme : "auto");

export function currentTheme() {
  return theme;
}

export function nextTheme() {
  set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]);
  try {
    localStorage.setItem(STORED, theme);
  } catch {
    // It lasts as long as the page.
  }
}

function set(wanted) {
  theme = wanted;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

// The button that switches between light and dark colours.
import { t } from "./words.js";

const dark = matchMedia("(prefers-color-scheme: dark)");

export function themeSwitch(button) {
  const root = document.documentElement;
  const current = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");
  const label = () => {
    const text = current() === "dark" ? t("Use light colours") : t("Use dark colours");
    button.setAttribute("aria-label", text);
    button.title = text;
  };
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* the choice holds until the page is left */ }
    label();
  });
  dark.addEventListener("change", label);
  label();
}

// Colours and names of components. The colours are those of the pictures that `llmcalc plot` draws.
import { COMPONENTS, OTHER } from "./palette.js";
import { t } from "./words.js";

const NAMES = {
  embedding: t("embedding"), lm_head: t("output head"), attention: t("attention"), cross_attention: t("cross attention"), state_space: t("state space"),
  linear_attention: t("linear attention"), convolution: t("convolution"), feed_forward: t("feed-forward"), experts: t("experts"), shared_expert: t("shared expert"),
  router: t("router"), norm: t("norms"), mtp: t("multi-token prediction"), other: t("other"),
};

export const colour = (kind) => COMPONENTS[kind] ?? OTHER;
export const named = (kind = "other") => NAMES[kind] ?? kind.replaceAll("_", " ");

/** Dark or light ink, whichever has more contrast on that colour (WCAG's relative luminance). */
export function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#14130f" : "#ffffff";
}

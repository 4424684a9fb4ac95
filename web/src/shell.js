// Words of a POSIX shell, for the commands that the page shows beside a button that copies them.
import { h } from "./dom.js";

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** A word as a shell reads it back unchanged, in single quotes where it needs them. */
export const quoted = (word) => (PLAIN.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

/** The command of these words. */
export const commandLine = (...words) => words.map(quoted).join(" ");

/** A command in parts between which a line may be broken: before an option, not within its hyphens. */
export const commandParts = (text) => text.split(/ (?=-)/).flatMap((part, i) => [i ? " " : "", h("span", {}, part)]);

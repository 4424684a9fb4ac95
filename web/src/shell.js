// Words of a POSIX shell, for the commands that the page shows beside a button that copies them.

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** A word as a shell reads it back unchanged, in single quotes where it needs them. */
export const quoted = (word) => (PLAIN.test(word) ? word : `'${word.replaceAll("'", "'\"'\"'")}'`);

/** The command of these words. */
export const commandLine = (...words) => words.map(quoted).join(" ");

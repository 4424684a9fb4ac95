// A model's config.json from Hugging Face, which the browser fetches itself. Nothing else on the page asks another site.
import { LARGEST_CONFIG, readBytes } from "./bounded.js";
import { Refused } from "./python.js";
import { t } from "./words.js";

const PATIENCE = 20_000; // ms; a site that is blocked may never answer

/** What is wrong, by the answer's status and the hub's own code. Without a login it answers 401 for what does not exist. */
function wrong(status, code) {
  if (code === "GatedRepo") return t("is gated: accept its terms on the hub, and paste its config.json here");
  if (code === "RevisionNotFound") return t("has no such revision");
  if (code === "RepoNotFound" || status === 401 || status === 403) return t("no such repository, or a private one: check the name, or paste its config.json here");
  if (status === 404) return t("has no config.json");
  return t("its config.json could not be fetched: huggingface.co answered {0}", status);
}

/** The text of the config. Rejects with Refused, in one line. */
export async function config(hub, revision) {
  const name = revision === "main" ? hub : `${hub}@${revision}`;
  try {
    const answer = await fetch(`https://huggingface.co/${hub}/resolve/${encodeURIComponent(revision)}/config.json`, { signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Refused(`${name}: ${wrong(answer.status, answer.headers.get("X-Error-Code"))}`);
    return new TextDecoder().decode(await readBytes(answer.body, LARGEST_CONFIG));
  } catch (error) {
    if (error instanceof Refused) throw error;
    if (error instanceof RangeError) throw new Refused(`${name}: ${t("its config.json is larger than {0} bytes", LARGEST_CONFIG)}`);
    throw new Refused(`${name}: ${t("huggingface.co could not be reached; paste its config.json here")}`);
  }
}

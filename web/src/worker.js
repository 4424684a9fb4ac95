// Python, in a thread of its own. It is asked with {id, call, request}, and answers with {id, text, ms}.
// Archives are fetched when a question first needs them.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const DEVICES = ["later.zip", "cluster.zip"];
const NEEDS = { memory: ["later.zip"], training: ["later.zip"], cluster: DEVICES, plan: DEVICES, serve: DEVICES, cost: DEVICES, shape: ["shapes.zip"], proportions: ["shapes.zip"], explain: ["later.zip", "sympy.zip"] };
const CONFIGS = ["configs.zip"]; // for a model that is no preset
const here = (path) => new URL(path, self.location.href).href;
const fetched = new Map();
let python;

async function archive(name) {
  const answer = await fetch(here(name));
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await answer.arrayBuffer());
}

function unpacked(name) {
  if (!fetched.has(name)) {
    const bytes = archive(name).catch((error) => { fetched.delete(name); throw error; });
    fetched.set(name, bytes.then(async (found) => {
      await ready;
      python.unpackArchive(found, "zip", { extractDir: "/app" });
      python.runPython("import importlib; importlib.invalidate_caches()");
    }));
  }
  return fetched.get(name);
}

const ready = (async () => {
  const [loaded, app] = await Promise.all([loadPyodide({ indexURL: here("pyodide/") }), archive("app.zip")]);
  python = loaded;
  python.unpackArchive(app, "zip", { extractDir: "/app" });
  python.runPython("import sys; sys.path.insert(0, '/app'); import bridge");
  postMessage({ ready: true });
})();
ready.catch((error) => postMessage({ broken: String(error) }));

onmessage = async ({ data: { id, call, request } }) => {
  try {
    await ready;
    for (const name of [...(request.model?.config ? CONFIGS : []), ...(NEEDS[call] ?? [])]) await unpacked(name);
    const start = performance.now();
    const text = python.globals.get("bridge").call(call, JSON.stringify(request));
    postMessage({ id, text, ms: performance.now() - start });
  } catch (error) {
    postMessage({ id, failed: String(error) });
  }
};

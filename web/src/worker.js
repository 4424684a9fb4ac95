// Python, in a thread of its own. It is asked with {id, call, request}, and answers with {id, text, ms}.
// Archives are fetched when a question first needs them.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const DEVICES = ["later.pack", "cluster.pack"];
const NEEDS = { memory: ["later.pack"], training: ["later.pack"], cluster: DEVICES, plan: DEVICES, serve: DEVICES, cost: DEVICES, shape: ["shapes.pack"], proportions: ["shapes.pack"], explain: ["later.pack", "sympy.pack"] };
const CONFIGS = ["configs.pack"]; // for a model that is no preset
const here = (path) => new URL(path, self.location.href).href;
const fetched = new Map();
let python;

/** The bytes of an archive, of the form that pack.mjs writes. */
async function archive(name) {
  const answer = await fetch(here(name));
  if (!answer.ok) throw new Error(`${name}: ${answer.status} ${answer.statusText}`);
  return new Uint8Array(await new Response(answer.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

/** Writes the files of an archive to where Python imports them from. */
function unpack(bytes) {
  const line = bytes.indexOf(10), folders = new Set();
  let start = line + 1;
  for (const [path, size] of JSON.parse(new TextDecoder().decode(bytes.subarray(0, line)))) {
    const file = `/app/${path}`, folder = file.slice(0, file.lastIndexOf("/"));
    if (!folders.has(folder)) python.FS.mkdirTree(folder);
    folders.add(folder);
    python.FS.writeFile(file, bytes.subarray(start, start + size), { canOwn: true });
    start += size;
  }
}

function unpacked(name) {
  if (!fetched.has(name)) {
    const bytes = archive(name).catch((error) => { fetched.delete(name); throw error; });
    fetched.set(name, bytes.then(async (found) => {
      await ready;
      unpack(found);
      python.runPython("import importlib; importlib.invalidate_caches()");
    }));
  }
  return fetched.get(name);
}

const ready = (async () => {
  const [loaded, app] = await Promise.all([loadPyodide({ indexURL: here("pyodide/") }), archive("app.pack")]);
  python = loaded;
  unpack(app);
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

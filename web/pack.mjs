// Packs wheels into the archives that the page loads. Modules are compiled by the interpreter that will run them, which
// makes its start three times as fast, and sources are left out.
//
// node pack.mjs PLAN, where PLAN is JSON: pyodide (its folder), out (a folder), and archives:
// name → { wheels: [file], files: {name: file}, only: [path prefix], without: [path prefix] }
import { readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const plan = JSON.parse(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(join(plan.pyodide, "pyodide.mjs")).href);
// Without columns of source code, which only tracebacks show, and below without docstrings, archives are a third smaller.
const python = await loadPyodide({ env: { PYTHONNODEBUGRANGES: "1" } });
const bytes = (file) => new Uint8Array(readFileSync(file)); // unpackArchive refuses Node's Buffer

const folders = new Map(); // wheel → the folder of its modules, which are compiled once for all archives
python.runPython(`
import compileall, os, py_compile, zipfile

def compiled(folder):
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    if not compileall.compile_dir(folder, quiet=1, legacy=True, workers=1, invalidation_mode=unchecked, optimize=2):
        raise SystemExit("a module does not compile")
`);

/** The folder in which a wheel is unpacked and compiled. */
function unpacked(wheel) {
  if (!folders.has(wheel)) {
    const folder = `/wheel-${folders.size}`;
    python.unpackArchive(bytes(wheel), "zip", { extractDir: folder });
    python.globals.get("compiled")(folder);
    folders.set(wheel, folder);
  }
  return folders.get(wheel);
}

for (const [name, { wheels, files = {}, only = [""], without = [] }] of Object.entries(plan.archives)) {
  const sources = wheels.map(unpacked);
  if (Object.keys(files).length) {
    const folder = `/files-${name}`;
    python.FS.mkdir(folder);
    for (const [target, file] of Object.entries(files)) python.FS.writeFile(`${folder}/${target}`, bytes(file));
    python.globals.get("compiled")(folder);
    sources.push(folder);
  }
  python.globals.set("sources", python.toPy(sources));
  python.globals.set("only", python.toPy(only));
  python.globals.set("without", python.toPy(without));
  python.runPython(`
wanted, left_out = tuple(only), tuple(without)
found = {}
for source in sources:
    for folder, _, names in os.walk(source):
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), source)
            if path.endswith(".py") or "__pycache__" in path or "/tests/" in path or not path.startswith(wanted) or path.startswith(left_out):
                continue
            if ".dist-info/" in path and name != "METADATA" and "/licenses/" not in path:
                continue
            found[path] = os.path.join(folder, name)
with zipfile.ZipFile("/packed.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(found):
        moment = (1980, 1, 1, 0, 0, 0)  # so that the same wheels give the same archive
        with open(found[path], "rb") as file:
            archive.writestr(zipfile.ZipInfo(path, moment), file.read(), zipfile.ZIP_DEFLATED, 9)
`);
  const archive = python.FS.readFile("/packed.zip");
  writeFileSync(join(plan.out, name), archive);
  console.log(`${basename(name)} ${(archive.length / 1e6).toFixed(2)} MB`);
}

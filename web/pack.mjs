// Packs wheels into the archives that the page loads. Modules are compiled by the interpreter that will run them, which
// makes its start three times as fast, and sources are left out.
//
// node pack.mjs PLAN, where PLAN is JSON: pyodide (its folder), out (a folder), archives:
// name → { wheels: [file], files: {name: file}, only: [path prefix], without: [path prefix] },
// and standard_library: { without: [path prefix] }, which of Python's own modules are left out.
//
// An archive is compressed as a whole (gzip): a line of JSON, [[path, bytes], …], and then the files one after another.
// Its many small files are alike, so that it is a fifth smaller than a ZIP file, which compresses each one alone.
import { readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const plan = JSON.parse(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(join(plan.pyodide, "pyodide.mjs")).href);
// Without columns of source code, which only tracebacks show, and below without docstrings, archives are a third smaller.
const python = await loadPyodide({ env: { PYTHONNODEBUGRANGES: "1" } });
const bytes = (file) => new Uint8Array(readFileSync(file)); // unpackArchive refuses Node's Buffer

const folders = new Map(); // wheel → the folder of its modules, which are compiled once for all archives
python.runPython(`
import compileall, json, os, py_compile, zipfile

def compiled(folder, optimize=2):
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    options = {"quiet": 1, "legacy": True, "workers": 1, "force": True, "invalidation_mode": unchecked}
    if not compileall.compile_dir(folder, optimize=optimize, **options):
        raise SystemExit("a module does not compile")

def is_packed(path, only, without):
    return "__pycache__" not in path and "/tests/" not in path and path.startswith(only) and not path.startswith(without)

def paths_below(folder):
    return [os.path.relpath(os.path.join(parent, name), folder) for parent, _, names in os.walk(folder) for name in names]

def remove_unpacked(folder, choices):
    """Removes the files that no archive has, before they are compiled. choices: (only, without) of each archive."""
    choices = [(tuple(only), tuple(without)) for only, without in choices]
    for path in paths_below(folder):
        if not any(is_packed(path, *choice) for choice in choices):
            os.remove(os.path.join(folder, path))
`);

function save(name, archive) {
  writeFileSync(join(plan.out, name), archive);
  console.log(`${basename(name)} ${(archive.length / 1e6).toFixed(2)} MB`);
}

/** The folder in which a wheel is unpacked, and what archives have of it is compiled. */
function unpacked(wheel) {
  if (!folders.has(wheel)) {
    const folder = `/wheel-${folders.size}`;
    const archives = Object.values(plan.archives).filter(({ wheels }) => wheels.includes(wheel));
    const choices = archives.map(({ only = [""], without = [] }) => [only, without]);
    python.unpackArchive(bytes(wheel), "zip", { extractDir: folder });
    python.globals.get("remove_unpacked")(folder, python.toPy(choices));
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
    for path in paths_below(source):
        if path.endswith(".py") or not is_packed(path, wanted, left_out):
            continue
        if ".dist-info/" in path and os.path.basename(path) != "METADATA" and "/licenses/" not in path:
            continue
        found[path] = os.path.join(source, path)
paths = sorted(found, key=lambda path: (path.rpartition(".")[2], path))
packed = json.dumps([[path, os.path.getsize(found[path])] for path in paths], separators=(",", ":")).encode() + b"\\n"
for path in paths:
    with open(found[path], "rb") as file:
        packed += file.read()
with open("/packed", "wb") as file:
    file.write(packed)
`);
  save(name, gzipSync(python.FS.readFile("/packed"), { level: 9 }));
}

// Python's own modules, as a ZIP file, since Pyodide starts from one. What sets docstrings of Pyodide needs its own.
python.unpackArchive(bytes(join(plan.pyodide, "python_stdlib.zip")), "zip", { extractDir: "/standard" });
python.globals.set("without", python.toPy(plan.standard_library.without));
python.runPython(`
remove_unpacked("/standard", [([""], without)])
compiled("/standard")
compiled("/standard/_pyodide", optimize=0)
with zipfile.ZipFile("/standard.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for path in sorted(paths_below("/standard")):
        if path.endswith(".py"):
            continue
        moment = (1980, 1, 1, 0, 0, 0)  # so that the same modules give the same archive
        with open(os.path.join("/standard", path), "rb") as file:
            archive.writestr(zipfile.ZipInfo(path, moment), file.read(), zipfile.ZIP_DEFLATED, 9)
`);
save("pyodide/python_stdlib.zip", python.FS.readFile("/standard.zip"));

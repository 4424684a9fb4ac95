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

for (const [name, { wheels, files = {}, only = [""], without = [] }] of Object.entries(plan.archives)) {
  python.runPython("import os, shutil; shutil.rmtree('/packed', ignore_errors=True); os.mkdir('/packed')");
  for (const wheel of wheels) python.unpackArchive(bytes(wheel), "zip", { extractDir: "/packed" });
  for (const [target, file] of Object.entries(files)) python.FS.writeFile(`/packed/${target}`, bytes(file));
  python.globals.set("only", only);
  python.globals.set("without", without);
  python.runPython(`
import compileall, py_compile, zipfile
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
if not compileall.compile_dir("/packed", quiet=1, legacy=True, workers=1, invalidation_mode=unchecked, optimize=2):
    raise SystemExit("a module does not compile")
wanted, left_out = tuple(only), tuple(without)
with zipfile.ZipFile("/packed.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for folder, _, names in sorted(os.walk("/packed")):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), "/packed")
            if path.endswith(".py") or "__pycache__" in path or "/tests/" in path or not path.startswith(wanted) or path.startswith(left_out):
                continue
            if ".dist-info/" in path and name != "METADATA" and "/licenses/" not in path:
                continue
            moment = (1980, 1, 1, 0, 0, 0)  # so that the same wheels give the same archive
            with open(os.path.join("/packed", path), "rb") as file:
                archive.writestr(zipfile.ZipInfo(path, moment), file.read(), zipfile.ZIP_DEFLATED, 9)
`);
  const archive = python.FS.readFile("/packed.zip");
  writeFileSync(join(plan.out, name), archive);
  console.log(`${basename(name)} ${(archive.length / 1e6).toFixed(2)} MB`);
}

"""Checks what `agentgym-submit --json` printed against schema/v1.json.

    check_schema.py FOLDER

FOLDER has a file DEFINITION.json or DEFINITION@ANYTHING.json for each document. Beside what JSON Schema
says: no document has a field at its top level that the schema does not describe, so what is new gets
written down; and every definition has a document, so none is described that nobody prints.
"""

import json
import sys
from pathlib import Path

import jsonschema

SCHEMA = Path(__file__).parent.parent / "schema/v1.json"


def is_document(name):
    """Definitions that begin with a capital, and a commit, are parts of documents."""
    return name[0].islower() and name != "manifest"


def properties(defs, schema):
    """The fields at the top level of a definition, of its alternatives too."""
    if "$ref" in schema:
        return properties(defs, defs[schema["$ref"].rsplit("/", 1)[1]])
    found = set(schema.get("properties", {}))
    for part in [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, [])]:
        found |= properties(defs, part)
    return found


def problems(defs, name, document):
    if name not in defs:
        return ["has no definition"]
    validator = jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": defs})
    errors = validator.iter_errors(document)
    found = [f"{'/'.join(map(str, e.absolute_path)) or 'the document'}: {e.message[:300]}" for e in errors]
    fields = document if isinstance(document, dict) else {}
    known = properties(defs, defs[name])
    return found + [f"{field}: is not in the schema" for field in fields if field not in known]


def main():
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    defs, wrong, seen = schema["$defs"], [], set()
    for file in sorted(Path(sys.argv[1]).glob("*.json")):
        name = file.stem.split("@")[0]
        seen.add(name)
        try:
            document = json.loads(file.read_text())
        except ValueError as error:
            wrong.append(f"{file.stem}: no JSON document: {error}: {file.read_text()[:300]}")
            continue
        wrong += [f"{file.stem}: {line}" for line in problems(defs, name, document)]
    wrong += [f"{name}: no document of it was printed" for name in defs if is_document(name) and name not in seen]
    if wrong:
        sys.exit("\n".join(f"schema: {line}" for line in wrong))
    print(f"schema: {len(seen)} kinds of documents are as schema/v1.json says")


if __name__ == "__main__":
    main()

//! Checks invariant I5: which crate may depend on what, and where a dependency's version and
//! features are decided. It reads the manifests as cargo does, and the sources where a boundary
//! runs inside a crate.

use agentgym_tests::files::files_below;
use agentgym_tests::program::workspace;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Crates of this workspace that a crate may import: strictly downwards, and crates of the lowest
/// layer do not import each other.
const IMPORTS: [(&str, &[&str]); 15] = [
    (
        "agentgym-examples",
        &["algorithms", "envs", "games", "jobs", "storage"],
    ),
    ("agentgym-text", &[]),
    ("agentgym-storage", &[]),
    ("agentgym-algorithms", &[]),
    ("agentgym-model", &[]),
    ("agentgym-envs", &["text"]),
    // The programs bring it; of what trains, only tests know it.
    ("agentgym-games", &["envs", "text"]),
    ("agentgym-queue", &["text"]),
    ("agentgym-view", &[]),
    ("agentgym-serve", &["model"]),
    ("agentgym-jobs", &["algorithms", "envs", "storage", "text"]),
    ("agentgym-record", &["algorithms", "jobs", "storage"]),
    (
        "agentgym-worker",
        &[
            "algorithms",
            "envs",
            "jobs",
            "model",
            "queue",
            "record",
            "serve",
            "storage",
            "text",
        ],
    ),
    (
        "agentgym-submit",
        &[
            "envs", "games", "jobs", "model", "queue", "record", "serve", "storage", "text",
            "view", "worker",
        ],
    ),
    (
        "agentgym-tests",
        &[
            "algorithms",
            "envs",
            "games",
            "jobs",
            "model",
            "queue",
            "serve",
            "storage",
            "submit",
            "text",
            "worker",
        ],
    ),
];

/// Crates that the tests of a crate may know, and nothing else of it.
const TESTED_WITH: [(&str, &str); 2] = [("agentgym-envs", "games"), ("agentgym-worker", "games")];

/// Dependencies that only one crate may use (or those with a row), by name prefix.
const OWNED: [(&str, &str); 26] = [
    ("candle", "agentgym-model"),
    ("cudarc", "agentgym-model"),
    ("libloading", "agentgym-model"),
    ("gemm", "agentgym-model"),
    ("pulp", "agentgym-model"),
    ("safetensors", "agentgym-model"),
    ("tokenizers", "agentgym-model"),
    ("minijinja", "agentgym-model"),
    ("apalis", "agentgym-queue"),
    ("sqlx", "agentgym-queue"),
    ("redis", "agentgym-queue"),
    // Payloads of jobs and of artifacts.
    ("bincode", "agentgym-queue"),
    ("bincode", "agentgym-jobs"),
    ("serde-saphyr", "agentgym-jobs"),
    // A person's spec, for the doctor too.
    ("serde-saphyr", "agentgym-envs"),
    ("object_store", "agentgym-storage"),
    ("axum", "agentgym-envs"),
    ("axum", "agentgym-view"),
    ("axum", "agentgym-serve"),
    // The endpoint that Prometheus asks.
    ("axum", "agentgym-worker"),
    ("prometheus", "agentgym-worker"),
    ("reqwest", "agentgym-envs"),
    // The tests of its servers.
    ("reqwest", "agentgym-games"),
    // Preemption notices arrive over HTTP.
    ("reqwest", "agentgym-worker"),
    ("indicatif", "agentgym-submit"),
    ("crc32c", "agentgym-submit"),
];

/// The only dependencies of a crate of pure functions.
const PURE: [(&str, &[&str]); 1] = [("agentgym-algorithms", &["serde", "thiserror"])];

/// Dependencies that a crate must not have although no other crate owns them.
const WITHOUT: [(&str, &str); 1] = [("agentgym-model", "tokio")];

/// The only directories of a crate that may name a library.
const INSIDE: [(&str, &str, &str); 2] = [
    ("queue", "src/backends", "sqlx"),
    ("queue", "src/backends", "redis"),
];

/// `cargo metadata` of the workspace; it needs no network.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--offline",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(ROOT)
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Violations by dependencies. The test crate may import every crate.
fn violations(metadata: &Value) -> Vec<String> {
    let imports = BTreeMap::from(IMPORTS);
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let Some(own) = imports.get(name) else {
            wrong.push(format!("{name} has no row in this test"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            let is_shipped = dependency["kind"].is_null();
            if let Some(other) = other.strip_prefix("agentgym-") {
                let tests_know = !is_shipped && TESTED_WITH.contains(&(name, other));
                if !own.contains(&other) && !tests_know {
                    wrong.push(format!("{name} imports agentgym-{other}"));
                }
                continue;
            }
            if name == "agentgym-tests" {
                continue;
            }
            let owners: Vec<&str> = OWNED
                .iter()
                .filter(|(prefix, _)| other.starts_with(prefix))
                .map(|(_, owner)| *owner)
                .collect();
            if !owners.is_empty() && !owners.contains(&name) {
                let owners = owners.join(" and ");
                wrong.push(format!(
                    "{name} imports {other}, which only {owners} may know"
                ));
            }
            let pure = PURE.iter().find(|(known, _)| *known == name);
            if pure.is_some_and(|(_, allowed)| is_shipped && !allowed.contains(&other)) {
                wrong.push(format!("{name} is pure and imports {other}"));
            }
            if is_shipped && WITHOUT.contains(&(name, other)) {
                wrong.push(format!("{name} does without {other}"));
            }
        }
    }
    wrong
}

#[test]
fn crates_import_what_they_may() {
    let mut metadata = metadata();
    assert_eq!(violations(&metadata), [""; 0]);
    let names: BTreeSet<&str> = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    assert!(names.iter().eq(BTreeMap::from(IMPORTS).keys()), "{names:?}");

    // Each kind of violation is detected.
    let mut trespass = |package: &str, dependency: &str| {
        let packages = metadata["packages"].as_array_mut().unwrap();
        let found = packages.iter_mut().find(|p| p["name"] == package).unwrap();
        let list = found["dependencies"].as_array_mut().unwrap();
        list.push(json!({"name": dependency, "kind": null}));
    };
    trespass("agentgym-storage", "agentgym-envs");
    trespass("agentgym-jobs", "agentgym-worker");
    trespass("agentgym-worker", "agentgym-games");
    trespass("agentgym-worker", "candle-nn");
    trespass("agentgym-algorithms", "rand");
    trespass("agentgym-model", "tokio");
    assert_eq!(
        violations(&metadata).len(),
        6,
        "{:?}",
        violations(&metadata)
    );
}

/// Lines of a member's dependency tables that decide a version or features themselves.
fn own_decisions(manifest: &str) -> Vec<&str> {
    let mut in_dependencies = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            in_dependencies = table.contains("dependencies");
            // `[dependencies.x]` could hide a version from the line below.
            if in_dependencies && table.contains("dependencies.") {
                found.push(line);
            }
        } else if in_dependencies
            && !line.is_empty()
            && !line.starts_with('#')
            && !line.ends_with(".workspace = true")
            // Dependencies that a feature of the member enables.
            && !line.ends_with(" = { workspace = true, optional = true }")
        {
            found.push(line);
        }
    }
    found
}

#[test]
fn versions_and_features_are_decided_at_the_root() {
    for (package, _) in IMPORTS {
        let folder = package.strip_prefix("agentgym-").unwrap();
        let path = Path::new(ROOT).join(folder).join("Cargo.toml");
        let manifest = std::fs::read_to_string(&path).unwrap();
        assert!(manifest.contains("dependencies]"), "{folder}");
        assert_eq!(own_decisions(&manifest), [""; 0], "{folder}/Cargo.toml");
    }
    let spoiled = "[dependencies]\nserde.workspace = true\ntokio = { workspace = true, features = [\"fs\"] }\n\
                   [dependencies.url]\nversion = \"2\"\n[[bench]]\nname = \"x\"\n";
    assert_eq!(own_decisions(spoiled).len(), 3);
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = files_below(folder);
    found.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    found
}

/// Whether code, without comments, contains a path into the library.
fn names(source: &str, library: &str) -> bool {
    let code = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let paths =
        code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && !"_:".contains(c)));
    let mut paths = paths.filter(|word| word.contains("::"));
    paths.any(|word| {
        let mut heads = word.trim_start_matches("::").split("::");
        heads.next().is_some_and(|head| head.starts_with(library))
    })
}

#[test]
fn libraries_stay_inside_their_module() {
    for (package, module, library) in INSIDE {
        let folder = Path::new(ROOT).join(package);
        let (inside, outside): (Vec<_>, Vec<_>) = sources(&folder.join("src"))
            .into_iter()
            .filter(|path| names(&std::fs::read_to_string(path).unwrap(), library))
            .partition(|path| path.starts_with(folder.join(module)));
        assert!(
            !inside.is_empty(),
            "{package}/{module} does not use {library}"
        );
        assert!(outside.is_empty(), "{library} is named in {outside:?}");
    }
    assert!(names("use apalis_core::task;", "apalis"));
    assert!(names("use ::redis::Client;", "redis"));
    assert!(!names("let redis = 1; // redis::Client", "redis"));
}

/// What begins an HTTP client, in code without comments.
fn begins_client(source: &str) -> bool {
    let code = source
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""));
    let code: String = code.flat_map(str::split_whitespace).collect();
    let begins = [
        "Client::builder(",
        "Client::new(",
        "Client::default(",
        "ClientBuilder::new(",
        "ClientBuilder::default(",
        "reqwest::get(",
        "reqwest::blocking",
    ];
    // A client of another name, as `EnvClient`, is none of these.
    let is_own = |at: usize| !code[..at].ends_with(char::is_alphanumeric);
    let mut found = begins.iter().flat_map(|word| code.match_indices(word));
    code.contains("reqwest") && found.any(|(at, _)| is_own(at))
}

/// One network policy: proxies, certificates, redirects and limits are decided where the one builder is.
#[test]
fn http_clients_begin_in_one_place() {
    let all = IMPORTS.iter().flat_map(|(package, _)| {
        let folder = package.strip_prefix("agentgym-").unwrap();
        sources(&Path::new(ROOT).join(folder))
    });
    let root = Path::new(ROOT);
    let found: Vec<PathBuf> = all
        .filter(|path| begins_client(&std::fs::read_to_string(path).unwrap()))
        .map(|path| path.strip_prefix(root).unwrap().to_owned())
        // This test names what it looks for.
        .filter(|path| !path.ends_with("architecture.rs"))
        .collect();
    assert_eq!(found, [Path::new("envs/src/http_client.rs")]);
    assert!(begins_client(
        "use reqwest::Client;\nlet c = Client::new();"
    ));
    assert!(begins_client("reqwest::Client\n    ::builder()"));
    assert!(!begins_client("use reqwest::Client;\n// Client::new()"));
    assert!(!begins_client("use reqwest::Url;\nEnvClient::new()"));
    // The hub's own client is given the one here.
    let hub = std::fs::read_to_string(root.join("worker/src/hub.rs")).unwrap();
    assert!(hub.contains("HFClient::builder().client(http)"));
}

/// `scripts/faults.sh` breaks the program with these; one that no longer fits tests nothing.
/// What stages write is read as the types of the crate `record`: a field that is renamed is then missed
/// by the compiler, not by a reader that finds nothing under its name.
#[test]
fn no_document_of_ours_is_read_by_the_name_of_a_field() {
    // Wires of others, and answers, which are documents of their own.
    const OTHERS: [&str; 2] = ["/worker/src/inference/", "/submit/src/questions.rs"];
    let root = workspace();
    let code = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap();
        text.split("#[cfg(test)]").next().unwrap().to_owned()
    };
    let field = |line: &str| {
        let (name, _) = line.trim().strip_prefix("pub ")?.split_once(": ")?;
        Some(name.to_owned())
    };
    let mut of_documents = sources(&root.join("record/src/metrics"));
    let files = ["documents.rs", "metrics.rs", "stats.rs"];
    of_documents.extend(files.map(|name| root.join("record/src").join(name)));
    let record: String = of_documents.iter().map(code).collect();
    let fields: BTreeSet<String> = record.lines().filter_map(field).collect();
    assert!(fields.len() > 100, "{fields:?}");
    let folders = ["jobs", "worker", "submit"].map(|name| root.join(name).join("src"));
    let mut wrong = Vec::new();
    for path in folders.iter().flat_map(|folder| sources(folder)) {
        let text = code(&path);
        let path = path.display().to_string();
        if OTHERS.iter().any(|other| path.contains(other)) || path.contains("test") {
            continue;
        }
        // A tree of keys is a config's.
        for line in text.lines().filter(|line| !line.contains("tree[")) {
            let starts = ["[\"", ".get(\"", ".pointer(\"/", ".contains_key(\""];
            let reads = starts.iter().flat_map(|start| line.split(start).skip(1));
            let named = reads.filter_map(|rest| rest.split_once('"'));
            for (name, rest) in named {
                // A place in a document that is being written, and a list of one name.
                let writes = rest.starts_with("] =") && !rest.starts_with("] ==");
                let is_other = writes || line.contains("&[\"");
                if fields.contains(name) && rest.starts_with([']', ')']) && !is_other {
                    wrong.push(format!("{path}: {}", line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fault_can_still_be_made() {
    let root = workspace();
    let mut patches = 0;
    for entry in std::fs::read_dir(root.join("tests/faults")).unwrap() {
        let patch = entry.unwrap().path();
        let mut git = Command::new("git");
        git.current_dir(&root)
            .args(["apply", "--check"])
            .arg(&patch);
        let said = git.output().unwrap();
        let why = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{}: {why}", patch.display());
        patches += 1;
    }
    assert!(patches > 30, "{patches}");
}

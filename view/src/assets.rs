//! The pages: files of this crate, embedded in the program.

use bytes::Bytes;

/// Name, type, content.
type Asset = (&'static str, &'static str, &'static [u8]);

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Scripts, those that others import first: the order in which a bundle joins them.
const SCRIPTS: [Asset; 10] = [
    ("dom.js", SCRIPT, include_bytes!("../assets/dom.js")),
    ("data.js", SCRIPT, include_bytes!("../assets/data.js")),
    ("charts.js", SCRIPT, include_bytes!("../assets/charts.js")),
    (
        "episodes.js",
        SCRIPT,
        include_bytes!("../assets/episodes.js"),
    ),
    ("scenes.js", SCRIPT, include_bytes!("../assets/scenes.js")),
    ("episode.js", SCRIPT, include_bytes!("../assets/episode.js")),
    ("run.js", SCRIPT, include_bytes!("../assets/run.js")),
    ("tasks.js", SCRIPT, include_bytes!("../assets/tasks.js")),
    ("fleet.js", SCRIPT, include_bytes!("../assets/fleet.js")),
    ("main.js", SCRIPT, include_bytes!("../assets/main.js")),
];

const OTHERS: [Asset; 3] = [
    (
        "",
        "text/html; charset=utf-8",
        include_bytes!("../assets/index.html"),
    ),
    (
        "style.css",
        "text/css; charset=utf-8",
        include_bytes!("../assets/style.css"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_bytes!("../assets/icon.svg"),
    ),
];

/// A file by its name below `/`: type and content.
pub fn asset(name: &str) -> Option<(&'static str, Bytes)> {
    let mut all = SCRIPTS.iter().chain(&OTHERS);
    let found = all.find(|(known, ..)| *known == name)?;
    Some((found.1, Bytes::from_static(found.2)))
}

/// A page that needs no server: everything in one file, with the answers that it may ask for. A
/// browser loads neither modules nor data from `file://`, so the modules become one classic
/// script; their top-level names differ, which a test checks.
pub fn bundle_page(answers: &serde_json::Value) -> String {
    let style = String::from_utf8_lossy(OTHERS[1].2);
    // `<` could end the script that holds the data.
    let data = answers.to_string().replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>agentgym</title>\n<style>\n{style}</style>\n<body>\n\
         <script>\n\"use strict\";\nwindow.agentgymAnswers = {data};\n(() => {{\n{}}})();\n</script>\n",
        classic()
    )
}

/// The modules as one script.
fn classic() -> String {
    let mut out = String::new();
    for (_, _, content) in SCRIPTS {
        for line in String::from_utf8_lossy(content).lines() {
            if line.starts_with("import ") {
                continue;
            }
            out += line.strip_prefix("export ").unwrap_or(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn scripts() -> impl Iterator<Item = (&'static str, &'static str)> {
        let text = |content| std::str::from_utf8(content).unwrap();
        SCRIPTS
            .iter()
            .map(move |(name, _, content)| (*name, text(content)))
    }

    #[test]
    fn text_enters_a_page_as_text_alone() {
        for (name, text) in scripts() {
            for banned in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "DOMParser",
                "http://",
                "https://",
            ] {
                let allowed = banned == "http://"
                    && text.matches(banned).count() == text.matches("http://www.w3.org/").count();
                assert!(!text.contains(banned) || allowed, "{name} has {banned}");
            }
        }
        let index = std::str::from_utf8(OTHERS[0].2).unwrap();
        assert!(
            !index.contains("<script>") && !index.contains(" style="),
            "CSP forbids inline"
        );
    }

    #[test]
    fn modules_join_to_one_script() {
        let mut names: BTreeMap<&str, &str> = BTreeMap::new();
        for (file, text) in scripts() {
            for line in text.lines() {
                let line = line.strip_prefix("export ").unwrap_or(line);
                let line = line.strip_prefix("async ").unwrap_or(line);
                let kinds = ["function ", "const ", "let ", "class "];
                let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else {
                    continue;
                };
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$');
                let name = &rest[..end.unwrap_or(rest.len())];
                let before = names.insert(name, file);
                assert_eq!(before, None, "{file} defines {name} too");
            }
        }
        let page = bundle_page(&serde_json::json!({"/x": "</script><b>"}));
        assert!(!page.contains("\nimport ") && !page.contains("\nexport "));
        assert_eq!(page.matches("</script>").count(), 1);
    }

    #[test]
    fn unknown_names_are_no_files() {
        assert!(asset("main.js").is_some() && asset("").is_some());
        for name in ["../Cargo.toml", "main.js/", "MAIN.JS", "src/lib.rs"] {
            assert!(asset(name).is_none(), "{name}");
        }
    }
}

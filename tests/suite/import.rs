//! `import`: a GGUF file that PyPI's gguf wrote (tools/gguf_fixture.py) becomes a folder that other commands take;
//! who gives such a file elsewhere is told the line; what is refused, cut off or killed leaves nothing.

use crate::bad_input::Scene;
use agentgym_model::{Device, Policy};
use agentgym_tests::program::{finish, program, workspace};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    workspace().join("tests/fixtures").join(name)
}

/// What a folder has inside, hidden files too.
fn inside(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_gguf_file_becomes_a_model_that_every_command_takes() {
    let scene = Scene::new();
    let file = fixture("qwen2-tiny.gguf");
    let line = format!("import {} --to m", file.display());
    let told = scene.submit(&format!("--json --quiet {line}"));
    assert_eq!((told.status.code(), stderr(&told).as_str()), (Some(0), ""));
    let document: Value = serde_json::from_slice(&told.stdout).unwrap();
    let formats = document["formats"].as_array().unwrap();
    let names: Vec<_> = formats
        .iter()
        .map(|f| f["format"].as_str().unwrap())
        .collect();
    for name in ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "F16", "BF16", "F32"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert_eq!(document["model_type"], "qwen2");
    assert_eq!(document["pre_tokenizer"], "gpt-2");
    assert_eq!(document["tokenizer_ids"], 360);
    let parameters = document["parameters"].as_u64().unwrap();
    assert_eq!(document["bytes"], 4 * parameters);

    // Near the model that the file was made from, which has the same vocabulary.
    let [ours, theirs] = [scene.path("m"), fixture("qwen2-tiny")]
        .map(|at| Policy::load(&at, &Device::cpu()).unwrap());
    for (name, parameter) in theirs.weights().iter() {
        let found = ours.weights().get(name).unwrap().numbers();
        let most = parameter
            .numbers()
            .iter()
            .fold(0.0f32, |most, x| most.max(x.abs()));
        let far = found
            .iter()
            .zip(parameter.numbers())
            .fold(0.0f32, |far, (a, b)| far.max((a - b).abs()));
        assert!(far <= most / 10.0, "{name}: {far} of {most}");
    }
    let text = "Craft 3 planks.\n<|im_end|> é";
    let ids = |policy: &Policy| policy.tokenizer().encode(text).unwrap();
    assert_eq!(ids(&ours), ids(&theirs));
    assert_eq!(ours.eos_ids(), theirs.eos_ids());

    assert_eq!(scene.submit("check-model m").status.code(), Some(0));
    let plan = scene.submit("plan run.yaml actor_rollout_ref.model.path=m");
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    let run = scene.submit("run.yaml --store s actor_rollout_ref.model.path=m");
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));

    scene.refuses(&line, 2, &["m is not an empty folder"]);
    let again = scene.submit(&format!("{line}2 --dtype bf16"));
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    for word in [
        "qwen2",
        "% in Q8_0",
        "bits each",
        "does not come back",
        "bf16",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(stderr(&again).contains("agentgym-submit check-model m2"));
    assert_eq!(inside(&scene.path("m2")), inside(&scene.path("m")));
}

/// Every place that wants a folder names the line, and the line does it.
#[test]
fn who_gives_a_gguf_file_is_told_the_line() {
    let scene = Scene::new();
    let folder = scene.path("only here");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(fixture("qwen2-tiny.gguf"), scene.path("t.gguf")).unwrap();
    std::fs::copy(fixture("qwen2-tiny.gguf"), folder.join("t.gguf")).unwrap();
    let words = ["`agentgym-submit import ", "t.gguf", " --to t`"];
    for line in [
        "check-model t.gguf",
        "serve t.gguf",
        "plan run.yaml actor_rollout_ref.model.path=t.gguf",
        "run.yaml --store s actor_rollout_ref.model.path=t.gguf",
    ] {
        let said = scene.refuses(line, 2, &words);
        assert!(said.contains("t.gguf is a GGUF file"), "{said}");
    }
    let mut said = String::new();
    for command in ["check-model", "serve"] {
        let mut command_line = program("agentgym-submit");
        let output = finish({
            command_line.arg(command).arg(&folder);
            command_line
        });
        assert_eq!(output.status.code(), Some(2));
        said = stderr(&output);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    let line = said.split('`').nth(1).unwrap();
    let mut path = vec![built()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(scene.folder());
    shell.env("PATH", std::env::join_paths(path).unwrap());
    assert!(finish(shell).status.success(), "{line}");
    assert_eq!(scene.submit("check-model t").status.code(), Some(0));
}

fn built() -> PathBuf {
    let program = program("agentgym-submit");
    Path::new(program.get_program())
        .parent()
        .unwrap()
        .to_owned()
}

#[test]
fn what_cannot_be_imported_leaves_nothing() {
    let scene = Scene::new();
    let whole = std::fs::read(fixture("qwen2-tiny.gguf")).unwrap();
    scene.write("cut.gguf", &whole[..whole.len() / 2]);
    scene.write("other.gguf", b"{}");
    let find = |words: &[u8]| {
        whole
            .windows(words.len())
            .position(|at| at == words)
            .unwrap()
    };
    let mut family = whole.clone();
    let at = find(b"qwen2");
    family[at..at + 5].copy_from_slice(b"gemma");
    scene.write("gemma.gguf", &family);
    let before = inside(scene.folder());
    for (file, words) in [
        ("cut.gguf", ["cut.gguf: is damaged", "copy the file again"]),
        ("other.gguf", ["other.gguf", "is no GGUF file"]),
        ("gemma.gguf", ["\"gemma\"", "llama, qwen2, qwen3"]),
        ("nowhere.gguf", ["nowhere.gguf", "No such file"]),
    ] {
        let said = scene.refuses(&format!("import {file} --to m"), 2, &words);
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    }
    assert_eq!(inside(scene.folder()), before);

    // No room for the weights: an error, or a death in the middle of them.
    let file = fixture("qwen2-tiny.gguf");
    let within = |first: &str| {
        let line = format!(
            "{first} ulimit -f 300; exec {}/agentgym-submit import {} --to m",
            built().display(),
            file.display()
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(scene.folder());
        finish(shell)
    };
    let full = within("trap '' XFSZ;");
    let said = stderr(&full);
    assert_eq!(full.status.code(), Some(3), "{said}");
    assert!(
        said.contains("model.safetensors") && said.contains("the space left"),
        "{said}"
    );
    assert_eq!(inside(scene.folder()), before);
    let killed = within("");
    assert_eq!(killed.status.code(), None, "{}", stderr(&killed));
    assert!(!scene.path("m").exists());
    assert_eq!(
        scene
            .submit(&format!("import {} --to m", file.display()))
            .status
            .code(),
        Some(0)
    );
}

/// A file without a template is imported, and the message says where one belongs.
#[test]
fn a_missing_chat_template_is_asked_for() {
    let scene = Scene::new();
    let mut bytes = std::fs::read(fixture("qwen2-tiny.gguf")).unwrap();
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|at| at == key).unwrap();
    bytes[at + key.len() - 1] = b'_';
    scene.write("bare.gguf", &bytes);
    let told = scene.submit("import bare.gguf --to m");
    let said = String::from_utf8_lossy(&told.stdout).into_owned();
    assert_eq!(told.status.code(), Some(0));
    assert!(
        said.contains("no chat template") && said.contains("m/chat_template.jinja"),
        "{said}"
    );
    scene.refuses("check-model m", 2, &["chat template"]);
    let template = fixture("qwen2-tiny/chat_template.jinja");
    std::fs::copy(template, scene.path("m/chat_template.jinja")).unwrap();
    assert_eq!(scene.submit("check-model m").status.code(), Some(0));
}

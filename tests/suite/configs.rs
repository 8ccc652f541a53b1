//! Every file in `configs/` and its folders can be planned unchanged, and `base.yaml` and
//! `reader.yaml` are the configs of `models/base` and `models/reader`.

use agentgym_jobs::config::ResolvedConfig;
use agentgym_jobs::plan::Plan;
use agentgym_submit::plan::view::PlanView;
use agentgym_tests::files::files_below;
use agentgym_tests::program::{finish, program};
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn configs() -> Vec<PathBuf> {
    let mut found = files_below(&Path::new(ROOT).join("configs"));
    found.retain(|path| path.extension().is_some_and(|e| e == "yaml"));
    found
}

#[test]
fn every_config_is_planned() {
    agentgym_games::provide();
    let configs = configs();
    assert!(!configs.is_empty(), "configs/ holds no config");
    // A script makes the file that it names.
    let questions = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        &questions,
        "{\"prompt\": \"p\", \"answer\": 1}\n".repeat(4000),
    )
    .unwrap();
    let questions = format!(
        "data.tasks=[{{file: '{}', env: questions, grade: number, ids: 0..3800}}]",
        questions.path().display()
    );
    for path in configs {
        let name = path.display().to_string();
        let of_file = match path.ends_with("dataset.yaml") {
            true => vec![questions.clone()],
            false => vec![],
        };
        let config =
            ResolvedConfig::read(&path, &of_file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            config.unused.is_empty(),
            "{name}: keys without a meaning: {:?}",
            config.unused
        );
        let plan = Plan::new(config, Path::new(ROOT)).unwrap_or_else(|e| panic!("{name}: {e}"));
        // docs/algorithms.md promises it.
        assert!(
            plan.config.actor_rollout_ref.actor.entropy_coeff >= 0.0,
            "{name}: minimises the entropy, whatever the rewards"
        );
        let stored = Plan::from_bytes(&plan.to_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(
            stored.identity, plan.identity,
            "{name}: storing changes the identity"
        );
        let screen = PlanView::new(&plan, "store", None, &[]).render();
        let lines = screen.lines().count();
        assert!(
            (7..=24).contains(&lines),
            "{name}: {lines} lines are not one screen:\n{screen}"
        );
    }
}

/// Training a base again takes a quarter of an hour and more, but creating its starting point does
/// not, and that shows every change of the words, the worlds or the template.
fn has_the_tokenizer_that_its_config_makes(base: &str) {
    let folder = tempfile::TempDir::new().unwrap();
    let config = format!("configs/{base}.yaml");
    let mut command = program("agentgym-submit");
    command
        .args([&config, "run.id=base", "sft.steps=1"])
        .args(["jobs.sft_part_steps=1", "evaluation.sets=[]"])
        .arg(format!("storage.url={}", folder.path().display()));
    let output = finish(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let files = files_below(folder.path());
    let shipped = Path::new(ROOT).join("models").join(base);
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ] {
        let shipped = std::fs::read(shipped.join(name)).unwrap();
        let made = files.iter().find(|path| path.ends_with(name));
        let made = made.unwrap_or_else(|| panic!("no {name} was made"));
        assert!(
            std::fs::read(made).unwrap() == shipped,
            "models/{base}/{name} is not what {config} makes; train the base again \
             with `agentgym-submit {config}` and copy its policy"
        );
    }
}

#[test]
fn the_base_model_has_the_tokenizer_that_its_config_makes() {
    has_the_tokenizer_that_its_config_makes("base");
}

#[test]
fn so_has_the_reader() {
    has_the_tokenizer_that_its_config_makes("reader");
}

/// `configs/reader.yaml` promises the reader's bytes from a program of the class that it names.
#[test]
fn the_reader_was_made_in_the_class_of_this_program() {
    let made = agentgym_worker::class_made_in(&Path::new(ROOT).join("models/reader"));
    let own = agentgym_model::Device::cpu().numeric_class().to_owned();
    assert_eq!(
        made,
        Some(own),
        "gradients have other last bits now: train it again with `agentgym-submit configs/reader.yaml`, \
         or say in the config's head that its bytes are of an older class"
    );
}
